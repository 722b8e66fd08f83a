//! Claims about what changes between versions, and what does not.

use serde_json::json;

use super::{ConvertError, convert};
use crate::catalog::Catalog;
use crate::table::{GroupVersion, Resource};

fn row(group: &str, version: &str, plural: &str) -> &'static Resource {
    Catalog::builtin().resource(GroupVersion { group, version }, plural).expect("row")
}

#[test]
fn an_autoscalers_other_metrics_survive_version_one() {
    let (v1, v2) =
        (row("autoscaling", "v1", "horizontalpodautoscalers"), row("autoscaling", "v2", "horizontalpodautoscalers"));
    let cpu = json!({"type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}});
    let memory = json!({"type": "Resource",
        "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}});
    let object = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "a"},
        "spec": {"maxReplicas": 3, "metrics": [cpu, memory]}, "status": {}});
    let old = convert(object.clone(), v2, v1).expect("down");
    assert_eq!(
        (&old["apiVersion"], &old["spec"]["targetCPUUtilizationPercentage"]),
        (&json!("autoscaling/v1"), &json!(50))
    );
    assert_eq!(convert(old, v1, v2).expect("up"), object);
}

#[test]
fn an_event_keeps_everything_in_both_groups() {
    let (core, new) = (row("", "v1", "events"), row("events.k8s.io", "v1", "events"));
    let event = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"},
        "involvedObject": {"kind": "Pod"}, "message": "m", "count": 2, "reportingComponent": "k", "type": "Normal"});
    let there = convert(event.clone(), core, new).expect("there");
    assert_eq!(
        (&there["note"], &there["regarding"]["kind"], &there["reportingController"]),
        (&json!("m"), &json!("Pod"), &json!("k"))
    );
    assert_eq!(convert(there, new, core).expect("back"), event);
}

#[test]
fn unrelated_resources_are_refused() {
    let err = convert(json!({}), row("", "v1", "pods"), row("apps", "v1", "deployments")).expect_err("unrelated");
    assert!(matches!(err, ConvertError::Unrelated { .. }));
}

#[test]
fn device_requests_nest_and_flatten() {
    let (flat, nested) =
        (row("resource.k8s.io", "v1beta1", "resourceclaims"), row("resource.k8s.io", "v1", "resourceclaims"));
    let claim = json!({"apiVersion": "resource.k8s.io/v1beta1", "kind": "ResourceClaim",
        "spec": {"devices": {"requests": [{"name": "r", "deviceClassName": "c", "count": 1}]}}});
    let there = convert(claim.clone(), flat, nested).expect("nests");
    assert_eq!(
        there["spec"]["devices"]["requests"][0],
        json!({"name": "r", "exactly": {"deviceClassName": "c", "count": 1}})
    );
    assert_eq!(convert(there, nested, flat).expect("flattens"), claim);
}

#[test]
fn fields_of_new_events_have_names_in_the_core_kind() {
    let events = row("events.k8s.io", "v1", "events");
    for (new, core) in
        [("regarding.name", "involvedObject.name"), ("reportingController", "reportingComponent"), ("type", "type")]
    {
        assert_eq!(super::stored_field(events, new), core);
    }
    assert!(events.selectable.iter().all(|field| field != "source"));
}
