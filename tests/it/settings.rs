//! Settings of operators: upstream's flags, audit, encryption at rest.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use serde_json::Value;

use crate::harness::{Place, SETTLE_LIMIT, Server, run_with};

fn place_with(args: &[(&str, &str)], files: &[(&str, &str)]) -> Place {
    let mut place = Place::new(&["--disable=coredns"]);
    for (name, content) in files {
        fs::write(place.path(name), content).unwrap();
    }
    for (name, value) in args {
        let value = value.replace("DIR", &place.dir.path().display().to_string());
        place.flags.push(format!("--kube-apiserver-arg={name}={value}"));
    }
    place
}

#[test]
fn a_flag_that_means_nothing_here_is_refused_by_its_name() {
    let said = place_with(&[("etcd-servers", "http://x")], &[]).refused();
    assert!(said.err.contains("--kube-apiserver-arg=etcd-servers: the store is kedge's own"), "{said:?}");
    let said = place_with(&[("no-such-flag", "1")], &[]).refused();
    assert!(said.err.contains("--kube-apiserver-arg=no-such-flag: unknown flag"), "{said:?}");
    let said = place_with(&[("token-auth-file", "/no/such/file")], &[]).refused();
    assert!(said.err.contains("token-auth-file") && said.err.contains("/no/such/file"), "{said:?}");
}

#[test]
fn a_servers_own_flags_do_what_they_do_in_k3s() {
    let log = "kedge.log";
    let mut place = Place::new(&[
        "--disable=coredns",
        "--disable-scheduler",
        "--disable-cloud-controller",
        "--disable-helm-controller",
        "--cluster-init",
        "--etcd-snapshot-compress",
        "--supervisor-metrics",
        "--secrets-encryption",
        "--secrets-encryption-provider=aescbc",
        "--write-kubeconfig-mode=0640",
        "--write-kubeconfig-group=1",
        "--advertise-port=7443",
        "--alsologtostderr",
        "-v=2",
    ]);
    place.flags.push(format!("--log={}", place.path(log).display()));
    let server = Server::start_in(place);
    let kubeconfig = fs::metadata(server.place.kubeconfig()).unwrap();
    assert_eq!((kubeconfig.gid(), kubeconfig.mode() & 0o777), (1, 0o640));
    assert!(fs::read_to_string(server.place.path(log)).unwrap().contains("API server is up"));

    let port = |out: &str| out == "7443";
    server.until(&["get", "endpoints", "kubernetes", "-o", "jsonpath={.subsets[0].ports[0].port}"], SETTLE_LIMIT, port);
    server.ok(&["create", "secret", "generic", "sealed", "--from-literal=a=b"]);
    assert!(on_disk(&server.place, "k8s:enc:aescbc:v1:"));

    // The controllers run, the scheduler does not: with one, a pod that fits nowhere would be told so.
    server.ok(&["create", "deployment", "waits", "--image=x"]);
    server.until(&["get", "pods", "-o", "jsonpath={.items[*].status.phase}"], SETTLE_LIMIT, |out| out == "Pending");
    server.ok(&["create", "configmap", "later"]);
    assert_eq!(server.ok(&["get", "pods", "-o", "jsonpath={.items[*].status.conditions}"]), "");

    // One page has the metrics of all parts of a server.
    let page = server.ok(&["get", "--raw", "/metrics"]);
    for name in [
        "kedge_certificate_expiration_seconds{",
        "apiserver_request_total{",
        "workqueue_depth{",
        "rest_client_requests_total{",
    ] {
        assert!(page.contains(name), "no {name}");
    }
    // A Node that waits for a cloud is left to whoever brings one.
    let waits = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"cloud"},
        "spec":{"taints":[{"key":"node.cloudprovider.kubernetes.io/uninitialized","value":"true","effect":"NoSchedule"}]}}"#;
    server.ok_with(&["create", "-f", "-"], waits);
    server.until(&["get", "node", "cloud", "-o", "jsonpath={.spec.podCIDR}"], SETTLE_LIMIT, |out| !out.is_empty());
    let spec = server.ok(&["get", "node", "cloud", "-o", "jsonpath={.spec.taints[*].key} {.spec.providerID}"]);
    assert!(spec.contains("cloudprovider.kubernetes.io/uninitialized") && spec.ends_with(' '), "{spec}");

    // A snapshot of what repeats itself is small.
    let long = "a".repeat(500_000);
    server.ok_with(
        &["create", "-f", "-"],
        &format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: long}}\ndata: {{k: {long}}}\n"),
    );
    let mut save = Command::new(env!("CARGO_BIN_EXE_kedge"));
    let said = run_with(save.args(["snapshot", "save", "--data-dir"]).arg(server.place.data_dir()), "");
    assert_eq!(said.code, 0, "{said:?}");
    let saved = fs::read_dir(server.place.data_dir().join("server/db/snapshots")).unwrap().next().unwrap().unwrap();
    let bytes = fs::read(saved.path()).unwrap();
    assert!(bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) && bytes.len() < 400_000, "{} bytes", bytes.len());
    server.stop();
}

#[test]
fn static_tokens_and_abac_let_in_who_they_name() {
    // A line is a policy.
    let policy = concat!(
        r#"{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"bob","#,
        r#""namespace":"*","resource":"configmaps","apiGroup":"*","readonly":true}}"#
    );
    let args = [
        ("token-auth-file", "DIR/tokens"),
        ("authorization-mode", "Node,RBAC,ABAC"),
        ("authorization-policy-file", "DIR/policy"),
    ];
    let server = Server::start_in(place_with(&args, &[("tokens", "bobs-token,bob,7,\"dev\"\n"), ("policy", policy)]));
    let url = format!("https://127.0.0.1:{}", server.place.port);
    let as_bob = |args: &[&str]| {
        let base = ["--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--server", &url, "--token=bobs-token"];
        server.said(&[&base[..], args].concat())
    };
    server.until(&["get", "configmaps", "-o", "name"], SETTLE_LIMIT, |out| out == "configmap/kube-root-ca.crt\n");
    assert_eq!(as_bob(&["get", "configmaps", "-o", "name"]).out, "configmap/kube-root-ca.crt\n");
    let refused = as_bob(&["create", "configmap", "x"]);
    assert!(
        refused.err.contains("cannot create resource \"configmaps\"") && refused.err.contains("No policy matched."),
        "{refused:?}"
    );
    server.stop();
}

#[test]
fn the_audit_log_says_who_did_what() {
    let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n\
        - {level: RequestResponse, verbs: [create], resources: [{group: '', resources: [configmaps]}]}\n\
        - {level: None}\n";
    let server = Server::start_in(place_with(
        &[("audit-policy-file", "DIR/policy.yaml"), ("audit-log-path", "DIR/audit.log")],
        &[("policy.yaml", policy)],
    ));
    server.ok(&["create", "configmap", "seen", "--from-literal=a=b"]);
    server.ok(&["get", "configmaps"]);
    let log = fs::read_to_string(server.place.path("audit.log")).unwrap();
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let event = events
        .iter()
        .find(|e| e["objectRef"]["name"] == "seen" || e["requestObject"]["metadata"]["name"] == "seen")
        .unwrap();
    assert_eq!(event["user"]["username"], "system:admin");
    assert_eq!(event["stage"], "ResponseComplete");
    assert_eq!(event["responseStatus"]["code"], 201);
    assert_eq!(event["requestObject"]["data"]["a"], "b");
    assert_eq!(event["responseObject"]["kind"], "ConfigMap");
    assert_eq!(event["annotations"]["authorization.k8s.io/decision"], "allow");
    assert!(!events.iter().any(|e| e["verb"] == "list"));
    server.stop();
}

/// Whether the files of the store, its database or its log, hold these bytes.
pub(crate) fn on_disk(place: &Place, needle: &str) -> bool {
    let db = place.data_dir().join("server/db");
    let files = [db.join("log"), db].into_iter().flat_map(|dir| fs::read_dir(dir).unwrap());
    files
        .map(|f| f.unwrap().path())
        .filter(|p| p.is_file())
        .any(|p| fs::read(p).unwrap().windows(needle.len()).any(|w| w == needle.as_bytes()))
}

#[test]
fn secrets_are_sealed_on_the_disk_and_keys_are_rotated_while_the_server_runs() {
    let server = Server::start();
    server.ok(&["create", "secret", "generic", "s", "--from-literal=password=correct-horse"]);
    let in_base64 = "Y29ycmVjdC1ob3JzZQ";
    assert!(!on_disk(&server.place, in_base64));
    let file = server.place.data_dir().join("server/cred/encryption-config.json");
    use std::os::unix::fs::PermissionsExt as _;
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let before = fs::read_to_string(&file).unwrap();
    let encrypt = |what: &str| {
        let url = format!("https://127.0.0.1:{}", server.place.port);
        let data = server.place.data_dir();
        let output = Command::new(env!("CARGO_BIN_EXE_kedge"))
            .args(["secrets-encrypt", what, "--server", &url, "--data-dir"])
            .arg(data)
            .output()
            .unwrap();
        let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{text}");
        text
    };
    assert!(encrypt("status").contains("Encryption Status: Enabled"));
    assert!(encrypt("rotate-keys").contains("Objects written anew"));
    for (step, stage) in [("prepare", "prepare"), ("rotate", "rotate"), ("reencrypt", "reencrypt_finished")] {
        let text = encrypt(step);
        assert!(
            text.contains(&format!("Current Rotation Stage: {stage}\nServer Encryption Hashes: All hashes match")),
            "{text}"
        );
    }
    let after = fs::read_to_string(&file).unwrap();
    assert_ne!(before, after);
    assert!(!after.contains("\"secretboxkey\""), "the old key is gone");
    let place = server.stop();
    let server = Server::start_in(place);
    assert_eq!(server.ok(&["get", "secret", "s", "-o", "jsonpath={.data.password}"]).trim_end_matches('='), in_base64);
    server.stop();
}

#[test]
fn admission_plugins_that_are_off_by_default_do_their_work_when_they_are_enabled() {
    let limits = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n\
        limits: [{type: SourceAndObject, qps: 1, burst: 1}]\n";
    let config = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\n\
        plugins: [{name: EventRateLimit, path: limits.yaml}]\n";
    let enabled =
        "NodeRestriction,AlwaysPullImages,DenyServiceExternalIPs,EventRateLimit,OwnerReferencesPermissionEnforcement";
    let args = [("enable-admission-plugins", enabled), ("admission-control-config-file", "DIR/admission.yaml")];
    let mut server = Server::start_in(place_with(&args, &[("admission.yaml", config), ("limits.yaml", limits)]));
    // Our own parts write events, too.
    server.announce("cannot write an event");
    server.until(&["get", "serviceaccounts", "-o", "name"], SETTLE_LIMIT, |out| out.contains("serviceaccount/default"));
    server.ok(&["run", "p", "--image=a:1"]);
    assert_eq!(server.ok(&["get", "pod", "p", "-o", "jsonpath={.spec.containers[0].imagePullPolicy}"]), "Always");
    let service = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},
        "spec":{"ports":[{"port":80}],"externalIPs":["192.0.2.1"]}}"#;
    let said = server.refused_with(&["create", "-f", "-"], service);
    assert!(
        said.contains("services \"s\" is forbidden: Use of external IPs is denied by admission control."),
        "{said}"
    );
    let event = |n: usize| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Event","metadata":{{"name":"e{n}"}},"involvedObject":{{"namespace":"default"}},"reason":"r"}}"#
        )
    };
    // All in one run of kubectl, which asks faster than one a second.
    let many = (0..40).map(event).collect::<Vec<_>>().join("\n");
    let said = server.said_with(&["create", "-f", "-"], &many);
    assert!(said.err.contains("limit reached on type SourceAndObject for key default"), "{said:?}");
    assert!(said.out.contains("event/e0 created"), "{said:?}");
    server.stop();
}

#[test]
fn tokens_come_from_the_issuer_that_a_flag_names_and_live_as_long_as_another_says() {
    let args = [
        ("service-account-issuer", "https://issuer.example.com"),
        ("service-account-jwks-uri", "https://issuer.example.com/keys"),
        ("service-account-max-token-expiration", "2h"),
    ];
    let server = Server::start_in(place_with(&args, &[]));
    let document: Value =
        serde_json::from_str(&server.ok(&["get", "--raw", "/.well-known/openid-configuration"])).unwrap();
    assert_eq!(document["issuer"], "https://issuer.example.com");
    assert_eq!(document["jwks_uri"], "https://issuer.example.com/keys");
    server.until(&["get", "serviceaccounts", "-o", "name"], SETTLE_LIMIT, |out| out.contains("serviceaccount/default"));
    let said = server.said(&["create", "token", "default", "--duration=24h"]);
    assert!(said.err.contains("requested expiration of 86400 seconds shortened to 7200 seconds"), "{said:?}");
    let url = format!("https://127.0.0.1:{}", server.place.port);
    let token = said.out.trim();
    let who =
        ["--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--server", &url, "--token", token, "auth", "whoami"];
    assert!(server.ok(&who).contains("system:serviceaccount:default:default"));
    server.stop();
}

#[test]
fn whom_flow_control_refuses_is_told_by_which_objects_and_when_to_come_back() {
    let server = Server::start();
    let level = r#"{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"PriorityLevelConfiguration",
        "metadata":{"name":"none"},
        "spec":{"type":"Limited","limited":{"nominalConcurrencyShares":0,"borrowingLimitPercent":0,"limitResponse":{"type":"Reject"}}}}"#;
    let schema = r#"{"apiVersion":"flowcontrol.apiserver.k8s.io/v1","kind":"FlowSchema","metadata":{"name":"bobs"},
        "spec":{"matchingPrecedence":100,"priorityLevelConfiguration":{"name":"none"},"rules":[{"subjects":[{"kind":"User","user":{"name":"bob"}}],
        "resourceRules":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"],"clusterScope":true,"namespaces":["*"]}]}]}}"#;
    server.ok_with(&["create", "-f", "-"], level);
    server.ok_with(&["create", "-f", "-"], schema);
    let uid =
        |kind: &str, name: &str| server.ok(&["get", kind, name, "-o", "jsonpath={.metadata.uid}"]).to_ascii_lowercase();
    let said = server.said(&["--as=bob", "-v=8", "--request-timeout=20s", "get", "--raw", "/api/v1/namespaces"]);
    let log = said.err.to_ascii_lowercase();
    for part in [
        "429 too many requests".to_owned(),
        "retry-after: 1".to_owned(),
        format!("x-kubernetes-pf-flowschema-uid: {}", uid("flowschema", "bobs")),
        format!("x-kubernetes-pf-prioritylevel-uid: {}", uid("prioritylevelconfiguration", "none")),
    ] {
        assert!(log.contains(&part), "{part}\n{}", said.err);
    }
    server.ok(&["get", "--raw", "/api/v1/namespaces"]);
    server.stop();
}

// The kubelet's arguments of k3s's hardening guide, and a drop-in as its users have it.
#[test]
fn the_kubelets_arguments_of_the_cis_guides_start_a_server_and_a_bad_file_is_named() {
    let arguments = [
        "streaming-connection-idle-timeout=5m",
        "tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\
         TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        "make-iptables-util-chains=true",
        "pod-max-pids=4096",
        "seccomp-default=true",
        "anonymous-auth=false",
        "read-only-port=0",
        "event-qps=0",
        "rotate-certificates=true",
        "rotate-server-certificates=true",
        "feature-gates=RotateKubeletServerCertificate=true",
        "protect-kernel-defaults=true",
    ];
    let head = "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n";
    let place_with = |body: &str| {
        let mut place = Place::new(&["--disable=coredns"]);
        place.flags.extend(arguments.iter().map(|argument| format!("--kubelet-arg={argument}")));
        let drop_in = place.data_dir().join("agent/etc/kubelet.conf.d/50-site.conf");
        fs::create_dir_all(drop_in.parent().unwrap()).unwrap();
        fs::write(&drop_in, format!("{head}{body}")).unwrap();
        fs::write(place.path("main.yaml"), format!("{head}maxPods: 50\n")).unwrap();
        place.flags.push(format!("--kubelet-arg=config={}", place.path("main.yaml").display()));
        place
    };
    let said = place_with("maxPods: many\n").refused();
    assert!(said.err.contains("50-site.conf: maxPods: want a whole number"), "{said:?}");
    let said = place_with("authentication: {anonymous: {enabled: true}}\n").refused();
    assert!(said.err.contains("50-site.conf: authentication.anonymous.enabled: false only"), "{said:?}");
    let server = Server::start_in(place_with("maxPods: 60\nevictionHard: {memory.available: 5%}\n"));
    server.stop();
}
