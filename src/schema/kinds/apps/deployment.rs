//! Deployment (apps).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Counts, Generation, Object, Owners, Printer, Rules, kind};
use crate::defaults::{self, make, put, put_zero, text};
use crate::print::cells::{age, containers, name};
use crate::print::column::{self, AGE, NAME};
use crate::print::workload::{CONTAINERS, IMAGES, SELECTOR, count, selector};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static DEPLOYMENT: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS
        .with_status()
        .status_keeps(&[&["metadata", "labels"]])
        .generation(Generation::Counts(&[&["spec"], &["metadata", "annotations"]])),
    rules: Rules {
        always: validate::workload::deployment,
        update: validate::workload::deployment_update,
        counts: Some(Counts {
            counts: &[
                "observedGeneration",
                "replicas",
                "updatedReplicas",
                "readyReplicas",
                "availableReplicas",
                "unavailableReplicas",
                "terminatingReplicas",
                "collisionCount",
            ],
            of_replicas: &["updatedReplicas", "readyReplicas", "availableReplicas"],
            of_ready: validate::status::READY,
        }),
        ..Rules::NONE
    },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Ready"),
            column::integer("Up-to-date"),
            column::integer("Available"),
            AGE,
            CONTAINERS,
            IMAGES,
            SELECTOR,
        ],
        cells,
    },
    ..kind("apps", "Deployment")
};

fn defaults(object: &mut Object) {
    let spec = make(object, "spec");
    put(spec, "replicas", 1);
    put(spec, "revisionHistoryLimit", 10);
    put(spec, "progressDeadlineSeconds", 600);
    let strategy = make(spec, "strategy");
    put_zero(strategy, "type", "RollingUpdate");
    if text(strategy, "type") == "RollingUpdate" {
        let rolling = make(strategy, "rollingUpdate");
        put(rolling, "maxUnavailable", "25%");
        put(rolling, "maxSurge", "25%");
    }
    defaults::pod::template(spec);
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(object, "spec.template.spec");
    let ready = format!("{}/{}", read::number(object, "status.readyReplicas"), read::number(object, "spec.replicas"));
    vec![
        name(object),
        json!(ready),
        count(object, "status.updatedReplicas"),
        count(object, "status.availableReplicas"),
        age(object, now),
        names,
        images,
        selector(object),
    ]
}
