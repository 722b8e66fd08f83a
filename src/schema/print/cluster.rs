//! Nodes, namespaces, configuration, events, and what the cluster itself is made of.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{age, name, name_and_created, or_none};
use super::column::{AGE, CREATED_AT, Column, NAME, Printer, boolean, integer, printer, text, wide};
use super::duration;
use crate::read;
use model::meta;

pub(super) const PRINTERS: &[Printer] = &[
    printer(
        "",
        "Node",
        &[
            NAME,
            text("Status"),
            text("Roles"),
            AGE,
            text("Version"),
            wide("Internal-IP"),
            wide("External-IP"),
            wide("OS-Image"),
            wide("Kernel-Version"),
            wide("Container-Runtime"),
        ],
        node,
    ),
    printer("", "Namespace", &[NAME, text("Status"), AGE], namespace),
    printer("", "ConfigMap", &[NAME, text("Data"), AGE], config_map),
    printer("", "Secret", &[NAME, text("Type"), integer("Data"), AGE], secret),
    printer("", "ServiceAccount", &[NAME, text("Secrets"), AGE], service_account),
    printer("", "Event", EVENT, event),
    printer("events.k8s.io", "Event", EVENT, event),
    printer("", "ComponentStatus", &[NAME, text("Status"), text("Message"), text("Error")], component_status),
    printer("", "LimitRange", &[NAME, CREATED_AT], name_and_created),
    printer("", "ResourceQuota", &[NAME, text("Request"), text("Limit"), AGE], resource_quota),
    printer("coordination.k8s.io", "Lease", &[NAME, text("Holder"), AGE], lease),
    printer("node.k8s.io", "RuntimeClass", &[NAME, text("Handler"), AGE], runtime_class),
    printer(
        "scheduling.k8s.io",
        "PriorityClass",
        &[NAME, integer("Value"), boolean("Global-Default"), AGE, text("PreemptionPolicy")],
        priority_class,
    ),
    printer("apiregistration.k8s.io", "APIService", &[NAME, text("Service"), text("Available"), AGE], api_service),
];

const EVENT: &[Column] = &[
    text("Last Seen"),
    text("Type"),
    text("Reason"),
    text("Object"),
    wide("Subobject"),
    wide("Source"),
    text("Message"),
    wide("First Seen"),
    wide("Count"),
    Column { name: "Name", kind: "string", format: "name", priority: 1 },
];

fn node(object: &Value, now: Timestamp) -> Vec<Value> {
    let ready = read::find(read::list(object, "status.conditions"), "type", "Ready");
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
        let found = read::find(read::list(object, "status.addresses"), "type", kind);
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

fn namespace(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::text(object, "status.phase")), age(object, now)]
}

fn entries(object: &Value, field: &str) -> usize {
    read::map(object, field).map_or(0, serde_json::Map::len)
}

fn config_map(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(entries(object, "data") + entries(object, "binaryData")), age(object, now)]
}

fn secret(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::text(object, "type")), json!(entries(object, "data")), age(object, now)]
}

fn service_account(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::list(object, "secrets").len()), age(object, now)]
}

/// Core events and events.k8s.io name the same things differently.
fn event(object: &Value, now: Timestamp) -> Vec<Value> {
    let time = |paths: &[&str]| paths.iter().find_map(|p| read::some_text(object, p));
    let first = time(&["firstTimestamp", "deprecatedFirstTimestamp", "eventTime"]);
    let last = time(&["series.lastObservedTime", "lastTimestamp", "deprecatedLastTimestamp"]).or(first);
    let numbers = ["series.count", "count", "deprecatedCount"];
    let count = numbers.iter().find_map(|p| read::integer(object, p).filter(|n| *n != 0)).unwrap_or(1);
    let about = read::at(object, "involvedObject").or(read::at(object, "regarding")).unwrap_or(&Value::Null);
    let kind = read::text(about, "kind").to_lowercase();
    let target = read::some_text(about, "name").map_or_else(|| kind.clone(), |n| format!("{kind}/{n}"));
    let message = read::some_text(object, "message").unwrap_or(read::text(object, "note"));
    vec![
        json!(duration::since(last, now)),
        json!(read::text(object, "type")),
        json!(read::text(object, "reason")),
        json!(target),
        json!(read::text(about, "fieldPath")),
        json!(event_source(object)),
        json!(message.trim()),
        json!(duration::since(first, now)),
        json!(count),
        name(object),
    ]
}

fn event_source(object: &Value) -> String {
    let pick = |paths: [&str; 4]| paths.iter().find_map(|p| read::some_text(object, p)).unwrap_or_default().to_owned();
    let component =
        pick(["source.component", "deprecatedSource.component", "reportingComponent", "reportingController"]);
    let host = pick(["source.host", "deprecatedSource.host", "reportingInstance", "reportingInstance"]);
    if host.is_empty() { component } else { format!("{component}, {host}") }
}

fn component_status(object: &Value, _now: Timestamp) -> Vec<Value> {
    let healthy = read::find(read::list(object, "conditions"), "type", "Healthy");
    let status = match healthy.map(|c| read::text(c, "status")) {
        Some("True") => "Healthy",
        Some(_) => "Unhealthy",
        None => "Unknown",
    };
    let field = |f: &str| json!(healthy.map_or("", |c| read::text(c, f)));
    vec![name(object), json!(status), field("message"), field("error")]
}

fn resource_quota(object: &Value, now: Timestamp) -> Vec<Value> {
    let (mut requests, mut limits) = (Vec::new(), Vec::new());
    for (resource, hard) in read::map(object, "status.hard").into_iter().flatten() {
        let used =
            read::map(object, "status.used").and_then(|u| u.get(resource)).and_then(Value::as_str).unwrap_or("0");
        let text = format!("{resource}: {used}/{}", hard.as_str().unwrap_or_default());
        if resource.starts_with("limits.") { limits.push(text) } else { requests.push(text) }
    }
    vec![name(object), json!(requests.join(", ")), json!(limits.join(", ")), age(object, now)]
}

fn lease(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::text(object, "spec.holderIdentity")), age(object, now)]
}

fn runtime_class(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::text(object, "handler")), age(object, now)]
}

fn priority_class(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        json!(read::number(object, "value")),
        json!(read::flag(object, "globalDefault")),
        age(object, now),
        or_none(object, "preemptionPolicy"),
    ]
}

fn api_service(object: &Value, now: Timestamp) -> Vec<Value> {
    let service = match read::at(object, "spec.service") {
        None => "Local".to_owned(),
        Some(s) => format!("{}/{}", read::text(s, "namespace"), read::text(s, "name")),
    };
    let condition = read::find(read::list(object, "status.conditions"), "type", "Available");
    let available = match condition {
        None => "Unknown".to_owned(),
        Some(c) => match (read::text(c, "status"), read::some_text(c, "reason")) {
            ("True", _) | (_, None) => read::text(c, "status").to_owned(),
            (status, Some(reason)) => format!("{status} ({reason})"),
        },
    };
    vec![name(object), json!(service), json!(available), age(object, now)]
}
