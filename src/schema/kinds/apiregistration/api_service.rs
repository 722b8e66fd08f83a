//! APIService (apiregistration.k8s.io).

use jiff::Timestamp;
use model::meta;
use model::names;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Finalizers, Object, Owners, Prepare, Printer, Rules, kind};
use crate::defaults::{at, make, put};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;

/// The row.
pub(crate) static API_SERVICE: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS
        .with_status()
        .status_keeps(&[
            &["metadata", "labels"],
            &["metadata", "annotations"],
            &["metadata", "finalizers"],
            &["metadata", "ownerReferences"],
        ])
        .conditional(),
    prepare: Prepare { create: prepare_create, ..Prepare::NONE },
    rules: Rules { name: names::path_segment, finalizers: Finalizers::Any, ..Rules::NONE },
    printer: Printer { columns: &[NAME, column::text("Service"), column::text("Available"), AGE], cells },
    ..kind("apiregistration.k8s.io", "APIService")
};

fn defaults(object: &mut Object) {
    if let Some(service) = at(make(object, "spec"), "service") {
        put(service, "port", 443);
    }
}

/// A group that this server serves itself is there from the beginning.
fn prepare_create(new: &mut Value) {
    if new["spec"].get("service").is_none_or(Value::is_null) {
        new["status"] = json!({"conditions": [{
            "type": "Available", "status": "True", "reason": "Local",
                "message": "Local APIServices are always available",
            "lastTransitionTime": meta::creation_timestamp(new).unwrap_or_default(),
        }]});
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let service = match read::at(object, "spec.service") {
        None => "Local".to_owned(),
        Some(s) => format!("{}/{}", read::text(s, "namespace"), read::text(s, "name")),
    };
    let condition = read::typed(read::list(object, "status.conditions"), "Available");
    let available = match condition {
        None => "Unknown".to_owned(),
        Some(c) => match (read::text(c, "status"), read::some_text(c, "reason")) {
            ("True", _) | (_, None) => read::text(c, "status").to_owned(),
            (status, Some(reason)) => format!("{status} ({reason})"),
        },
    };
    vec![name(object), json!(service), json!(available), age(object, now)]
}
