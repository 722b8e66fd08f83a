//! StatefulSet (apps).

use jiff::Timestamp;
use model::names;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Counts, Object, Owners, Printer, Rules, kind};
use crate::defaults::{self, at, each, make, put, put_zero, text};
use crate::kinds::core::persistent_volume_claim;
use crate::print::cells::{age, containers, name};
use crate::print::column::{self, AGE, NAME};
use crate::print::workload::{CONTAINERS, IMAGES};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static STATEFUL_SET: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.with_status().counts_spec(),
    rules: Rules {
        name: names::label,
        always: validate::workload::stateful_set,
        new: validate::workload::new_stateful_set,
        update: validate::workload::stateful_set_update,
        counts: Some(Counts {
            counts: &[
                "replicas",
                "readyReplicas",
                "currentReplicas",
                "updatedReplicas",
                "availableReplicas",
                "observedGeneration",
                "collisionCount",
            ],
            of_replicas: &["readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"],
            of_ready: "cannot be greater than status.readyReplicas",
        }),
        ..Rules::NONE
    },
    printer: Printer { columns: &[NAME, column::text("Ready"), AGE, CONTAINERS, IMAGES], cells },
    ..kind("apps", "StatefulSet")
};

fn defaults(object: &mut Object) {
    let spec = make(object, "spec");
    put(spec, "replicas", 1);
    put(spec, "revisionHistoryLimit", 10);
    put_zero(spec, "podManagementPolicy", "OrderedReady");
    let strategy = make(spec, "updateStrategy");
    // Who names the strategy also says how it rolls, or leaves it at that.
    if text(strategy, "type").is_empty() {
        put_zero(strategy, "type", "RollingUpdate");
        make(strategy, "rollingUpdate");
    }
    if text(strategy, "type") == "RollingUpdate"
        && let Some(rolling) = at(strategy, "rollingUpdate")
    {
        put(rolling, "partition", 0);
    }
    let retention = make(spec, "persistentVolumeClaimRetentionPolicy");
    put_zero(retention, "whenDeleted", "Retain");
    put_zero(retention, "whenScaled", "Retain");
    for claim in each(spec, "volumeClaimTemplates") {
        claim.insert("apiVersion".into(), "v1".into());
        claim.insert("kind".into(), "PersistentVolumeClaim".into());
        persistent_volume_claim::defaults(claim);
    }
    defaults::pod::template(spec);
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let (names, images) = containers(object, "spec.template.spec");
    let ready = format!("{}/{}", read::number(object, "status.readyReplicas"), read::number(object, "spec.replicas"));
    vec![name(object), json!(ready), age(object, now), names, images]
}
