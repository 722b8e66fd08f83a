//! Rules for the metadata of every kind.

use std::collections::HashSet;

use model::meta;
use model::names::{self, NameCheck, NameUse};
use serde_json::{Map, Value};

use crate::behaviour::Finalizers;
use crate::read;
use crate::table::Resource;
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const ANNOTATION_BYTES_MAX: usize = 256 * 1024;
/// So many owners too many that say they are the controller are told one by one.
const SECOND_CONTROLLERS_MAX: usize = 16;

/// On creation: names, namespace, and the rest.
pub(super) fn create(r: &Resource, object: &Value, name_check: NameCheck) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let generate_name = meta::generate_name(object);
    if !generate_name.is_empty() {
        for message in name_check(generate_name, NameUse::Prefix) {
            errors.push(FieldError::invalid("metadata.generateName", generate_name, message));
        }
    }
    let name = meta::name(object);
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        errors.extend(
            name_check(name, NameUse::Whole).into_iter().map(|m| FieldError::invalid("metadata.name", name, m)),
        );
    }
    let ns = meta::namespace(object);
    match (r.namespaced, ns.is_empty()) {
        (true, true) => errors.push(FieldError::required("metadata.namespace", "")),
        (true, false) => {
            errors.extend(
                names::dns_label_errors(ns).into_iter().map(|m| FieldError::invalid("metadata.namespace", ns, m)),
            );
        }
        (false, false) => errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type")),
        (false, true) => {}
    }
    finalizers(object, &mut errors);
    own_finalizers(r, object, &mut errors);
    common(object, &mut errors);
    errors
}

/// A finalizer without a domain is one of Kubernetes's own. Which kinds are not asked is as upstream has it.
fn own_finalizers(r: &Resource, object: &Value, errors: &mut Vec<FieldError>) {
    let lenient = r.behaviour.rules.finalizers == Finalizers::Any;
    for (idx, finalizer) in meta::finalizers(object).into_iter().enumerate().filter(|_| !lenient) {
        if !finalizer.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&finalizer) {
            let message = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(format!("metadata.finalizers[{idx}]"), finalizer, message));
        }
    }
}

/// On update: what may not change.
pub(super) fn update(r: &Resource, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let generate_name = meta::generate_name(new);
    for message in names::path_segment_prefix_errors(generate_name) {
        errors.push(FieldError::invalid("metadata.generateName", generate_name, message));
    }
    finalizers(new, &mut errors);
    own_finalizers(r, new, &mut errors);
    if meta::deletion_timestamp(old).is_some() {
        let had: HashSet<&str> = meta::finalizers(old).into_iter().collect();
        let mut added: Vec<&str> = meta::finalizers(new).into_iter().filter(|f| !had.contains(f)).collect();
        added.sort_unstable();
        added.dedup();
        if !added.is_empty() {
            let list = added.iter().map(|f| format!("{f:?}")).collect::<Vec<_>>().join(", ");
            errors.push(FieldError::forbidden(
                "metadata.finalizers",
                format!(
                    "no new finalizers can be added if the object is being deleted, found new finalizers \
                    []string{{{list}}}"
                ),
            ));
        }
    }
    if meta::resource_version(new).is_empty() {
        errors.push(FieldError::invalid("metadata.resourceVersion", "", "must be specified for an update"));
    }
    if meta::generation(new) < meta::generation(old) {
        errors.push(FieldError::invalid("metadata.generation", meta::generation(new), "must not be decremented"));
    }
    for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let of = |object| meta::metadata(object).and_then(|m| m.get(field)).cloned().unwrap_or(Value::Null);
        let (now, before) = (of(new), of(old));
        // Absent and empty are the same thing on the wire.
        let empty = |v: &Value| v.is_null() || v.as_str() == Some("");
        if now != before && !(empty(&now) && empty(&before)) {
            errors.push(FieldError::invalid(format!("metadata.{field}"), now, "field is immutable"));
        }
    }
    common(new, &mut errors);
    errors
}

fn common(object: &Value, errors: &mut Vec<FieldError>) {
    if meta::generation(object) < 0 {
        let message = "must be greater than or equal to 0";
        errors.push(FieldError::invalid("metadata.generation", meta::generation(object), message));
    }
    if let Some(map) = meta::labels(object) {
        labels(map, Path("metadata.labels"), errors);
    }
    if let Some(map) = meta::annotations(object) {
        annotations(map, Path("metadata.annotations"), errors);
    }
    owners(object, errors);
}

/// A map of labels.
pub(super) fn labels(map: &Map<String, Value>, path: Path<'_>, errors: &mut Vec<FieldError>) {
    for (key, value) in map {
        errors
            .extend(names::qualified_name_errors(key).into_iter().map(|m| FieldError::invalid(path, key.as_str(), m)));
        let value = value.as_str().unwrap_or_default();
        errors.extend(names::label_value_errors(value).into_iter().map(|m| FieldError::invalid(path, value, m)));
    }
}

/// A map of annotations: keys in any case, all together not too large.
pub(super) fn annotations(map: &Map<String, Value>, path: Path<'_>, errors: &mut Vec<FieldError>) {
    for key in map.keys() {
        let messages = names::qualified_name_errors(&key.to_lowercase());
        errors.extend(messages.into_iter().map(|m| FieldError::invalid(path, key.as_str(), m)));
    }
    let bytes: usize = map.iter().map(|(k, v)| k.len() + v.as_str().map_or(0, str::len)).sum();
    if bytes > ANNOTATION_BYTES_MAX {
        errors.push(FieldError::too_long(path, ANNOTATION_BYTES_MAX));
    }
}

fn finalizers(object: &Value, errors: &mut Vec<FieldError>) {
    let finalizers = meta::finalizers(object);
    for finalizer in &finalizers {
        let messages = names::qualified_name_errors(finalizer);
        errors.extend(messages.into_iter().map(|m| FieldError::invalid("metadata.finalizers", *finalizer, m)));
    }
    if finalizers.contains(&"orphan") && finalizers.contains(&"foregroundDeletion") {
        let message = "finalizer orphan and foregroundDeletion cannot be both set";
        errors.push(FieldError::invalid("metadata.finalizers", finalizers, message));
    }
}

fn owners(object: &Value, errors: &mut Vec<FieldError>) {
    let mut controller: Option<String> = None;
    let mut n_second = 0;
    for owner in read::list(object, "metadata.ownerReferences") {
        // Upstream tells no position.
        let path = "metadata.ownerReferences";
        let api_version = read::text(owner, "apiVersion");
        if api_version.is_empty() || api_version.matches('/').count() > 1 || api_version.ends_with('/') {
            errors.push(FieldError::invalid(format!("{path}.apiVersion"), api_version, "version must not be empty"));
        }
        for field in ["kind", "name", "uid"] {
            if read::text(owner, field).is_empty() {
                errors.push(FieldError::invalid(format!("{path}.{field}"), "", "must not be empty"));
            }
        }
        let kind = read::text(owner, "kind");
        if api_version == "v1" && kind == "Event" {
            errors.push(FieldError::invalid(path, owner.clone(), "/v1, Kind=Event is disallowed from being an owner"));
        }
        if read::flag(owner, "controller") {
            let this = format!("{kind}/{}", read::text(owner, "name"));
            match &controller {
                None => controller = Some(this),
                // Each of these errors shows the whole list.
                Some(_) if n_second == SECOND_CONTROLLERS_MAX => {}
                Some(first) => {
                    n_second += 1;
                    errors.push(FieldError::invalid(
                        "metadata.ownerReferences",
                        read::list(object, "metadata.ownerReferences").to_vec(),
                        format!(
                            "Only one reference can have Controller set to true. Found \"true\" in references for \
                            {first} and {this}"
                        ),
                    ));
                }
            }
        }
    }
}
