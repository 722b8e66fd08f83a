//! Users, nodes and service accounts that ask for more than they may.
//!
//! One server for all of them, without a node. Whoever asks is impersonated by the admin: what follows authentication
//! is the same.

use std::panic::AssertUnwindSafe;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use pki::certstore::{CertStore, Pair};
use serde_json::{Value, json};

use crate::connections::{Caller, runtime};
use crate::harness::{SETTLE_LIMIT, Said, Server};
use crate::roles::{definitions, gathered, parameters, prefixes, roles};

const NODE: [&str; 2] = ["--as=system:node:n1", "--as-group=system:nodes"];
pub(crate) const BOB: [&str; 1] = ["--as=bob"];

pub(crate) fn with<'a>(who: &[&'a str], args: &[&'a str]) -> Vec<&'a str> {
    [who, args].concat()
}

/// The answer of kubectl when `who` sent `object` with `args`.
pub(crate) fn sends(server: &Server, who: &[&str], args: &[&str], object: &Value) -> Said {
    server.said_with(&with(who, &[args, &["-f", "-"]].concat()), &object.to_string())
}

pub(crate) fn refused(said: &Said, why: &str) {
    assert!(said.code != 0 && said.err.contains(why), "expected a refusal that says {why:?}: {said:?}");
}

/// Lets bob do `verbs` with `resources` in the namespace.
fn grant(server: &Server, namespace: &str, verbs: &str, resources: &str) {
    let name = format!("{verbs}-{resources}").replace([',', '/', '.', '*'], "-");
    let (verbs, resources) = (format!("--verb={verbs}"), format!("--resource={resources}"));
    server.ok(&["-n", namespace, "create", "role", &name, &verbs, &resources]);
    server.ok(&["-n", namespace, "create", "rolebinding", &name, "--user=bob", &format!("--role={name}")]);
}

fn pod(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "a"},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "x"}]}})
}

/// A request for a certificate, in PEM and base64.
fn request(common_name: &str, organization: &str) -> String {
    let spec = pki::leaf::LeafSpec {
        common_name: common_name.to_owned(),
        organizations: vec![organization.to_owned()],
        sans: Default::default(),
        usage: pki::leaf::Usage::Client,
    };
    let der = STANDARD.encode(pki::csr::create(&spec).unwrap().1);
    let lines: Vec<&str> = der.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    STANDARD.encode(format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n",
        lines.join("\n")
    ))
}

fn signing_request(name: &str, signer: &str, request: &str) -> Value {
    json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
        "spec": {"signerName": signer, "request": request, "usages": ["client auth", "digital signature"],
            "username": "system:node:n1", "groups": ["system:nodes"], "uid": "7", "extra": {"a": ["b"]}}})
}

#[test]
fn nobody_gets_more_than_they_may() {
    let server = Server::start();
    server.ok(&["create", "namespace", "a"]);
    server.until(&["-n", "a", "get", "serviceaccount", "default"], SETTLE_LIMIT, |_| true);
    // A check that fails does not hide the next ones. KEDGE_CHAPTER names the only ones to make, by a part of their
    // names.
    let only = std::env::var("KEDGE_CHAPTER").unwrap_or_default();
    let mut failed = Vec::new();
    for &(name, check) in CHECKS.iter().filter(|(name, _)| name.contains(&only)) {
        let began = Instant::now();
        if std::panic::catch_unwind(AssertUnwindSafe(|| check(&server))).is_err() {
            failed.push(name);
        }
        println!("-- {name}: {:.1} s", began.elapsed().as_secs_f32());
    }
    assert!(failed.is_empty(), "failed checks: {failed:?}");
    server.stop();
}

type Check = (&'static str, fn(&Server));

const CHECKS: &[Check] = &[
    ("a request for a certificate says who sent it", requestors),
    ("a bootstrap token makes nobody a node that is there", bootstrap),
    ("what creates needs the right to create", creations),
    ("impersonation is heard or refused", impersonation),
    ("a mirror pod is its kubelet's", mirrors),
    ("a node writes itself, and of itself what is its own", nodes),
    ("a node's word makes no name, no balancer's address and no dial", words),
    ("a watch of one object shows that object", watches),
    ("the network of a node sees no environment", network),
    ("a path is what was authorized", paths),
    ("a proxy leads to no machine of its own", proxies),
    ("a proxied stream carries no credential", streams),
    ("a subject that reads in two ways gets no certificate", subjects),
    ("a prefix of a path is no other verb's right", prefixes),
    ("a role of millions of rights is judged at once", roles),
    ("a label on a role is a change of the role", gathered),
    ("a definition takes no built-in name", definitions),
    ("a policy's author may read its parameters", parameters),
];

// issue 12: the client's word for who asks was kept.
fn requestors(server: &Server) {
    server.ok(&[
        "create",
        "clusterrole",
        "asks",
        "--verb=create,get,update,patch",
        "--resource=certificatesigningrequests",
    ]);
    server.ok(&["create", "clusterrolebinding", "asks", "--clusterrole=asks", "--user=bob"]);
    let theirs = signing_request(
        "theirs",
        "kubernetes.io/kube-apiserver-client-kubelet",
        &request("system:node:n1", "system:nodes"),
    );
    for args in [&["create"][..], &["apply", "--server-side", "--force-conflicts"]] {
        let said = sends(server, &BOB, args, &theirs);
        assert_eq!(said.code, 0, "{said:?}");
        let spec = server.ok(&[
            "get",
            "csr",
            "theirs",
            "-o",
            "jsonpath={.spec.username} {.spec.groups} {.spec.uid} {.spec.extra}",
        ]);
        assert_eq!(spec.trim(), r#"bob ["system:authenticated"]"#);
    }
    server.ok(&with(
        &BOB,
        &["patch", "csr", "theirs", "--type=merge", "-p", r#"{"spec":{"username":"system:node:n1"}}"#],
    ));
    assert!(server.ok(&["get", "csr", "theirs"]).contains(" bob "), "the requestor is printed");
    assert_eq!(server.ok(&["get", "csr", "theirs", "-o", "jsonpath={.spec.username}{.status.conditions}"]), "bob");
    server.ok(&["delete", "csr", "theirs"]);
    for (name, why) in
        [("system:kedge-supervisor", "common name of the system's own parts"), ("system:kedge-helm", "own parts")]
    {
        let own = signing_request("own", "kubernetes.io/kube-apiserver-client", &request(name, "dev"));
        refused(&sends(server, &BOB, &["create"], &own), why);
    }
}

// security.md H5.
fn bootstrap(server: &Server) {
    let token = [
        "--as=system:bootstrap:abcdef",
        "--as-group=system:bootstrappers:kedge:default-node-token",
        "--as-group=system:bootstrappers",
    ];
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "s1"}});
    assert_eq!(sends(server, &[], &["create"], &node).code, 0);
    let ask = |name: &str, node: &str| {
        let request = request(&format!("system:node:{node}"), "system:nodes");
        let said = sends(
            server,
            &token,
            &["create"],
            &signing_request(name, "kubernetes.io/kube-apiserver-client-kubelet", &request),
        );
        assert_eq!(said.code, 0, "{said:?}");
    };
    ask("taken", "s1");
    ask("free", "s2");
    // The second is approved, so the first, which came before, has been looked at.
    let approved = |name: &'static str| ["get", "csr", name, "-o", "jsonpath={.status.conditions[*].type}"];
    server.until(&approved("free"), SETTLE_LIMIT, |out| out == "Approved");
    assert_eq!(server.ok(&approved("taken")), "");
    server.ok(&["delete", "node/s1", "csr/taken", "csr/free"]);
}

// security.md H1.
fn creations(server: &Server) {
    grant(
        server,
        "a",
        "get,patch,update",
        "pods,leases.coordination.k8s.io,roles.rbac.authorization.k8s.io,configmaps",
    );
    let apply = &["apply", "--server-side"][..];
    refused(&sends(server, &BOB, apply, &pod("new")), "cannot create resource \"pods\"");
    let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "new", "namespace": "a"}, "spec": {}});
    let put = ["replace", "--raw", "/apis/coordination.k8s.io/v1/namespaces/a/leases/new"];
    refused(&sends(server, &BOB, &put, &lease), "cannot create resource \"leases\"");
    refused(&sends(server, &BOB, apply, &lease), "cannot create resource \"leases\"");
    grant(server, "a", "create", "leases.coordination.k8s.io");
    server.until(&with(&BOB, &["auth", "can-i", "create", "leases", "-n", "a"]), SETTLE_LIMIT, |out| out == "yes\n");
    assert_eq!(sends(server, &BOB, &put, &lease).code, 0);
    // A WebSocket opens with GET: to read `pods/exec` is not to run something there.
    grant(server, "a", "get", "pods/exec,pods/attach,pods/portforward");
    for sub in ["exec", "attach", "portforward"] {
        let said =
            server.said(&with(&BOB, &["get", "--raw", &format!("/api/v1/namespaces/a/pods/p/{sub}?command=id")]));
        refused(&said, &format!("cannot create resource \"pods/{sub}\""));
    }
    // An object that is there is changed as before.
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "there", "namespace": "a"},
        "data": {"k": "1"}});
    refused(&sends(server, &BOB, apply, &map), "cannot create resource \"configmaps\"");
    assert_eq!(sends(server, &[], &["create"], &map).code, 0);
    let said = sends(server, &BOB, &["apply", "--server-side", "--force-conflicts"], &map);
    assert_eq!(said.code, 0, "{said:?}");
}

// security.md H2.
fn impersonation(server: &Server) {
    let who = server.ok(&[
        "--as=jürgen",
        "--as-group=gäste",
        "auth",
        "whoami",
        "-o",
        "jsonpath={.status.userInfo.username} {.status.userInfo.groups}",
    ]);
    assert_eq!(who, r#"jürgen ["gäste","system:authenticated"]"#);
    refused(&server.said(&["--as=jürgen", "get", "secrets"]), "User \"jürgen\" cannot list resource \"secrets\"");
}

// security.md C2, L15, security-2.md F2, F3.
fn mirrors(server: &Server) {
    grant(server, "a", "create,get,patch,update", "pods,pods/status,pods/binding,pods/ephemeralcontainers");
    server.until(&with(&BOB, &["auth", "can-i", "create", "pods", "-n", "a"]), SETTLE_LIMIT, |out| out == "yes\n");
    let mut mirror = pod("m");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x"});
    mirror["spec"]["priority"] = json!(2_147_483_647);
    refused(&sends(server, &BOB, &["create"], &mirror), "must not be provided in pod spec");
    mirror["spec"].as_object_mut().unwrap().remove("priority");
    refused(&sends(server, &BOB, &["create"], &mirror), "may only be set by the kubelet of the pod's node");
    refused(&sends(server, &[], &["create"], &mirror), "may only be set by the kubelet of the pod's node");
    assert_eq!(sends(server, &BOB, &["create"], &pod("p")).code, 0);
    let add = r#"{"metadata":{"annotations":{"kubernetes.io/config.mirror":"x"}}}"#;
    refused(
        &server.said(&with(&BOB, &["-n", "a", "patch", "pod", "p", "--type=merge", "-p", add])),
        "may not add mirror pod annotation",
    );
    let hash = add.replace("mirror", "hash");
    refused(&server.said(&with(&BOB, &["-n", "a", "patch", "pod", "p", "--type=merge", "-p", &hash])), "may not add");
    for who in [&BOB[..], &[]] {
        let patch = ["-n", "a", "patch", "pod", "p", "--subresource=status", "--type=merge", "-p", add];
        refused(&server.said(&with(who, &patch)), "may not add mirror pod annotation");
    }
    let binding = json!({"apiVersion": "v1", "kind": "Binding", "target": {"kind": "Node", "name": "n1"},
        "metadata": {"name": "p", "namespace": "a", "annotations": {"kubernetes.io/config.mirror": "x"}}});
    let bind = ["create", "--raw", "/api/v1/namespaces/a/pods/p/binding"];
    refused(&sends(server, &BOB, &bind, &binding), "may not add mirror pod annotation");
    server.ok(&["-n", "a", "delete", "pod", "p", "--force", "--grace-period=0"]);
}

// security.md C2, M1, M3; security-2.md F7.
fn nodes(server: &Server) {
    let node = |spec: Value| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}, "spec": spec});
    refused(
        &sends(server, &NODE, &["create"], &node(json!({"podCIDR": "10.0.0.0/8", "podCIDRs": ["10.0.0.0/8"]}))),
        "not allowed to set its pod ranges",
    );
    assert_eq!(sends(server, &NODE, &["create"], &node(json!({}))).code, 0);
    let owner = r#"{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"gone","uid":"u"}]}}"#;
    refused(
        &server.said(&with(&NODE, &["patch", "node", "n1", "--type=merge", "-p", owner])),
        "not allowed to modify ownerReferences",
    );
    let uid = server.ok(&["get", "node", "n1", "-o", "jsonpath={.metadata.uid}"]);
    server.ok(&["-n", "a", "create", "secret", "generic", "target", "--from-literal=k=v"]);
    let mut mirror = pod("static");
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "x"});
    mirror["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid, "controller": true}]);
    mirror["spec"]["nodeName"] = json!("n1");
    for volume in [
        json!({"name": "v", "csi": {"driver": "d.x", "nodePublishSecretRef": {"name": "target"}}}),
        json!({"name": "v", "azureFile": {"secretName": "target", "shareName": "s"}}),
        json!({"name": "v", "secret": {"secretName": "target"}}),
    ] {
        let mut names = mirror.clone();
        names["spec"]["volumes"] = json!([volume]);
        refused(&sends(server, &NODE, &["create"], &names), "can not create pods that reference");
    }
    let said = sends(server, &NODE, &["create"], &mirror);
    assert_eq!(said.code, 0, "{said:?}");
    let mut dropped: Value =
        serde_json::from_str(&server.ok(&with(&NODE, &["-n", "a", "get", "pod", "static", "-o", "json"]))).unwrap();
    dropped["metadata"]["annotations"].as_object_mut().unwrap().remove("kubernetes.io/config.mirror");
    let put = ["replace", "--raw", "/api/v1/namespaces/a/pods/static/status"];
    refused(&sends(server, &NODE, &put, &dropped), "may not remove or update mirror pod annotation");
    refused(
        &server.said(&with(&NODE, &["-n", "a", "get", "secret", "target"])),
        "no relationship found between node 'n1' and this object",
    );
    server.ok(&with(&NODE, &["-n", "a", "delete", "pod", "static", "--force", "--grace-period=0", "--wait=false"]));
    // A pod of the node, and tokens of its account.
    let mut own = pod("own");
    own["spec"]["nodeName"] = json!("n1");
    own["spec"]["volumes"] =
        json!([{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "audience": "vault"}}]}}]);
    assert_eq!(sends(server, &[], &["create"], &own).code, 0);
    let uid = server.ok(&["-n", "a", "get", "pod", "own", "-o", "jsonpath={.metadata.uid}"]);
    let token = |audience: &str| {
        let bound = json!({"kind": "Pod", "apiVersion": "v1", "name": "own", "uid": uid});
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
            "spec": {"audiences": [audience], "boundObjectRef": bound}});
        sends(server, &NODE, &["create", "--raw", "/api/v1/namespaces/a/serviceaccounts/default/token"], &request)
    };
    assert_eq!(token("vault").code, 0);
    refused(&token("sts.amazonaws.com"), "not found in pod spec volume");
    server.ok(&["-n", "a", "delete", "pod", "own", "--force", "--grace-period=0"]);
    server.ok(&["delete", "node", "n1"]);
}

// security-3.md F2, F9, F16: others make names, rules and connections of what a node says of itself.
fn words(server: &Server) {
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    let status = |who: &[&str], name: &str, addresses: &[(&str, &str)]| {
        let all: Vec<Value> = addresses.iter().map(|(kind, text)| json!({"type": kind, "address": text})).collect();
        let port = json!({"kubeletEndpoint": {"Port": server.place.port}});
        let ready = json!([{"type": "Ready", "status": "True"}]);
        // A kubelet may write its status, and not read it as kubectl's patch does.
        let mut node: Value = serde_json::from_str(&server.ok(&["get", "node", name, "-o", "json"])).unwrap();
        node["status"] = json!({"addresses": all, "daemonEndpoints": port, "conditions": ready});
        node["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        sends(server, who, &["replace", "--raw", &format!("/api/v1/nodes/{name}/status")], &node)
    };
    assert_eq!(sends(server, &NODE, &["create"], &node("n1")).code, 0);
    for text in ["10.9.0.1 vault.prod.svc.cluster.local", "10.9.0.1\n10.9.0.2 github.com", "host.example.com"] {
        refused(&status(&NODE, "n1", &[("InternalIP", text)]), "which is none");
    }
    let many: Vec<String> = (1..=33).map(|n| format!("10.9.0.{n}")).collect();
    refused(
        &status(&NODE, "n1", &many.iter().map(|ip| ("InternalIP", ip.as_str())).collect::<Vec<_>>()),
        "more than 32 addresses",
    );
    // Names: what is there by another's hand is no better.
    server.ok(&["-n", "kube-system", "create", "configmap", "coredns", "--from-literal=Corefile=x"]);
    for name in ["host.example.com", "vault.prod.svc.cluster.local"] {
        assert_eq!(sends(server, &[], &["create"], &node(name)).code, 0);
        assert_eq!(status(&[], name, &[("InternalIP", "10.9.0.7"), ("InternalIP", "10.9.0.8 github.com")]).code, 0);
    }
    assert_eq!(status(&NODE, "n1", &[("InternalIP", "10.9.0.1"), ("ExternalIP", "10.43.0.10")]).code, 0);
    let hosts = ["-n", "kube-system", "get", "configmap", "coredns", "-o", "jsonpath={.data.NodeHosts}"];
    server.until(&hosts, SETTLE_LIMIT, |said| said == "10.9.0.7 host.example.com\n10.9.0.1 n1\n");
    // Balancers' addresses.
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "a"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}});
    assert_eq!(sends(server, &[], &["create"], &service).code, 0);
    let ingress = ["-n", "a", "get", "service", "web", "-o", "jsonpath={.status.loadBalancer.ingress[*].ip}"];
    server.until(&ingress, SETTLE_LIMIT, |said| said == "10.9.0.1 10.9.0.7");
    // The node's own ExternalIP is taken where it may be one.
    assert_eq!(status(&NODE, "n1", &[("InternalIP", "10.9.0.1"), ("ExternalIP", "203.0.113.9")]).code, 0);
    server.until(&ingress, SETTLE_LIMIT, |said| said == "10.9.0.7 203.0.113.9");
    // Dials.
    for (kind, text) in [("InternalIP", "127.0.0.1"), ("InternalIP", "169.254.169.254"), ("Hostname", "localhost")] {
        assert_eq!(status(&NODE, "n1", &[(kind, text)]).code, 0);
        let why = if kind == "Hostname" { "no preferred addresses found" } else { "address not allowed" };
        refused(&server.said(&["get", "--raw", "/api/v1/nodes/n1/proxy/healthz"]), why);
    }
    server.ok(&["-n", "a", "delete", "service", "web"]);
    server.ok(&["-n", "kube-system", "delete", "configmap", "coredns"]);
    server.ok(&["delete", "node", "n1", "host.example.com", "vault.prod.svc.cluster.local"]);
}

// security-2.md F4.
fn watches(server: &Server) {
    for name in ["mine", "theirs"] {
        server.ok(&["-n", "a", "create", "configmap", name]);
    }
    server.ok(&[
        "-n",
        "a",
        "create",
        "role",
        "watches",
        "--verb=watch",
        "--resource=configmaps",
        "--resource-name=mine",
    ]);
    server.ok(&["-n", "a", "create", "rolebinding", "watches", "--role=watches", "--user=eve"]);
    let watch = |query: &str| {
        server.said(&[
            "--as=eve",
            "get",
            "--raw",
            &format!("/api/v1/watch/namespaces/a/configmaps/mine?timeoutSeconds=2&resourceVersion=0{query}"),
        ])
    };
    for query in ["", "&fieldSelector=metadata.name%3Dmine"] {
        let said = watch(query);
        assert!(said.out.contains("\"mine\"") && !said.out.contains("\"theirs\""), "{said:?}");
    }
    for query in [
        "&fieldSelector=metadata.name!%3Dzzz",
        "&fieldSelector=metadata.name%3Dtheirs",
        "&fieldSelector=metadata.namespace%3Da",
    ] {
        refused(&watch(query), "fieldSelector metadata.name doesn't match requested name");
    }
}

// security.md M4.
fn network(server: &Server) {
    let network = ["--as=system:kube-proxy"];
    let mut hides = pod("hides");
    hides["metadata"]["annotations"] = json!({"example.com/note": "hunter2"});
    hides["metadata"]["labels"] = json!({"app": "hides"});
    hides["spec"]["containers"][0] = json!({"name": "c", "image": "x", "command": ["run", "hunter2"],
        "env": [{"name": "PASSWORD", "value": "hunter2"}], "ports": [{"name": "http", "containerPort": 80}]});
    assert_eq!(sends(server, &[], &["create"], &hides).code, 0);
    let all = "/api/v1/pods";
    let table = "/api/v1/namespaces/a/pods?includeObject=Object";
    let watch = "/api/v1/pods?watch=1&timeoutSeconds=2&resourceVersion=0";
    for path in [
        all,
        table,
        watch,
        "/api/v1/watch/pods?timeoutSeconds=2&resourceVersion=0",
        "/api/v1/namespaces/a/pods?limit=1",
    ] {
        let said = server.ok(&with(&network, &["get", "--raw", path]));
        assert!(said.contains("\"hides\"") && !said.contains("hunter2"), "{path}: {said}");
    }
    let said = server.ok(&with(&network, &["get", "pods", "-A", "-v=0"]));
    assert!(said.contains("hides"), "{said}");
    // What rules are made of is there.
    let list: Value = serde_json::from_str(&server.ok(&with(&network, &["get", "--raw", all]))).unwrap();
    let found = list["items"].as_array().unwrap().iter().find(|pod| pod["metadata"]["name"] == "hides").unwrap();
    assert_eq!(found["metadata"]["labels"]["app"], "hides");
    assert_eq!(found["spec"]["containers"][0]["ports"][0]["name"], "http");
    refused(&server.said(&with(&network, &["-n", "a", "get", "pod", "hides"])), "cannot get resource \"pods\"");
    refused(&server.said(&with(&network, &["-n", "a", "get", "secrets"])), "cannot list resource \"secrets\"");
    assert!(server.ok(&["-n", "a", "get", "pod", "hides", "-o", "json"]).contains("hunter2"));
    server.ok(&["-n", "a", "delete", "pod", "hides", "--force", "--grace-period=0"]);
}

fn admin_certificate(server: &Server) -> std::sync::Arc<CertStore> {
    let tls = server.place.data_dir().join("server/tls");
    let read = |name: &str| std::fs::read_to_string(tls.join(name)).unwrap();
    CertStore::new(Pair::from_pem(&read("client-admin.crt"), &read("client-admin.key")).unwrap())
}

// security-2.md F24, security.md L11.
fn paths(server: &Server) {
    server.ok(&["-n", "a", "create", "role", "slash", "--verb=get,create", "--resource=pods,services/proxy"]);
    server.ok(&["-n", "a", "create", "rolebinding", "slash", "--role=slash", "--user=eve"]);
    // kubectl decodes a path before it sends it, so these go by a client that does not.
    let admin = || Caller::to(server, server.place.port, [127, 0, 0, 1]).showing(admin_certificate(server));
    for path in ["pods/p%2Fstatus", "pods/p%2Flog", "pods/..%2Fsecrets", "pods/%2e%2e/secrets", "pods//p"] {
        let uri = format!("/api/v1/namespaces/a/{path}");
        let req = http::Request::builder()
            .uri(uri)
            .header("host", "s")
            .header("impersonate-user", "eve")
            .body(wire::body::empty())
            .unwrap();
        let answer = runtime().block_on(admin().ask(req));
        assert!(answer.contains("the path of the request is ambiguous"), "{path}: {answer}");
    }
    // What looks like a subresource in a name, or behind the proxy, is none: the service of that name is looked for.
    for name in ["https%3Aproxy%3A443", "proxy", "proxy:443"] {
        let said = server.said(&[
            "--as=eve",
            "get",
            "--raw",
            &format!("/api/v1/namespaces/a/services/{name}/proxy/name/proxy/x"),
        ]);
        refused(&said, "services \"proxy\" not found");
    }
}

// security.md M8.
fn proxies(server: &Server) {
    for (at, ip) in ["127.0.0.1", "169.254.169.254", "::1"].iter().enumerate() {
        let name = format!("p{at}");
        assert_eq!(sends(server, &[], &["create"], &pod(&name)).code, 0);
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}}).to_string();
        server.ok(&["-n", "a", "patch", "pod", &name, "--subresource=status", "--type=merge", "-p", &status]);
        let path = format!("/api/v1/namespaces/a/pods/{name}:{}/proxy/", server.place.port);
        refused(&server.said(&["get", "--raw", &path]), "address not allowed");
        server.ok(&["-n", "a", "delete", "pod", &name, "--force", "--grace-period=0"]);
    }
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n9"}});
    assert_eq!(sends(server, &[], &["create"], &node).code, 0);
    let address = r#"{"status":{"addresses":[{"type":"InternalIP","address":"127.0.0.1"}]}}"#;
    server.ok(&["patch", "node", "n9", "--subresource=status", "--type=merge", "-p", address]);
    refused(
        &server.said(&["get", "--raw", &format!("/api/v1/nodes/n9:{}/proxy/", server.place.port)]),
        "address not allowed",
    );
    server.ok(&["delete", "node", "n9"]);
}

/// This machine's address towards others; a documentation address (RFC 5737) is asked for, nothing is sent.
fn own_address() -> Option<std::net::IpAddr> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback() && !ip.is_unspecified())
}

// security.md M7.
fn streams(server: &Server) {
    let Some(address) = own_address() else { return println!("skipped: this machine has no address but loopback") };
    let backend = std::net::TcpListener::bind((address, 0)).unwrap();
    let port = backend.local_addr().unwrap().port();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ws", "namespace": "a"},
        "spec": {"ports": [{"port": 80}]}});
    assert_eq!(sends(server, &[], &["create"], &service).code, 0);
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "ports": [{"port": port}],
        "metadata": {"name": "ws", "namespace": "a", "labels": {"kubernetes.io/service-name": "ws"}},
        "endpoints": [{"addresses": [address.to_string()]}]});
    assert_eq!(sends(server, &[], &["create"], &slice).code, 0);
    let heard = std::thread::spawn(move || {
        use std::io::{Read as _, Write as _};
        let (mut stream, _) = backend.accept().unwrap();
        let (mut head, mut byte) = (Vec::new(), [0; 1]);
        while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() == 1 {
            head.push(byte[0]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").unwrap();
        String::from_utf8(head).unwrap()
    });
    let answer = runtime().block_on(async {
        let req = http::Request::builder()
            .uri("/api/v1/namespaces/a/services/ws/proxy/x")
            .header("host", "s")
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .header("sec-websocket-protocol", "base64url.bearer.authorization.k8s.io.aHVudGVyMg, chat")
            .header("cookie", "session=hunter2")
            .header("x-remote-user", "hunter2")
            .body(wire::body::empty())
            .unwrap();
        Caller::to(server, server.place.port, [127, 0, 0, 1]).showing(admin_certificate(server)).try_ask(req).await
    });
    assert!(answer.is_ok(), "{answer:?}");
    let head = heard.join().unwrap().to_ascii_lowercase();
    for word in ["hunter2", "ahvudgvymg", "authorization", "cookie"] {
        assert!(!head.contains(word), "{word} in {head}");
    }
    assert!(head.contains("sec-websocket-protocol: chat"), "{head}");
    server.ok(&["-n", "a", "delete", "service/ws", "endpointslice/ws"]);
}

// security.md M5: the raw subject is what is signed, so an attribute that a reader of UTF-8 passes over must not be in
// it.
fn subjects(server: &Server) {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    std::fs::write(
        path("cnf"),
        "[req]\nprompt = no\ndistinguished_name = dn\nstring_mask = MASK:0x800\n[dn]\nO = system:masters\nCN = eve\n",
    )
    .unwrap();
    let mut openssl = std::process::Command::new("openssl");
    openssl.args([
        "req",
        "-new",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-config",
        &path("cnf"),
    ]);
    openssl.args(["-keyout", &path("key"), "-out", &path("csr")]);
    let made = crate::harness::run_with(&mut openssl, "");
    assert_eq!(made.code, 0, "{made:?}");
    let request = STANDARD.encode(std::fs::read(path("csr")).unwrap());
    let object = json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": {"name": "bmp"},
        "spec": {"signerName": "kubernetes.io/kube-apiserver-client", "request": request, "usages": ["client auth"]}});
    refused(&sends(server, &[], &["create"], &object), "neither UTF8String nor PrintableString nor IA5String");
}
