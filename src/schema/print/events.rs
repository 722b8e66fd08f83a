//! Events of both groups: core events and those of events.k8s.io name the same things differently.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::name;
use super::column::{Column, text, wide};
use super::duration;
use crate::read;

pub(crate) const COLUMNS: &[Column] = &[
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

/// Core events and events.k8s.io name the same things differently.
pub(crate) fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
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
