//! Environment of containers, and references to fields and resources as the downward API reads them.

use std::collections::BTreeMap;

use model::names;
use model::quantity::Quantity;
use serde_json::{Map, Value};

use crate::read;
use crate::validate::checks::{Errors, invalid_each};
use crate::validate::container::no_back_steps;
use crate::validate::error::FieldError;
use crate::validate::path::Path;

/// Fields that an environment variable may show, sorted.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields that a file may show, sorted.
pub(super) const FILE_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Every field that has a label in the downward API.
const KNOWN: [&str; 12] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.podIP",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const DIVISORS: [&str; 13] = ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// `env` and `envFrom` of a container.
pub(super) fn env(container: &Value, path: Path<'_>, errors: &mut Errors) {
    for (idx, variable) in read::list(container, "env").iter().enumerate() {
        let path = format!("{path}.env[{idx}]");
        let name = read::text(variable, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else {
            invalid_each(Path(&format!("{path}.name")), name, names::env_name_errors(name), errors);
        }
        if let Some(from) = read::map(variable, "valueFrom") {
            value_from(variable, from, Path(&format!("{path}.valueFrom")), errors);
        }
    }
    let path = format!("{path}.envFrom");
    for (idx, source) in read::list(container, "envFrom").iter().enumerate() {
        let here = format!("{path}[{idx}]");
        if let Some(prefix) = read::some_text(source, "prefix").filter(|p| !p.is_empty()) {
            invalid_each(Path(&format!("{here}.prefix")), prefix, names::env_name_errors(prefix), errors);
        }
        let mut given = 0;
        for field in ["configMapRef", "secretRef"] {
            let Some(reference) = read::at(source, field) else { continue };
            given += 1;
            let name = read::text(reference, "name");
            if name.is_empty() {
                errors.push(FieldError::required(format!("{here}.{field}.name"), ""));
            } else {
                invalid_each(Path(&format!("{here}.{field}.name")), name, names::dns_subdomain_errors(name), errors);
            }
        }
        match given {
            0 => errors.push(FieldError::invalid(
                path.as_str(),
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            )),
            1 => {}
            _ => errors.push(FieldError::invalid(
                path.as_str(),
                "",
                "may not have more than one field specified at a time",
            )),
        }
    }
}

fn value_from(variable: &Value, from: &Map<String, Value>, path: Path<'_>, errors: &mut Errors) {
    let given = |field: &str| from.get(field).filter(|v| v.is_object());
    if let Some(reference) = given("fieldRef") {
        field_ref(reference, &ENV_FIELDS, Path(&format!("{path}.fieldRef")), errors);
    }
    if let Some(reference) = given("resourceFieldRef") {
        resource_ref(reference, Path(&format!("{path}.resourceFieldRef")), ExposedIn::Env, errors);
    }
    for source in ["configMapKeyRef", "secretKeyRef"] {
        if let Some(reference) = given(source) {
            key_ref(reference, Path(&format!("{path}.{source}")), errors);
        }
    }
    if let Some(reference) = given("fileKeyRef") {
        file_ref(reference, Path(&format!("{path}.fileKeyRef")), errors);
    }
    match from.values().filter(|v| !v.is_null()).count() {
        0 => errors.push(FieldError::invalid(
            path,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        )),
        _ if !read::text(variable, "value").is_empty() => {
            errors.push(FieldError::invalid(path, "", "may not be specified when `value` is not empty"));
        }
        1 => {}
        _ => errors.push(FieldError::invalid(path, "", "may not have more than one field specified at a time")),
    }
}

fn key_ref(reference: &Value, path: Path<'_>, errors: &mut Errors) {
    let (name, key) = (read::text(reference, "name"), read::text(reference, "key"));
    invalid_each(Path(&format!("{path}.name")), name, names::dns_subdomain_errors(name), errors);
    match key {
        "" => errors.push(FieldError::required(format!("{path}.key"), "")),
        _ => invalid_each(Path(&format!("{path}.key")), key, names::config_key_errors(key), errors),
    }
}

fn file_ref(reference: &Value, path: Path<'_>, errors: &mut Errors) {
    match read::text(reference, "key") {
        "" => errors.push(FieldError::required(format!("{path}.key"), "")),
        key => invalid_each(Path(&format!("{path}.key")), key, names::env_name_errors(key), errors),
    }
    match read::text(reference, "volumeName") {
        "" => errors.push(FieldError::required(format!("{path}.volumeName"), "")),
        name => invalid_each(Path(&format!("{path}.volumeName")), name, names::dns_label_errors(name), errors),
    }
    match read::text(reference, "path") {
        "" => errors.push(FieldError::required(format!("{path}.path"), "")),
        file => no_back_steps(file, Path(&format!("{path}.path")), errors),
    }
}

/// A variable's file must lie in an emptyDir: what a pod writes for itself. Upstream's `validateFileKeyRefVolumes`.
pub(super) fn file_volumes(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let mut volumes = BTreeMap::new();
    for volume in read::list(spec, "volumes") {
        volumes.entry(read::text(volume, "name")).or_insert(volume);
    }
    for field in ["initContainers", "containers", "ephemeralContainers"] {
        for (idx, container) in read::list(spec, field).iter().enumerate() {
            for (at, variable) in read::list(container, "env").iter().enumerate() {
                let Some(reference) = read::at(variable, "valueFrom.fileKeyRef") else { continue };
                let here = format!("{path}.{field}[{idx}].env[{at}].valueFrom.fileKeyRef.volumeName");
                let name = read::text(reference, "volumeName");
                match volumes.get(name) {
                    None => errors.push(FieldError::not_found(here, name)),
                    Some(volume) if read::at(volume, "emptyDir").is_none() => {
                        errors.push(FieldError::invalid(here, name, "referenced volume must be of type emptyDir"));
                    }
                    Some(_) => {}
                }
            }
        }
    }
}

/// An `ObjectFieldSelector`.
pub(super) fn field_ref(reference: &Value, supported: &[&str], path: Path<'_>, errors: &mut Errors) {
    if read::text(reference, "apiVersion").is_empty() && reference.get("apiVersion").is_some() {
        errors.push(FieldError::required(format!("{path}.apiVersion"), ""));
        return;
    }
    let text = read::text(reference, "fieldPath");
    if text.is_empty() {
        errors.push(FieldError::required(format!("{path}.fieldPath"), ""));
        return;
    }
    let subscript = text
        .strip_suffix(']')
        .and_then(|t| t.split_once("['"))
        .and_then(|(of, key)| Some((of, key.strip_suffix('\'')?)));
    if let Some((of, key)) = subscript {
        match of {
            "metadata.annotations" => {
                let key = key.to_lowercase();
                invalid_each(path, key.as_str(), names::qualified_name_errors(&key), errors);
            }
            "metadata.labels" => invalid_each(path, key, names::qualified_name_errors(key), errors),
            other if KNOWN.contains(&other) => {
                errors.push(FieldError::invalid(path, other, "does not support subscript"))
            }
            _ => unknown_field(text, path, errors),
        }
        return;
    }
    if !supported.contains(&text) && !KNOWN.contains(&text) && !matches!(text, "status.hostIPs" | "status.podIPs") {
        unknown_field(text, path, errors);
    } else if !supported.contains(&text) {
        errors.push(FieldError::not_supported(format!("{path}.fieldPath"), text, supported));
    }
}

fn unknown_field(text: &str, path: Path<'_>, errors: &mut Errors) {
    let why = format!("error converting fieldPath: field label not supported: {text}");
    errors.push(FieldError::invalid(format!("{path}.fieldPath"), text, why));
}

/// Where a resource is shown: a file has to name the container.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ExposedIn {
    Env,
    File,
}

/// A `ResourceFieldSelector`.
pub(super) fn resource_ref(reference: &Value, path: Path<'_>, exposed_in: ExposedIn, errors: &mut Errors) {
    let resource = read::text(reference, "resource");
    let huge = ["requests.hugepages-", "limits.hugepages-"].iter().any(|p| resource.starts_with(p));
    if exposed_in == ExposedIn::File && read::text(reference, "containerName").is_empty() {
        errors.push(FieldError::required(format!("{path}.containerName"), ""));
    } else if resource.is_empty() {
        errors.push(FieldError::required(format!("{path}.resource"), ""));
    } else if !RESOURCES.contains(&resource) && !huge {
        errors.push(FieldError::not_supported(format!("{path}.resource"), resource, &RESOURCES));
    }
    let Some(divisor) = reference.get("divisor").and_then(|d| Quantity::from_value(d).ok()).filter(|d| d.sign() != 0)
    else {
        return;
    };
    let (of, allowed): (&str, &[&str]) = match resource.split_once('.').map_or("", |(_, of)| of) {
        "cpu" => ("cpu", &["1m", "1"]),
        "memory" => ("memory", &DIVISORS),
        "ephemeral-storage" => ("local ephemeral storage", &DIVISORS),
        _ if huge => ("hugepages", &DIVISORS),
        _ => return,
    };
    if !allowed.contains(&divisor.to_string().as_str()) {
        let shown = if of == "cpu" { "1m and 1".to_owned() } else { DIVISORS.join(", ") };
        let why = format!("only divisor's values {shown} are supported with the {of} resource");
        errors.push(FieldError::invalid(format!("{path}.divisor"), resource, why));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Spec: upstream v1.36 `validateFileKeyRefVolumes`.
    #[test]
    fn a_file_of_variables_is_in_an_empty_dir_of_the_pod() {
        let said = |volume: Value| {
            let reference = json!({"volumeName": "v", "path": "a", "key": "K"});
            let spec = json!({"volumes": [volume],
                "containers": [{"env": [{"name": "A", "valueFrom": {"fileKeyRef": reference}}]}]});
            let mut errors = Vec::new();
            file_volumes(&spec, Path("spec"), &mut errors);
            errors.iter().map(ToString::to_string).collect::<String>()
        };
        assert_eq!(said(json!({"name": "v", "emptyDir": {}})), "");
        let at = "spec.containers[0].env[0].valueFrom.fileKeyRef.volumeName";
        assert_eq!(said(json!({"name": "w", "emptyDir": {}})), format!("{at}: Not found: \"v\""));
        let other = json!({"name": "v", "configMap": {"name": "c"}});
        assert_eq!(said(other), format!("{at}: Invalid value: \"v\": referenced volume must be of type emptyDir"));
    }
}
