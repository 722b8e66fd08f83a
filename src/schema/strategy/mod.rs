//! The work of a server on an object between defaulting and validation: who owns status, when generation moves,
//! what a kind fills in by itself. Name, uid and creationTimestamp are set by the caller before.

use model::meta;
use serde_json::Value;

use crate::behaviour::{Generation, Path};
use crate::strategy::keep::{drop_field, keep, keep_key, keep_metadata};
use crate::table::{Empty, Resource};

pub(crate) mod conditions;
pub(crate) mod keep;
pub(crate) mod pod;
#[cfg(test)]
mod tests;

pub use model::qos::qos_class;

/// Resets what a client may not set at creation: fields of the server, generation; fills in what the kind wants.
pub fn prepare_for_create(r: &Resource, new: &mut Value) {
    let row = &r.behaviour.owners;
    for path in row.create {
        drop_field(new, path);
    }
    if row.create.contains(&(&["status"] as Path)) {
        zero_status(r, new);
    }
    if matches!(row.generation, Generation::One | Generation::Counts(_) | Generation::Rest) {
        meta::metadata_mut(new).insert("generation".into(), 1.into());
    }
    (r.behaviour.prepare.create)(new);
}

/// A write to the main resource: what others write stays as it was, generation moves if what it counts changed.
pub fn prepare_for_update(r: &Resource, new: &mut Value, old: &Value) {
    for path in r.behaviour.owners.update {
        keep(new, old, path);
    }
    (r.behaviour.prepare.update)(new, old);
    settle_generation(r, new, old);
}

/// A write to the status subresource: everything but status and the metadata that is the client's stays as it was.
///
/// `now` is in RFC 3339.
pub fn prepare_for_status_update(r: &Resource, new: &mut Value, old: &Value, now: &str) {
    let (Some(fields), Some(before)) = (new.as_object_mut(), old.as_object()) else { return };
    let own = |key: &str| matches!(key, "apiVersion" | "kind" | "metadata" | "status");
    fields.retain(|key, _| own(key));
    fields.extend(before.iter().filter(|(key, _)| !own(key)).map(|(key, value)| (key.clone(), value.clone())));
    for path in r.behaviour.owners.status {
        if *path == ["metadata"] { keep_metadata(new, old) } else { keep(new, old, path) }
    }
    for path in SYSTEM {
        keep(new, old, path);
    }
    (r.behaviour.prepare.status)(new, old, now);
}

/// Metadata that no status write moves, whoever's it is.
const SYSTEM: &[Path] =
    &[&["metadata", "generation"], &["metadata", "deletionTimestamp"], &["metadata", "deletionGracePeriodSeconds"]];

/// A write to another subresource whose body is the object itself: `ephemeralcontainers`, `resize`, `finalize`,
/// `approval`.
///
/// `now` is in RFC 3339. Returns false if this subresource is no such thing; nothing was changed then.
pub fn prepare_for_subresource_update(
    r: &Resource,
    subresource: &str,
    new: &mut Value,
    old: &Value,
    now: &str,
) -> bool {
    let Some(part) = r.behaviour.part(subresource) else { return false };
    let mut merged = old.clone();
    for path in part.writes {
        match *path {
            ["metadata"] => merged["metadata"] = new["metadata"].clone(),
            [parent, list, "*", field] => keep_items(&mut merged[*parent], &new[*parent], list, field),
            path => keep(&mut merged, new, path),
        }
    }
    if !part.writes.contains(&(&["metadata"] as Path)) {
        // The bookkeeping of this write is the only metadata that is new.
        let mut metadata = new.clone();
        keep_metadata(&mut metadata, old);
        merged["metadata"] = metadata["metadata"].take();
    }
    *new = merged;
    (part.prepare)(new, old, now);
    settle_generation(r, new, old);
    true
}

/// Gives the items of a list this field of those in `new`; a list of other items is taken as it is, for validation to
/// refuse.
fn keep_items(merged: &mut Value, new: &Value, list: &str, field: &'static str) {
    let given = new.get(list).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let Some(items) = merged.get_mut(list).and_then(Value::as_array_mut) else {
        if !given.is_empty() {
            merged[list] = given.into();
        }
        return;
    };
    if items.len() != given.len() || items.iter().zip(given).any(|(a, b)| a["name"] != b["name"]) {
        *items = given.to_vec();
        return;
    }
    for (item, wanted) in items.iter_mut().zip(given) {
        keep_key(item, wanted, field);
    }
}

fn settle_generation(r: &Resource, new: &mut Value, old: &Value) {
    if moved(r, new, old) {
        meta::metadata_mut(new).insert("generation".into(), (meta::generation(old) + 1).into());
    } else {
        keep(new, old, &["metadata", "generation"]);
    }
}

fn moved(r: &Resource, new: &Value, old: &Value) -> bool {
    let at = |v: &'_ Value, path: Path| path.iter().try_fold(v, |at, key| at.get(key)).cloned();
    match r.behaviour.owners.generation {
        Generation::Untouched | Generation::One => false,
        Generation::Counts(paths) | Generation::Moves(paths) => paths.iter().any(|path| at(new, path) != at(old, path)),
        Generation::Rest => {
            let (Some(a), Some(b)) = (new.as_object(), old.as_object()) else { return false };
            let counts = |key: &str| match key {
                "apiVersion" | "kind" | "metadata" => false,
                "status" => !r.has_status(),
                _ => true,
            };
            let keys = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k)));
            keys.filter(|k| counts(k)).any(|k| a.get(k) != b.get(k))
        }
    }
}

/// A status that upstream always writes is written empty.
fn zero_status(r: &Resource, new: &mut Value) {
    if let (Some(fields), Some(field)) = (new.as_object_mut(), r.type_def().field("status"))
        && field.empty == Empty::Always
    {
        fields.insert("status".into(), crate::decode::zero(&field.shape));
    }
}
