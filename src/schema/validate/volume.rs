//! Volumes of a pod.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each};
use crate::validate::container::{local_path, no_back_steps};
use crate::validate::error::FieldError;
use crate::validate::names;

/// The field that each kind of volume cannot do without.
const NEEDS: &[(&str, &str)] = &[
    ("hostPath", "path"),
    ("secret", "secretName"),
    ("configMap", "name"),
    ("persistentVolumeClaim", "claimName"),
    ("csi", "driver"),
    ("nfs", "server"),
    ("nfs", "path"),
    ("iscsi", "targetPortal"),
    ("iscsi", "iqn"),
    ("image", "reference"),
];

/// All volumes; the names of the good ones come back for the mounts.
pub(super) fn volumes<'a>(spec: &'a Value, path: &str, errors: &mut Errors) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    for (idx, volume) in read::list(spec, "volumes").iter().enumerate() {
        let path = format!("{path}.volumes[{idx}]");
        let name = read::text(volume, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else {
            invalid_each(&format!("{path}.name"), name, names::dns_label_errors(name), errors);
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
        }
        let sources: Vec<&String> =
            volume.as_object().into_iter().flatten().filter(|(k, v)| *k != "name" && !v.is_null()).map(|(k, _)| k).collect();
        match sources.as_slice() {
            [] => errors.push(FieldError::required(path.as_str(), "must specify a volume type")),
            [source] => self::source(volume, source, &path, errors),
            [_, others @ ..] => errors.extend(
                others.iter().map(|other| FieldError::forbidden(format!("{path}.{other}"), "may not specify more than 1 volume type")),
            ),
        }
    }
    seen
}

fn source(volume: &Value, source: &str, path: &str, errors: &mut Errors) {
    let path = format!("{path}.{source}");
    let Some(body) = read::at(volume, source) else { return };
    for (_, field) in NEEDS.iter().filter(|(s, _)| *s == source) {
        if read::text(body, field).is_empty() {
            errors.push(FieldError::required(format!("{path}.{field}"), ""));
        }
    }
    match source {
        "hostPath" => no_back_steps(read::text(body, "path"), &format!("{path}.path"), errors),
        "configMap" | "secret" => {
            mode(body, "defaultMode", &path, errors);
            items(body, &path, errors);
        }
        "downwardAPI" => {
            mode(body, "defaultMode", &path, errors);
            downward(body, &path, errors);
        }
        "projected" => {
            mode(body, "defaultMode", &path, errors);
            projected(body, &path, errors);
        }
        _ => {}
    }
}

fn mode(body: &Value, field: &str, path: &str, errors: &mut Errors) {
    if let Some(mode) = read::integer(body, field).filter(|m| !(0..=0o777).contains(m)) {
        let message = "must be a number between 0 and 0777 (octal), both inclusive";
        errors.push(FieldError::invalid(format!("{path}.{field}"), mode, message));
    }
}

fn items(body: &Value, path: &str, errors: &mut Errors) {
    for (idx, item) in read::list(body, "items").iter().enumerate() {
        let path = format!("{path}.items[{idx}]");
        for field in ["key", "path"] {
            if read::text(item, field).is_empty() {
                errors.push(FieldError::required(format!("{path}.{field}"), ""));
            }
        }
        local_path(read::text(item, "path"), &format!("{path}.path"), errors);
        mode(item, "mode", &path, errors);
    }
}

fn downward(body: &Value, path: &str, errors: &mut Errors) {
    for (idx, item) in read::list(body, "items").iter().enumerate() {
        let path = format!("{path}[{idx}]");
        let file = read::text(item, "path");
        if file.is_empty() {
            errors.push(FieldError::required(format!("{path}.path"), ""));
        }
        local_path(file, &format!("{path}.path"), errors);
        match (read::at(item, "fieldRef"), read::at(item, "resourceFieldRef")) {
            (None, None) => errors.push(FieldError::required(path, "one of fieldRef and resourceFieldRef is required")),
            (Some(_), Some(_)) => {
                let message = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(FieldError::invalid(path, "resource", message));
            }
            _ => {}
        }
    }
}

fn projected(body: &Value, path: &str, errors: &mut Errors) {
    for (idx, source) in read::list(body, "sources").iter().enumerate() {
        let path = format!("{path}.sources[{idx}]");
        let given: Vec<(&String, &Value)> = source.as_object().into_iter().flatten().filter(|(_, v)| !v.is_null()).collect();
        match given.as_slice() {
            [] => errors.push(FieldError::required(path.as_str(), "must specify a volume source")),
            [(name, inner)] => {
                let path = format!("{path}.{name}");
                match name.as_str() {
                    "configMap" | "secret" => {
                        if read::text(inner, "name").is_empty() {
                            errors.push(FieldError::required(format!("{path}.name"), ""));
                        }
                        items(inner, &path, errors);
                    }
                    "downwardAPI" => downward(inner, &path, errors),
                    "serviceAccountToken" if read::text(inner, "path").is_empty() => {
                        errors.push(FieldError::required(format!("{path}.path"), ""));
                    }
                    _ => {}
                }
            }
            _ => errors.push(FieldError::forbidden(path, "may not specify more than 1 volume type")),
        }
    }
}
