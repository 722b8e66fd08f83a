//! PodDisruptionBudget (policy).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Counts, Finalizers, Owners, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static POD_DISRUPTION_BUDGET: Behaviour = Behaviour {
    owners: Owners::CLIENTS.with_status().counts_spec().conditional(),
    rules: Rules {
        finalizers: Finalizers::Any,
        always: validate::workload::disruption_budget,
        status: |new, _, errors| validate::status::conditions(new, errors),
        counts: Some(Counts {
            counts: &["disruptionsAllowed", "currentHealthy", "desiredHealthy", "expectedPods"],
            of_replicas: &[],
            of_ready: validate::status::READY,
        }),
        ..Rules::NONE
    },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Min Available"),
            column::text("Max Unavailable"),
            column::integer("Allowed Disruptions"),
            AGE,
        ],
        cells,
    },
    ..kind("policy", "PodDisruptionBudget")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let bound = |path: &str| match read::at(object, path) {
        Some(Value::String(s)) => json!(s),
        Some(n) => json!(n.to_string()),
        None => json!("N/A"),
    };
    vec![
        name(object),
        bound("spec.minAvailable"),
        bound("spec.maxUnavailable"),
        json!(read::number(object, "status.disruptionsAllowed")),
        age(object, now),
    ]
}
