//! VolumeAttributesClass (storage.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static VOLUME_ATTRIBUTES_CLASS: Behaviour = Behaviour {
    stored: Some(("storage.k8s.io", "v1")),
    rules: Rules {
        always: validate::drivers::attributes_class,
        update: validate::drivers::attributes_class_update,
        ..Rules::NONE
    },
    printer: Printer { columns: &[NAME, column::text("DriverName"), AGE], cells },
    ..kind("storage.k8s.io", "VolumeAttributesClass")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::text(object, "driverName")), age(object, now)]
}
