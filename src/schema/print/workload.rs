//! Cells and columns that workloads share.

use jiff::Timestamp;
use model::labels::format_label_selector;
use serde_json::{Value, json};

use super::cells::{age, containers, name};
use super::column::{AGE, Column, NAME, integer, wide};
use crate::read;

pub(crate) const CONTAINERS: Column = wide("Containers");

pub(crate) const IMAGES: Column = wide("Images");

pub(crate) const SELECTOR: Column = wide("Selector");

pub(crate) const REPLICAS: &[Column] =
    &[NAME, integer("Desired"), integer("Current"), integer("Ready"), AGE, CONTAINERS, IMAGES, SELECTOR];

pub(crate) fn selector(object: &Value) -> Value {
    json!(format_label_selector(read::at(object, "spec.selector")))
}

pub(crate) fn count(object: &Value, path: &str) -> Value {
    json!(read::number(object, path))
}

pub(crate) fn replicas(object: &Value, now: Timestamp, selector: Value) -> Vec<Value> {
    let (names, images) = containers(object, "spec.template.spec");
    vec![
        name(object),
        count(object, "spec.replicas"),
        count(object, "status.replicas"),
        count(object, "status.readyReplicas"),
        age(object, now),
        names,
        images,
        selector,
    ]
}
