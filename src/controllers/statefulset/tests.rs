//! Steps of small StatefulSets.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;
use model::pod::Pod;
use serde_json::{Value, json};

use super::identity::{self, Owners};
use super::plan::{self, Action, Plan, View};

fn set(spec: Value) -> StatefulSet {
    let mut spec = spec;
    spec["selector"] = json!({"matchLabels": {"app": "db"}});
    spec["serviceName"] = json!("db");
    spec["template"] =
        json!({"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "new"}]}});
    serde_json::from_value(
        json!({"metadata": {"name": "db", "namespace": "d", "uid": "u", "generation": 2}, "spec": spec}),
    )
    .unwrap()
}

fn revision(name: &str) -> ControllerRevision {
    let template = json!({"$patch": "replace", "metadata": {"labels": {"app": "db"}},
        "spec": {"containers": [{"name": "c", "image": name}]}});
    serde_json::from_value(json!({"metadata": {"name": name}, "revision": 1, "data": {"spec": {"template": template}}}))
        .unwrap()
}

fn pod(ordinal: i32, revision: &str, phase: &str, ready: bool) -> Arc<Pod> {
    let name = format!("db-{ordinal}");
    let labels = json!({"app": "db", "controller-revision-hash": revision, "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": ordinal.to_string()});
    let ready = json!([{"type": "Ready", "status": if ready { "True" } else { "False" },
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let pod = json!({"metadata": {"name": name, "uid": name, "labels": labels}, "status": {"phase": phase,
        "conditions": ready}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn good(ordinal: i32, revision: &str) -> Arc<Pod> {
    pod(ordinal, revision, "Running", true)
}

fn plan_of(set: &StatefulSet, pods: &[Arc<Pod>]) -> Plan {
    let now: Timestamp = "2026-01-01T00:00:05Z".parse().unwrap();
    let (current, update) = (revision("old"), revision("new"));
    plan::plan(&View { set, current: &current, update: &update, collisions: 0, pods, claim: &|_| None, now })
}

fn planned(set: &StatefulSet, pods: &[Arc<Pod>]) -> Vec<String> {
    let told = |action: &Action| match action {
        Action::Create { pod, .. } => format!("create {} {}", pod.name_any(), pod.labels()["controller-revision-hash"]),
        Action::MakeClaims { pod, .. } => format!("claims {}", pod.name_any()),
        Action::Relabel { pod, .. } => format!("relabel {}", pod.name_any()),
        Action::OwnClaim { claim, .. } | Action::Conflict { claim } => format!("claim {}", claim.name_any()),
        Action::Recreate(pod) => format!("recreate {}", pod.name_any()),
        Action::Delete(pod) => format!("delete {}", pod.name_any()),
    };
    plan_of(set, pods).actions.iter().map(told).collect()
}

#[test]
fn in_order_each_pod_waits_for_the_one_before() {
    let set =
        set(json!({"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}}));
    assert_eq!(planned(&set, &[]), ["create db-0 new"]);
    assert_eq!(planned(&set, &[pod(0, "new", "Running", false)]), [""; 0]);
    assert_eq!(planned(&set, &[good(0, "new")]), ["create db-1 new"]);
    assert_eq!(planned(&set, &[good(0, "new"), good(2, "new")]), ["create db-1 new"]);
}

#[test]
fn in_parallel_all_are_made_and_given_up_at_once() {
    let set = set(json!({"replicas": 2, "podManagementPolicy": "Parallel", "ordinals": {"start": 5}}));
    assert_eq!(planned(&set, &[]), ["create db-5 new", "create db-6 new"]);
    let pods = [good(5, "new"), good(6, "new"), good(0, "new"), pod(7, "new", "Pending", false)];
    assert_eq!(planned(&set, &pods), ["delete db-7", "delete db-0"]);
}

#[test]
fn the_highest_goes_first_and_waits_for_ill_ones() {
    let set = set(json!({"replicas": 1}));
    let pods = [good(0, "new"), good(1, "new"), good(2, "new")];
    assert_eq!(planned(&set, &pods), ["delete db-2"]);
    assert_eq!(planned(&set, &[good(0, "new"), pod(1, "new", "Running", false), good(2, "new")]), ["delete db-2"]);
    assert_eq!(
        planned(&set, &[good(0, "new"), pod(1, "new", "Running", false), pod(2, "new", "Pending", false)]),
        [""; 0]
    );
    assert_eq!(planned(&set, &[good(0, "new"), good(1, "new"), pod(2, "new", "Pending", false)]), ["delete db-2"]);
    assert_eq!(planned(&set, &[pod(0, "new", "Running", false), good(1, "new")]), [""; 0]);
}

#[test]
fn a_rolling_update_goes_down_to_the_partition_one_by_one() {
    let with = |rolling: Value| {
        set(json!({"replicas": 3, "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling}}))
    };
    let old = [good(0, "old"), good(1, "old"), good(2, "old")];
    assert_eq!(planned(&with(json!({"partition": 0})), &old), ["delete db-2"]);
    assert_eq!(planned(&with(json!({"partition": 2})), &[good(0, "old"), good(1, "old"), good(2, "new")]), [""; 0]);
    assert_eq!(planned(&with(json!({"partition": 2})), &[good(1, "old"), good(2, "new")]), ["create db-0 old"]);
    assert_eq!(planned(&with(json!({"maxUnavailable": 2})), &old), ["delete db-2", "delete db-1"]);
    assert_eq!(planned(&with(json!({"maxUnavailable": "70%"})), &old), ["delete db-2", "delete db-1"]);
    assert_eq!(planned(&set(json!({"replicas": 3, "updateStrategy": {"type": "OnDelete"}})), &old), [""; 0]);
}

#[test]
fn ended_pods_come_again() {
    let set = set(json!({"replicas": 2}));
    assert_eq!(planned(&set, &[pod(0, "new", "Failed", false), good(1, "new")]), ["recreate db-0"]);
    assert_eq!(planned(&set, &[pod(0, "new", "Succeeded", false)]), ["recreate db-0"]);
}

#[test]
fn status_counts_revisions_and_ends_the_update_when_all_are_new() {
    let set = set(json!({"replicas": 2, "minReadySeconds": 10}));
    let half = plan_of(&set, &[good(0, "old"), good(1, "new")]).status;
    assert_eq!(
        (half.current_revision.as_deref(), half.current_replicas, half.updated_replicas),
        (Some("old"), Some(1), Some(1))
    );
    assert_eq!((half.ready_replicas, half.available_replicas), (Some(2), Some(0)));
    let done = plan_of(&set, &[good(0, "new"), good(1, "new")]).status;
    assert_eq!((done.current_revision.as_deref(), done.current_replicas), (Some("new"), Some(2)));
}

#[test]
fn claims_go_with_the_set_or_with_the_pod_as_the_policy_says() {
    let with = |deleted: &str, scaled: &str| {
        set(json!({"replicas": 1, "persistentVolumeClaimRetentionPolicy": {"whenDeleted": deleted,
                "whenScaled": scaled},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}))
    };
    let claim = |owners: Value| -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "data-db-1", "ownerReferences": owners}})).unwrap()
    };
    let kinds = |set: &StatefulSet, n: i32| match identity::claim_owners(set, &good(n, "new"), &claim(json!([]))) {
        Owners::Become(owners) => owners.into_iter().map(|o| o.kind).collect(),
        Owners::Right => Vec::new(),
        Owners::Conflict => vec!["conflict".to_owned()],
    };
    assert!(kinds(&with("Retain", "Retain"), 1).is_empty());
    assert_eq!(kinds(&with("Delete", "Retain"), 1), ["StatefulSet"]);
    assert_eq!(kinds(&with("Retain", "Delete"), 1), ["Pod"]);
    assert!(kinds(&with("Retain", "Delete"), 0).is_empty());
    assert_eq!(kinds(&with("Delete", "Delete"), 0), ["StatefulSet"]);
    let other = claim(json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": "x", "controller": true}]));
    assert_eq!(identity::claim_owners(&with("Delete", "Retain"), &good(0, "new"), &other), Owners::Conflict);
}

#[test]
fn a_pod_is_called_by_its_ordinal_and_mounts_its_claims() {
    let set = set(json!({"volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}]}));
    let pod = identity::pod(&set, &set.spec.as_ref().unwrap().template, "new", 3);
    let spec = pod.spec.clone().unwrap();
    assert_eq!(
        (pod.name_any().as_str(), spec.hostname.as_deref(), spec.subdomain.as_deref()),
        ("db-3", Some("db-3"), Some("db"))
    );
    assert_eq!(spec.volumes.unwrap()[0].persistent_volume_claim.as_ref().unwrap().claim_name, "data-db-3");
    assert_eq!(pod.labels()["apps.kubernetes.io/pod-index"], "3");
}

// Upstream's table: `TestGetParentNameAndOrdinal` and `TestIsMemberOf` (stateful_set_utils_test.go, 1.36.2).
#[test]
fn a_pods_name_says_whether_it_is_of_the_set_and_where_it_stands() {
    let set = set(json!({}));
    for (name, ordinal) in [
        ("db-0", Some(0)),
        ("db-12", Some(12)),
        ("db-x", None),
        ("db-", None),
        ("db", None),
        ("other-1", None),
        ("db-1-1", None),
        ("db--1", None),
        ("db-+1", None),
        ("db-2147483647", Some(i32::MAX)),
        ("db-2147483648", None),
    ] {
        let mut pod = (*good(0, "new")).clone();
        pod.metadata.name = Some(name.to_owned());
        assert_eq!(identity::ordinal(&set, &pod), ordinal, "{name}");
    }
}

// Semantics M15: all pods of a set that did not get ready were deleted at once.
#[test]
fn a_parallel_set_renews_no_more_than_its_budget_though_its_pods_are_ill() {
    let set = |max: i32| {
        set(json!({"replicas": 4, "podManagementPolicy": "Parallel", "updateStrategy": {"type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": max}}}))
    };
    let ill: Vec<Arc<Pod>> = (0..4).map(|n| pod(n, "old", "Running", n < 2)).collect();
    assert_eq!(planned(&set(1), &ill), [""; 0]);
    assert_eq!(planned(&set(2), &ill), [""; 0]);
    assert_eq!(planned(&set(3), &ill), ["delete db-3"]);
}
