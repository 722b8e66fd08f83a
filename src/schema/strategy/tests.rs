//! Claims about what the server sets and what it keeps.

use serde_json::json;

use super::{graceful_seconds, prepare_for_create, prepare_for_status_update, prepare_for_update, qos_class};
use crate::catalog::Catalog;
use crate::table::Resource;

fn row(group: &str, plural: &str) -> &'static Resource {
    Catalog::builtin().resource(group, "v1", plural).expect("row")
}

#[test]
fn create_drops_status_and_starts_generation_at_one() {
    let mut d = json!({"metadata": {"name": "a", "generation": 7}, "spec": {}, "status": {"replicas": 3}});
    prepare_for_create(row("apps", "deployments"), &mut d);
    assert_eq!(d, json!({"metadata": {"name": "a", "generation": 1}, "spec": {}, "status": {}}));
}

#[test]
fn a_main_write_keeps_status_and_moves_generation_only_if_the_spec_changed() {
    let old = json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {"replicas": 1}});
    let mut same = json!({"metadata": {"generation": 9, "labels": {"a": "b"}}, "spec": {"replicas": 1}, "status": {"replicas": 5}});
    prepare_for_update(row("apps", "deployments"), &mut same, &old);
    assert_eq!((&same["metadata"]["generation"], &same["status"]["replicas"]), (&json!(2), &json!(1)));
    let mut scaled = json!({"metadata": {}, "spec": {"replicas": 2}});
    prepare_for_update(row("apps", "deployments"), &mut scaled, &old);
    assert_eq!(scaled["metadata"]["generation"], 3);
}

#[test]
fn a_status_write_keeps_the_spec() {
    let old = json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {}});
    let mut new = json!({"metadata": {}, "spec": {"replicas": 9}, "status": {"replicas": 1}});
    prepare_for_status_update(row("apps", "deployments"), &mut new, &old);
    assert_eq!(new, json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {"replicas": 1}}));
}

#[test]
fn a_namespace_is_born_with_its_finalizer_and_label() {
    let mut ns = json!({"metadata": {"name": "x"}});
    prepare_for_create(row("", "namespaces"), &mut ns);
    assert_eq!(
        ns,
        json!({"metadata": {"name": "x", "labels": {"kubernetes.io/metadata.name": "x"}}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
    );
}

#[test]
fn qos_follows_requests_and_limits() {
    let pod = |resources: serde_json::Value| json!({"spec": {"containers": [{"resources": resources}]}});
    assert_eq!(qos_class(&pod(json!({}))), "BestEffort");
    let full = json!({"cpu": "1", "memory": "1Gi"});
    assert_eq!(qos_class(&pod(json!({"requests": full, "limits": full}))), "Guaranteed");
    assert_eq!(qos_class(&pod(json!({"requests": {"cpu": "1"}}))), "Burstable");
}

#[test]
fn a_pod_without_a_node_is_deleted_at_once() {
    let r = row("", "pods");
    assert_eq!(graceful_seconds(r, &json!({"spec": {"terminationGracePeriodSeconds": 30}}), None), Some(0));
    assert_eq!(graceful_seconds(r, &json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}}), None), Some(30));
    assert_eq!(graceful_seconds(r, &json!({"spec": {"nodeName": "n", "terminationGracePeriodSeconds": 30}}), Some(5)), Some(5));
    assert_eq!(graceful_seconds(row("", "configmaps"), &json!({}), Some(5)), None);
}

/// Spec: upstream v1.36 `applySchedulingGatedCondition`, `applyMatchLabelKeysAndMismatchLabelKeys`.
#[test]
fn a_new_pod_is_gated_and_its_selectors_are_narrowed_to_its_own_labels() {
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}, "matchLabelKeys": ["rev", "none"], "mismatchLabelKeys": ["tenant"]});
    let mut pod = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"rev": "7", "tenant": "x"}}, "spec": {
        "schedulingGates": [{"name": "g"}],
        "topologySpreadConstraints": [{"labelSelector": {}, "matchLabelKeys": ["rev"]}, {"matchLabelKeys": ["rev"]}],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "podAffinityTerm": term}]}},
    }});
    prepare_for_create(row("", "pods"), &mut pod);
    assert_eq!(pod["status"]["conditions"][0]["reason"], "SchedulingGated");
    let rev = json!({"key": "rev", "operator": "In", "values": ["7"]});
    assert_eq!(pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"], json!([rev]));
    assert_eq!(pod["spec"]["topologySpreadConstraints"][1].get("labelSelector"), None);
    let narrowed = &pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]["podAffinityTerm"];
    assert_eq!(narrowed["labelSelector"]["matchExpressions"], json!([rev, {"key": "tenant", "operator": "NotIn", "values": ["x"]}]));
    assert_eq!(pod["metadata"]["labels"]["tenant"], "x");
}

#[test]
fn a_condition_without_times_gets_them_and_keeps_its_transition() {
    let old = json!({"status": {"conditions": [{"type": "Approved", "status": "True", "lastTransitionTime": "2025-01-01T00:00:00Z"}]}});
    let mut new = json!({"status": {"conditions": [{"type": "Approved", "status": "True"}, {"type": "Failed", "status": "True"}]}});
    super::stamp_conditions(&mut new, &old, "2026-01-01T00:00:00Z");
    assert_eq!(new["status"]["conditions"][0]["lastTransitionTime"], "2025-01-01T00:00:00Z");
    assert_eq!(new["status"]["conditions"][0]["lastUpdateTime"], "2026-01-01T00:00:00Z");
    assert_eq!(new["status"]["conditions"][1]["lastTransitionTime"], "2026-01-01T00:00:00Z");
}
