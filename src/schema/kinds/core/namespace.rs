//! Namespace.

use jiff::Timestamp;
use model::meta;
use model::names;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Deletion, Holds, Object, Owners, Part, Prepare, Printer, Rules, kind};
use crate::defaults::{make, put, put_zero, text};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::strategy::keep::struct_at;
use crate::validate;

/// The row.
pub(crate) static NAMESPACE: Behaviour = Behaviour {
    selectable: &["status.phase"],
    defaults,
    owners: Owners::CLIENTS.with_status(),
    prepare: Prepare { create: prepare_create, update: prepare_update, ..Prepare::NONE },
    rules: Rules {
        name: names::label,
        always: validate::cluster::namespace,
        status: |new, _, errors| validate::status::phase(new, errors),
        ..Rules::NONE
    },
    parts: &[Part { name: "finalize", writes: &[&["metadata"], &["spec"]], prepare: |_, _, _| {}, rule: None }],
    printer: Printer { columns: &[NAME, column::text("Status"), AGE], cells },
    deletion: Deletion { holds: Holds::Spec, ..Deletion::RETURNED },
    ..kind("", "Namespace")
};

fn defaults(object: &mut Object) {
    put_zero(make(object, "status"), "phase", "Active");
    let metadata = make(object, "metadata");
    // An object that is still to be named gets its label once it has a name (strategy).
    let name = text(metadata, "name").to_owned();
    if !name.is_empty() {
        put(make(metadata, "labels"), "kubernetes.io/metadata.name", name);
    }
}

fn prepare_create(new: &mut Value) {
    new["status"] = json!({"phase": "Active"});
    let name = meta::name(new).to_owned();
    struct_at(new, &["metadata", "labels"]).insert("kubernetes.io/metadata.name".into(), name.into());
    let spec = struct_at(new, &["spec"]);
    let finalizers = spec.entry("finalizers").or_insert_with(|| json!([]));
    if let Value::Array(all) = finalizers
        && !all.iter().any(|f| f == "kubernetes")
    {
        all.push("kubernetes".into());
    }
}

fn prepare_update(new: &mut Value, old: &Value) {
    let name = meta::name(new).to_owned();
    struct_at(new, &["metadata", "labels"]).insert("kubernetes.io/metadata.name".into(), name.into());
    // Only the finalize subresource changes these.
    match old.pointer("/spec/finalizers") {
        Some(finalizers) => struct_at(new, &["spec"]).insert("finalizers".into(), finalizers.clone()),
        None => struct_at(new, &["spec"]).remove("finalizers"),
    };
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::text(object, "status.phase")), age(object, now)]
}
