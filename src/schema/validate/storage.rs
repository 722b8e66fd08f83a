//! Volumes, claims, classes.

use model::names;
use model::quantity::Quantity;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, IMMUTABLE, immutable, invalid_each, label_selector, resource_list};
use crate::validate::error::FieldError;
use crate::validate::path::Path;
use crate::validate::{drivers, pod, volume};

const MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

fn access_modes(spec: &Value, path: Path<'_>, required: &str, errors: &mut Errors) {
    let modes = read::texts(spec, "accessModes");
    let path = format!("{path}.accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(path.as_str(), required));
    }
    for mode in modes.iter().filter(|m| !MODES.contains(m)) {
        errors.push(FieldError::not_supported(path.as_str(), *mode, &MODES));
    }
    if modes.contains(&"ReadWriteOncePod") && modes.iter().any(|m| *m != "ReadWriteOncePod" && MODES.contains(m)) {
        let message = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(path, message));
    }
}

/// The classes of a volume or claim, and whether it is a file system.
fn classes(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    for field in ["storageClassName", "volumeAttributesClassName"] {
        if let Some(name) = read::some_text(spec, field).filter(|n| !n.is_empty()) {
            invalid_each(Path(&format!("{path}.{field}")), name, names::dns_subdomain_errors(name), errors);
        }
    }
    if let Some(mode) =
        read::at(spec, "volumeMode").and_then(Value::as_str).filter(|m| !["Block", "Filesystem"].contains(m))
    {
        errors.push(FieldError::not_supported(format!("{path}.volumeMode"), mode, &["Block", "Filesystem"]));
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

/// The size of a volume, which is all that its capacity names.
fn capacity(spec: &Value, errors: &mut Errors) {
    if read::map(spec, "capacity").is_none_or(serde_json::Map::is_empty) {
        errors.push(FieldError::required("spec.capacity", ""));
    }
    let capacity = read::map(spec, "capacity").cloned().unwrap_or_default();
    if !capacity.contains_key("storage") || capacity.len() > 1 {
        errors.push(FieldError::not_supported("spec.capacity", Value::Object(capacity.clone()), &["storage"]));
    }
    resource_list(spec, Path("spec"), "capacity", errors);
    for (name, amount) in &capacity {
        if let Some(q) = Quantity::from_value(amount).ok().filter(|q| q.sign() == 0) {
            errors.push(FieldError::invalid(
                format!("spec.capacity[{name}]"),
                q.to_string(),
                "must be greater than zero",
            ));
        }
    }
}

/// A volume of a CSI driver.
fn of_driver(csi: &Value, errors: &mut Errors) {
    if read::text(csi, "driver").is_empty() {
        errors.push(FieldError::required("spec.csi.driver", ""));
    }
    volume::csi_driver(read::text(csi, "driver"), Path("spec.csi.driver"), errors);
    if read::text(csi, "volumeHandle").is_empty() {
        errors.push(FieldError::required("spec.csi.volumeHandle", ""));
    }
    for field in
        ["controllerPublishSecretRef", "controllerExpandSecretRef", "nodePublishSecretRef", "nodeExpandSecretRef"]
    {
        if let Some(secret) = read::at(csi, field) {
            secret_elsewhere(secret, Path(&format!("spec.csi.{field}")), errors);
        }
    }
}

pub(crate) fn volume(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    access_modes(spec, Path("spec"), "", errors);
    capacity(spec, errors);
    let policy = read::text(spec, "persistentVolumeReclaimPolicy");
    if !matches!(policy, "" | "Delete" | "Recycle" | "Retain") {
        let supported = &["Delete", "Recycle", "Retain"];
        errors.push(FieldError::not_supported("spec.persistentVolumeReclaimPolicy", policy, supported));
    }
    if policy == "Recycle"
        && read::text(spec, "hostPath.path").trim_end_matches('/').is_empty()
        && read::at(spec, "hostPath").is_some()
    {
        let why = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(FieldError::forbidden("spec.persistentVolumeReclaimPolicy", why));
    }
    classes(spec, Path("spec"), errors);
    if read::at(spec, "volumeAttributesClassName").is_some_and(|name| name == "") {
        errors.push(FieldError::required("spec.volumeAttributesClassName", "an empty string is disallowed"));
    }
    if read::at(spec, "volumeAttributesClassName").is_some() && read::at(spec, "csi").is_none() {
        errors.push(FieldError::required("spec.csi", "has to be specified when using volumeAttributesClassName"));
    }
    if let Some(required) = read::at(spec, "nodeAffinity") {
        match read::at(required, "required") {
            Some(selector) => pod::node_selector(selector, Path("spec.nodeAffinity.required"), errors),
            None => errors
                .push(FieldError::required("spec.nodeAffinity.required", "must specify required node constraints")),
        }
    }
    if let Some(csi) = read::at(spec, "csi") {
        of_driver(csi, errors);
    }
    for (source, field) in [("hostPath", "path"), ("local", "path"), ("nfs", "server"), ("nfs", "path")] {
        if read::at(spec, source).is_some_and(|s| read::text(s, field).is_empty()) {
            errors.push(FieldError::required(format!("spec.{source}.{field}"), ""));
        }
    }
    if let Some(share) = read::at(spec, "nfs") {
        volume::nfs_server(share, Path("spec.nfs"), errors);
    }
    host_path(spec, errors);
    match source(object).as_slice() {
        [] => errors.push(FieldError::required("spec", "must specify a volume type")),
        [_] => {}
        [_, others @ ..] => errors.extend(
            others
                .iter()
                .map(|(k, _)| FieldError::forbidden(format!("spec.{k}"), "may not specify more than 1 volume type")),
        ),
    }
    if read::at(object, "spec.local").is_some() && read::at(object, "spec.nodeAffinity").is_none() {
        errors.push(FieldError::required("spec.nodeAffinity", "Local volume requires node affinity"));
    }
}

pub(crate) fn volume_update(new: &Value, old: &Value, errors: &mut Errors) {
    let of = |object: &Value| -> Vec<(String, Value)> {
        let mut parts: Vec<(String, Value)> = source(object).into_iter().map(|(k, v)| (k.clone(), v.clone())).collect();
        // A driver's secret for growing may come later.
        if read::at(old, "spec.csi.controllerExpandSecretRef").is_none() {
            parts
                .iter_mut()
                .filter_map(|(_, v)| v.as_object_mut())
                .for_each(|map| drop(map.remove("controllerExpandSecretRef")));
        }
        parts
    };
    if of(new) != of(old) {
        errors.push(FieldError::forbidden(
            "spec.persistentvolumesource",
            "spec.persistentvolumesource is immutable after creation",
        ));
    }
    mode_update(new, old, errors);
    let affinity = |object: &Value| read::at(object, "spec.nodeAffinity").cloned().unwrap_or(Value::Null);
    if !affinity(old).is_null() && affinity(new) != affinity(old) {
        errors.push(FieldError::invalid("nodeAffinity", affinity(new), IMMUTABLE));
    }
    let path = "spec.volumeAttributesClassName";
    if read::at(old, path).is_some() && read::at(new, path).is_none() {
        errors.push(FieldError::forbidden(path, "update from non-nil value to nil is forbidden"));
    }
}

/// Upstream names this field without its parent.
fn mode_update(new: &Value, old: &Value, errors: &mut Errors) {
    let mode = |object: &Value| read::at(object, "spec.volumeMode").cloned().unwrap_or(Value::Null);
    if mode(new) != mode(old) {
        errors.push(FieldError::invalid("volumeMode", mode(new), IMMUTABLE));
    }
}

pub(crate) fn claim(object: &Value, errors: &mut Errors) {
    claim_spec(read::at(object, "spec").unwrap_or(&Value::Null), Path("spec"), errors);
}

/// A `PersistentVolumeClaimSpec`.
fn host_path(spec: &Value, errors: &mut Errors) {
    if let Some(kind) =
        read::at(spec, "hostPath.type").and_then(Value::as_str).filter(|kind| !volume::HOST_PATHS.contains(kind))
    {
        errors.push(FieldError::not_supported("spec.hostPath.type", kind, &volume::HOST_PATHS));
    }
}

/// A secret of any namespace.
fn secret_elsewhere(secret: &Value, path: Path<'_>, errors: &mut Errors) {
    let checks: [(&str, fn(&str) -> Vec<String>); 2] =
        [("name", names::dns_subdomain_errors), ("namespace", names::dns_label_errors)];
    for (field, check) in checks {
        match read::text(secret, field) {
            "" => errors.push(FieldError::required(format!("{path}.{field}"), "")),
            text => invalid_each(Path(&format!("{path}.{field}")), text, check(text), errors),
        }
    }
}

pub(super) fn claim_spec(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    access_modes(spec, path, "at least 1 access mode is required", errors);
    if let Some(selector) = read::at(spec, "selector") {
        label_selector(selector, Path(&format!("{path}.selector")), errors);
    }
    let field = format!("{path}.resources[storage]");
    match read::at(spec, "resources.requests.storage") {
        None => errors.push(FieldError::required(field, "")),
        Some(amount) => match Quantity::from_value(amount) {
            Ok(q) if q.sign() <= 0 => {
                errors.push(FieldError::invalid(field, q.to_string(), "must be greater than zero"))
            }
            Ok(_) => {}
            Err(e) => errors.push(FieldError::invalid(field, amount.clone(), e.to_string())),
        },
    }
    classes(spec, path, errors);
    for field in ["dataSource", "dataSourceRef"] {
        if let Some(of) = read::at(spec, field) {
            data_source(of, Path(&format!("{path}.{field}")), errors);
        }
    }
    let foreign = !read::text(spec, "dataSourceRef.namespace").is_empty();
    if let (Some(source), Some(reference)) = (read::at(spec, "dataSource"), read::at(spec, "dataSourceRef")) {
        let differs =
            ["apiGroup", "kind", "name"].iter().any(|f| read::some_text(source, f) != read::some_text(reference, f));
        let shown = format!("{path}.dataSource");
        if foreign {
            errors.push(FieldError::invalid(
                path,
                shown,
                "may not be specified when dataSourceRef.namespace is specified",
            ));
        } else if differs {
            errors.push(FieldError::invalid(path, shown, "must match dataSourceRef"));
        }
    }
}

fn data_source(of: &Value, path: Path<'_>, errors: &mut Errors) {
    for field in ["name", "kind"] {
        if read::text(of, field).is_empty() {
            errors.push(FieldError::required(format!("{path}.{field}"), ""));
        }
    }
    let (group, kind) = (read::text(of, "apiGroup"), read::text(of, "kind"));
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
        errors.push(FieldError::invalid(path, kind, why));
    }
    if !group.is_empty() {
        invalid_each(Path(&format!("{path}.apiGroup")), group, names::dns_subdomain_errors(group), errors);
    }
    let namespace = read::text(of, "namespace");
    if !namespace.is_empty() {
        invalid_each(Path(&format!("{path}.namespace")), namespace, names::dns_label_errors(namespace), errors);
    }
}

pub(crate) fn claim_update(new: &Value, old: &Value, errors: &mut Errors) {
    let bound = read::text(new, "status.phase") == "Bound";
    let fixed = |object: &Value| {
        let mut spec = read::map(object, "spec").cloned().unwrap_or_default();
        // Binding and the default class may be filled in once.
        for field in ["volumeName", "storageClassName"] {
            if read::text(old, &format!("spec.{field}")).is_empty() {
                spec.remove(field);
            }
        }
        if bound {
            spec.remove("volumeAttributesClassName");
            if let Some(requests) = spec.get_mut("resources").and_then(|r| r["requests"].as_object_mut()) {
                requests.remove("storage");
            }
        }
        spec
    };
    if fixed(new) != fixed(old) {
        let message =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden("spec", message));
    }
    let amount = |object: &Value, path: &str| read::at(object, path).and_then(|v| Quantity::from_value(v).ok());
    let path = "spec.resources.requests.storage";
    if let (Some(now), Some(before), Some(has)) =
        (amount(new, path), amount(old, path), amount(old, "status.capacity.storage"))
        && now < before
        && now <= has
    {
        errors.push(FieldError::forbidden(path, "field can not be less than status.capacity"));
    }
    mode_update(new, old, errors);
    let path = "spec.volumeAttributesClassName";
    if read::at(new, path) != read::at(old, path) && read::at(old, "status.currentVolumeAttributesClassName").is_some()
    {
        let why = match read::at(new, path).and_then(Value::as_str) {
            None => "update to nil is forbidden when status.currentVolumeAttributesClassName is not nil",
            Some("") => "update to empty string is forbidden when status.currentVolumeAttributesClassName is not nil",
            Some(_) => return,
        };
        errors.push(FieldError::forbidden(path, why));
    }
}

pub(crate) fn class(object: &Value, errors: &mut Errors) {
    drivers::provisioner(object, "provisioner", errors);
    drivers::parameters(object, errors);
    let policies = ["Delete", "Retain"];
    if let Some(policy) = read::some_text(object, "reclaimPolicy").filter(|p| !policies.contains(p)) {
        errors.push(FieldError::not_supported("reclaimPolicy", policy, &policies));
    }
    let modes = ["Immediate", "WaitForFirstConsumer"];
    match read::at(object, "volumeBindingMode").and_then(Value::as_str) {
        None => errors.push(FieldError::required("volumeBindingMode", "")),
        Some(mode) if !modes.contains(&mode) => {
            errors.push(FieldError::not_supported("volumeBindingMode", mode, &modes))
        }
        Some(_) => {}
    }
    drivers::topologies(object, errors);
}

pub(crate) fn class_update(new: &Value, old: &Value, errors: &mut Errors) {
    for field in ["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"] {
        immutable(new, old, field, errors);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_bound_claim_grows_and_shrinks_to_what_it_has() {
        let claim = |phase: &str, size: &str| {
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}},
                "status": {"phase": phase, "capacity": {"storage": "1Gi"}}})
        };
        let said = |new: &Value, old: &Value| {
            let mut errors = Vec::new();
            claim_update(new, old, &mut errors);
            errors.iter().map(|e| e.field.clone()).collect::<Vec<_>>()
        };
        assert!(said(&claim("Bound", "2Gi"), &claim("Bound", "1Gi")).is_empty());
        assert!(said(&claim("Bound", "2Gi"), &claim("Bound", "3Gi")).is_empty());
        assert_eq!(said(&claim("Bound", "500Mi"), &claim("Bound", "3Gi")), ["spec.resources.requests.storage"]);
        assert_eq!(said(&claim("Pending", "2Gi"), &claim("Pending", "1Gi")), ["spec"]);
    }

    #[test]
    fn a_volume_keeps_its_source_and_its_place() {
        let volume = |handle: &str, zone: &str| {
            json!({"spec": {"csi": {"driver": "d.io", "volumeHandle": handle},
            "nodeAffinity": {"required": zone}}})
        };
        let said = |new: &Value, old: &Value| {
            let mut errors = Vec::new();
            volume_update(new, old, &mut errors);
            errors.iter().map(|e| e.field.clone()).collect::<Vec<_>>()
        };
        let mut later = volume("a", "z");
        later["spec"]["csi"]["controllerExpandSecretRef"] = json!({"name": "s"});
        assert!(said(&later, &volume("a", "z")).is_empty());
        assert_eq!(said(&volume("b", "y"), &volume("a", "z")), ["spec.persistentvolumesource", "nodeAffinity"]);
    }
}
