//! Claims about the pods of a DaemonSet.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use model::pod::Pod;
use serde_json::{Value, json};

use super::plan::{self, Fresh};

fn set(pod_spec: Value) -> DaemonSet {
    let spec = json!({"selector": {}, "template": {"spec": pod_spec}});
    serde_json::from_value(json!({"metadata": {"name": "d", "namespace": "n", "uid": "u"}, "spec": spec})).unwrap()
}

/// The epoch, and no node on which a pod failed lately.
const NOW: plan::Times<'_> = (Timestamp::UNIX_EPOCH, &|_| None);

fn node(name: &str, taints: Value) -> Arc<Node> {
    Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"taints": taints}})).unwrap())
}

fn pod(name: &str, node: &str, hash: &str) -> Arc<Pod> {
    let ready = json!([{"type": "Ready", "status": "True"}]);
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {"controller-revision-hash": hash}},
            "spec": {"nodeName": node, "containers": []}, "status": {"phase": "Running", "conditions": ready},
        }))
        .unwrap(),
    )
}

#[test]
fn a_tainted_node_gets_no_pod_but_an_unready_one_does() {
    let nodes = [
        node("plain", json!([])),
        node("control", json!([{"key": "role", "effect": "NoSchedule"}])),
        node("fresh", json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}])),
    ];
    let plan = plan::plan(&set(json!({"containers": []})), &nodes, &[], "h", NOW);
    assert_eq!(plan.create, ["plain", "fresh"]);
    assert_eq!(plan.status.desired_number_scheduled, 2);
}

#[test]
fn an_update_renews_one_node_at_a_time() {
    let nodes = [node("a", json!([])), node("b", json!([]))];
    let spec = set(json!({"containers": []}));
    let both_old = plan::plan(&spec, &nodes, &[pod("1", "a", "old"), pod("2", "b", "old")], "new", NOW);
    assert_eq!(both_old.delete.len(), 1);
    let one_missing = plan::plan(&spec, &nodes, &[pod("2", "b", "old")], "new", NOW);
    assert_eq!((one_missing.create, one_missing.delete.len()), (vec!["a".to_owned()], 0));
}

#[test]
fn a_pod_is_bound_to_its_node_before_the_scheduler_sees_it() {
    let spec = set(json!({"containers": []}));
    let made = plan::pod(&spec, Fresh { node: "a", hash: "h" });
    let waiting: Pod = serde_json::from_value(serde_json::to_value(made).unwrap()).unwrap();
    let waiting = Arc::new(waiting);
    let plan = plan::plan(&spec, &[node("a", json!([]))], &[waiting], "h", NOW);
    assert!(plan.create.is_empty() && plan.delete.is_empty());
}

#[test]
fn with_a_surge_the_new_pod_starts_beside_the_old_one() {
    let nodes = [node("a", json!([])), node("b", json!([]))];
    let mut spec = set(json!({"containers": []}));
    let rolling = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    spec.spec.as_mut().unwrap().update_strategy = Some(serde_json::from_value(rolling).unwrap());
    let old = plan::plan(&spec, &nodes, &[pod("1", "a", "old"), pod("2", "b", "old")], "new", NOW);
    assert_eq!((old.create, old.delete.len()), (vec!["a".to_owned()], 0));
    let pods = [pod("1", "a", "old"), pod("2", "b", "old"), pod("3", "a", "new")];
    let served = plan::plan(&spec, &nodes, &pods, "new", NOW);
    let gone: Vec<_> = served.delete.iter().map(|(pod, _)| kube::ResourceExt::name_any(&**pod)).collect();
    assert_eq!((gone, served.create), (vec!["1".to_owned()], vec!["b".to_owned()]));
}

// Upstream's `podsShouldBeOnNode` (pkg/controller/daemon 1.36.2): "we need to have at least one non-deleted pod on the
// node".
#[test]
fn with_a_surge_nobody_waits_for_the_end_of_a_deleted_pod() {
    let nodes = [node("a", json!([]))];
    let mut going = (*pod("1", "a", "h")).clone();
    going.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
    let pods = [Arc::new(going)];
    let mut spec = set(json!({"containers": []}));
    assert!(plan::plan(&spec, &nodes, &pods, "h", NOW).create.is_empty());
    let rolling = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    spec.spec.as_mut().unwrap().update_strategy = Some(serde_json::from_value(rolling).unwrap());
    assert_eq!(plan::plan(&spec, &nodes, &pods, "h", NOW).create, ["a"]);
    let both = [pods[0].clone(), pod("2", "a", "h")];
    assert!(plan::plan(&spec, &nodes, &both, "h", NOW).create.is_empty());
}

// Semantics H11: what a kubelet refuses was made anew as fast as both sides could.
#[test]
fn a_failed_pod_waits_out_the_backoff_of_its_node_and_a_succeeded_one_does_not() {
    let ended = |name: &str, node: &str, phase: &str| {
        let mut ended = (*pod(name, node, "h")).clone();
        ended.status.as_mut().unwrap().phase = Some(phase.to_owned());
        Arc::new(ended)
    };
    let nodes = [node("a", json!([])), node("b", json!([])), node("c", json!([]))];
    let pods = [ended("1", "a", "Failed"), ended("2", "b", "Failed"), ended("3", "c", "Succeeded")];
    let waits = |node: &str| (node == "a").then(|| std::time::Duration::from_secs(8));
    let plan = plan::plan(&set(json!({"containers": []})), &nodes, &pods, "h", (Timestamp::UNIX_EPOCH, &waits));
    let gone: Vec<_> =
        plan.delete.iter().map(|(pod, why)| (kube::ResourceExt::name_any(&**pod), why.clone().unwrap())).collect();
    let text = "Found failed daemon pod n/2 on node b, will try to kill it".to_owned();
    assert_eq!(gone[0], ("2".to_owned(), plan::Ended::Failed { node: "b".to_owned(), text }));
    assert!(matches!(&gone[1..], [(name, plan::Ended::Succeeded { .. })] if name == "3"));
    assert_eq!((plan.create.len(), plan.look_again_secs), (0, Some(9)));
}
