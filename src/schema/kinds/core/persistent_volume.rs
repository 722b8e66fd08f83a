//! PersistentVolume.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{access_modes, phase};
use crate::behaviour::{Behaviour, Deletion, Object, Owners, Prepare, Printer, Rules, kind};
use crate::defaults::{at, make, put, put_zero};
use crate::print::cells::{age, name, or_unset};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::strategy::keep::keep;
use crate::validate;

/// The row.
pub(crate) static PERSISTENT_VOLUME: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.with_status(),
    prepare: Prepare {
        create: |new| {
            new["status"] =
                json!({"phase": "Pending", "lastPhaseTransitionTime": new["metadata"]["creationTimestamp"]});
        },
        status: prepare_status,
        ..Prepare::NONE
    },
    rules: Rules { always: validate::storage::volume, update: validate::storage::volume_update, ..Rules::NONE },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Capacity"),
            column::text("Access Modes"),
            column::text("Reclaim Policy"),
            column::text("Status"),
            column::text("Claim"),
            column::text("StorageClass"),
            column::text("VolumeAttributesClass"),
            column::text("Reason"),
            AGE,
            column::wide("VolumeMode"),
        ],
        cells,
    },
    deletion: Deletion::RETURNED,
    ..kind("", "PersistentVolume")
};

fn defaults(object: &mut Object) {
    let spec = make(object, "spec");
    put_zero(spec, "persistentVolumeReclaimPolicy", "Retain");
    put(spec, "volumeMode", "Filesystem");
    if let Some(path) = at(spec, "hostPath") {
        put(path, "type", "");
    }
    if let Some(disk) = at(spec, "azureDisk") {
        put(disk, "readOnly", false);
    }
    put_zero(make(object, "status"), "phase", "Pending");
}

/// The time of the last change of phase, which a writer need not know.
fn prepare_status(new: &mut Value, old: &Value, now: &str) {
    let time = |v: &Value| v["status"]["lastPhaseTransitionTime"].as_str().map(str::to_owned);
    let same_phase = new["status"]["phase"] == old["status"]["phase"];
    let (said, before) = (time(new), time(old));
    if same_phase && said.is_none() {
        keep(new, old, &["status", "lastPhaseTransitionTime"]);
    } else if !same_phase && (said.is_none() || said == before) {
        new["status"]["lastPhaseTransitionTime"] = now.into();
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let claim = read::at(object, "spec.claimRef")
        .map(|c| format!("{}/{}", read::text(c, "namespace"), read::text(c, "name")))
        .unwrap_or_default();
    vec![
        name(object),
        json!(read::text(object, "spec.capacity.storage")),
        json!(access_modes(object, "spec.accessModes")),
        json!(read::text(object, "spec.persistentVolumeReclaimPolicy")),
        phase(object),
        json!(claim),
        json!(read::text(object, "spec.storageClassName")),
        or_unset(object, "spec.volumeAttributesClassName"),
        json!(read::text(object, "status.reason")),
        age(object, now),
        or_unset(object, "spec.volumeMode"),
    ]
}
