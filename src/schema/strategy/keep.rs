//! Fields that stay as they were, whatever a writer sends.

use serde_json::{Map, Value, json};

use crate::behaviour::Path;

/// Makes the field of `new` what it is in `old`: its value, or its absence.
pub(crate) fn keep(new: &mut Value, old: &Value, path: Path) {
    let [parents @ .., last] = path else { return };
    match path.iter().try_fold(old, |at, key| at.get(key)) {
        Some(value) => drop(struct_at(new, parents).insert((*last).to_owned(), value.clone())),
        None => drop_field(new, path),
    }
}

/// The same for a field of this very struct.
pub(crate) fn keep_key(new: &mut Value, old: &Value, key: &str) {
    match (new.as_object_mut(), old.get(key)) {
        (Some(fields), Some(value)) => drop(fields.insert(key.to_owned(), value.clone())),
        (Some(fields), None) => drop(fields.remove(key)),
        (None, _) => {}
    }
}

/// Takes the field away.
pub(crate) fn drop_field(object: &mut Value, path: Path) {
    let [parents @ .., last] = path else { return };
    let parent = parents.iter().try_fold(object, |at, key| at.get_mut(key));
    if let Some(Value::Object(map)) = parent {
        map.remove(*last);
    }
}

/// Metadata as it was, but for the bookkeeping of the write itself.
pub(crate) fn keep_metadata(new: &mut Value, old: &Value) {
    let bookkeeping = |key: &str| matches!(key, "resourceVersion" | "managedFields");
    let empty = Map::new();
    let before = model::meta::metadata(old).unwrap_or(&empty);
    let metadata = model::meta::metadata_mut(new);
    metadata.retain(|key, _| bookkeeping(key));
    metadata.extend(before.iter().filter(|(key, _)| !bookkeeping(key)).map(|(k, v)| (k.clone(), v.clone())));
}

/// The struct at a JSON pointer, made on the way if absent.
pub(crate) fn struct_at<'a>(object: &'a mut Value, path: &[&str]) -> &'a mut Map<String, Value> {
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
