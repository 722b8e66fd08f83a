//! CustomResourceDefinition (apiextensions.k8s.io).

use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Deletion, Finalizers, Object, Owners, Prepare, Rules, kind};
use crate::custom::definition::CLEANUP;
use crate::defaults::{at, make, put, put_zero, text};
use crate::strategy::keep::struct_at;
use crate::validate;

/// The row.
pub(crate) static CUSTOM_RESOURCE_DEFINITION: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.with_status().counts_spec().conditional(),
    prepare: Prepare {
        create: definition_stored_versions,
        update: |new, _| definition_stored_versions(new),
        ..Prepare::NONE
    },
    rules: Rules {
        finalizers: Finalizers::Any,
        always: validate::definition::create,
        new: validate::definition::costs,
        update: validate::definition::update,
        status: |new, _, errors| validate::definition::status(new, errors),
        ..Rules::NONE
    },
    deletion: Deletion { cleanup: CLEANUP, ..Deletion::PLAIN },
    ..kind("apiextensions.k8s.io", "CustomResourceDefinition")
};

fn defaults(object: &mut Object) {
    let spec = make(object, "spec");
    let names = make(spec, "names");
    let kind = text(names, "kind").to_owned();
    if !kind.is_empty() {
        put_zero(names, "singular", kind.to_lowercase());
        put_zero(names, "listKind", format!("{kind}List"));
    }
    let conversion = make(spec, "conversion");
    put_zero(conversion, "strategy", "None");
    if let Some(service) = at(conversion, "webhook").and_then(|w| at(w, "clientConfig")).and_then(|c| at(c, "service"))
    {
        put(service, "port", 443);
    }
}

/// The version that is stored now is remembered among those that ever were.
fn definition_stored_versions(new: &mut Value) {
    let versions = new.pointer("/spec/versions").and_then(Value::as_array).into_iter().flatten();
    let stored = versions.filter(|v| v["storage"] == true).filter_map(|v| v["name"].as_str()).map(str::to_owned).next();
    let Some(stored) = stored else { return };
    let all = struct_at(new, &["status"]).entry("storedVersions").or_insert_with(|| json!([]));
    if !all.is_array() {
        *all = json!([]);
    }
    if let Value::Array(all) = all
        && !all.iter().any(|v| *v == stored)
    {
        all.push(stored.into());
    }
}
