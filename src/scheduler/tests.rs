//! Decisions on small clusters, written as JSON objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use model::pod::Pod;
use serde_json::{Value, json};

use crate::cycle::{self, Decision, Room, decide};
use crate::preempt::Preemption;
use crate::run::frees;
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

fn made(room: Room) -> Option<Preemption> {
    if let Room::Of(preemption) = room { Some(preemption) } else { None }
}

const TAINTED: &str = "0/1 nodes are available: 1 node(s) had untolerated taint(s). no new claims to deallocate, \
    preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";

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
        "0/4 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 2 Insufficient \
         cpu. no new claims to deallocate, preemption: 0/4 nodes are available: 4 Preemption is not helpful for \
         scheduling."
    );
    assert_eq!(decision(&[], &[], &pod("p", &json!({}))), "no nodes available to schedule pods");
}

#[test]
fn what_runs_on_a_node_counts_against_it() {
    let nodes = [node("a", "1", &json!({}))];
    let running = pod("r", &json!({"nodeName": "a", "cpu": "950m"}));
    assert_eq!(
        decision(&nodes, &[running], &pod("p", &json!({}))),
        "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are \
         available: 1 No preemption victims found for incoming pod."
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
        "0/2 nodes are available: pod \"default/p\": ResourceClaim not created yet. no new claims to deallocate, \
         preemption: 0/2 nodes are available: 2 Preemption is not helpful for scheduling."
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
    let terms =
        json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["b"]}]}]);
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    let not_b = json!({"affinity": {"nodeAffinity": required}});
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
        "0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules. no new claims to deallocate, \
         preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
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
        Decision::Unschedulable { room, .. } => made(room),
        Decision::Bind { node } => panic!("bound to {node}"),
    };
    assert_eq!(
        preemption(&wanted),
        Some(Preemption { node: "a".to_owned(), victims: vec![Arc::clone(&running[0])], violations: 0 })
    );
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
        let budget = json!({"metadata": {"name": "b", "namespace": namespace}, "spec": {"selector": selector},
            "status": {
            "disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}});
        Arc::new(serde_json::from_value(budget).unwrap())
    };
    let from = |namespace: &str, nodes: &[Arc<Node>]| {
        let mut snapshot = Snapshot::build(nodes, &running, &BTreeMap::new());
        snapshot.budgets = vec![budget(namespace)];
        match decide(&pod("p", &json!({"cpu": "500m", "priority": 10})), &snapshot, 0) {
            Decision::Unschedulable { room, .. } => made(room).map(|p| (p.node, p.violations)),
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
    let running = [
        pod("first", &json!({"nodeName": "a", "cpu": "1"})),
        pod("big", &json!({"nodeName": "b", "cpu": "1500m", "priority": 1})),
    ];
    let running = [running[0].clone(), Arc::new(Pod { metadata: kube_meta("big"), ..(*running[1]).clone() })];
    let spread = json!({"topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": same}]});
    let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": same});
    let terms = json!([{"weight": 50, "podAffinityTerm": term}]);
    let wish = |kind: &str| json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": terms}}});
    assert_eq!(decision(&nodes, &running, &pod("p", &json!({}))), "a");
    assert_eq!(decision(&nodes, &running, &pod("p", &spread)), "b");
    assert_eq!(decision(&nodes, &running, &pod("p", &wish("podAntiAffinity"))), "b");
    assert_eq!(decision(&nodes, &running, &pod("p", &wish("podAffinity"))), "a");
}

fn kube_meta(name: &str) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
    serde_json::from_value(json!({"name": name, "namespace": "default", "uid": name, "labels": {"app": "other"}}))
        .unwrap()
}

// Semantics M5: the node stayed kept for a pod that could not use it any more.
#[test]
fn a_nomination_ends_where_no_victim_helps_and_stays_while_one_is_going() {
    let nodes = [node("a", "1", &json!({}))];
    let room = |wanted: &Pod, running: &[Arc<Pod>]| match decide(
        wanted,
        &Snapshot::build(&nodes, running, &BTreeMap::new()),
        0,
    ) {
        Decision::Unschedulable { room, .. } => room,
        Decision::Bind { node } => panic!("bound to {node}"),
    };
    let nominated = |spec: Value| {
        let mut pod = (*pod("p", &spec)).clone();
        pod.status = serde_json::from_value(json!({"nominatedNodeName": "a"})).unwrap();
        pod
    };
    let wanted = nominated(json!({"cpu": "500m", "priority": 10}));
    let important = pod("r", &json!({"nodeName": "a", "cpu": "900m", "priority": 20}));
    assert_eq!(room(&wanted, &[important]), Room::None);
    let mut going = (*pod("r", &json!({"nodeName": "a", "cpu": "900m", "priority": 1}))).clone();
    going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(room(&wanted, &[Arc::new(going.clone())]), Room::AsBefore);
    let never = nominated(json!({"cpu": "500m", "priority": 10, "preemptionPolicy": "Never"}));
    assert_eq!(room(&never, &[Arc::new(going)]), Room::AsBefore);
}

fn in_zone(name: &str, zone: &str) -> Arc<Node> {
    let mut node = (*node(name, "64", &json!({}))).clone();
    node.metadata.labels.as_mut().unwrap().insert("topology.kubernetes.io/zone".to_owned(), zone.to_owned());
    node.status.as_mut().unwrap().allocatable =
        serde_json::from_value(json!({"cpu": "64", "memory": "64Gi", "pods": "110"})).unwrap();
    Arc::new(node)
}

// Semantics M6: three replicas might all be in one zone.
#[test]
fn replicas_that_say_nothing_are_spread_over_zones_and_over_nodes() {
    let nodes = [in_zone("a", "z1"), in_zone("b", "z1"), in_zone("c", "z2")];
    let owned = |name: &str, on: Option<&str>| {
        let mut pod = (*pod(name, &json!({"nodeName": on}))).clone();
        let owner =
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]);
        pod.metadata.owner_references = serde_json::from_value(owner).unwrap();
        Arc::new(pod)
    };
    assert_eq!(decision(&nodes, &[owned("1", Some("a"))], &owned("p", None)), "c");
    assert_eq!(decision(&nodes, &[owned("1", Some("a")), owned("2", Some("c"))], &owned("p", None)), "b");
    // Pods of a Service without a controller as well.
    let mut snapshot = Snapshot::build(&nodes, &[pod("1", &json!({"nodeName": "a"}))], &BTreeMap::new());
    let service = json!({"metadata": {"name": "s", "namespace": "default"}, "spec": {"selector": {"app": "web"}}});
    snapshot.services = vec![Arc::new(serde_json::from_value(service).unwrap())];
    assert_eq!(decide(&pod("p", &json!({})), &snapshot, 0), Decision::Bind { node: "c".to_owned() });
}

/// Spec: upstream 1.36.2, `determineEffectiveRequests`.
#[test]
fn a_pod_in_a_resize_counts_with_what_it_has_until_it_has_less() {
    let nodes = [node("a", "1", &json!({}))];
    let resized = |asked: &str, has: &str, reason: &str| {
        let pod = json!({"metadata": {"name": "r", "namespace": "default", "uid": "r"},
            "spec": {"nodeName": "a", "containers": [{"name": "c", "resources": {"requests": {"cpu": asked}}}]},
            "status": {"phase": "Running", "conditions": [{"type": "PodResizePending", "status": "True",
                "reason": reason}],
                "containerStatuses": [{"name": "c", "restartCount": 0, "resources": {"requests": {"cpu": has}},
                    "allocatedResources": {"cpu": has}}]}});
        Arc::new(serde_json::from_value::<Pod>(pod).unwrap())
    };
    let fits = |running: Arc<Pod>| decision(&nodes, &[running], &pod("p", &json!({"cpu": "500m"}))) == "a";
    // On its way down it holds what it had; what it never gets holds nothing.
    assert!(!fits(resized("100m", "900m", "Deferred")));
    assert!(!fits(resized("900m", "100m", "Deferred")));
    assert!(fits(resized("900m", "100m", "Infeasible")));
    assert!(fits(resized("100m", "100m", "Deferred")));
}

#[test]
fn a_pod_in_a_resize_as_a_whole_counts_with_what_it_has_and_with_its_overhead_once() {
    // Its containers ask for nothing. What the node promised has the overhead of 100m in it, and so has the CPU that
    // the pod has.
    let need = |asked: &str, has: &str, allocated: &str, phase: &str, reason: &str| {
        let amounts = |cpu: &str| json!({"cpu": cpu, "memory": "1100Mi"});
        let status = json!({"phase": phase, "conditions": [{"type": "PodResizePending", "status": "True",
            "reason": reason}],
            "resources": {"requests": amounts(has)}, "allocatedResources": amounts(allocated)});
        let pod = json!({"metadata": {"name": "r"}, "status": status, "spec": {"overhead": {"cpu": "100m",
            "memory": "100Mi"},
            "containers": [{"name": "c"}], "resources": {"requests": {"cpu": asked, "memory": "1Gi"}}}});
        let need = model::requests::of_pod(&serde_json::from_value(pod).unwrap());
        (need["cpu"], need["memory"] >> 20)
    };
    assert_eq!(need("1", "1100m", "1100m", "Pending", ""), (1100, 1124));
    // On its way down it holds what it had, on its way up what it will have; what it never gets holds nothing.
    assert_eq!(need("200m", "1100m", "300m", "Running", "").0, 1100);
    assert_eq!(need("200m", "300m", "1100m", "Running", "").0, 1100);
    assert_eq!(need("1", "300m", "300m", "Running", "Deferred").0, 1100);
    assert_eq!(need("1", "300m", "300m", "Running", "Infeasible").0, 300);
    // The memory of a running pod is told without overhead.
    assert_eq!(need("1", "1100m", "1100m", "Running", "").1, 1200);
}

#[test]
fn a_resize_that_is_done_or_given_up_frees_room() {
    let told = |asked: &str, has: &str, reason: &str| -> Pod {
        let pod = json!({"metadata": {"name": "r"}, "spec": {"containers": [{"name": "c"}],
            "resources": {"requests": {"cpu": asked}}},
            "status": {"phase": "Running", "conditions": [{"type": "PodResizePending", "status": "True",
                "reason": reason}],
                "resources": {"requests": {"cpu": has}}, "allocatedResources": {"cpu": asked}}});
        serde_json::from_value(pod).unwrap()
    };
    assert!(frees(&told("200m", "1", ""), &told("200m", "200m", "")), "it has less now");
    assert!(!frees(&told("1", "200m", ""), &told("1", "1", "")));
    let waits = |reason: &str| -> Pod {
        let pod = json!({"metadata": {"name": "r"}, "spec": {"containers": [{"name": "c",
            "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"phase": "Running", "conditions": [{"type": "PodResizePending", "status": "True",
                "reason": reason}],
                "containerStatuses": [{"name": "c", "restartCount": 0, "resources": {"requests": {"cpu": "200m"}}}]}});
        serde_json::from_value(pod).unwrap()
    };
    assert!(frees(&waits("Deferred"), &waits("Infeasible")), "it will never have more");
    assert!(!frees(&waits("Infeasible"), &waits("Deferred")));
}

/// A class without a provisioner that waits for the first pod, two volumes and what claims ask for.
fn with_volumes(pods: &[Arc<Pod>], claims: &[(&str, &str)]) -> Snapshot {
    let nodes = [node("n1", "4", &json!({})), node("n2", "4", &json!({}))];
    let mut snapshot = Snapshot::build(&nodes, pods, &BTreeMap::new());
    let class = json!({"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer"});
    snapshot.classes.insert("local".to_owned(), Arc::new(serde_json::from_value(class).unwrap()));
    for (name, size, on) in [("small", "1Gi", "n1"), ("big", "10Gi", "n2")] {
        let on = json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [
            {"key": "kubernetes.io/hostname", "operator": "In", "values": [on]}]}]}});
        let volume = json!({"metadata": {"name": name}, "status": {"phase": "Available"},
            "spec": {"capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "nodeAffinity": on}});
        snapshot.volumes.insert(name.to_owned(), Arc::new(serde_json::from_value(volume).unwrap()));
    }
    for (name, size) in claims {
        let claim = json!({"metadata": {"name": name, "namespace": "default", "uid": name},
            "spec": {"storageClassName": "local",
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}});
        snapshot
            .claims
            .insert(("default".to_owned(), (*name).to_owned()), Arc::new(serde_json::from_value(claim).unwrap()));
    }
    snapshot
}

fn using(claims: &[&str]) -> Arc<Pod> {
    let volumes: Vec<Value> =
        claims.iter().map(|claim| json!({"name": claim, "persistentVolumeClaim": {"claimName": claim}})).collect();
    pod("p", &json!({"volumes": volumes}))
}

const NO_VOLUME: &str = "0/2 nodes are available: 2 node(s) didn't find available persistent volumes to bind.";

// Semantics H7: the node was drawn without a look at the volumes, and the pod pinned to it for ever.
#[test]
fn a_pod_goes_where_its_claims_find_volumes_that_fit_each_their_own() {
    let told = |snapshot: &Snapshot, pod: &Pod| match decide(pod, snapshot, 0) {
        Decision::Bind { node } => {
            let placement = cycle::placement(pod, &node, snapshot);
            let name = |volume: &k8s_openapi::api::core::v1::PersistentVolume| volume.metadata.name.clone().unwrap();
            let bound = placement
                .bind
                .iter()
                .map(|(claim, volume)| format!("{}={}", claim.metadata.name.clone().unwrap(), name(volume)));
            format!("{node}: {}", bound.collect::<Vec<_>>().join(" "))
        }
        Decision::Unschedulable { message, .. } => message,
    };
    assert_eq!(told(&with_volumes(&[], &[("c", "5Gi")]), &using(&["c"])), "n2: c=big");
    assert!(told(&with_volumes(&[], &[("c", "50Gi")]), &using(&["c"])).starts_with(NO_VOLUME));
    // Two claims do not share one.
    assert!(told(&with_volumes(&[], &[("c", "1Gi"), ("d", "1Gi")]), &using(&["c", "d"])).starts_with(NO_VOLUME));
    // What another claim has been promised is not free.
    let mut promised = with_volumes(&[], &[("c", "1Gi")]);
    let mut big = (*promised.volumes["big"]).clone();
    big.spec.as_mut().unwrap().claim_ref =
        serde_json::from_value(json!({"name": "other", "namespace": "default", "uid": "o"})).unwrap();
    promised.volumes.insert("big".to_owned(), Arc::new(big));
    assert_eq!(told(&promised, &using(&["c"])), "n1: c=small");
    // A choice of a node that means nothing, of an earlier kedge, holds nobody.
    let mut chosen = with_volumes(&[], &[("c", "5Gi")]);
    let mut claim = (*chosen.claims[&("default".to_owned(), "c".to_owned())]).clone();
    claim.metadata.annotations =
        Some(BTreeMap::from([("volume.kubernetes.io/selected-node".to_owned(), "n1".to_owned())]));
    chosen.claims.insert(("default".to_owned(), "c".to_owned()), Arc::new(claim));
    assert_eq!(told(&chosen, &using(&["c"])), "n2: c=big");
}
