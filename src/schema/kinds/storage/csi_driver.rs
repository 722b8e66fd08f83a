//! CSIDriver (storage.k8s.io).

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::behaviour::{Behaviour, Generation, Object, Owners, Printer, Rules, kind};
use crate::defaults::{is_empty, make, put};
use crate::print::cells::{age, name};
use crate::print::column::{self, AGE, NAME};
use crate::read;
use crate::validate;

/// The row.
pub(crate) static CSI_DRIVER: Behaviour = Behaviour {
    defaults,
    owners: Owners::CLIENTS.generation(Generation::Moves(&[&["spec"]])).conditional(),
    rules: Rules { always: validate::drivers::driver, update: validate::drivers::driver_update, ..Rules::NONE },
    printer: Printer {
        columns: &[
            NAME,
            column::boolean("AttachRequired"),
            column::boolean("PodInfoOnMount"),
            column::boolean("StorageCapacity"),
            column::text("TokenRequests"),
            column::boolean("RequiresRepublish"),
            column::text("Modes"),
            AGE,
        ],
        cells,
    },
    ..kind("storage.k8s.io", "CSIDriver")
};

fn defaults(object: &mut Object) {
    let spec = make(object, "spec");
    put(spec, "attachRequired", true);
    put(spec, "podInfoOnMount", false);
    put(spec, "storageCapacity", false);
    put(spec, "fsGroupPolicy", "ReadWriteOnceWithFSType");
    put(spec, "requiresRepublish", false);
    put(spec, "seLinuxMount", false);
    if is_empty(spec, "volumeLifecycleModes") {
        spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
    }
}

fn cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let tokens: Vec<&str> =
        read::list(object, "spec.tokenRequests").iter().map(|t| read::text(t, "audience")).collect();
    let modes = read::texts(object, "spec.volumeLifecycleModes").join(",");
    vec![
        name(object),
        json!(read::at(object, "spec.attachRequired").and_then(Value::as_bool).unwrap_or(true)),
        json!(read::flag(object, "spec.podInfoOnMount")),
        json!(read::flag(object, "spec.storageCapacity")),
        json!(if tokens.is_empty() { "<unset>".to_owned() } else { tokens.join(",") }),
        json!(read::flag(object, "spec.requiresRepublish")),
        json!(if modes.is_empty() { "Persistent" } else { &modes }),
        age(object, now),
    ]
}
