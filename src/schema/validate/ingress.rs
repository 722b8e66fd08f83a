//! Ingresses and their classes.

use model::meta;
use model::names;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, immutable, invalid_each, ip};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
const CONTROLLER_MAX: usize = 250;
const PATH_TYPES: [&str; 3] = ["Exact", "ImplementationSpecific", "Prefix"];

pub(crate) fn ingress(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    let rules = read::list(spec, "rules");
    if rules.is_empty() && read::at(spec, "defaultBackend").is_none() {
        let message = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid("spec", read::at(spec, "rules").cloned().unwrap_or(Value::Null), message));
    }
    if let Some(backend) = read::at(spec, "defaultBackend") {
        self::backend(backend, Path("spec.defaultBackend"), errors);
    }
    for (idx, rule) in rules.iter().enumerate() {
        let path = format!("spec.rules[{idx}]");
        let name = read::text(rule, "host");
        if reads_as_address(name) {
            errors.push(FieldError::invalid(format!("{path}.host"), name, "must be a DNS name, not an IP address"));
        }
        if !name.is_empty() {
            host(name, Path(&format!("{path}.host")), errors);
        }
        if read::at(rule, "http").is_some() && read::list(rule, "http.paths").is_empty() {
            errors.push(FieldError::required(format!("{path}.http.paths"), ""));
        }
        for (at, entry) in read::list(rule, "http.paths").iter().enumerate() {
            ingress_path(entry, Path(&format!("{path}.http.paths[{at}]")), errors);
        }
    }
    for (idx, tls) in read::list(spec, "tls").iter().enumerate() {
        for (at, name) in read::texts(tls, "hosts").into_iter().enumerate() {
            host(name, Path(&format!("spec.tls[{idx}].hosts[{at}]")), errors);
        }
        if let Some(secret) = read::some_text(tls, "secretName") {
            invalid_each(
                Path(&format!("spec.tls[{idx}].secretName")),
                secret,
                names::dns_subdomain_errors(secret),
                errors,
            );
        }
    }
    if let Some(class) = read::at(spec, "ingressClassName").and_then(Value::as_str) {
        invalid_each(Path("spec.ingressClassName"), class, names::dns_subdomain_errors(class), errors);
    }
}

/// A new one may not name two classes.
pub(crate) fn one_class(object: &Value, errors: &mut Errors) {
    let (field, annotation) = (read::at(object, "spec.ingressClassName"), meta::annotation(object, CLASS_ANNOTATION));
    if let (Some(class), Some(said)) = (field.and_then(Value::as_str), annotation)
        && class != said
    {
        let why = "must match `ingressClassName` when both are specified";
        errors.push(FieldError::invalid(format!("annotations.{CLASS_ANNOTATION}"), said, why));
    }
}

fn host(name: &str, path: Path<'_>, errors: &mut Errors) {
    let check = if name.contains('*') { names::wildcard_subdomain_errors } else { names::dns_subdomain_errors };
    invalid_each(path, name, check(name), errors);
}

/// `010.1.2.3` counts: somebody may read it so.
fn reads_as_address(name: &str) -> bool {
    let mut errors = Vec::new();
    ip(name, Path(""), &mut errors);
    errors.first().is_none_or(|error| !error.detail.starts_with("must be a valid IP"))
}

fn ingress_path(entry: &Value, path: Path<'_>, errors: &mut Errors) {
    let (kind, text) = (read::text(entry, "pathType"), read::text(entry, "path"));
    let mut wrong = |why: String| errors.push(FieldError::invalid(format!("{path}.path"), text, why));
    match kind {
        "" if read::at(entry, "pathType").is_none() => {
            errors.push(FieldError::required(format!("{path}.pathType"), "pathType must be specified"));
            return;
        }
        "Exact" | "Prefix" => {
            if !text.starts_with('/') {
                wrong("must be an absolute path".to_owned());
            }
            for bad in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|bad| text.contains(**bad)) {
                wrong(format!("must not contain '{bad}'"));
            }
            for bad in ["/..", "/."].iter().filter(|bad| text.ends_with(**bad)) {
                wrong(format!("cannot end with '{bad}'"));
            }
        }
        "ImplementationSpecific" if !text.is_empty() && !text.starts_with('/') => {
            wrong("must be an absolute path".to_owned())
        }
        "ImplementationSpecific" => {}
        other => errors.push(FieldError::not_supported(format!("{path}.pathType"), other, &PATH_TYPES)),
    }
    backend(read::at(entry, "backend").unwrap_or(&Value::Null), Path(&format!("{path}.backend")), errors);
}

fn backend(backend: &Value, path: Path<'_>, errors: &mut Errors) {
    match (read::at(backend, "service"), read::at(backend, "resource")) {
        (Some(_), Some(_)) => {
            let message = "cannot set both resource and service backends";
            errors.push(FieldError::invalid(path, "", message));
        }
        (None, None) => errors.push(FieldError::invalid(path, "", "resource or service backend is required")),
        (None, Some(resource)) => reference(resource, Path(&format!("{path}.resource")), errors),
        (Some(service), None) => {
            let name = read::text(service, "name");
            match name {
                "" => errors.push(FieldError::required(format!("{path}.service.name"), "")),
                _ => invalid_each(Path(&format!("{path}.service.name")), name, names::dns_label_errors(name), errors),
            }
            match (read::some_text(service, "port.name"), read::number(service, "port.number")) {
                (Some(_), n) if n != 0 => {
                    errors.push(FieldError::invalid(path, "", "cannot set both port name & port number"));
                }
                (None, 0) => errors.push(FieldError::required(path, "port name or number is required")),
                (None, n) => {
                    invalid_each(Path(&format!("{path}.service.port.number")), n, names::port_number_errors(n), errors)
                }
                (Some(name), _) => invalid_each(
                    Path(&format!("{path}.service.port.name")),
                    name,
                    names::port_name_errors(name),
                    errors,
                ),
            }
        }
    }
}

/// A `TypedLocalObjectReference`.
fn reference(of: &Value, path: Path<'_>, errors: &mut Errors) {
    if let Some(group) = read::at(of, "apiGroup").and_then(Value::as_str) {
        invalid_each(Path(&format!("{path}.apiGroup")), group, names::dns_subdomain_errors(group), errors);
    }
    for field in ["kind", "name"] {
        match read::text(of, field) {
            "" => errors.push(FieldError::required(format!("{path}.{field}"), "")),
            text => invalid_each(Path(&format!("{path}.{field}")), text, names::path_segment_errors(text), errors),
        }
    }
}

pub(crate) fn ingress_class(object: &Value, errors: &mut Errors) {
    let (path, controller) = ("spec.controller", read::text(object, "spec.controller"));
    if controller.len() > CONTROLLER_MAX {
        errors.push(FieldError::too_long(path, CONTROLLER_MAX));
    }
    match controller.split_once('/').filter(|(host, rest)| !host.is_empty() && !rest.is_empty()) {
        None if controller.is_empty() => errors.push(FieldError::required(path, "")),
        None => {
            let message = "must be a domain-prefixed path (such as \"acme.io/foo\")";
            errors.push(FieldError::invalid(path, controller, message));
        }
        Some((host, rest)) => {
            invalid_each(Path(path), host, names::dns_subdomain_errors(host), errors);
            if !rest.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~%!$&'()*+,;=:".contains(&b)) {
                let why = r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')";
                errors.push(FieldError::invalid(path, rest, why));
            }
        }
    }
    if let Some(parameters) = read::at(object, "spec.parameters") {
        class_parameters(parameters, errors);
    }
}

fn class_parameters(parameters: &Value, errors: &mut Errors) {
    let path = "spec.parameters";
    reference(parameters, Path(path), errors);
    let namespace = read::at(parameters, "namespace").and_then(Value::as_str);
    let here = format!("{path}.namespace");
    match (read::text(parameters, "scope"), namespace) {
        ("", _) => errors.push(FieldError::required(format!("{path}.scope"), "")),
        ("Namespace", None) => errors.push(FieldError::required(here, "`parameters.scope` is set to 'Namespace'")),
        ("Namespace", Some(ns)) => invalid_each(Path(&here), ns, names::dns_label_errors(ns), errors),
        ("Cluster", Some(_)) => errors.push(FieldError::forbidden(here, "`parameters.scope` is set to 'Cluster'")),
        ("Cluster", None) => {}
        (other, _) => errors.push(FieldError::not_supported(format!("{path}.scope"), other, &["Cluster", "Namespace"])),
    }
}

pub(crate) fn ingress_class_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "spec.controller", errors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::testing::wrong_spec as wrong;
    use serde_json::json;

    #[test]
    fn paths_and_backends_are_judged() {
        let service = json!({"service": {"name": "s", "port": {"number": 80}}});
        let path =
            |kind: &str, path: &str, backend: &Value| json!({"pathType": kind, "path": path, "backend": backend});
        let spec = json!({"rules": [{"host": "10.0.0.1", "http": {"paths": [
            path("Prefix", "/a/..", &service), path("Odd", "/", &service),
                path("ImplementationSpecific", "a", &service),
            path("Exact", "/", &json!({"resource": {"kind": "", "name": "b"}})), path("Exact", "/", &json!({}))]}}],
            "tls": [{"hosts": ["*.a.*"], "secretName": "S"}]});
        let said = wrong(ingress, spec);
        let starts = [
            "spec.rules[0].host: Invalid value: \"10.0.0.1\": must be a DNS name, not an IP address",
            "spec.rules[0].http.paths[0].path: Invalid value: \"/a/..\": cannot end with '/..'",
            "spec.rules[0].http.paths[1].pathType: Unsupported value: \"Odd\": supported values: \"Exact\", \
            \"ImplementationSpecific\", \"Prefix\"",
            "spec.rules[0].http.paths[2].path: Invalid value: \"a\": must be an absolute path",
            "spec.rules[0].http.paths[3].backend.resource.kind: Required value",
            "spec.rules[0].http.paths[4].backend: Invalid value: \"\": resource or service backend is required",
            "spec.tls[0].hosts[0]: Invalid value: \"*.a.*\": a wildcard DNS-1123 subdomain",
            "spec.tls[0].secretName: Invalid value: \"S\": a lowercase RFC 1123 subdomain",
        ];
        assert_eq!(said.len(), starts.len(), "{said:#?}");
        for (said, start) in said.iter().zip(starts) {
            assert!(said.starts_with(start), "{said}");
        }
    }

    #[test]
    fn a_class_has_a_controller_and_parameters_of_a_scope() {
        assert_eq!(
            wrong(
                ingress_class,
                json!({"controller": "a.io/b", "parameters": {"kind": "k", "name": "n", "scope": "Cluster"}})
            )
            .len(),
            0
        );
        let said = wrong(
            ingress_class,
            json!({"controller": "a.io/b c", "parameters": {"kind": "k", "name": "n", "scope": "Namespace"}}),
        );
        assert!(said[0].starts_with("spec.controller: Invalid value: \"b c\": Invalid path (regex used"), "{said:?}");
        assert_eq!(said[1], "spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'");
    }
}
