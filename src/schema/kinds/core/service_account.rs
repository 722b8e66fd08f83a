//! ServiceAccount.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Deletion, Prepare, Printer, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;

/// The row.
pub(crate) static SERVICE_ACCOUNT: Behaviour = Behaviour {
    prepare: Prepare { create: bare_references, update: |new, _| bare_references(new), ..Prepare::NONE },
    printer: Printer { columns: &[NAME, column::text("Secrets"), AGE], cells },
    deletion: Deletion::RETURNED,
    ..kind("", "ServiceAccount")
};

/// An account refers to Secrets of its own namespace by name and nothing else.
fn bare_references(new: &mut Value) {
    for secret in new.get_mut("secrets").and_then(Value::as_array_mut).into_iter().flatten() {
        let name = secret["name"].take();
        *secret = if name.is_null() { json!({}) } else { json!({ "name": name }) };
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::list(object, "secrets").len()), age(object, now)]
}
