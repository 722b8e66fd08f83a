//! PersistentVolumeClaim.

use jiff::Timestamp;
use model::meta;
use serde_json::{Value, json};

use super::{access_modes, phase};
use crate::behaviour::{Behaviour, Deletion, Object, Owners, Prepare, Printer, Rules, kind};
use crate::defaults::{make, put, put_zero};
use crate::print::cells::{age, name, or_unset};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static PERSISTENT_VOLUME_CLAIM: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.with_status(),
    prepare: Prepare { create: |new| new["status"] = json!({"phase": "Pending"}), ..Prepare::NONE },
    rules: Rules { always: validate::storage::claim, update: validate::storage::claim_update, ..Rules::NONE },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Status"),
            column::text("Volume"),
            column::text("Capacity"),
            column::text("Access Modes"),
            column::text("StorageClass"),
            column::text("VolumeAttributesClass"),
            AGE,
            column::wide("VolumeMode"),
        ],
        cells,
    },
    deletion: Deletion::RETURNED,
    ..kind("", "PersistentVolumeClaim")
};

pub(crate) fn defaults(object: &mut Object) {
    put(make(object, "spec"), "volumeMode", "Filesystem");
    put_zero(make(object, "status"), "phase", "Pending");
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let bound = read::some_text(object, "spec.volumeName");
    let (modes, size) = match bound {
        Some(_) => (access_modes(object, "status.accessModes"), read::text(object, "status.capacity.storage")),
        None => (String::new(), ""),
    };
    let class = meta::annotation(object, "volume.beta.kubernetes.io/storage-class");
    vec![
        name(object),
        phase(object),
        json!(bound.unwrap_or_default()),
        json!(size),
        json!(modes),
        json!(class.unwrap_or(read::text(object, "spec.storageClassName"))),
        or_unset(object, "spec.volumeAttributesClassName"),
        age(object, now),
        or_unset(object, "spec.volumeMode"),
    ]
}
