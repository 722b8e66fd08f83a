//! A configuration as a tree of JSON: settings by their dotted paths, and one file over another.

use serde_json::{Map, Value};

use super::row::Row;
use super::table;

/// A leaf that is a setting, or one that no setting has.
pub(super) enum Leaf<'a> {
    Known(&'static Row, &'a Value),
    Unknown(String),
}

/// The settings of a tree, in the order of its keys.
pub(super) fn leaves(tree: &Map<String, Value>) -> Vec<Leaf<'_>> {
    let mut found = Vec::new();
    collect(tree, "", &mut found);
    found
}

fn collect<'a>(tree: &'a Map<String, Value>, above: &str, found: &mut Vec<Leaf<'a>>) {
    for (key, value) in tree {
        let path = if above.is_empty() { key.clone() } else { format!("{above}.{key}") };
        match (table::by_field(&path), value) {
            (Some(row), value) => found.push(Leaf::Known(row, value)),
            (None, Value::Object(below)) if table::has_below(&path) => collect(below, &path, found),
            // An empty value of what has parts says nothing.
            (None, Value::Null) if table::has_below(&path) => {}
            (None, _) => found.push(Leaf::Unknown(path)),
        }
    }
}

/// Puts one file over what was before: RFC 7396, as upstream merges its drop-ins. A null takes back.
pub(super) fn merge(base: &mut Map<String, Value>, patch: Map<String, Value>) {
    for (key, value) in patch {
        match value {
            Value::Null => {
                base.remove(&key);
            }
            Value::Object(below) => {
                let slot = base.entry(key).or_insert_with(|| Value::Object(Map::new()));
                if !slot.is_object() {
                    *slot = Value::Object(Map::new());
                }
                if let Value::Object(slot) = slot {
                    merge(slot, below);
                }
            }
            other => {
                base.insert(key, other);
            }
        }
    }
}

/// Sets the value at a dotted path.
pub(super) fn set(tree: &mut Map<String, Value>, path: &str, value: Value) {
    match path.split_once('.') {
        None => {
            tree.insert(path.to_owned(), value);
        }
        Some((key, below)) => {
            let slot = tree.entry(key).or_insert_with(|| Value::Object(Map::new()));
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            if let Value::Object(slot) = slot {
                set(slot, below, value);
            }
        }
    }
}

/// The value at a dotted path.
pub(super) fn get<'a>(tree: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        None => tree.get(path),
        Some((key, below)) => get(tree.get(key)?.as_object()?, below),
    }
}
