//! Claims about what the server sets and what it keeps.

use serde_json::json;

use super::{prepare_for_create, prepare_for_status_update, prepare_for_update, qos_class};
use crate::behaviour::Path;
use crate::catalog::Catalog;
use crate::table::{GroupVersion, Resource};

fn row(group: &str, plural: &str) -> &'static Resource {
    Catalog::builtin().resource(GroupVersion { group, version: "v1" }, plural).expect("row")
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
    let mut same = json!({"metadata": {"generation": 9, "labels": {"a": "b"}}, "spec": {"replicas": 1},
        "status": {"replicas": 5}});
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
    prepare_for_status_update(row("apps", "deployments"), &mut new, &old, "2026-01-01T00:00:00Z");
    assert_eq!(new, json!({"metadata": {"generation": 2}, "spec": {"replicas": 1}, "status": {"replicas": 1}}));
}

#[test]
fn a_namespace_is_born_with_its_finalizer_and_label() {
    let mut ns = json!({"metadata": {"name": "x"}});
    prepare_for_create(row("", "namespaces"), &mut ns);
    assert_eq!(
        ns,
        json!({"metadata": {"name": "x", "labels": {"kubernetes.io/metadata.name": "x"}},
            "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}})
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

/// Spec: upstream v1.36 `applySchedulingGatedCondition`, `applyMatchLabelKeysAndMismatchLabelKeys`.
#[test]
fn a_new_pod_is_gated_and_its_selectors_are_narrowed_to_its_own_labels() {
    let term = json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}},
        "matchLabelKeys": ["rev", "none"], "mismatchLabelKeys": ["tenant"]});
    let mut pod = json!({"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"rev": "7", "tenant": "x"}}, "spec": {
        "schedulingGates": [{"name": "g"}],
        "topologySpreadConstraints": [{"labelSelector": {}, "matchLabelKeys": ["rev"]}, {"matchLabelKeys": ["rev"]}],
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1,
            "podAffinityTerm": term}]}},
    }});
    prepare_for_create(row("", "pods"), &mut pod);
    assert_eq!(pod["status"]["conditions"][0]["reason"], "SchedulingGated");
    let rev = json!({"key": "rev", "operator": "In", "values": ["7"]});
    assert_eq!(pod["spec"]["topologySpreadConstraints"][0]["labelSelector"]["matchExpressions"], json!([rev]));
    assert_eq!(pod["spec"]["topologySpreadConstraints"][1].get("labelSelector"), None);
    let preferred = &pod["spec"]["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"];
    let narrowed = &preferred[0]["podAffinityTerm"];
    assert_eq!(
        narrowed["labelSelector"]["matchExpressions"],
        json!([rev, {"key": "tenant", "operator": "NotIn", "values": ["x"]}])
    );
    assert_eq!(pod["metadata"]["labels"]["tenant"], "x");
}

#[test]
fn a_condition_without_times_gets_them_and_keeps_its_transition() {
    let old = json!({"status": {"conditions": [{"type": "Approved", "status": "True",
        "lastTransitionTime": "2025-01-01T00:00:00Z"}]}});
    let mut new = json!({"status": {"conditions": [{"type": "Approved", "status": "True"},
        {"type": "Failed", "status": "True"}]}});
    super::conditions::stamp(&mut new, &old, "2026-01-01T00:00:00Z");
    assert_eq!(new["status"]["conditions"][0]["lastTransitionTime"], "2025-01-01T00:00:00Z");
    assert_eq!(new["status"]["conditions"][0]["lastUpdateTime"], "2026-01-01T00:00:00Z");
    assert_eq!(new["status"]["conditions"][1]["lastTransitionTime"], "2026-01-01T00:00:00Z");
}

/// Every kind says who writes its fields.
#[test]
fn every_stored_kind_declares_who_writes_which_field() {
    let mut wrong = Vec::new();
    for r in Catalog::builtin().resources().iter().filter(|r| r.has_verb("update")) {
        let stored = Catalog::builtin().storage_of(r);
        let row = stored.behaviour;
        if row.kind != (stored.group.as_ref(), stored.kind.as_ref())
            || row.owners.update.contains(&(&["status"] as Path)) != stored.has_status()
        {
            wrong.push(format!("{}/{}", stored.group, stored.kind));
        }
        for sub in stored
            .subresources
            .iter()
            .filter(|s| s.kind.kind == stored.kind && s.name != "status" && s.verbs.iter().any(|v| v == "update"))
        {
            if row.part(&sub.name).is_none() {
                wrong.push(format!("{}/{}", stored.kind, sub.name));
            }
        }
    }
    assert!(wrong.is_empty(), "kinds whose owners of fields are not declared as they are served: {wrong:?}");
}

/// Spec: upstream v1.36 `metav1.ResetObjectMetaForStatus` and the status strategies that do not call it.
#[test]
fn a_status_write_changes_the_metadata_that_is_the_writers() {
    let write = |r: &Resource| {
        let old =
            json!({"metadata": {"name": "x", "labels": {"a": "1"}, "ownerReferences": [{"uid": "u"}]}, "spec": {}});
        let mut new =
            json!({"metadata": {"name": "x", "labels": {"a": "2"}, "managedFields": [{}]}, "status": {"x": 1}});
        prepare_for_status_update(r, &mut new, &old, "2026-01-01T00:00:00Z");
        (new["metadata"]["labels"]["a"] == "2", new["metadata"].get("ownerReferences").is_none())
    };
    assert_eq!(write(row("batch", "jobs")), (true, true));
    assert_eq!(write(row("", "pods")), (true, false));
    assert_eq!(write(row("apps", "deployments")), (false, true));
    assert_eq!(write(row("flowcontrol.apiserver.k8s.io", "flowschemas")), (false, false));
}

/// Spec: upstream v1.36 `dropNonResizeUpdates`, `dropNonEphemeralContainerUpdates`, the approval and finalize
/// strategies.
#[test]
fn a_subresource_write_changes_what_is_its_own() {
    let old = json!({"metadata": {"name": "p", "labels": {"a": "1"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Running"}});
    let new = json!({"metadata": {"name": "p", "labels": {"a": "2"}, "resourceVersion": "7"}, "spec": {"nodeName": "m",
        "containers": [{"name": "c", "image": "j", "resources": {"limits": {"cpu": "1"}}}],
            "ephemeralContainers": [{"name": "e"}]}});
    let write = |sub: &str| {
        let mut new = new.clone();
        assert!(super::prepare_for_subresource_update(row("", "pods"), sub, &mut new, &old, "2026-01-01T00:00:00Z"));
        new
    };
    let resized = write("resize");
    assert_eq!(
        resized["spec"],
        json!({"nodeName": "n", "containers": [{"name": "c", "image": "i", "resources": {"limits": {"cpu": "1"}}}]})
    );
    assert_eq!(
        resized["metadata"],
        json!({"name": "p", "labels": {"a": "1"}, "resourceVersion": "7", "generation": 1})
    );
    assert_eq!(write("ephemeralcontainers")["spec"]["ephemeralContainers"], json!([{"name": "e"}]));
    assert_eq!(write("ephemeralcontainers")["spec"]["nodeName"], "n");
}

/// Spec: upstream v1.36 `preserveConditionInstances`.
#[test]
fn a_status_write_of_a_request_for_a_certificate_approves_nothing() {
    let requests = row("certificates.k8s.io", "certificatesigningrequests");
    let old = json!({"metadata": {}, "spec": {"a": 1},
        "status": {"conditions": [{"type": "Denied", "status": "True", "reason": "no"}]}});
    let mut new = json!({"metadata": {}, "spec": {"a": 2},
        "status": {"certificate": "x", "conditions": [{"type": "Approved", "status": "True"},
            {"type": "Failed", "status": "True"}]}});
    prepare_for_status_update(requests, &mut new, &old, "2026-01-01T00:00:00Z");
    let kinds: Vec<_> =
        new["status"]["conditions"].as_array().unwrap().iter().map(|c| c["type"].as_str().unwrap()).collect();
    assert_eq!((kinds, &new["spec"]["a"]), (vec!["Failed", "Denied"], &json!(1)));
}
