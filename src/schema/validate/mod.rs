//! Is this object allowed? Field errors in upstream's words. The row of a kind names its rules (`schema/kinds`).

pub mod error;
pub mod options;

pub(crate) mod autoscaler;
pub(crate) mod certificates;
mod checks;
pub(crate) mod cluster;
pub(crate) mod config;
mod container;
pub(crate) mod coordination;
pub(crate) mod definition;
mod device_slice;
pub(crate) mod devices;
pub(crate) mod drivers;
pub(crate) mod endpoints;
mod env;
pub(crate) mod events;
pub(crate) mod flow;
pub(crate) mod ingress;
mod job;
mod matching;
mod metadata;
pub(crate) mod network;
pub(crate) mod path;
pub(crate) mod pod;
mod pod_resources;
pub(crate) mod pod_update;
pub(crate) mod policy;
pub(crate) mod quota;
pub(crate) mod rbac;
mod security;
pub(crate) mod service_addresses;
pub(crate) mod status;
pub(crate) mod storage;
#[cfg(test)]
mod testing;
mod volume;
pub(crate) mod webhook;
pub(crate) mod workload;

#[cfg(test)]
mod container_tests;
#[cfg(test)]
mod road_tests;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::table::{Resource, Shape, TypeDef};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

/// Everything wrong with an object that is to be created; empty when it may be stored. Expects decoded and defaulted
/// input.
pub fn create(r: &Resource, object: &Value) -> Vec<FieldError> {
    let rules = &r.behaviour.rules;
    let mut errors = metadata::create(r, object, rules.name);
    if let Some(definition) = &r.definition {
        custom(definition, object, None, &mut errors);
        return errors;
    }
    enums(r.type_def(), object, "", &mut errors);
    (rules.always)(object, &mut errors);
    (rules.new)(object, &mut errors);
    errors
}

/// Everything wrong with replacing `old` by `new`.
pub fn update(r: &Resource, new: &Value, old: &Value) -> Vec<FieldError> {
    let rules = &r.behaviour.rules;
    let mut errors = metadata::update(r, new, old);
    if let Some(definition) = &r.definition {
        custom(definition, new, Some(old), &mut errors);
        return errors;
    }
    enums(r.type_def(), new, "", &mut errors);
    (rules.always)(new, &mut errors);
    (rules.update)(new, old, &mut errors);
    errors
}

/// Errors of the addresses of a Service, before any are given out: the allocator relies on them.
pub fn service_addresses(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    service_addresses::check(new, &mut errors);
    if let Some(old) = old {
        service_addresses::addresses_update(new, old, &mut errors);
    }
    errors
}

/// Rules of the API that was asked beyond those of the one in which the object is stored; `errors` are those of the
/// latter.
pub fn asked(requested: &Resource, new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    (requested.behaviour.rules.requested)(new, old, errors);
}

/// The same for a write to a subresource that changes metadata and `status` only.
pub fn update_status(r: &Resource, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = metadata::update(r, new, old);
    status::counts(r, new, old, &mut errors);
    (r.behaviour.rules.status)(new, old, &mut errors);
    if let Some(definition) = &r.definition {
        custom(definition, new, Some(old), &mut errors);
    }
    errors
}

/// Checks `metadata.labels` or `metadata.annotations`, by the name of the field.
pub fn labels_or_annotations(field: &str, map: &serde_json::Map<String, Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if field == "labels" {
        metadata::labels(map, Path("metadata.labels"), &mut errors);
    } else {
        metadata::annotations(map, Path("metadata.annotations"), &mut errors);
    }
    errors
}

/// Checks a list of tolerations that stands at `path`.
pub fn tolerations(list: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    pod::tolerations(list, Path(path), errors);
}

/// Everything wrong with a write to a subresource whose body is the object itself, such as `resize` of a pod.
pub fn update_part(r: &Resource, subresource: &str, new: &Value, old: &Value) -> Vec<FieldError> {
    let Some(rule) = r.behaviour.part(subresource).and_then(|part| part.rule) else { return update(r, new, old) };
    let mut errors = metadata::update(r, new, old);
    rule(new, old, &mut errors);
    errors
}

/// The schema of a custom resource; its CEL rules are asked only about objects that fit it.
fn custom(
    definition: &crate::custom::definition::Definition,
    new: &Value,
    old: Option<&Value>,
    errors: &mut Vec<FieldError>,
) {
    let before = errors.len();
    crate::custom::values::check(&definition.schema, new, old, "", errors);
    crate::custom::values::repeats(&definition.schema, new, "", errors);
    if errors.len() == before {
        crate::custom::rules::check(&definition.schema, new, old, errors);
    }
}

/// Values outside the enumerations of the table, anywhere but in `status`.
fn enums(t: &TypeDef, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for (name, child) in value.as_object().into_iter().flatten() {
        let Some(field) = t.field(name).filter(|_| !(path.is_empty() && name == "status")) else { continue };
        let here = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if let Some(text) = child.as_str().filter(|s| !s.is_empty() && !field.enums.is_empty())
            && !field.enums.iter().any(|e| e == text)
        {
            let supported: Vec<&str> = field.enums.iter().map(|e| e.as_ref()).collect();
            errors.push(FieldError::not_supported(here, text, &supported));
            continue;
        }
        enums_inside(&field.shape, child, &here, errors);
    }
}

fn enums_inside(shape: &Shape, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match (shape, value) {
        (Shape::Struct(t), Value::Object(_)) => enums(t.get(), value, path, errors),
        (Shape::List(item), Value::Array(list)) => {
            for (idx, child) in list.iter().enumerate() {
                enums_inside(item, child, &format!("{path}[{idx}]"), errors);
            }
        }
        (Shape::Map(entry), Value::Object(map)) => {
            for (key, child) in map {
                enums_inside(entry, child, &format!("{path}[{key}]"), errors);
            }
        }
        _ => {}
    }
}
