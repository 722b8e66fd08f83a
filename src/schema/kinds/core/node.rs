//! Node.

use jiff::Timestamp;
use model::meta;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Object, Owners, Printer, Rules, kind};
use crate::defaults::{is_empty, make};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static NODE: Behaviour = Behaviour {
    selectable: &["spec.unschedulable"],
    defaults,
    owners: Owners { create: &[], ..Owners::CLIENTS.with_status() },
    rules: Rules { always: validate::cluster::node, update: validate::cluster::node_update, ..Rules::NONE },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Status"),
            column::text("Roles"),
            AGE,
            column::text("Version"),
            column::wide("Internal-IP"),
            column::wide("External-IP"),
            column::wide("OS-Image"),
            column::wide("Kernel-Version"),
            column::wide("Container-Runtime"),
        ],
        cells,
    },
    ..kind("", "Node")
};

fn defaults(object: &mut Object) {
    let status = make(object, "status");
    if is_empty(status, "allocatable")
        && let Some(capacity) = status.get("capacity").cloned()
    {
        status.insert("allocatable".into(), capacity);
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let ready = read::typed(read::list(object, "status.conditions"), "Ready");
    let mut status = match ready.map(|c| read::text(c, "status")) {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }
    .to_owned();
    if read::flag(object, "spec.unschedulable") {
        status.push_str(",SchedulingDisabled");
    }
    let address = |kind: &str| {
        let found = read::typed(read::list(object, "status.addresses"), kind);
        json!(found.and_then(|a| read::some_text(a, "address")).unwrap_or("<none>"))
    };
    let detail = |field: &str| {
        let path = format!("status.nodeInfo.{field}");
        json!(read::some_text(object, &path).unwrap_or("<unknown>"))
    };
    vec![
        name(object),
        json!(status),
        json!(roles(object)),
        age(object, now),
        json!(read::text(object, "status.nodeInfo.kubeletVersion")),
        address("InternalIP"),
        address("ExternalIP"),
        detail("osImage"),
        detail("kernelVersion"),
        detail("containerRuntimeVersion"),
    ]
}

fn roles(object: &Value) -> String {
    let mut roles: Vec<&str> = meta::labels(object)
        .into_iter()
        .flatten()
        .filter_map(|(k, v)| match k.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role).filter(|r| !r.is_empty()),
            None if k == "kubernetes.io/role" => v.as_str().filter(|r| !r.is_empty()),
            None => None,
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    if roles.is_empty() { "<none>".to_owned() } else { roles.join(",") }
}
