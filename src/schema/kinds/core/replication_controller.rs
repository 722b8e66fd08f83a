//! ReplicationController.

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Counts, Deletion, Object, Owners, Printer, Rules, kind};
use crate::defaults::{self, has, is_empty, make, put};
use crate::print::cells::labels_text;
use crate::print::workload::{REPLICAS, replicas};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static REPLICATION_CONTROLLER: Behaviour = Behaviour {
    selectable: &["status.replicas"],
    defaults,
    owners: Owners::CLIENTS.with_status().counts_spec(),
    rules: Rules {
        always: validate::workload::replication_controller,
        counts: Some(Counts {
            counts: &["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"],
            of_replicas: &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
            of_ready: validate::status::READY,
        }),
        ..Rules::NONE
    },
    printer: Printer { columns: REPLICAS, cells },
    deletion: Deletion::ORPHANING,
    ..kind("", "ReplicationController")
};

fn defaults(object: &mut Object) {
    let labels = object.get("spec").and_then(|s| s.pointer("/template/metadata/labels")).cloned();
    let spec = make(object, "spec");
    put(spec, "replicas", 1);
    if let Some(labels) = labels.filter(|l| l.as_object().is_some_and(|l| !l.is_empty())) {
        if is_empty(spec, "selector") {
            spec.insert("selector".into(), labels.clone());
        }
        let metadata = make(object, "metadata");
        if is_empty(metadata, "labels") {
            metadata.insert("labels".into(), labels);
        }
    }
    let spec = make(object, "spec");
    if has(spec, "template") {
        defaults::pod::template(spec);
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    replicas(object, now, json!(labels_text(read::map(object, "spec.selector"))))
}
