//! DaemonSet (apps).

use jiff::Timestamp;
use model::meta;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Counts, Object, Owners, Prepare, Printer, Rules, kind};
use crate::defaults::{self, make, put, put_zero, text};
use crate::print::cells::{age, containers, labels_text, name};
use crate::print::column::{self, AGE, NAME};
use crate::print::workload::{CONTAINERS, IMAGES, SELECTOR, count, selector};
use crate::read;
use crate::strategy::keep::keep;
use crate::validate;

/// The row.
pub(crate) static DAEMON_SET: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.with_status().counts_spec(),
    prepare: Prepare {
        create: |new| template_generation(new, &Value::Null),
        update: template_generation,
        status: |new, old, _| keep(new, old, &["metadata", "annotations", TEMPLATE_GENERATION]),
    },
    rules: Rules {
        always: validate::workload::daemon_set,
        update: validate::workload::selector_update,
        counts: Some(Counts {
            counts: &[
                "currentNumberScheduled",
                "numberMisscheduled",
                "desiredNumberScheduled",
                "numberReady",
                "observedGeneration",
                "updatedNumberScheduled",
                "numberAvailable",
                "numberUnavailable",
                "collisionCount",
            ],
            of_replicas: &[],
            of_ready: validate::status::READY,
        }),
        ..Rules::NONE
    },
    printer: Printer {
        columns: &[
            NAME,
            column::integer("Desired"),
            column::integer("Current"),
            column::integer("Ready"),
            column::integer("Up-to-date"),
            column::integer("Available"),
            column::text("Node Selector"),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        cells,
    },
    ..kind("apps", "DaemonSet")
};

fn defaults(object: &mut Object) {
    let spec = make(object, "spec");
    put(spec, "revisionHistoryLimit", 10);
    let strategy = make(spec, "updateStrategy");
    put_zero(strategy, "type", "RollingUpdate");
    if text(strategy, "type") == "RollingUpdate" {
        let rolling = make(strategy, "rollingUpdate");
        put(rolling, "maxUnavailable", 1);
        put(rolling, "maxSurge", 0);
    }
    defaults::pod::template(spec);
}

/// How often a DaemonSet's template changed: a field of old versions, which upstream still writes into an annotation.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

/// Spec: upstream v1.36 `daemonSetStrategy`, and the conversion of DaemonSets.
fn template_generation(new: &mut Value, old: &Value) {
    let of = |v: &Value| meta::annotation(v, TEMPLATE_GENERATION).and_then(|n| n.parse::<i64>().ok());
    let generation = if old.is_null() {
        of(new).unwrap_or(0).max(1)
    } else {
        // One that was stored before this was kept has changed an unknown number of times.
        of(old).unwrap_or(1) + i64::from(new["spec"]["template"] != old["spec"]["template"])
    };
    meta::set_annotation(new, TEMPLATE_GENERATION, &generation.to_string());
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(object, "spec.template.spec");
    vec![
        name(object),
        count(object, "status.desiredNumberScheduled"),
        count(object, "status.currentNumberScheduled"),
        count(object, "status.numberReady"),
        count(object, "status.updatedNumberScheduled"),
        count(object, "status.numberAvailable"),
        json!(labels_text(read::map(object, "spec.template.spec.nodeSelector"))),
        age(object, now),
        names,
        images,
        selector(object),
    ]
}
