//! Node by node, why none takes a pod, by the scheduler's own filters: cordon, taints, labels, affinity, room; and
//! readiness. Pure. Volumes, ports, spread and the wishes of other pods are in the scheduler's own message.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::typed::typed;
use k8s_openapi::api::core::v1::Node;
use model::pod::Pod;
use scheduler::filters::{self, Candidate, Shortfall};
use scheduler::snapshot::{NodeState, Snapshot};
use serde_json::Value;

/// Nodes that are told one by one.
const NODES_MAX: usize = 20;

/// An amount as people write it: `500m` of CPU, MiB of memory, pieces.
fn amount(resource: &str, count: i64) -> String {
    match resource {
        "cpu" => format!("{count}m"),
        "memory" | "ephemeral-storage" => format!("{}Mi", count / (1 << 20)),
        _ => count.to_string(),
    }
}

fn is_ready(node: &Node) -> bool {
    let mut conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn against(candidate: &Candidate<'_>, node: &NodeState) -> Vec<String> {
    let mut why = Vec::new();
    if !is_ready(&node.node) {
        why.push("not ready".to_owned());
    }
    if filters::is_cordoned_for(candidate, node) {
        why.push("cordoned".to_owned());
    }
    for taint in filters::untolerated(candidate, node) {
        why.push(format!("taint {}={}:{}", taint.key, taint.value.as_deref().unwrap_or_default(), taint.effect));
    }
    for (key, value) in filters::missing_labels(candidate, node) {
        why.push(format!("no label {key}={value}"));
    }
    if !filters::is_by_affinity(candidate, node) {
        why.push("not taken by the pod's node affinity".to_owned());
    }
    for Shortfall { resource, need, free } in filters::shortfalls(candidate, node) {
        let (need, free) = (amount(&resource, need), amount(&resource, free.max(0)));
        why.push(format!("wants {need} of {resource}, {free} is free"));
    }
    why
}

/// A line a node that speaks against the pod. An object that is not of its kind's shape says nothing here.
pub(super) fn lines(pod: &Value, nodes: &[Value], pods: &[Value]) -> Vec<String> {
    let Ok(pod) = typed::<Pod>(pod) else { return Vec::new() };
    let Some(candidate) = Candidate::of(&pod) else { return Vec::new() };
    let all: Vec<Arc<Node>> = nodes.iter().filter_map(|node| typed(node).ok()).map(Arc::new).collect();
    let running: Vec<Arc<Pod>> = pods.iter().filter_map(|pod| typed(pod).ok()).map(Arc::new).collect();
    let snapshot = Snapshot::build(&all, &running, &BTreeMap::new());
    let told = snapshot.nodes.values().filter_map(|node| {
        let why = against(&candidate, node);
        (!why.is_empty()).then(|| format!("node {}: {}", node.name(), why.join("; ")))
    });
    let mut lines: Vec<String> = told.collect();
    let more = lines.len().saturating_sub(NODES_MAX);
    lines.truncate(NODES_MAX);
    lines.extend((more > 0).then(|| format!("and {more} nodes more")));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_node_says_what_it_has_against_a_pod() {
        let node = |name: &str, spec: Value, cpu: &str| {
            json!({"metadata": {"name": name, "labels": {"disk": "ssd"}}, "spec": spec, "status": {
                "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": cpu, "memory": "1Gi",
                    "pods": "110"},
            }})
        };
        let taint = json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]});
        let nodes = [
            node("a", taint.clone(), "2"),
            node("b", json!({"unschedulable": true}), "2"),
            node("c", json!({}), "1"),
            node("d", json!({}), "8"),
        ];
        let runs = json!({"spec": {"nodeName": "c", "containers": [{"resources": {"requests": {"cpu": "800m"}}}]},
            "status": {"phase": "Running"}});
        let pod = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "500m"}}}],
            "nodeSelector": {"disk": "ssd"}}});
        assert_eq!(
            lines(&pod, &nodes, std::slice::from_ref(&runs)),
            ["node a: taint gpu=yes:NoSchedule", "node b: cordoned", "node c: wants 500m of cpu, 200m is free"]
        );
        let tolerant = json!({"spec": {"containers": [], "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "nodeSelector": {"disk": "hdd"}}});
        assert_eq!(lines(&tolerant, &nodes[..1], &[]), ["node a: no label disk=hdd"]);
    }

    #[test]
    fn a_pod_wants_all_that_the_scheduler_counts() {
        let node = json!({"metadata": {"name": "n"}, "status": {
            "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "2", "memory": "1Gi",
                "pods": "2"},
        }});
        let asks = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let mut sidecar = asks("1500m");
        sidecar["restartPolicy"] = json!("Always");
        let with_sidecar = json!({"initContainers": [sidecar], "containers": [asks("1")]});
        let with_overhead = json!({"containers": [asks("1900m")], "overhead": {"cpu": "200m"}});
        let as_a_whole = json!({"containers": [asks("1")], "resources": {"requests": {"cpu": "3"}}});
        let said = |spec: &Value, pods: &[Value]| lines(&json!({ "spec": spec }), std::slice::from_ref(&node), pods);
        assert_eq!(said(&with_sidecar, &[]), ["node n: wants 2500m of cpu, 2000m is free"]);
        assert_eq!(said(&with_overhead, &[]), ["node n: wants 2100m of cpu, 2000m is free"]);
        assert_eq!(said(&as_a_whole, &[]), ["node n: wants 3000m of cpu, 2000m is free"]);
        let runs = |name: &str, cpu: &str| {
            json!({"metadata": {"name": name}, "spec": {"nodeName": "n",
            "containers": [], "overhead": {"cpu": cpu}}})
        };
        let one = json!({"containers": [asks("1")]});
        assert_eq!(said(&one, &[runs("a", "1500m")]), ["node n: wants 1000m of cpu, 500m is free"]);
        assert_eq!(said(&one, &[runs("a", "0"), runs("b", "0")]), ["node n: wants 1 of pods, 0 is free"]);
    }
}
