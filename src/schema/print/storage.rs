//! Volumes and the drivers behind them.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::cells::{age, name, name_and_age, or_unset};
use super::column::{AGE, NAME, Printer, boolean, integer, printer, text, wide};
use crate::read;
use model::meta;

pub(super) const PRINTERS: &[Printer] = &[
    printer(
        "",
        "PersistentVolume",
        &[
            NAME,
            text("Capacity"),
            text("Access Modes"),
            text("Reclaim Policy"),
            text("Status"),
            text("Claim"),
            text("StorageClass"),
            text("VolumeAttributesClass"),
            text("Reason"),
            AGE,
            wide("VolumeMode"),
        ],
        volume,
    ),
    printer(
        "",
        "PersistentVolumeClaim",
        &[
            NAME,
            text("Status"),
            text("Volume"),
            text("Capacity"),
            text("Access Modes"),
            text("StorageClass"),
            text("VolumeAttributesClass"),
            AGE,
            wide("VolumeMode"),
        ],
        claim,
    ),
    printer(
        "storage.k8s.io",
        "StorageClass",
        &[
            NAME,
            text("Provisioner"),
            text("ReclaimPolicy"),
            text("VolumeBindingMode"),
            boolean("AllowVolumeExpansion"),
            AGE,
        ],
        class,
    ),
    printer("storage.k8s.io", "VolumeAttributesClass", &[NAME, text("DriverName"), AGE], attributes_class),
    printer(
        "storage.k8s.io",
        "VolumeAttachment",
        &[NAME, text("Attacher"), text("PV"), text("Node"), boolean("Attached"), AGE],
        attachment,
    ),
    printer(
        "storage.k8s.io",
        "CSIDriver",
        &[
            NAME,
            boolean("AttachRequired"),
            boolean("PodInfoOnMount"),
            boolean("StorageCapacity"),
            text("TokenRequests"),
            boolean("RequiresRepublish"),
            text("Modes"),
            AGE,
        ],
        csi_driver,
    ),
    printer("storage.k8s.io", "CSINode", &[NAME, integer("Drivers"), AGE], csi_node),
    printer("storage.k8s.io", "CSIStorageCapacity", &[NAME, text("StorageClassName"), text("Capacity")], capacity),
    printer("resource.k8s.io", "ResourceClaim", &[NAME, text("State"), AGE], resource_claim),
    printer("resource.k8s.io", "ResourceClaimTemplate", &[NAME, AGE], name_and_age),
    printer("resource.k8s.io", "DeviceClass", &[NAME, AGE], name_and_age),
    printer(
        "resource.k8s.io",
        "ResourceSlice",
        &[NAME, text("Node"), text("Driver"), text("Pool"), AGE],
        resource_slice,
    ),
];

fn access_modes(object: &Value, path: &str) -> String {
    let has = read::texts(object, path);
    let short =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    short.iter().filter(|(long, _)| has.contains(long)).map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

fn phase(object: &Value) -> Value {
    json!(if meta::deletion_timestamp(object).is_some() { "Terminating" } else { read::text(object, "status.phase") })
}

fn volume(object: &Value, now: Timestamp) -> Vec<Value> {
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

fn claim(object: &Value, now: Timestamp) -> Vec<Value> {
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

fn class(object: &Value, now: Timestamp) -> Vec<Value> {
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

fn attributes_class(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::text(object, "driverName")), age(object, now)]
}

fn attachment(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        json!(read::text(object, "spec.attacher")),
        json!(read::text(object, "spec.source.persistentVolumeName")),
        json!(read::text(object, "spec.nodeName")),
        json!(read::flag(object, "status.attached")),
        age(object, now),
    ]
}

fn csi_driver(object: &Value, now: Timestamp) -> Vec<Value> {
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

fn csi_node(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![name(object), json!(read::list(object, "spec.drivers").len()), age(object, now)]
}

fn capacity(object: &Value, _now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        json!(read::text(object, "storageClassName")),
        json!(read::some_text(object, "capacity").unwrap_or("<unset>")),
    ]
}

fn resource_claim(object: &Value, now: Timestamp) -> Vec<Value> {
    let mut states = Vec::new();
    if meta::deletion_timestamp(object).is_some() {
        states.push("deleted");
    }
    let allocated = read::at(object, "status.allocation").is_some();
    if allocated {
        states.push("allocated");
    }
    if !read::list(object, "status.reservedFor").is_empty() {
        states.push("reserved");
    } else if !allocated {
        states.push("pending");
    }
    vec![name(object), json!(states.join(",")), age(object, now)]
}

fn resource_slice(object: &Value, now: Timestamp) -> Vec<Value> {
    vec![
        name(object),
        json!(read::text(object, "spec.nodeName")),
        json!(read::text(object, "spec.driver")),
        json!(read::text(object, "spec.pool.name")),
        age(object, now),
    ]
}
