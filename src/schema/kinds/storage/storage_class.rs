//! StorageClass (storage.k8s.io).

use jiff::Timestamp;
use model::meta;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Object, Printer, Rules, kind};
use crate::defaults::put;
use crate::print::cells::age;
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static STORAGE_CLASS: Behaviour = Behaviour {
    defaults,
    rules: Rules { always: validate::storage::class, update: validate::storage::class_update, ..Rules::NONE },
    printer: Printer {
        columns: &[
            NAME,
            column::text("Provisioner"),
            column::text("ReclaimPolicy"),
            column::text("VolumeBindingMode"),
            column::boolean("AllowVolumeExpansion"),
            AGE,
        ],
        cells,
    },
    ..kind("storage.k8s.io", "StorageClass")
};

fn defaults(object: &mut Object) {
    put(object, "reclaimPolicy", "Delete");
    put(object, "volumeBindingMode", "Immediate");
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let default = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
    let default = default.iter().any(|a| meta::annotation(object, a) == Some("true"));
    vec![
        json!(format!("{}{}", meta::name(object), if default { " (default)" } else { "" })),
        json!(read::text(object, "provisioner")),
        json!(read::some_text(object, "reclaimPolicy").unwrap_or("Delete")),
        json!(read::some_text(object, "volumeBindingMode").unwrap_or("Immediate")),
        json!(read::flag(object, "allowVolumeExpansion")),
        age(object, now),
    ]
}
