//! The FlowSchemas and PriorityLevelConfigurations that every cluster has, as upstream's v1.36 makes them.

use serde_json::{Value, json};

const MARK: &str = "apf.kubernetes.io/autoupdate-spec";

/// All of them, levels first.
pub fn objects() -> Vec<Value> {
    levels().into_iter().chain(schemas()).collect()
}

/// Those that are put back to what they were whenever they differ; the others are an operator's to change.
pub fn is_mandatory(name: &str) -> bool {
    matches!(name, "exempt" | "catch-all")
}

fn levels() -> Vec<Value> {
    let level = |name: &str, spec: Value| {
        json!({
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
            "metadata": { "name": name, "annotations": { MARK: "true" } }, "spec": spec,
        })
    };
    let queued = |name: &str, shares: u32, lendable: u32, queues: u32, hand: u32| {
        let queuing = json!({ "queues": queues, "handSize": hand, "queueLengthLimit": 50 });
        let limited = json!({ "nominalConcurrencyShares": shares, "lendablePercent": lendable,
            "limitResponse": { "type": "Queue", "queuing": queuing } });
        level(name, json!({ "type": "Limited", "limited": limited }))
    };
    let reject = json!({ "nominalConcurrencyShares": 5, "lendablePercent": 0, "limitResponse": { "type": "Reject" } });
    vec![
        level("exempt", json!({ "type": "Exempt", "exempt": { "nominalConcurrencyShares": 0, "lendablePercent": 0 } })),
        level("catch-all", json!({ "type": "Limited", "limited": reject })),
        queued("system", 30, 33, 64, 6),
        queued("node-high", 40, 25, 64, 6),
        queued("leader-election", 10, 0, 16, 4),
        queued("workload-high", 40, 50, 128, 6),
        queued("workload-low", 100, 90, 128, 6),
        queued("global-default", 20, 50, 128, 6),
    ]
}

fn user(name: &str) -> Value {
    json!({ "kind": "User", "user": { "name": name } })
}

fn group(name: &str) -> Value {
    json!({ "kind": "Group", "group": { "name": name } })
}

fn account(namespace: &str, name: &str) -> Value {
    json!({ "kind": "ServiceAccount", "serviceAccount": { "namespace": namespace, "name": name } })
}

fn resources(verbs: &[&str], groups: &[&str], resources: &[&str], namespaces: &[&str], cluster: bool) -> Value {
    let mut rule = json!({ "verbs": verbs, "apiGroups": groups, "resources": resources });
    if !namespaces.is_empty() {
        rule["namespaces"] = json!(namespaces);
    }
    if cluster {
        rule["clusterScope"] = json!(true);
    }
    rule
}

fn everything() -> (Value, Value) {
    (json!([resources(&["*"], &["*"], &["*"], &["*"], true)]), json!([{ "verbs": ["*"], "nonResourceURLs": ["*"] }]))
}

fn schema(name: &str, (level, precedence, by): (&str, u32, &str), subjects: &[Value], rules: (Value, Value)) -> Value {
    let mut rule = json!({ "subjects": subjects });
    if rules.0.as_array().is_some_and(|r| !r.is_empty()) {
        rule["resourceRules"] = rules.0;
    }
    if rules.1.as_array().is_some_and(|r| !r.is_empty()) {
        rule["nonResourceRules"] = rules.1;
    }
    let mut spec =
        json!({ "priorityLevelConfiguration": { "name": level }, "matchingPrecedence": precedence, "rules": [rule] });
    if !by.is_empty() {
        spec["distinguisherMethod"] = json!({ "type": by });
    }
    json!({
        "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
        "metadata": { "name": name, "annotations": { MARK: "true" } }, "spec": spec,
    })
}

fn schemas() -> Vec<Value> {
    let everybody = [group("system:unauthenticated"), group("system:authenticated")];
    let only = |rule: Value| (json!([rule]), json!([]));
    let health = json!([{ "verbs": ["get"], "nonResourceURLs": ["/healthz", "/readyz", "/livez"] }]);
    let leases = ["get", "create", "update"];
    let leaders = [user("system:kube-controller-manager"), user("system:kube-scheduler"), account("kube-system", "*")];
    let endpointers = [
        user("system:kube-controller-manager"),
        account("kube-system", "endpoint-controller"),
        account("kube-system", "endpointslicemirroring-controller"),
    ];
    let node_high = json!([
        resources(&["*"], &[""], &["nodes", "nodes/status"], &["*"], true),
        resources(&["*"], &["coordination.k8s.io"], &["leases"], &["*"], false),
    ]);
    vec![
        schema("exempt", ("exempt", 1, ""), &[group("system:masters")], everything()),
        schema("probes", ("exempt", 2, ""), &everybody, (json!([]), health)),
        schema(
            "system-leader-election",
            ("leader-election", 100, "ByUser"),
            &leaders,
            only(resources(&leases, &["coordination.k8s.io"], &["leases"], &["*"], false)),
        ),
        schema(
            "endpoint-controller",
            ("workload-high", 150, "ByUser"),
            &endpointers,
            only(resources(&leases, &[""], &["endpoints"], &["*"], false)),
        ),
        schema(
            "workload-leader-election",
            ("leader-election", 200, "ByUser"),
            &[account("kube-system", "*")],
            only(resources(&leases, &["coordination.k8s.io"], &["leases"], &["*"], false)),
        ),
        schema("system-node-high", ("node-high", 400, "ByUser"), &[group("system:nodes")], (node_high, json!([]))),
        schema("system-nodes", ("system", 500, "ByUser"), &[group("system:nodes")], everything()),
        schema(
            "kube-controller-manager",
            ("workload-high", 800, "ByNamespace"),
            &[user("system:kube-controller-manager")],
            everything(),
        ),
        schema("kube-scheduler", ("workload-high", 800, "ByNamespace"), &[user("system:kube-scheduler")], everything()),
        schema(
            "kube-system-service-accounts",
            ("workload-high", 900, "ByNamespace"),
            &[account("kube-system", "*")],
            everything(),
        ),
        schema("service-accounts", ("workload-low", 9000, "ByUser"), &[group("system:serviceaccounts")], everything()),
        schema("global-default", ("global-default", 9900, "ByUser"), &everybody, everything()),
        schema("catch-all", ("catch-all", 10000, "ByUser"), &everybody, everything()),
    ]
}
