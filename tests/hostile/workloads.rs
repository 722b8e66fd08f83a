//! Workloads whose objects make the controllers or the scheduler do harm: what upstream's would do is done here, and
//! what they would not is not. Nodes here are objects without a kubelet.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;

use crate::harness::{Place, SETTLE_LIMIT, Server};

/// A node object that says that it is ready, has room, and runs nothing.
fn add_node(server: &Server, name: &str) {
    let node =
        format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{kubernetes.io/hostname: {name}}}}}\n");
    server.ok_with(&["create", "-f", "-"], &node);
    let ready = r#"{"status": {"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "100"},
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}]}}"#;
    server.ok(&["patch", "node", name, "--subresource=status", "--type=merge", "-p", ready]);
}

const TAINTS: &[&str] =
    &["get", "nodes", "-o", "jsonpath={range .items[*]}{.spec.taints[*].key}/{.spec.taints[*].effect}{'\\n'}{end}"];

/// Semantics H1, H2 and M1.
#[test]
fn a_cluster_in_which_no_node_answers_keeps_its_pods_and_a_dead_machine_gives_its_pods_up() {
    let flags = ["--disable=coredns", "--kube-controller-manager-arg=node-monitor-grace-period=3s"];
    let server = Server::start_in(Place::new(&flags));
    let ghosts = ["ghost1", "ghost2", "ghost3", "ghost4"];
    ghosts.iter().for_each(|ghost| add_node(&server, ghost));
    // All have fallen silent: nothing may be scheduled there, and nothing is driven away.
    let all_unreachable =
        |out: &str| out.lines().filter(|line| line.contains("node.kubernetes.io/unreachable")).count() == 4;
    server.until(TAINTS, SETTLE_LIMIT, all_unreachable);
    // The controller has made up its mind twice when what is taken away is there again.
    server.ok(&["taint", "nodes", "--all", "node.kubernetes.io/unreachable:NoSchedule-"]);
    server.until(TAINTS, SETTLE_LIMIT, all_unreachable);
    assert!(!server.ok(TAINTS).contains("NoExecute"), "{}", server.ok(TAINTS));
    let pods = |name: &str, tolerations: &str| {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  nodeName: ghost1\n  \
             containers: [{{name: c, image: i}}]\n  tolerations: {tolerations}\n"
        )
    };
    server.ok_with(&["create", "-f", "-"], &pods("stuck", "[{operator: Exists}]"));
    server.ok_with(&["create", "-f", "-"], &pods("frail", "[]"));
    // A finalizer keeps it to be looked at.
    server.ok(&["patch", "pod", "frail", "--type=merge", "-p", r#"{"metadata": {"finalizers": ["kedge.test/keep"]}}"#]);
    server.ok(&["delete", "pod", "stuck", "--wait=false"]);
    server.ok(&["taint", "node", "ghost1", "node.kubernetes.io/out-of-service=x:NoExecute"]);
    server.until(&["get", "pods", "stuck", "--ignore-not-found", "-o", "name"], SETTLE_LIMIT, str::is_empty);
    let told = ["get", "pod", "frail", "-o", "jsonpath={.status.conditions[?(@.type=='DisruptionTarget')].reason}"];
    server.until(&told, SETTLE_LIMIT, |out| out == "DeletionByTaintManager");
    server.ok(&["patch", "pod", "frail", "--type=merge", "-p", r#"{"metadata": {"finalizers": null}}"#]);
    server.stop();
}

fn claim(name: &str, size: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec:\n  storageClassName: local\n  \
         accessModes: [ReadWriteOnce]\n  resources: {{requests: {{storage: {size}}}}}\n---\n"
    )
}

fn volume(name: &str, size: &str, node: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  storageClassName: local\n  \
         accessModes: [ReadWriteOnce]\n  capacity: {{storage: {size}}}\n  local: {{path: /x}}\n  \
         nodeAffinity: {{required: {{nodeSelectorTerms: [{{matchExpressions: [{{key: kubernetes.io/hostname, \
         operator: In, values: [{node}]}}]}}]}}}}\n---\n"
    )
}

fn using(name: &str, claims: &[&str]) -> String {
    let volumes: Vec<String> = claims
        .iter()
        .map(|claim| format!("{{name: {claim}, persistentVolumeClaim: {{claimName: {claim}}}}}"))
        .collect();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\n\
         spec: {{containers: [{{name: c, image: i}}], volumes: [{}]}}\n---\n",
        volumes.join(", ")
    )
}

/// Semantics H7, and devices that nobody gives (DRA).
#[test]
fn pods_wait_for_volumes_that_fit_and_for_devices_that_nobody_gives() {
    let flags = ["--disable=coredns", "--kube-controller-manager-arg=node-monitor-grace-period=1h"];
    let server = Server::start_in(Place::new(&flags));
    ["n1", "n2"].iter().for_each(|node| add_node(&server, node));
    server.until(&["get", "serviceaccount", "default", "-o", "name"], SETTLE_LIMIT, |out| !out.is_empty());
    let gpu = "apiVersion: v1\nkind: Pod\nmetadata: {name: gpu}\nspec:\n  \
        resourceClaims: [{name: gpu, resourceClaimName: mine}]\n  \
        containers: [{name: c, image: i, resources: {claims: [{name: gpu}]}}]\n";
    server.ok_with(&["create", "-f", "-"], gpu);
    let message = |pod: &'static str| {
        ["get", "pod", pod, "-o", "jsonpath={.spec.nodeName}/{.status.conditions[?(@.type=='PodScheduled')].message}"]
    };
    server.until(&message("gpu"), SETTLE_LIMIT, |out| {
        out == "/0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: 0/2 nodes \
            are available: 2 Preemption is not helpful for scheduling."
    });
    let class = "apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: local}\n\
        provisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n---\n";
    let volumes = [volume("small", "1Gi", "n1"), volume("big", "10Gi", "n2")].concat();
    server.ok_with(
        &["create", "-f", "-"],
        &[class, &volumes, &claim("wants5", "5Gi"), &claim("wants50", "50Gi")].concat(),
    );
    server.ok_with(&["create", "-f", "-"], &[using("fits", &["wants5"]), using("waits", &["wants50"])].concat());
    server.until(&["get", "pod", "fits", "-o", "jsonpath={.spec.nodeName}"], SETTLE_LIMIT, |out| out == "n2");
    assert_eq!(server.ok(&["get", "pvc", "wants5", "-o", "jsonpath={.spec.volumeName}"]), "big");
    server.until(&message("waits"), SETTLE_LIMIT, |out| {
        out.contains("2 node(s) didn't find available persistent volumes to bind")
    });
    // Two that want the only volume that is left: one gets it, the other is told that there is none.
    server.ok_with(&["create", "-f", "-"], &[claim("one", "1Gi"), claim("two", "1Gi")].concat());
    server.ok_with(&["create", "-f", "-"], &[using("first", &["one"]), using("second", &["two"])].concat());
    server.until(
        &["get", "pods", "first", "second", "-o", "jsonpath={.items[*].spec.nodeName}"],
        SETTLE_LIMIT,
        |out| out == "n1",
    );
    let chosen = "jsonpath={range .items[*]}{.metadata.annotations.volume\\.kubernetes\\.io/selected-node}{end}";
    assert_eq!(server.ok(&["get", "pvc", "-o", chosen]), "", "nobody makes volumes of this class");
    server.stop();
}

/// Semantics H3, H9, M4, M12, and jobs that are changed while they are suspended.
#[test]
fn controllers_lose_no_pod_and_hold_none_back() {
    let server = Server::start();
    server.ok(&["create", "job", "left", "--image=a:1"]);
    let left = ["get", "pods", "-l", "job-name=left", "-o", "jsonpath={.items[*].metadata.finalizers}"];
    server.until(&left, SETTLE_LIMIT, |out| out.contains("batch.kubernetes.io/job-tracking"));
    server.ok(&["delete", "job", "left", "--cascade=orphan"]);
    server.until(&left, SETTLE_LIMIT, str::is_empty);
    assert_eq!(
        server.ok(&["get", "pods", "-l", "job-name=left", "-o", "name"]).lines().count(),
        1,
        "an orphan lives on"
    );

    server.ok_with(&["create", "-f", "-"], SUSPENDED);
    server.until(&["get", "job", "later", "-o", "jsonpath={.status.conditions[*].type}"], SETTLE_LIMIT, |out| {
        out == "Suspended"
    });
    let more =
        r#"[{"op": "replace", "path": "/spec/template/spec/containers/0/resources/requests/cpu", "value": "200m"}]"#;
    server.ok(&["patch", "job", "later", "--type=json", "-p", more]);
    let image = r#"[{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "b:1"}]"#;
    assert!(server.refused(&["patch", "job", "later", "--type=json", "-p", image]).contains("spec.template.spec"));
    server.ok(&["patch", "job", "later", "--type=merge", "-p", r#"{"spec": {"suspend": false}}"#]);
    let asked = "jsonpath={.items[*].spec.containers[*].resources.requests.cpu}";
    server.until(&["get", "pods", "-l", "job-name=later", "-o", asked], SETTLE_LIMIT, |out| out == "200m");

    let budget = "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: silent}\n\
        spec: {selector: {matchLabels: {job-name: later}}}\n";
    server.ok_with(&["create", "-f", "-"], budget);
    let counts = "jsonpath={.status.observedGeneration}/{.status.expectedPods}/{.status.disruptionsAllowed}";
    server.until(&["get", "pdb", "silent", "-o", counts], SETTLE_LIMIT, |out| out == "1/0/0");

    server.ok(&["create", "deployment", "web", "--image=web:1"]);
    server.ok(&["patch", "deployment", "web", "-p", r#"{"spec": {"minReadySeconds": 30}}"#]);
    server.until(
        &["get", "rs", "-l", "app=web", "-o", "jsonpath={.items[*].spec.minReadySeconds}"],
        SETTLE_LIMIT,
        |out| out == "30",
    );

    // More sets than an informer of before had room for changes.
    server.ok(&["create", "namespace", "many"]);
    let mut sets = String::new();
    for n in 0..200 {
        write!(
            sets,
            "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: r{n}, namespace: many}}\nspec:\n  \
             selector: {{matchLabels: {{set: r{n}}}}}\n  \
             template: {{metadata: {{labels: {{set: r{n}}}}}, spec: {{containers: [{{name: c, image: i}}]}}}}\n---\n"
        )
        .unwrap();
    }
    server.ok_with(&["create", "-f", "-"], &sets);
    let pods = ["get", "pods", "-n", "many", "-o", "name"];
    server.until(&pods, SETTLE_LIMIT, |out| out.lines().count() == 200);
    server.ok(&["delete", "--raw", "/api/v1/namespaces/many/pods"]);
    server.until(&pods, SETTLE_LIMIT, |out| out.lines().count() == 200);
    server.stop();
}

const SUSPENDED: &str = "apiVersion: batch/v1
kind: Job
metadata: {name: later}
spec:
  suspend: true
  template:
    spec:
      restartPolicy: Never
      containers: [{name: c, image: 'a:1', resources: {requests: {cpu: 100m}}}]
";

/// Upstream's e2e "should support building a client with a CSR" (1.36.2, test/e2e/auth/certificates.go).
#[test]
fn a_client_that_is_built_with_a_request_is_who_it_says_and_not_for_longer() {
    let server = Server::start();
    let spec = pki::leaf::LeafSpec {
        common_name: "tester-csr".to_owned(),
        organizations: Vec::new(),
        sans: std::collections::BTreeSet::new(),
        usage: pki::leaf::Usage::Client,
    };
    let (key, der) = pki::csr::create(&spec).unwrap();
    let request = format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{}-----END CERTIFICATE REQUEST-----\n",
        lines_of(&STANDARD.encode(der))
    );
    let object = format!(
        "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: tester}}\nspec:\n  \
         request: {}\n  usages: [digital signature, key encipherment, client auth]\n  \
         signerName: kubernetes.io/kube-apiserver-client\n  expirationSeconds: 3600\n",
        STANDARD.encode(request)
    );
    server.ok_with(&["create", "-f", "-"], &object);
    server.ok(&["certificate", "approve", "tester"]);
    let signed = server
        .until(&["get", "csr", "tester", "-o", "jsonpath={.status.certificate}"], SETTLE_LIMIT, |out| !out.is_empty());
    let pem = String::from_utf8(STANDARD.decode(signed).unwrap()).unwrap();
    assert_eq!(pem.matches("BEGIN CERTIFICATE").count(), 1, "{pem}");
    let leaf = pki::identity::parse(&pki::pem::certificates(pem.as_bytes()).unwrap()[0]).unwrap();
    let life = leaf.not_after.duration_since(leaf.not_before);
    assert!(life.as_secs() <= 3600 + 300, "{life}");
    let authority =
        server.ok(&["config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.certificate-authority-data}"]);
    let file = |name: &str, text: &[u8]| {
        let path = server.place.path(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (cert, key) = (file("tester.crt", pem.as_bytes()), file("tester.key", key.as_bytes()));
    let authority = file("ca.crt", &STANDARD.decode(authority).unwrap());
    let flags = [
        "--kubeconfig=/dev/null".to_owned(),
        format!("--server=https://127.0.0.1:{}", server.place.port),
        format!("--certificate-authority={authority}"),
        format!("--client-certificate={cert}"),
        format!("--client-key={key}"),
    ];
    let mut who: Vec<&str> = vec!["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];
    who.extend(flags.iter().map(String::as_str));
    assert_eq!(server.ok(&who), "tester-csr");
    server.stop();
}

/// Base64 as PEM has it.
fn lines_of(text: &str) -> String {
    text.as_bytes().chunks(64).map(|line| format!("{}\n", String::from_utf8_lossy(line))).collect()
}
