//! Is this object allowed? Field errors in upstream's words. Kinds hang their rules on the map in [`rules`].

pub mod error;
pub mod options;

mod autoscaler;
mod certificates;
mod checks;
mod cluster;
mod config;
mod container;
mod coordination;
mod definition;
mod device_slice;
mod devices;
mod drivers;
mod endpoints;
mod env;
mod events;
mod flow;
mod ingress;
mod job;
mod matching;
mod metadata;
mod network;
mod pod;
mod pod_resources;
mod pod_update;
mod policy;
mod quota;
mod rbac;
mod rules;
mod security;
mod service_addresses;
mod status;
mod storage;
#[cfg(test)]
mod testing;
mod volume;
mod webhook;
mod workload;

#[cfg(test)]
mod road_tests;
#[cfg(test)]
mod tests;

use serde_json::Value;

use crate::table::{Resource, Shape, TypeDef};
use crate::validate::error::FieldError;
use crate::validate::rules::{of_new, rules_of};

/// Everything wrong with an object that is to be created; empty when it may be stored. Expects decoded and defaulted
/// input.
pub fn create(r: &Resource, object: &Value) -> Vec<FieldError> {
    let rules = rules_of(r);
    let mut errors = metadata::create(r, object, rules.name);
    if let Some(definition) = &r.definition {
        custom(definition, object, None, &mut errors);
        return errors;
    }
    enums(r.type_def(), object, "", &mut errors);
    (rules.create)(object, &mut errors);
    of_new(r)(object, &mut errors);
    errors
}

/// Everything wrong with replacing `old` by `new`.
pub fn update(r: &Resource, new: &Value, old: &Value) -> Vec<FieldError> {
    let rules = rules_of(r);
    let mut errors = metadata::update(r, new, old);
    if let Some(definition) = &r.definition {
        custom(definition, new, Some(old), &mut errors);
        return errors;
    }
    enums(r.type_def(), new, "", &mut errors);
    (rules.create)(new, &mut errors);
    (rules.update)(new, old, &mut errors);
    errors
}

/// What is wrong with the addresses of a Service, before any are given out: who gives them out relies on it.
pub fn service_addresses(new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    service_addresses::check(new, &mut errors);
    if let Some(old) = old {
        service_addresses::addresses_update(new, old, &mut errors);
    }
    errors
}

/// What the API that was asked wants beyond what the one in which the object is stored does; `errors` are those of the
/// latter.
pub fn asked(requested: &Resource, new: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
    if requested.kind == "Event" && requested.group == "events.k8s.io" {
        events::strict(new, old, errors);
    }
}

/// The same for a write to a subresource that changes metadata and `status` only.
pub fn update_status(r: &Resource, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = metadata::update(r, new, old);
    status::counts(r, new, old, &mut errors);
    status::of_kind(r, new, &mut errors);
    if let Some(definition) = &r.definition {
        custom(definition, new, Some(old), &mut errors);
    } else if r.kind == "CustomResourceDefinition" {
        definition::status(new, &mut errors);
    } else if r.kind == "CertificateSigningRequest" {
        (rules_of(r).create)(new, &mut errors);
        certificates::request_update(new, old, "status", &mut errors);
    } else if r.group == "resource.k8s.io" && r.kind == "ResourceClaim" {
        devices::claim_status(new, old, &mut errors);
    }
    errors
}

/// Checks `metadata.labels` or `metadata.annotations`, by the name of the field.
pub fn labels_or_annotations(field: &str, map: &serde_json::Map<String, Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if field == "labels" {
        metadata::labels(map, "metadata.labels", &mut errors);
    } else {
        metadata::annotations(map, "metadata.annotations", &mut errors);
    }
    errors
}

/// Checks a list of tolerations that stands at `path`.
pub fn tolerations(list: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    pod::tolerations(list, path, errors);
}

/// A write of conditions to `approval` of a certificate signing request.
pub fn update_approval(r: &Resource, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = metadata::update(r, new, old);
    enums(r.type_def(), new, "", &mut errors);
    (rules_of(r).create)(new, &mut errors);
    certificates::request_update(new, old, "approval", &mut errors);
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

/// For the `ephemeralcontainers` subresource of pods: containers may be added, never changed or removed.
pub fn update_ephemeral_containers(r: &Resource, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = metadata::update(r, new, old);
    pod::create(new, &mut errors);
    pod_update::ephemeral(new, old, &mut errors);
    errors
}

/// For the `resize` subresource of pods.
pub fn update_resize(r: &Resource, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = metadata::update(r, new, old);
    pod::create(new, &mut errors);
    pod_update::resize(new, old, &mut errors);
    errors
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
