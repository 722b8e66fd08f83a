//! PriorityLevelConfiguration (flowcontrol.apiserver.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Object, Owners, Printer, Rules, kind};
use crate::defaults::{at, make, put, put_zero, text};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static PRIORITY_LEVEL_CONFIGURATION: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.with_status().status_keeps_metadata().counts_spec(),
    rules: Rules { always: validate::flow::level, ..Rules::NONE },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Type"),
            column::text("NominalConcurrencyShares"),
            column::text("Queues"),
            column::text("HandSize"),
            column::text("QueueLengthLimit"),
            AGE,
        ],
        cells,
    },
    ..kind("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration")
};

fn defaults(object: &mut Object) {
    let spec = make(object, "spec");
    if let Some(exempt) = at(spec, "exempt") {
        put(exempt, "nominalConcurrencyShares", 0);
        put(exempt, "lendablePercent", 0);
    }
    let Some(limited) = at(spec, "limited") else { return };
    put(limited, "nominalConcurrencyShares", 30);
    put(limited, "lendablePercent", 0);
    let response = make(limited, "limitResponse");
    if text(response, "type") == "Queue" {
        let queuing = make(response, "queuing");
        put_zero(queuing, "queues", 64);
        put_zero(queuing, "handSize", 8);
        put_zero(queuing, "queueLengthLimit", 50);
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let shown = |paths: &[&str]| {
        let found = paths.iter().find_map(|p| read::integer(object, p));
        json!(found.map_or_else(|| "<none>".to_owned(), |n| n.to_string()))
    };
    vec![
        name(object),
        json!(read::text(object, "spec.type")),
        shown(&["spec.limited.nominalConcurrencyShares", "spec.exempt.nominalConcurrencyShares"]),
        shown(&["spec.limited.limitResponse.queuing.queues"]),
        shown(&["spec.limited.limitResponse.queuing.handSize"]),
        shown(&["spec.limited.limitResponse.queuing.queueLengthLimit"]),
        age(object, now),
    ]
}
