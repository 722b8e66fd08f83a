//! Volumes, claims, classes.

use serde_json::Value;

use crate::quantity::Quantity;
use crate::read;
use crate::validate::checks::{Errors, immutable, label_selector, resource_list};
use crate::validate::error::FieldError;

fn access_modes(object: &Value, required: &str, errors: &mut Errors) {
    let modes = read::texts(object, "spec.accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required("spec.accessModes", required));
    }
    if modes.contains(&"ReadWriteOncePod") && modes.len() > 1 {
        let message = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden("spec.accessModes", message));
    }
}

/// Fields of a volume's spec that are no source.
const NO_SOURCE: [&str; 9] = [
    "capacity",
    "accessModes",
    "claimRef",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
];

fn source(object: &Value) -> Vec<(&String, &Value)> {
    let spec = read::map(object, "spec");
    spec.into_iter().flatten().filter(|(k, v)| !NO_SOURCE.contains(&k.as_str()) && !v.is_null()).collect()
}

pub(super) fn volume(object: &Value, errors: &mut Errors) {
    access_modes(object, "", errors);
    if read::map(object, "spec.capacity").is_none_or(serde_json::Map::is_empty) {
        errors.push(FieldError::required("spec.capacity", ""));
    } else if let Some(extra) = read::map(object, "spec.capacity").into_iter().flatten().map(|(k, _)| k).find(|k| *k != "storage") {
        errors.push(FieldError::not_supported("spec.capacity", extra.as_str(), &["storage"]));
    }
    resource_list(read::at(object, "spec").unwrap_or(&Value::Null), "spec", "capacity", errors);
    match source(object).as_slice() {
        [] => errors.push(FieldError::required("spec", "must specify a volume type")),
        [_] => {}
        [_, others @ ..] => {
            errors.extend(others.iter().map(|(k, _)| FieldError::forbidden(format!("spec.{k}"), "may not specify more than 1 volume type")))
        }
    }
    if read::at(object, "spec.local").is_some() && read::at(object, "spec.nodeAffinity").is_none() {
        errors.push(FieldError::required("spec.nodeAffinity", "Local volume requires node affinity"));
    }
}

pub(super) fn volume_update(new: &Value, old: &Value, errors: &mut Errors) {
    if source(new) != source(old) {
        errors.push(FieldError::forbidden("spec.persistentvolumesource", "spec.persistentvolumesource is immutable after creation"));
    }
    immutable(new, old, "spec.volumeMode", errors);
}

pub(super) fn claim(object: &Value, errors: &mut Errors) {
    access_modes(object, "at least 1 access mode is required", errors);
    if let Some(selector) = read::at(object, "spec.selector") {
        label_selector(selector, "spec.selector", errors);
    }
    let path = "spec.resources[storage]";
    match read::at(object, "spec.resources.requests.storage") {
        None => errors.push(FieldError::required(path, "")),
        Some(amount) => match Quantity::from_value(amount) {
            Ok(q) if q.sign() <= 0 => errors.push(FieldError::invalid(path, q.to_string(), "must be greater than zero")),
            Ok(_) => {}
            Err(e) => errors.push(FieldError::invalid(path, amount.clone(), e.to_string())),
        },
    }
}

pub(super) fn claim_update(new: &Value, old: &Value, errors: &mut Errors) {
    let fixed = |object: &Value| {
        let mut spec = read::map(object, "spec").cloned().unwrap_or_default();
        spec.retain(|k, _| !matches!(k.as_str(), "resources" | "volumeAttributesClassName"));
        // Binding and the default class may be filled in once.
        for field in ["volumeName", "storageClassName"] {
            if read::text(old, &format!("spec.{field}")).is_empty() {
                spec.remove(field);
            }
        }
        spec
    };
    if fixed(new) != fixed(old) {
        let message = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden("spec", message));
        return;
    }
    let size = |object: &Value| read::at(object, "spec.resources.requests.storage").and_then(|v| Quantity::from_value(v).ok());
    if let (Some(now), Some(before)) = (size(new), size(old)) {
        let path = "spec.resources.requests.storage";
        if now < before {
            errors.push(FieldError::forbidden(path, "field can not be less than status.capacity"));
        } else if now > before && read::text(old, "status.phase") != "Bound" {
            let message = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
            errors.push(FieldError::forbidden("spec", message));
        }
    }
}

pub(super) fn class(object: &Value, errors: &mut Errors) {
    if read::text(object, "provisioner").is_empty() {
        errors.push(FieldError::required("provisioner", ""));
    }
    let parameters = read::map(object, "parameters");
    if parameters.is_some_and(|p| p.len() > 512) {
        errors.push(FieldError::too_long("Provisioner Parameters Length exceeded max allowed", 512));
    }
    for key in parameters.into_iter().flatten().map(|(k, _)| k).filter(|k| k.is_empty()) {
        errors.push(FieldError::invalid("parameters", key.as_str(), "field can not be empty."));
    }
}

pub(super) fn class_update(new: &Value, old: &Value, errors: &mut Errors) {
    for field in ["parameters", "provisioner", "reclaimPolicy"] {
        if read::at(new, field) != read::at(old, field) {
            errors.push(FieldError::forbidden(field, format!("updates to {field} are forbidden.")));
        }
    }
    immutable(new, old, "volumeBindingMode", errors);
}
