//! Events: events.k8s.io/v1 renames most fields of the core kind, in which they are stored.

use serde_json::{Map, Value};

use super::rename;

const RENAMED: [(&str, &str); 7] = [
    ("message", "note"),
    ("involvedObject", "regarding"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

pub(super) fn to_new(map: &mut Map<String, Value>) {
    RENAMED.iter().for_each(|(core, new)| rename(map, core, new));
}

pub(super) fn to_core(map: &mut Map<String, Value>) {
    RENAMED.iter().for_each(|(core, new)| rename(map, new, core));
}
