//! FlowSchema (flowcontrol.apiserver.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Object, Owners, Printer, Rules, kind};
use crate::defaults::{make, put_zero};
use crate::print::cells::{age, name, or_none};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static FLOW_SCHEMA: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.with_status().status_keeps_metadata().counts_spec(),
    rules: Rules { always: validate::flow::schema, ..Rules::NONE },
    printer: Printer {
        columns: &[
            NAME,
            column::text("PriorityLevel"),
            column::integer("MatchingPrecedence"),
            column::text("DistinguisherMethod"),
            AGE,
            column::text("MissingPL"),
        ],
        cells,
    },
    ..kind("flowcontrol.apiserver.k8s.io", "FlowSchema")
};

fn defaults(object: &mut Object) {
    put_zero(make(object, "spec"), "matchingPrecedence", 1000);
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let dangling = read::typed(read::list(object, "status.conditions"), "Dangling");
    vec![
        name(object),
        json!(read::text(object, "spec.priorityLevelConfiguration.name")),
        json!(read::number(object, "spec.matchingPrecedence")),
        or_none(object, "spec.distinguisherMethod.type"),
        age(object, now),
        json!(dangling.map_or("?", |c| read::text(c, "status"))),
    ]
}
