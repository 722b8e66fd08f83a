//! Decisions on small clusters, written as JSON objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::pod::Pod;
use k8s_openapi::api::core::v1::Node;
use serde_json::{Value, json};

use crate::cycle::{Decision, decide};
use crate::preempt::Preemption;
use crate::snapshot::Snapshot;

fn node(name: &str, cpu: &str, extra: &Value) -> Arc<Node> {
    let mut node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {},
        "status": {"allocatable": {"cpu": cpu, "memory": "1Gi", "pods": "10"}},
    });
    for (key, value) in extra.as_object().into_iter().flatten() {
        node["spec"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(node).unwrap())
}

fn pod(name: &str, spec: &Value) -> Arc<Pod> {
    let mut spec = spec.clone();
    let cpu = spec.as_object_mut().unwrap().remove("cpu").unwrap_or(json!("100m"));
    spec["containers"] = json!([{"name": "c", "resources": {"requests": {"cpu": cpu}}}]);
    let meta = json!({"name": name, "namespace": "default", "uid": name, "labels": {"app": "web"}});
    Arc::new(serde_json::from_value(json!({"metadata": meta, "spec": spec})).unwrap())
}

fn decision(nodes: &[Arc<Node>], pods: &[Arc<Pod>], wanted: &Pod) -> String {
    match decide(wanted, &Snapshot::build(nodes, pods, &BTreeMap::new()), 0) {
        Decision::Bind { node } => node,
        Decision::Unschedulable { message, .. } => message,
    }
}

const TAINTED: &str = "0/1 nodes are available: 1 node(s) had untolerated taint(s). no new claims to deallocate, preemption: \
    0/1 nodes are available: 1 Preemption is not helpful for scheduling.";

#[test]
fn the_reasons_are_counted_and_sorted_as_upstream_does() {
    let nodes = [
        node("a", "1", &json!({})),
        node("b", "4", &json!({"unschedulable": true})),
        node("c", "4", &json!({"taints": [{"key": "k", "effect": "NoSchedule"}]})),
        node("d", "1", &json!({})),
    ];
    assert_eq!(
        decision(&nodes, &[], &pod("p", &json!({"cpu": "2"}))),
        "0/4 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 2 Insufficient cpu. \
         no new claims to deallocate, preemption: 0/4 nodes are available: 4 Preemption is not helpful for scheduling."
    );
    assert_eq!(decision(&[], &[], &pod("p", &json!({}))), "no nodes available to schedule pods");
}

#[test]
fn what_runs_on_a_node_counts_against_it() {
    let nodes = [node("a", "1", &json!({}))];
    let running = pod("r", &json!({"nodeName": "a", "cpu": "950m"}));
    assert_eq!(
        decision(&nodes, &[running], &pod("p", &json!({}))),
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: \
         1 No preemption victims found for incoming pod."
    );
    let mut ended = (*pod("r", &json!({"nodeName": "a", "cpu": "950m"}))).clone();
    ended.status = serde_json::from_value(json!({"phase": "Succeeded"})).unwrap();
    assert_eq!(decision(&nodes, &[Arc::new(ended)], &pod("p", &json!({}))), "a");
}

/// Texts: upstream 1.36.2, plugins/dynamicresources.
#[test]
fn a_pod_that_claims_a_device_waits_and_never_runs_without_it() {
    let nodes = [node("a", "4", &json!({})), node("b", "4", &json!({}))];
    let claiming = |claim: Value, statuses: Value| {
        let mut claiming = (*pod("p", &json!({"resourceClaims": [claim]}))).clone();
        claiming.status = serde_json::from_value(json!({"resourceClaimStatuses": statuses})).unwrap();
        decision(&nodes, &[], &claiming)
    };
    let held = "0/2 nodes are available: 2 cannot allocate all claims. still not schedulable, preemption: \
        0/2 nodes are available: 2 Preemption is not helpful for scheduling.";
    assert_eq!(claiming(json!({"name": "gpu", "resourceClaimName": "mine"}), json!([])), held);
    let made_of = json!({"name": "gpu", "resourceClaimTemplateName": "t"});
    assert_eq!(claiming(made_of.clone(), json!([{"name": "gpu", "resourceClaimName": "p-gpu-x"}])), held);
    assert_eq!(
        claiming(made_of.clone(), json!([{"name": "other", "resourceClaimName": "x"}])),
        "0/2 nodes are available: pod \"default/p\": ResourceClaim not created yet. no new claims to deallocate, preemption: \
         0/2 nodes are available: 2 Preemption is not helpful for scheduling."
    );
    // The template's controller says that this pod needs none.
    assert!(["a", "b"].contains(&claiming(made_of, json!([{"name": "gpu"}])).as_str()));
    // An extended resource that a DeviceClass gives is one that no node has.
    let mut extended = (*pod("p", &json!({}))).clone();
    let container = json!([{"name": "c", "resources": {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"},
        "requests": {"deviceclass.resource.kubernetes.io/gpu": "1"}}}]);
    extended.spec.as_mut().unwrap().containers = serde_json::from_value(container).unwrap();
    assert!(decision(&nodes, &[], &extended).starts_with("0/2 nodes are available: 2 Insufficient deviceclass"));
}

#[test]
fn a_toleration_opens_a_tainted_node() {
    let nodes = [node("a", "1", &json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}))];
    for (toleration, expected) in [
        (json!({"operator": "Exists"}), "a"),
        (json!({"key": "k", "value": "v"}), "a"),
        (json!({"key": "k", "value": "other"}), TAINTED),
        (json!({"key": "k", "value": "v", "effect": "NoExecute"}), TAINTED),
    ] {
        assert_eq!(decision(&nodes, &[], &pod("p", &json!({"tolerations": [toleration]}))), expected);
    }
}

#[test]
fn a_node_selector_and_affinity_must_both_match() {
    let nodes = [node("a", "1", &json!({})), node("b", "1", &json!({}))];
    assert_eq!(decision(&nodes, &[], &pod("p", &json!({"nodeSelector": {"kubernetes.io/hostname": "b"}}))), "b");
    let not_b = json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["b"]}]}]}}}});
    assert_eq!(decision(&nodes, &[], &pod("p", &not_b)), "a");
}

#[test]
fn host_ports_and_anti_affinity_keep_pods_apart() {
    let nodes = [node("a", "4", &json!({})), node("b", "1", &json!({}))];
    let apart = json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "web"}}}]}}});
    let first = pod("first", &json!({"nodeName": "a"}));
    assert_eq!(decision(&nodes, std::slice::from_ref(&first), &pod("p", &apart)), "b");
    assert_eq!(
        decision(&nodes[..1], &[first], &pod("p", &apart)),
        "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules. no new claims to deallocate, preemption: \
         0/1 nodes are available: 1 No preemption victims found for incoming pod."
    );
}

#[test]
fn the_emptier_node_wins() {
    let nodes = [node("a", "2", &json!({})), node("b", "2", &json!({}))];
    let busy = pod("r", &json!({"nodeName": "a", "cpu": "1"}));
    assert_eq!(decision(&nodes, &[busy], &pod("p", &json!({}))), "b");
}

#[test]
fn the_least_important_pods_make_room_and_no_more_than_needed() {
    let nodes = [node("a", "1", &json!({})), node("b", "1", &json!({}))];
    let running = [
        pod("a-low", &json!({"nodeName": "a", "cpu": "500m", "priority": 1})),
        pod("a-mid", &json!({"nodeName": "a", "cpu": "500m", "priority": 5})),
        pod("b-mid", &json!({"nodeName": "b", "cpu": "900m", "priority": 5})),
    ];
    let wanted = pod("p", &json!({"cpu": "500m", "priority": 10}));
    let preemption = |wanted: &Pod| match decide(wanted, &Snapshot::build(&nodes, &running, &BTreeMap::new()), 0) {
        Decision::Unschedulable { preemption, .. } => preemption,
        Decision::Bind { node } => panic!("bound to {node}"),
    };
    assert_eq!(preemption(&wanted), Some(Preemption { node: "a".to_owned(), victims: vec![Arc::clone(&running[0])], violations: 0 }));
    assert_eq!(preemption(&pod("p", &json!({"cpu": "500m", "priority": 10, "preemptionPolicy": "Never"}))), None);
    assert_eq!(preemption(&pod("p", &json!({"cpu": "500m", "priority": 1}))), None);
}

/// Spec: upstream's `pickOneNodeForPreemption`: broken budgets count before priorities.
#[test]
fn a_budget_is_spared_where_another_node_can_be_emptied() {
    let nodes = [node("a", "1", &json!({})), node("b", "1", &json!({}))];
    let mut guarded = (*pod("a-low", &json!({"nodeName": "a", "cpu": "900m", "priority": 1}))).clone();
    guarded.metadata.labels = Some(BTreeMap::from([("app".to_owned(), "db".to_owned())]));
    let running = [Arc::new(guarded), pod("b-mid", &json!({"nodeName": "b", "cpu": "900m", "priority": 5}))];
    let budget = |namespace: &str| {
        let selector = json!({"matchLabels": {"app": "db"}});
        let budget = json!({"metadata": {"name": "b", "namespace": namespace}, "spec": {"selector": selector}, "status": {
            "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
        Arc::new(serde_json::from_value(budget).unwrap())
    };
    let from = |namespace: &str, nodes: &[Arc<Node>]| {
        let mut snapshot = Snapshot::build(nodes, &running, &BTreeMap::new());
        snapshot.budgets = vec![budget(namespace)];
        match decide(&pod("p", &json!({"cpu": "500m", "priority": 10})), &snapshot, 0) {
            Decision::Unschedulable { preemption, .. } => preemption.map(|p| (p.node, p.violations)),
            Decision::Bind { node } => panic!("bound to {node}"),
        }
    };
    assert_eq!(from("other", &nodes), Some(("a".to_owned(), 0)));
    assert_eq!(from("default", &nodes), Some(("b".to_owned(), 0)));
    assert_eq!(from("default", &nodes[..1]), Some(("a".to_owned(), 1)));
}

#[test]
fn wished_spread_and_affinity_move_a_pod_though_the_node_is_fuller() {
    let nodes = [node("a", "4", &json!({})), node("b", "4", &json!({}))];
    let same = json!({"matchLabels": {"app": "web"}});
    let running =
        [pod("first", &json!({"nodeName": "a", "cpu": "1"})), pod("big", &json!({"nodeName": "b", "cpu": "1500m", "priority": 1}))];
    let running = [running[0].clone(), Arc::new(Pod { metadata: kube_meta("big"), ..(*running[1]).clone() })];
    let spread = json!({"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": same}]});
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": same});
    let wish = |kind: &str| json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": term}]}}});
    assert_eq!(decision(&nodes, &running, &pod("p", &json!({}))), "a");
    assert_eq!(decision(&nodes, &running, &pod("p", &spread)), "b");
    assert_eq!(decision(&nodes, &running, &pod("p", &wish("podAntiAffinity"))), "b");
    assert_eq!(decision(&nodes, &running, &pod("p", &wish("podAffinity"))), "a");
}

fn kube_meta(name: &str) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
    serde_json::from_value(json!({"name": name, "namespace": "default", "uid": name, "labels": {"app": "other"}})).unwrap()
}
