//! CSIStorageCapacity (storage.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Owners, Printer, Rules, kind};
use crate::print::cells::name;
use crate::print::column::{self, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static CSI_STORAGE_CAPACITY: Behaviour = Behaviour {
    owners: Owners::CLIENTS.conditional(),
    rules: Rules { always: validate::drivers::capacity, update: validate::drivers::capacity_update, ..Rules::NONE },
    printer: Printer { columns: &[NAME, column::text("StorageClassName"), column::text("Capacity")], cells },
    ..kind("storage.k8s.io", "CSIStorageCapacity")
};

fn cells(object: &Value, _now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        json!(read::text(object, "storageClassName")),
        json!(read::some_text(object, "capacity").unwrap_or("<unset>")),
    ]
}
