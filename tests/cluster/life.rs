//! Events of a node's life: it is drained, and its agent is started again under running pods.

use std::process::Child;

use serde_json::json;

use crate::agents::{Cluster, NODES_LIMIT, PODS_LIMIT};
use crate::hosts::{pid_of, run as run_command, wait_for};

/// A budget holds a drain up until another pod has taken over.
pub(crate) fn drained(cluster: &Cluster) {
    let prefer = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100,
        "preference": { "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In",
            "values": ["a"] }] } }] } });
    let labels = json!({ "app": "guarded" });
    let spec = json!({ "affinity": prefer, "terminationGracePeriodSeconds": 0,
        "containers": [{ "name": "c", "image": "kedge.local/busybox:1", "imagePullPolicy": "Never",
            "command": ["sleep", "1000"] }] });
    let deployment = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "guarded" },
        "spec": { "replicas": 1, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": spec } } });
    let budget = json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": { "name": "guarded" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": labels } } });
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": [deployment, budget] }));
    let ready = |n: &str| {
        wait_for("guarded pods", PODS_LIMIT, || {
            let said = cluster.kubectl(&["get", "deployment", "guarded", "-o", "jsonpath={.status.readyReplicas}"]);
            if said.text == n { Ok(()) } else { Err(said.text) }
        });
    };
    let nodes =
        || cluster.kubectl(&["get", "pods", "-l", "app=guarded", "-o", "jsonpath={.items[*].spec.nodeName}"]).text;
    ready("1");
    assert_eq!(nodes(), "a");
    wait_for("the budget's count", PODS_LIMIT, || {
        let said = cluster.kubectl(&["get", "pdb", "guarded", "-o", "jsonpath={.status.currentHealthy}"]);
        if said.text == "1" { Ok(()) } else { Err(said.text) }
    });
    let drain =
        |secs: &str| cluster.kubectl(&["drain", "a", "--pod-selector=app=guarded", &format!("--timeout={secs}s")]);
    wait_for("a drain that is held up", PODS_LIMIT, || {
        let said = drain("8");
        assert!(!said.ok, "the budget did not hold: {}", said.text);
        if said.text.contains("Cannot evict pod as it would violate the pod's disruption budget") {
            Ok(())
        } else {
            Err(said.text)
        }
    });
    assert_eq!(nodes(), "a", "the budget did not hold");
    assert!(cluster.kubectl(&["scale", "deployment", "guarded", "--replicas=2"]).ok);
    ready("2");
    wait_for("the drain", PODS_LIMIT, || {
        let said = drain("15");
        if said.ok { Ok(()) } else { Err(said.text) }
    });
    ready("2");
    wait_for("no pod on the drained node", PODS_LIMIT, || {
        let now = nodes();
        if now.split(' ').all(|node| node != "a") { Ok(()) } else { Err(now) }
    });
    assert!(cluster.kubectl(&["uncordon", "a"]).ok);
    assert!(cluster.kubectl(&["delete", "deployment/guarded", "pdb/guarded"]).ok);
    println!("a drain waits for a budget");
}

/// The agent ends in good order and comes back: its pods never notice, and nothing is forgotten.
pub(crate) fn started_again(cluster: &Cluster, role: Child, join: &[&str]) -> Child {
    let look = || {
        cluster
            .kubectl(&["get", "pod", "b", "-o", "jsonpath={.status.containerStatuses[*].containerID} {.status.podIP}"])
            .text
    };
    let before = look();
    let mut role = role;
    assert!(run_command(std::process::Command::new("kill").arg(pid_of(&role))).ok);
    assert!(role.wait().unwrap().success(), "{}", cluster.agents[1].log("log"));
    let role = cluster.agents[1].start("agent", join, "second");
    wait_for("exec after the agent's start", NODES_LIMIT, || match cluster.exec("b") {
        Ok(name) if name == "b" => Ok(()),
        other => Err(format!("{other:?}\n{}", cluster.agents[1].log("second"))),
    });
    assert_eq!(look(), before, "the pod was started again");
    println!("an agent's restart is nothing to its pods");
    role
}
