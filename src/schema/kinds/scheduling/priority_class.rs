//! PriorityClass (scheduling.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Generation, Object, Owners, Printer, Rules, kind};
use crate::defaults::put;
use crate::print::cells::{age, name, or_none};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static PRIORITY_CLASS: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.generation(Generation::One),
    rules: Rules {
        always: validate::cluster::priority_class,
        update: validate::cluster::priority_class_update,
        ..Rules::NONE
    },
    printer: Printer {
        columns: &[
            NAME,
            column::integer("Value"),
            column::boolean("Global-Default"),
            AGE,
            column::text("PreemptionPolicy"),
        ],
        cells,
    },
    ..kind("scheduling.k8s.io", "PriorityClass")
};

fn defaults(object: &mut Object) {
    put(object, "preemptionPolicy", "PreemptLowerPriority");
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        json!(read::number(object, "value")),
        json!(read::flag(object, "globalDefault")),
        age(object, now),
        or_none(object, "preemptionPolicy"),
    ]
}
