//! Bringing a custom object into the form of its schema: unknown fields go, absent ones get their defaults.

use serde_json::{Map, Value};

use super::node::{Additional, Node};
use crate::decode::{DecodeError, FieldValidation, conform};
use crate::rows::types;
use crate::table::{TypeDef, TypeRef};
use crate::validate::path::Path;

/// The type of the metadata of all objects.
pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

/// Drops what the schema does not know; each dropped field's path (`spec.a[0].b`) is pushed to `unknown`.
pub fn prune(root: &Node, object: &mut Value, unknown: &mut Vec<String>) {
    let Value::Object(map) = object else { return };
    prune_object(map, root, true, root.preserve, "", unknown);
}

fn prune_value(value: &mut Value, node: Option<&Node>, preserved: bool, path: &str, unknown: &mut Vec<String>) {
    match value {
        Value::Object(map) => match node {
            Some(node) => {
                prune_object(map, node, node.embedded, node.preserve || (preserved && is_vague(node)), path, unknown)
            }
            None if preserved => {}
            None => drop_all(map, path, unknown),
        },
        Value::Array(items) => {
            let of = node.and_then(|n| n.items.as_deref());
            if of.is_none() && preserved {
                return;
            }
            for (idx, item) in items.iter_mut().enumerate() {
                prune_value(item, of, node.is_some_and(|n| n.preserve), &format!("{path}[{idx}]"), unknown);
            }
        }
        _ => {}
    }
}

/// A schema that says nothing about what it holds.
fn is_vague(node: &Node) -> bool {
    node.kind.is_none()
        && node.properties.is_empty()
        && node.items.is_none()
        && matches!(node.additional, Additional::Unsaid)
}

fn drop_all(map: &mut Map<String, Value>, path: &str, unknown: &mut Vec<String>) {
    unknown.extend(map.keys().map(|key| Path(path).child(key)));
    map.clear();
}

fn prune_object(
    map: &mut Map<String, Value>,
    node: &Node,
    is_resource: bool,
    preserve: bool,
    path: &str,
    unknown: &mut Vec<String>,
) {
    if matches!(node.additional, Additional::Any) {
        return;
    }
    map.retain(|key, value| {
        let at = Path(path).child(key);
        // Every resource has these, named in its schema or not; metadata is brought into form elsewhere.
        if is_resource && matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            return true;
        }
        match node.child(key) {
            Some(child) => prune_value(value, Some(child), child.preserve, &at, unknown),
            None if preserve => {}
            None => {
                unknown.push(at);
                return false;
            }
        }
        true
    });
}

/// Fills in defaults, and drops a null where null is no value but there is a default.
pub fn default(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, child) in &node.properties {
                if map.get(key).is_some_and(|v| v.is_null() && !child.nullable && child.default.is_some()) {
                    map.remove(key);
                }
                if let Some(default) = child.default.as_ref().filter(|_| !map.contains_key(key)) {
                    map.insert(key.clone(), default.clone());
                }
            }
            for (key, value) in map {
                if let Some(child) = node.child(key) {
                    default(child, value);
                }
            }
        }
        Value::Array(items) => {
            if let Some(node) = &node.items {
                items.iter_mut().for_each(|item| default(node, item));
            }
        }
        _ => {}
    }
}

/// Brings `metadata` of an object, and of every resource embedded in it, into its type's form.
///
/// Errors: a field of the metadata has the wrong type, in Go's words.
pub fn metadata(root: &Node, object: &mut Value, unknown: &mut Vec<String>) -> Result<(), DecodeError> {
    let Some(of) = types::type_ref(META).map(TypeRef::get) else { return Ok(()) };
    metadata_in(of, root, object, true, "", unknown)
}

fn metadata_in(
    of: &TypeDef,
    node: &Node,
    value: &mut Value,
    is_resource: bool,
    path: &str,
    unknown: &mut Vec<String>,
) -> Result<(), DecodeError> {
    match value {
        Value::Object(map) => {
            if is_resource && let Some(metadata) = map.get_mut("metadata").filter(|m| !m.is_null()) {
                let decoded = conform(metadata.take(), of, FieldValidation::Warn)?;
                *metadata = decoded.value;
                // An embedded object's absent creation time is not written.
                if !path.is_empty()
                    && let Some(map) = metadata.as_object_mut()
                {
                    map.retain(|_, v| !v.is_null());
                }
                let named = |text: &String| {
                    text.replacen("unknown field \"", &format!("unknown field \"{}", Path(path).child("metadata.")), 1)
                };
                unknown.extend(
                    decoded
                        .warnings
                        .iter()
                        .map(|w| named(w).trim_start_matches("unknown field \"").trim_end_matches('"').to_owned()),
                );
            }
            for (key, value) in map.iter_mut().filter(|(_, v)| v.is_object() || v.is_array()) {
                if let Some(child) = node.child(key) {
                    metadata_in(of, child, value, child.embedded, &Path(path).child(key), unknown)?;
                }
            }
        }
        Value::Array(items) => {
            if let Some(node) = &node.items {
                for (idx, item) in items.iter_mut().enumerate() {
                    metadata_in(of, node, item, node.embedded, &format!("{path}[{idx}]"), unknown)?;
                }
            }
        }
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pruning_keeps_what_is_preserved_and_names_what_goes() {
        let root = Node::compile(&json!({"type": "object", "properties": {
            "spec": {"type": "object", "properties": {
                "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true,
                    "properties": {"shut": {"type": "object"}}},
                "list": {"type": "array", "items": {"type": "object", "properties": {"a": {"type": "string"}}}},
                "map": {"type": "object", "additionalProperties": {"type": "object",
                    "properties": {"x": {"type": "integer"}}}}}}}}));
        let mut object = json!({"apiVersion": "a/v1", "kind": "K", "metadata": {}, "extra": 1, "spec": {
            "open": {"any": {"thing": 1}, "shut": {"gone": 1}}, "list": [{"a": "1", "b": 2}],
                "map": {"k": {"x": 1, "y": 2}}}});
        let mut unknown = Vec::new();
        prune(&root, &mut object, &mut unknown);
        assert_eq!(unknown, ["extra", "spec.list[0].b", "spec.map.k.y", "spec.open.shut.gone"]);
        assert_eq!(
            object["spec"],
            json!({"open": {"any": {"thing": 1}, "shut": {}}, "list": [{"a": "1"}], "map": {"k": {"x": 1}}})
        );
    }

    #[test]
    fn defaults_reach_into_lists_and_replace_a_null_that_is_no_value() {
        let root = Node::compile(&json!({"type": "object", "properties": {
            "a": {"type": "integer", "default": 1}, "n": {"type": "integer", "default": 2, "nullable": true},
            "l": {"type": "array", "items": {"type": "object",
                "properties": {"p": {"type": "string", "default": "TCP"}}}}}}));
        let mut object = json!({"a": null, "n": null, "l": [{}, {"p": "UDP"}]});
        default(&root, &mut object);
        assert_eq!(object, json!({"a": 1, "n": null, "l": [{"p": "TCP"}, {"p": "UDP"}]}));
    }
}
