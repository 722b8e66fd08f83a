//! Cells that people read most.

use serde_json::json;

use super::*;
use crate::catalog::Catalog;
use crate::table::{Name, TypeDef, TypeRef};

fn resource(group: &'static str, kind: &'static str) -> Resource {
    let none = Name::default;
    Resource {
        group: group.into(),
        version: "v1".into(),
        kind: kind.into(),
        list_kind: none(),
        plural: none(),
        singular: none(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: true,
        verbs: Vec::new(),
        subresources: Vec::new(),
        storage_version: none(),
        storage_group: none(),
        storage_version_hash: none(),
        selectable: Vec::new(),
        type_ref: TypeRef::of(TypeDef::default()),
        custom: false,
        behaviour: crate::kinds::of((group, kind)),
        definition: None,
    }
}

fn cells(group: &'static str, kind: &'static str, object: Value) -> String {
    let r = resource(group, kind);
    let row = row(&r, &object, "2026-11-21T05:10:00Z".parse().unwrap());
    assert_eq!(row.len(), columns(&r).len());
    row.iter().map(|c| c.as_str().map_or_else(|| c.to_string(), str::to_owned)).collect::<Vec<_>>().join(" | ")
}

#[test]
fn every_printer_fills_its_columns_even_for_an_empty_object() {
    for r in Catalog::builtin().resources() {
        let p = r.behaviour.printer;
        assert_eq!((p.cells)(&json!({}), Timestamp::UNIX_EPOCH).len(), p.columns.len(), "{}", r.kind);
    }
}

fn pod_cells(status: Value) -> String {
    let mut status = status;
    status["phase"] = status.get("phase").cloned().unwrap_or(json!("Running"));
    let object = json!({"metadata": {"name": "p", "creationTimestamp": "2026-11-21T05:00:00Z"},
        "spec": {"containers": [{"name": "a"}],
            "initContainers": [{"name": "i"}, {"name": "s", "restartPolicy": "Always"}], "nodeName": "n"},
        "status": status});
    cells("", "Pod", object).split(" | ").skip(1).take(4).collect::<Vec<_>>().join(" ")
}

#[test]
fn the_status_of_a_pod_tells_where_it_stands() {
    assert_eq!(pod_cells(json!({"phase": "Pending"})), "0/2 Pending 0 10m");
    assert_eq!(
        pod_cells(json!({"phase": "Pending", "initContainerStatuses": [{"name": "i", "state": {"running": {}}}]})),
        "0/2 Init:0/2 0 10m"
    );
    assert_eq!(
        pod_cells(json!({"initContainerStatuses": [{"name": "i", "restartCount": 2,
                "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]})),
        "0/2 Init:CrashLoopBackOff 2 10m"
    );
    let inits = json!([{"name": "i", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}},
        {"name": "s", "started": true, "ready": true, "state": {"running": {}}}]);
    assert_eq!(
        pod_cells(json!({"initContainerStatuses": inits,
                "containerStatuses": [{"name": "a", "ready": true, "state": {"running": {}}, "restartCount": 3,
            "lastState": {"terminated": {"finishedAt": "2026-11-21T05:05:00Z"}}}]})),
        "2/2 Running 3 (5m ago) 10m"
    );
    assert_eq!(
        pod_cells(json!({"phase": "Failed", "initContainerStatuses": inits,
                "containerStatuses": [{"name": "a", "state": {"terminated": {"exitCode": 137, "signal": 9}}}]})),
        "1/2 Signal:9 0 10m"
    );
}

#[test]
fn a_pod_being_deleted_is_terminating_unless_it_ended() {
    let mut object = json!({"metadata": {"deletionTimestamp": "2026-11-21T05:00:00Z"}, "status": {"phase": "Running"}});
    assert!(cells("", "Pod", object.clone()).contains("Terminating"));
    object["status"]["phase"] = json!("Succeeded");
    assert!(cells("", "Pod", object).contains("Succeeded"));
}

#[test]
fn services_show_ports_and_pending_balancers() {
    let object = json!({"metadata": {"name": "s"},
        "spec": {"type": "LoadBalancer", "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"],
        "ports": [{"port": 80, "nodePort": 30080, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}],
            "selector": {"a": "b"}}});
    assert_eq!(
        cells("", "Service", object),
        "s | LoadBalancer | 10.0.0.1 | <pending> | 80:30080/TCP,53/UDP | <unknown> | a=b"
    );
}

#[test]
fn nodes_show_roles_and_cordons() {
    let object = json!({"metadata": {"name": "n",
        "labels": {"node-role.kubernetes.io/control-plane": "", "kubernetes.io/role": "x"}},
        "spec": {"unschedulable": true},
            "status": {"conditions": [{"type": "Ready", "status": "True"}],
                "nodeInfo": {"kubeletVersion": "v1.36.2"}}});
    assert!(
        cells("", "Node", object)
            .starts_with("n | Ready,SchedulingDisabled | control-plane,x | <unknown> | v1.36.2 | <none>")
    );
}

#[test]
fn jobs_show_progress_and_duration() {
    let object = json!({"metadata": {"name": "j"}, "spec": {"completions": 3},
        "status": {"succeeded": 1, "startTime": "2026-11-21T05:08:00Z"}});
    assert!(cells("batch", "Job", object).starts_with("j | Running | 1/3 | 2m"));
}
