//! VolumeAttachment (storage.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Owners, Printer, Rules, kind};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static VOLUME_ATTACHMENT: Behaviour = Behaviour {
    owners: Owners::CLIENTS.with_status().status_keeps_metadata().conditional(),
    rules: Rules { always: validate::drivers::attachment, update: validate::drivers::attachment_update, ..Rules::NONE },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Attacher"),
            column::text("PV"),
            column::text("Node"),
            column::boolean("Attached"),
            AGE,
        ],
        cells,
    },
    ..kind("storage.k8s.io", "VolumeAttachment")
};

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        json!(read::text(object, "spec.attacher")),
        json!(read::text(object, "spec.source.persistentVolumeName")),
        json!(read::text(object, "spec.nodeName")),
        json!(read::flag(object, "status.attached")),
        age(object, now),
    ]
}
