//! Upstream's defaulting: what the table says for each field, then a small function for kinds that need more.

use serde_json::{Map, Value, json};

use crate::behaviour::Object;
use crate::table::{Resource, Shape, TypeDef};

pub(crate) mod pod;
#[cfg(test)]
mod tests;

/// Applies all defaults of a resource to an object that was decoded for it.
pub fn apply(r: &Resource, object: &mut Value) {
    if let Some(definition) = &r.definition {
        return definition.default(object);
    }
    let Value::Object(map) = object else { return };
    declared(map, r.type_def());
    (r.behaviour.defaults)(map);
}

/// Applies the defaults of a pod template, for whoever builds pods without a workload object.
pub fn pod_spec(spec: &mut Map<String, Value>) {
    pod::spec(spec);
}

/// Applies only what the fields of a type declare, which is all for custom resources.
pub fn declared(map: &mut Object, t: &TypeDef) {
    for field in &t.fields {
        let name = field.name.as_ref();
        if let Some(default) = &field.default
            && map.get(name).is_none_or(|v| v.is_null() && !field.nullable)
        {
            map.insert(name.to_owned(), default.clone());
        }
        if let Some(value) = map.get_mut(name) {
            declared_in(value, &field.shape);
        }
    }
}

fn declared_in(value: &mut Value, shape: &Shape) {
    match (shape, value) {
        (Shape::Struct(t), Value::Object(map)) => declared(map, t.get()),
        (Shape::List(item), Value::Array(values)) => values.iter_mut().for_each(|v| declared_in(v, item)),
        (Shape::Map(entry), Value::Object(map)) => map.values_mut().for_each(|v| declared_in(v, entry)),
        _ => {}
    }
}

/// Sets what is absent.
pub(crate) fn put(map: &mut Object, key: &str, value: impl Into<Value>) {
    let slot = map.entry(key).or_insert(Value::Null);
    if slot.is_null() {
        *slot = value.into();
    }
}

/// Sets what is absent or Go's zero value: fields without a pointer.
pub(crate) fn put_zero(map: &mut Object, key: &str, value: impl Into<Value>) {
    let zero = match map.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::String(s)) => s.is_empty(),
        Some(Value::Number(n)) => n.as_i64() == Some(0),
        Some(_) => false,
    };
    if zero {
        map.insert(key.to_owned(), value.into());
    }
}

/// The struct at `key`, made if absent.
pub(crate) fn make<'a>(map: &'a mut Object, key: &str) -> &'a mut Object {
    let slot = map.entry(key).or_insert_with(|| json!({}));
    if !slot.is_object() {
        *slot = json!({});
    }
    match slot {
        Value::Object(map) => map,
        // The lines above have just made it one.
        _ => unreachable!("an object was put here"),
    }
}

/// The struct at `key`, if it is there.
pub(crate) fn at<'a>(map: &'a mut Object, key: &str) -> Option<&'a mut Object> {
    map.get_mut(key).and_then(Value::as_object_mut)
}

/// The structs of the list at `key`.
pub(crate) fn each<'a>(map: &'a mut Object, key: &str) -> impl Iterator<Item = &'a mut Object> {
    map.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

pub(crate) fn text<'a>(map: &'a Object, key: &str) -> &'a str {
    map.get(key).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn has(map: &Object, key: &str) -> bool {
    map.get(key).is_some_and(|v| !v.is_null())
}

pub(crate) fn is_empty(map: &Object, key: &str) -> bool {
    match map.get(key) {
        None | Some(Value::Null) => true,
        Some(Value::Array(a)) => a.is_empty(),
        Some(Value::Object(o)) => o.is_empty(),
        Some(_) => false,
    }
}
