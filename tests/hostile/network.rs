//! Pods that attack the network of the node: policies, ports, names.

use serde_json::{Value, json};

use crate::harness::{Server, wait_for};
use crate::{BUSYBOX, Chapter, POD_LIMIT};

pub(crate) const CHAPTERS: &[Chapter] = &[("a pod cannot leave its network policies", a_pod_cannot_leave_its_network_policies)];

fn pod(ns: &str, name: &str, script: &str, more: &Value) -> Value {
    let mut pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": ns, "labels": { "app": name } },
        "spec": { "terminationGracePeriodSeconds": 0, "automountServiceAccountToken": false,
            "containers": [{ "name": "c", "image": BUSYBOX, "imagePullPolicy": "Never", "command": ["sh", "-c", script] }] } });
    pod["spec"].as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    pod
}

fn apply(server: &Server, items: &[Value]) {
    server.ok_with(&["apply", "-f", "-"], &json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string());
}

fn namespace(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } })
}

/// A running pod's address.
fn address(server: &Server, ns: &str, name: &str) -> String {
    server.ok(&["-n", ns, "wait", &format!("pod/{name}"), "--for=condition=Ready", "--timeout=90s"]);
    server.ok(&["-n", ns, "get", "pod", name, "-o", "jsonpath={.status.podIP}"])
}

const WEB: &str = "mkdir /www; echo page >/www/index.html; exec httpd -f -p 80 -h /www";

fn a_pod_cannot_leave_its_network_policies(server: &Server) {
    let deny = json!({ "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": { "name": "deny", "namespace": "walled" },
        "spec": { "podSelector": {}, "policyTypes": ["Ingress", "Egress"] } });
    apply(server, &[namespace("walled"), namespace("open"), deny, pod("open", "web", WEB, &json!({}))]);
    let web = address(server, "open", "web");
    let uid = server.ok(&["-n", "open", "get", "pod", "web", "-o", "jsonpath={.metadata.uid}"]);
    // It is killed by its deadline and goes on for a while.
    let late = format!(
        "trap '' TERM; n=0; while [ $n -lt 10 ]; do timeout 1 wget -qO- http://{web}/ && echo OUT || echo shut; n=$((n+1)); done; sleep 60"
    );
    let late = pod("walled", "late", &late, &json!({ "activeDeadlineSeconds": 4, "terminationGracePeriodSeconds": 40 }));
    apply(server, &[pod("walled", "p", "sleep 9999", &json!({})), pod("open", "friend", "sleep 9999", &json!({})), late]);
    address(server, "walled", "p");
    address(server, "open", "friend");
    let ask = |ns: &str, name: &str| {
        let script = format!("for i in 1 2 3; do timeout 1 wget -qO- http://{web}/ && break; done");
        server.said(&["-n", ns, "exec", name, "--", "sh", "-c", &script]).out
    };
    assert_eq!(ask("open", "friend"), "page\n", "nothing keeps this one");
    assert_eq!(ask("walled", "p"), "");
    // Nobody's uid, then the one of a pod that no policy isolates.
    for hash in ["x", &uid] {
        server.ok(&["-n", "walled", "annotate", "--overwrite", "pod", "p", &format!("kubernetes.io/config.hash={hash}")]);
        server.ok(&["-n", "walled", "label", "--overwrite", "pod", "p", &format!("told={}", hash.len())]);
        assert_eq!(ask("walled", "p"), "", "config.hash={hash}");
        assert_eq!(ask("open", "friend"), "page\n");
    }
    let told = wait_for("ten tries of a pod past its deadline", POD_LIMIT, || {
        let told = server.said(&["-n", "walled", "logs", "late"]).out;
        if told.lines().count() >= 10 { Ok(told) } else { Err(told) }
    });
    assert!(!told.contains("OUT"), "{told}");
    server.ok(&["delete", "namespace", "walled", "open", "--wait=false"]);
}
