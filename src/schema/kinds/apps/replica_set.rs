//! ReplicaSet (apps).

use jiff::Timestamp;
use serde_json::Value;

use crate::behaviour::{Behaviour, Counts, Object, Owners, Printer, Rules, kind};
use crate::defaults::{self, make, put};
use crate::print::workload::{REPLICAS, replicas, selector};
use crate::validate;

/// The row.
pub(crate) static REPLICA_SET: Behaviour = Behaviour {
    selectable: &["status.replicas"],
    defaults,
    owners: Owners::CLIENTS.with_status().counts_spec(),
    rules: Rules {
        always: validate::workload::replica_set,
        update: validate::workload::selector_update,
        counts: Some(Counts {
            counts: &[
                "replicas",
                "fullyLabeledReplicas",
                "readyReplicas",
                "availableReplicas",
                "observedGeneration",
                "terminatingReplicas",
            ],
            of_replicas: &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
            of_ready: validate::status::READY,
        }),
        ..Rules::NONE
    },
    printer: Printer { columns: REPLICAS, cells },
    ..kind("apps", "ReplicaSet")
};

fn defaults(object: &mut Object) {
    let spec = make(object, "spec");
    put(spec, "replicas", 1);
    defaults::pod::template(spec);
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    replicas(object, now, selector(object))
}
