//! ConfigMap.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::entries;
use crate::behaviour::{Behaviour, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::validate;

/// The row.
pub(crate) static CONFIG_MAP: Behaviour = Behaviour {
    rules: Rules { always: validate::config::config_map, update: validate::config::config_map_update, ..Rules::NONE },
    printer: Printer { columns: &[NAME, column::text("Data"), AGE], cells },
    ..kind("", "ConfigMap")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(entries(object, "data") + entries(object, "binaryData")), age(object, now)]
}
