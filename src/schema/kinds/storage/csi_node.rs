//! CSINode (storage.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Owners, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static CSI_NODE: Behaviour = Behaviour {
    owners: Owners::CLIENTS.conditional(),
    rules: Rules { always: validate::drivers::node, update: validate::drivers::node_update, ..Rules::NONE },
    printer: Printer { columns: &[NAME, column::integer("Drivers"), AGE], cells },
    ..kind("storage.k8s.io", "CSINode")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::list(object, "spec.drivers").len()), age(object, now)]
}
