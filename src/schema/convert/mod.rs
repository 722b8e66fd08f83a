//! Between the versions of one resource. Most versions have one shape and only the name changes; a few are rewritten.

use serde_json::{Map, Value, json};

use crate::behaviour::Versions;
use crate::table::{Resource, Shape, TypeDef};

pub(crate) mod autoscaling;
pub(crate) mod devices;
pub(crate) mod events;
#[cfg(test)]
mod tests;

/// Why an object has no form in the wished version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// Two resources that are not versions of each other.
    #[error("{from} and {to} are not versions of one resource")]
    Unrelated {
        /// Such as `v1, Kind=Pod`.
        from: String,
        /// Such as `apps/v1, Kind=Deployment`.
        to: String,
    },
    /// A field has no place in the wished version.
    #[error("{field} cannot be expressed in {to}")]
    Lost {
        /// JSON path.
        field: String,
        /// apiVersion.
        to: String,
    },
}

/// Rewrites an object of `from` into the version `to`.
pub fn convert(mut value: Value, from: &Resource, to: &Resource) -> Result<Value, ConvertError> {
    if from.group == to.group && from.version == to.version && from.kind == to.kind {
        return Ok(value);
    }
    let one_store = from.storage_group == to.storage_group && from.plural == to.plural;
    if from.kind != to.kind || !(from.group == to.group || one_store) {
        return Err(ConvertError::Unrelated { from: named(from), to: named(to) });
    }
    if let Some(map) = value.as_object_mut() {
        (from.behaviour.convert)(map, Versions { from: &from.api_version(), to: &to.api_version() });
        map.insert("apiVersion".into(), to.api_version().into());
        map.insert("kind".into(), to.kind.as_ref().into());
        // Whatever a rewrite left that the other version does not know is refused, never lost without a word.
        if !to.custom
            && let Some(field) = unknown(map, to.type_def(), String::new())
        {
            return Err(ConvertError::Lost { field, to: to.api_version() });
        }
    }
    Ok(value)
}

/// The name of a version's field `path` in the form in which its objects are stored.
pub fn stored_field(of: &Resource, path: &str) -> String {
    (of.behaviour.stored_field)(path)
}

fn named(r: &Resource) -> String {
    format!("{}, Kind={}", r.api_version(), r.kind)
}

/// The path of a field that the type does not have.
fn unknown(map: &Map<String, Value>, t: &TypeDef, path: String) -> Option<String> {
    if t.open {
        return None;
    }
    map.iter().find_map(|(key, value)| {
        let at = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match t.field(key) {
            None => Some(at),
            Some(field) => unknown_in(value, &field.shape, at),
        }
    })
}

fn unknown_in(value: &Value, shape: &Shape, path: String) -> Option<String> {
    match (shape, value) {
        (Shape::Struct(t), Value::Object(map)) => unknown(map, t.get(), path),
        (Shape::List(item), Value::Array(all)) => {
            all.iter().enumerate().find_map(|(i, v)| unknown_in(v, item, format!("{path}[{i}]")))
        }
        (Shape::Map(entry), Value::Object(map)) => {
            map.iter().find_map(|(k, v)| unknown_in(v, entry, format!("{path}.{k}")))
        }
        _ => None,
    }
}

/// Moves a field if it is there.
fn rename(map: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = map.remove(from) {
        map.insert(to.to_owned(), value);
    }
}

/// The struct at `key`, made if absent.
fn make<'a>(map: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    model::meta::child_mut(map, key)
}

fn annotation(map: &mut Map<String, Value>, key: &str, value: Value) {
    make(make(map, "metadata"), "annotations").insert(key.to_owned(), Value::String(value.to_string()));
}

fn take_annotation(map: &mut Map<String, Value>, key: &str) -> Option<Value> {
    let metadata = map.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let text = annotations.remove(key)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    serde_json::from_str(text.as_str()?).ok().or(Some(json!(null)))
}
