//! ResourceSlice (resource.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Owners, Printer, Rules, kind};
use crate::convert;
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static RESOURCE_SLICE: Behaviour = Behaviour {
    stored: Some(("resource.k8s.io", "v1")),
    selectable: &["spec.nodeName", "spec.driver"],
    owners: Owners::CLIENTS.counts_spec(),
    rules: Rules { always: validate::devices::slice, update: validate::devices::slice_update, ..Rules::NONE },
    printer: Printer {
        columns: &[NAME, column::text("Node"), column::text("Driver"), column::text("Pool"), AGE],
        cells,
    },
    convert: convert::devices::slice,
    ..kind("resource.k8s.io", "ResourceSlice")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        json!(read::text(object, "spec.nodeName")),
        json!(read::text(object, "spec.driver")),
        json!(read::text(object, "spec.pool.name")),
        age(object, now),
    ]
}
