//! The kinds of the core group.

use model::meta;
use serde_json::{Value, json};

use crate::read;

pub(crate) mod component_status;
pub(crate) mod config_map;
pub(crate) mod endpoints;
pub(crate) mod event;
pub(crate) mod limit_range;
pub(crate) mod namespace;
pub(crate) mod node;
pub(crate) mod persistent_volume;
pub(crate) mod persistent_volume_claim;
pub(crate) mod pod;
pub(crate) mod pod_template;
pub(crate) mod replication_controller;
pub(crate) mod resource_quota;
pub(crate) mod secret;
pub(crate) mod service;
pub(crate) mod service_account;

pub(super) fn entries(object: &Value, field: &str) -> usize {
    read::map(object, field).map_or(0, serde_json::Map::len)
}

pub(super) fn access_modes(object: &Value, path: &str) -> String {
    let has = read::texts(object, path);
    let short =
        [("ReadWriteOnce", "RWO"), ("ReadOnlyMany", "ROX"), ("ReadWriteMany", "RWX"), ("ReadWriteOncePod", "RWOP")];
    short.iter().filter(|(long, _)| has.contains(long)).map(|(_, short)| *short).collect::<Vec<_>>().join(",")
}

pub(super) fn phase(object: &Value) -> Value {
    json!(if meta::deletion_timestamp(object).is_some() { "Terminating" } else { read::text(object, "status.phase") })
}
