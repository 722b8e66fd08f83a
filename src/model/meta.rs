//! A view of `metadata`: every object has it, and nobody else should spell its fields.

use serde_json::{Map, Value};

/// One entry of `metadata.ownerReferences`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerReference<'a> {
    /// Group and version of the owner.
    pub api_version: &'a str,
    /// Kind of the owner.
    pub kind: &'a str,
    /// Name of the owner, in the same namespace or cluster-scoped.
    pub name: &'a str,
    /// Identity of the owner.
    pub uid: &'a str,
    /// Whether the owner manages this object.
    pub controller: bool,
    /// Whether foreground deletion of the owner waits for this object.
    pub block_owner_deletion: bool,
}

/// The whole `metadata`, if it is an object.
pub fn metadata(object: &Value) -> Option<&Map<String, Value>> {
    object.get("metadata")?.as_object()
}

/// `metadata` for writing; made when missing. An object that is no JSON object becomes one.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    child_mut(as_map(object), "metadata")
}

/// The member `name` of `parent` as a map, made when missing or of another shape.
pub fn child_mut<'a>(parent: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    as_map(parent.entry(name).or_insert_with(|| Value::Object(Map::new())))
}

fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(map) => map,
        _ => unreachable!("made an object above"),
    }
}

fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    metadata(object).and_then(|m| m.get(field)).and_then(Value::as_str).unwrap_or_default()
}

fn integer(object: &Value, field: &str) -> Option<i64> {
    metadata(object)?.get(field)?.as_i64()
}

/// `apiVersion`, empty when missing.
pub fn api_version(object: &Value) -> &str {
    object.get("apiVersion").and_then(Value::as_str).unwrap_or_default()
}

/// `kind`, empty when missing.
pub fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

/// `metadata.name`, empty when missing.
pub fn name(object: &Value) -> &str {
    text(object, "name")
}

/// `metadata.generateName`, empty when missing.
pub fn generate_name(object: &Value) -> &str {
    text(object, "generateName")
}

/// `metadata.namespace`, empty when missing.
pub fn namespace(object: &Value) -> &str {
    text(object, "namespace")
}

/// `metadata.uid`, empty when missing.
pub fn uid(object: &Value) -> &str {
    text(object, "uid")
}

/// `metadata.resourceVersion` as on the wire, empty when missing.
pub fn resource_version(object: &Value) -> &str {
    text(object, "resourceVersion")
}

/// `metadata.generation`, 0 when missing.
pub fn generation(object: &Value) -> i64 {
    integer(object, "generation").unwrap_or(0)
}

/// `metadata.creationTimestamp` as on the wire.
pub fn creation_timestamp(object: &Value) -> Option<&str> {
    metadata(object)?.get("creationTimestamp")?.as_str()
}

/// `metadata.deletionTimestamp` as on the wire; None unless the object is being deleted.
pub fn deletion_timestamp(object: &Value) -> Option<&str> {
    metadata(object)?.get("deletionTimestamp")?.as_str()
}

/// `metadata.deletionGracePeriodSeconds`.
pub fn deletion_grace_period_seconds(object: &Value) -> Option<i64> {
    integer(object, "deletionGracePeriodSeconds")
}

/// `metadata.labels`.
pub fn labels(object: &Value) -> Option<&Map<String, Value>> {
    metadata(object)?.get("labels")?.as_object()
}

/// One label.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    labels(object)?.get(key)?.as_str()
}

/// `metadata.annotations`.
pub fn annotations(object: &Value) -> Option<&Map<String, Value>> {
    metadata(object)?.get("annotations")?.as_object()
}

/// One annotation.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    annotations(object)?.get(key)?.as_str()
}

/// `metadata.finalizers`.
pub fn finalizers(object: &Value) -> Vec<&str> {
    let list = metadata(object).and_then(|m| m.get("finalizers")).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// `metadata.ownerReferences`.
pub fn owner_references(object: &Value) -> Vec<OwnerReference<'_>> {
    let list = metadata(object).and_then(|m| m.get("ownerReferences")).and_then(Value::as_array);
    list.into_iter().flatten().map(owner_reference).collect()
}

fn owner_reference(value: &Value) -> OwnerReference<'_> {
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    let flag = |field: &str| value.get(field).and_then(Value::as_bool).unwrap_or(false);
    OwnerReference {
        api_version: text("apiVersion"),
        kind: text("kind"),
        name: text("name"),
        uid: text("uid"),
        controller: flag("controller"),
        block_owner_deletion: flag("blockOwnerDeletion"),
    }
}

/// The owner that manages the object.
pub fn controller_of(object: &Value) -> Option<OwnerReference<'_>> {
    owner_references(object).into_iter().find(|o| o.controller)
}

/// `metadata.managedFields`.
pub fn managed_fields(object: &Value) -> &[Value] {
    metadata(object).and_then(|m| m.get("managedFields")).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Sets or, with an empty text, removes a text field of `metadata`.
pub fn set_text(object: &mut Value, field: &str, value: &str) {
    let metadata = metadata_mut(object);
    if value.is_empty() {
        metadata.remove(field);
    } else {
        metadata.insert(field.to_owned(), Value::from(value));
    }
}

/// Sets `metadata.name`.
pub fn set_name(object: &mut Value, value: &str) {
    set_text(object, "name", value);
}

/// Sets `metadata.namespace`; empty removes it.
pub fn set_namespace(object: &mut Value, value: &str) {
    set_text(object, "namespace", value);
}

/// Sets `metadata.uid`.
pub fn set_uid(object: &mut Value, value: &str) {
    set_text(object, "uid", value);
}

/// Sets `metadata.resourceVersion`; empty removes it.
pub fn set_resource_version(object: &mut Value, value: &str) {
    set_text(object, "resourceVersion", value);
}

/// Sets `metadata.generation`.
pub fn set_generation(object: &mut Value, value: i64) {
    metadata_mut(object).insert("generation".to_owned(), Value::from(value));
}

/// Sets `metadata.creationTimestamp` (wire form, whole seconds).
pub fn set_creation_timestamp(object: &mut Value, value: &str) {
    set_text(object, "creationTimestamp", value);
}

/// Sets or removes `metadata.deletionTimestamp`.
pub fn set_deletion_timestamp(object: &mut Value, value: Option<&str>) {
    set_text(object, "deletionTimestamp", value.unwrap_or_default());
}

/// Sets or removes `metadata.deletionGracePeriodSeconds`.
pub fn set_deletion_grace_period_seconds(object: &mut Value, value: Option<i64>) {
    let metadata = metadata_mut(object);
    match value {
        Some(seconds) => metadata.insert("deletionGracePeriodSeconds".to_owned(), Value::from(seconds)),
        None => metadata.remove("deletionGracePeriodSeconds"),
    };
}

/// Sets one label.
pub fn set_label(object: &mut Value, key: &str, value: &str) {
    child_mut(metadata_mut(object), "labels").insert(key.to_owned(), Value::from(value));
}

/// Sets one annotation.
pub fn set_annotation(object: &mut Value, key: &str, value: &str) {
    child_mut(metadata_mut(object), "annotations").insert(key.to_owned(), Value::from(value));
}

/// Replaces `metadata.finalizers`; an empty list removes the field.
pub fn set_finalizers(object: &mut Value, finalizers: &[&str]) {
    set_list(object, "finalizers", finalizers.iter().map(|f| Value::from(*f)).collect());
}

/// Replaces `metadata.managedFields`; an empty list removes the field.
pub fn set_managed_fields(object: &mut Value, entries: Vec<Value>) {
    set_list(object, "managedFields", entries);
}

fn set_list(object: &mut Value, field: &str, list: Vec<Value>) {
    let metadata = metadata_mut(object);
    if list.is_empty() {
        metadata.remove(field);
    } else {
        metadata.insert(field.to_owned(), Value::Array(list));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn setters_make_metadata_and_drop_what_is_empty() {
        let mut object = json!({"kind": "Pod"});
        set_name(&mut object, "web");
        set_label(&mut object, "a", "b");
        set_namespace(&mut object, "");
        set_finalizers(&mut object, &[]);
        assert_eq!(object, json!({"kind": "Pod", "metadata": {"name": "web", "labels": {"a": "b"}}}));
        assert_eq!((name(&object), label(&object, "a"), generation(&object)), ("web", Some("b"), 0));
    }
}
