//! Events: events.k8s.io/v1 renames most fields of the core kind, in which they are stored.

use serde_json::{Map, Value};

use crate::behaviour::{Object, Versions};

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

/// The path of a field of the new kind in the core kind.
pub(crate) fn core_field(path: &str) -> String {
    let (first, rest) = path.split_once('.').map_or((path, None), |(first, rest)| (first, Some(rest)));
    let first = RENAMED.iter().find(|(_, new)| *new == first).map_or(first, |(core, _)| core);
    rest.map_or_else(|| first.to_owned(), |rest| format!("{first}.{rest}"))
}

/// Between core events and those of events.k8s.io.
pub(crate) fn between(map: &mut Object, versions: Versions<'_>) {
    if versions.to == "v1" { to_core(map) } else { to_new(map) }
}

fn to_new(map: &mut Map<String, Value>) {
    RENAMED.iter().for_each(|(core, new)| rename(map, core, new));
}

fn to_core(map: &mut Map<String, Value>) {
    RENAMED.iter().for_each(|(core, new)| rename(map, new, core));
}
