//! Node by node, why none takes a pod: cordon, readiness, taints, labels, room. Pure, and less than a scheduler looks
//! at: volumes, affinity and spread are in the scheduler's own message.

use std::collections::BTreeMap;

use model::quantity::Quantity;
use serde_json::Value;

/// Nodes that are told one by one.
const NODES_MAX: usize = 20;

fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    value.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn items<'a>(value: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    value.pointer(path).and_then(Value::as_array).into_iter().flatten()
}

fn milli(value: &Value) -> i64 {
    value.as_str().and_then(|text| text.parse::<Quantity>().ok()).map_or(0, |quantity| quantity.milli_value())
}

/// What a pod's containers ask for, in thousandths; init containers run before them, and count where they ask for more.
fn requests(pod: &Value) -> BTreeMap<String, i64> {
    let mut all: BTreeMap<String, i64> = [("pods".to_owned(), 1000)].into();
    let asked = |container: &Value| -> Vec<(String, i64)> {
        let map = container.pointer("/resources/requests").and_then(Value::as_object);
        map.into_iter().flatten().map(|(name, amount)| (name.clone(), milli(amount))).collect()
    };
    for (name, amount) in items(pod, "/spec/containers").flat_map(asked) {
        *all.entry(name).or_default() += amount;
    }
    for (name, amount) in items(pod, "/spec/initContainers").flat_map(asked) {
        let most = all.entry(name).or_default();
        *most = amount.max(*most);
    }
    all
}

fn tolerates(pod: &Value, taint: &Value) -> bool {
    items(pod, "/spec/tolerations").any(|toleration| {
        let (key, effect) = (text(toleration, "/key"), text(toleration, "/effect"));
        let same_value =
            text(toleration, "/operator") == "Exists" || text(toleration, "/value") == text(taint, "/value");
        (key.is_empty() || key == text(taint, "/key"))
            && (effect.is_empty() || effect == text(taint, "/effect"))
            && same_value
    })
}

/// Thousandths as people write them: `500m` of CPU, MiB of memory, pieces.
fn amount(resource: &str, thousandths: i64) -> String {
    match resource {
        "cpu" => format!("{thousandths}m"),
        "memory" | "ephemeral-storage" => format!("{}Mi", thousandths / 1000 / (1 << 20)),
        _ => (thousandths / 1000).to_string(),
    }
}

fn against(pod: &Value, node: &Value, pods: &[Value]) -> Vec<String> {
    let mut why = Vec::new();
    let ready = items(node, "/status/conditions")
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    if !ready {
        why.push("not ready".to_owned());
    }
    if node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)) {
        why.push("cordoned".to_owned());
    }
    for taint in
        items(node, "/spec/taints").filter(|taint| taint["effect"] != "PreferNoSchedule" && !tolerates(pod, taint))
    {
        why.push(format!("taint {}={}:{}", text(taint, "/key"), text(taint, "/value"), text(taint, "/effect")));
    }
    for (key, value) in pod.pointer("/spec/nodeSelector").and_then(Value::as_object).into_iter().flatten() {
        if node["metadata"]["labels"][key] != *value {
            why.push(format!("no label {key}={}", value.as_str().unwrap_or_default()));
        }
    }
    let name = text(node, "/metadata/name");
    let runs = |other: &&Value| {
        text(other, "/spec/nodeName") == name && !matches!(text(other, "/status/phase"), "Succeeded" | "Failed")
    };
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for (resource, taken) in pods.iter().filter(runs).flat_map(requests) {
        *used.entry(resource).or_default() += taken;
    }
    for (resource, needs) in requests(pod).into_iter().filter(|(_, needs)| *needs > 0) {
        let free = milli(&node["status"]["allocatable"][&resource]) - used.get(&resource).copied().unwrap_or_default();
        if needs > free {
            why.push(format!(
                "wants {} of {resource}, {} is free",
                amount(&resource, needs),
                amount(&resource, free.max(0))
            ));
        }
    }
    why
}

/// A line a node that speaks against the pod.
pub(super) fn lines(pod: &Value, nodes: &[Value], pods: &[Value]) -> Vec<String> {
    let told = nodes.iter().filter_map(|node| {
        let why = against(pod, node, pods);
        (!why.is_empty()).then(|| format!("node {}: {}", text(node, "/metadata/name"), why.join("; ")))
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
                "conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": cpu, "memory": "1Gi", "pods": "110"},
            }})
        };
        let taint = json!({"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]});
        let nodes = [
            node("a", taint.clone(), "2"),
            node("b", json!({"unschedulable": true}), "2"),
            node("c", json!({}), "1"),
            node("d", json!({}), "8"),
        ];
        let runs = json!({"spec": {"nodeName": "c", "containers": [{"resources": {"requests": {"cpu": "800m"}}}]}, "status": {"phase": "Running"}});
        let pod = json!({"spec": {"containers": [{"resources": {"requests": {"cpu": "500m"}}}], "nodeSelector": {"disk": "ssd"}}});
        assert_eq!(
            lines(&pod, &nodes, std::slice::from_ref(&runs)),
            ["node a: taint gpu=yes:NoSchedule", "node b: cordoned", "node c: wants 500m of cpu, 200m is free"]
        );
        let tolerant = json!({"spec": {"containers": [], "tolerations": [{"key": "gpu", "operator": "Exists"}], "nodeSelector": {"disk": "hdd"}}});
        assert_eq!(lines(&tolerant, &nodes[..1], &[]), ["node a: no label disk=hdd"]);
    }
}
