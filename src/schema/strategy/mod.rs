//! What a server does to an object between defaulting and validation: who owns status, when generation moves,
//! what a kind fills in by itself. Name, uid and creationTimestamp are set by the caller before.

use serde_json::{Map, Value, json};

use crate::strategy::owners::Generation;
use crate::table::{Empty, Resource};
use model::meta;

mod conditions;
mod kinds;
pub mod owners;
mod pod;
#[cfg(test)]
mod tests;

pub use model::qos::qos_class;

/// Resets what a client may not set at creation: fields of the server, generation; fills in what the kind wants.
pub fn prepare_for_create(r: &Resource, new: &mut Value) {
    let row = owners::of(r);
    for path in row.create {
        owners::drop_field(new, path);
    }
    if row.create.contains(&(&["status"] as owners::Path)) {
        zero_status(r, new);
    }
    if matches!(row.generation, Generation::One | Generation::Counts(_) | Generation::Rest) {
        meta::metadata_mut(new).insert("generation".into(), 1.into());
    }
    if !r.custom {
        kinds::create(&r.group, &r.kind, new);
    }
}

/// A write to the main resource: what others write stays as it was, generation moves if what it counts changed.
pub fn prepare_for_update(r: &Resource, new: &mut Value, old: &Value) {
    for path in owners::of(r).update {
        owners::keep(new, old, path);
    }
    if !r.custom {
        kinds::update(&r.group, &r.kind, new, old);
    }
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
    for path in owners::of(r).status {
        if *path == ["metadata"] { owners::keep_metadata(new, old) } else { owners::keep(new, old, path) }
    }
    for path in SYSTEM {
        owners::keep(new, old, path);
    }
    if !r.custom {
        kinds::status(&r.group, &r.kind, new, old, now);
    }
}

/// Metadata that no status write moves, whoever's it is.
const SYSTEM: &[owners::Path] =
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
    let Some(paths) = owners::of(r).of_subresource(subresource) else { return false };
    let mut merged = old.clone();
    for path in paths {
        match *path {
            ["metadata"] => merged["metadata"] = new["metadata"].clone(),
            [parent, list, "*", field] => keep_items(&mut merged[*parent], &new[*parent], list, field),
            path => owners::keep(&mut merged, new, path),
        }
    }
    if !paths.contains(&(&["metadata"] as owners::Path)) {
        // The bookkeeping of this write is the only metadata that is new.
        let mut metadata = new.clone();
        owners::keep_metadata(&mut metadata, old);
        merged["metadata"] = metadata["metadata"].take();
    }
    *new = merged;
    if subresource == "approval" {
        conditions::stamp(new, old, now);
    }
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
        owners::keep_key(item, wanted, field);
    }
}

fn settle_generation(r: &Resource, new: &mut Value, old: &Value) {
    if moved(r, new, old) {
        meta::metadata_mut(new).insert("generation".into(), (meta::generation(old) + 1).into());
    } else {
        owners::keep(new, old, &["metadata", "generation"]);
    }
}

fn moved(r: &Resource, new: &Value, old: &Value) -> bool {
    let at = |v: &'_ Value, path: owners::Path| path.iter().try_fold(v, |at, key| at.get(key)).cloned();
    match owners::of(r).generation {
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

/// The struct at a JSON pointer, made on the way if absent.
fn make<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
    let mut at = object;
    for key in path {
        if !at.is_object() {
            *at = json!({});
        }
        at = &mut at[*key];
    }
    if !at.is_object() {
        *at = json!({});
    }
    match at {
        Value::Object(map) => map,
        // The lines above have just made it one.
        _ => unreachable!("an object was put here"),
    }
}
