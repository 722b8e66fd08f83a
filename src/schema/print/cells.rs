//! Cells that several kinds share.

use jiff::Timestamp;
use model::meta;
use serde_json::{Value, json};

use super::duration;
use crate::read;

pub(crate) fn name_and_created(object: &Value, _now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(meta::creation_timestamp(object))]
}

pub(crate) fn name_and_age(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), age(object, now)]
}

pub(crate) fn name(object: &Value) -> Value {
    json!(meta::name(object))
}

pub(crate) fn age(object: &Value, now: Timestamp) -> Value {
    json!(duration::since(meta::creation_timestamp(object), now))
}

/// The text at a path, or `<none>`.
pub(crate) fn or_none(object: &Value, path: &str) -> Value {
    json!(read::some_text(object, path).unwrap_or("<none>"))
}

pub(crate) fn or_unset(object: &Value, path: &str) -> Value {
    json!(read::some_text(object, path).unwrap_or("<unset>"))
}

/// `a=b,c=d`, or `<none>`.
pub(crate) fn labels_text(labels: Option<&serde_json::Map<String, Value>>) -> String {
    let pairs: Vec<String> =
        labels.into_iter().flatten().map(|(k, v)| format!("{k}={}", v.as_str().unwrap_or_default())).collect();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

/// Names and images of a pod template's containers.
pub(crate) fn containers(object: &Value, template_spec: &str) -> (Value, Value) {
    let list = read::list(object, &format!("{template_spec}.containers"));
    let join = |field: &str| json!(list.iter().map(|c| read::text(c, field)).collect::<Vec<_>>().join(","));
    (join("name"), join("image"))
}

/// The first three, and how many more.
pub(crate) fn three_and_more(list: &[String]) -> String {
    match list.len() {
        0 => "<none>".to_owned(),
        n if n > 3 => format!("{} + {} more...", list[..3].join(","), n - 3),
        _ => list.join(","),
    }
}

/// The addresses at which a load balancer is reached.
pub(crate) fn load_balancer(object: &Value) -> Vec<&str> {
    let ingress = read::list(object, "status.loadBalancer.ingress");
    ingress.iter().filter_map(|i| read::some_text(i, "ip").or(read::some_text(i, "hostname"))).collect()
}
