//! RuntimeClass (node.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Creation, Finalizers, Owners, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static RUNTIME_CLASS: Behaviour = Behaviour {
    owners: Owners::CLIENTS.conditional(),
    rules: Rules {
        finalizers: Finalizers::Any,
        always: validate::cluster::runtime_class,
        update: validate::cluster::runtime_class_update,
        ..Rules::NONE
    },
    printer: Printer { columns: &[NAME, column::text("Handler"), AGE], cells },
    creation: Creation::CreateOrUpdate,
    ..kind("node.k8s.io", "RuntimeClass")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::text(object, "handler")), age(object, now)]
}
