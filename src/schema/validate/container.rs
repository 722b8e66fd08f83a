//! Containers: names, images, ports, environment, mounts, probes, resources.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::quantity::Quantity;
use crate::read;
use crate::validate::checks::{Errors, NOT_NEGATIVE, invalid_each, join, not_negative, required_text};
use crate::validate::error::FieldError;
use crate::validate::names;

/// Which list of a pod a container stands in: each allows a little less.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Main,
    Init,
    Ephemeral,
}

/// What containers need to know of their pod.
pub(super) struct Pod<'a> {
    pub(super) volumes: &'a BTreeSet<&'a str>,
    pub(super) host_network: bool,
}

/// One list of containers. `seen` holds the names of all containers of the pod so far.
pub(super) fn containers<'a>(list: &'a [Value], path: &str, role: Role, pod: &Pod<'_>, seen: &mut BTreeSet<&'a str>, errors: &mut Errors) {
    let mut host_ports = BTreeSet::new();
    for (idx, container) in list.iter().enumerate() {
        let path = format!("{path}[{idx}]");
        let name = read::text(container, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else {
            invalid_each(&format!("{path}.name"), name, names::dns_label_errors(name), errors);
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
        }
        one(container, &path, role, pod, errors);
        // Init containers run one after the other, so they may share host ports.
        if role == Role::Init {
            host_ports.clear();
        }
        self::host_ports(container, &path, &mut host_ports, errors);
    }
}

fn one(container: &Value, path: &str, role: Role, pod: &Pod<'_>, errors: &mut Errors) {
    let image = read::text(container, "image");
    if image.is_empty() {
        errors.push(FieldError::required(format!("{path}.image"), ""));
    } else if image.trim() != image {
        errors.push(FieldError::invalid(format!("{path}.image"), image, "must not have leading or trailing whitespace"));
    }
    if role == Role::Ephemeral {
        for field in ["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"] {
            if read::at(container, field).is_some() {
                errors.push(FieldError::forbidden(format!("{path}.{field}"), "cannot be set for an Ephemeral Container"));
            }
        }
    }
    let sidecar = role == Role::Init && read::text(container, "restartPolicy") == "Always";
    if role == Role::Init && !sidecar {
        for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
            if read::at(container, field).is_some() {
                let message = "may not be set for init containers without restartPolicy=Always";
                errors.push(FieldError::forbidden(format!("{path}.{field}"), message));
            }
        }
    }
    if let Some(policy) = read::some_text(container, "imagePullPolicy").filter(|p| !["Always", "IfNotPresent", "Never"].contains(p)) {
        let supported = &["Always", "IfNotPresent", "Never"];
        errors.push(FieldError::not_supported(format!("{path}.imagePullPolicy"), policy, supported));
    }
    ports(container, path, pod, errors);
    env(container, path, errors);
    mounts(container, path, pod, errors);
    for (field, kind) in [("livenessProbe", Probe::Liveness), ("readinessProbe", Probe::Readiness), ("startupProbe", Probe::Startup)] {
        if let Some(probe) = read::at(container, field) {
            self::probe(probe, &format!("{path}.{field}"), kind, errors);
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = read::at(container, &format!("lifecycle.{hook}")) {
            self::handler(handler, &format!("{path}.lifecycle.{hook}"), &["exec", "httpGet", "tcpSocket", "sleep"], errors);
        }
    }
    if let Some(requirements) = read::at(container, "resources") {
        resources(requirements, &format!("{path}.resources"), errors);
    }
    if let Some(context) = read::at(container, "securityContext") {
        security_context(context, &format!("{path}.securityContext"), errors);
    }
}

fn ports(container: &Value, path: &str, pod: &Pod<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (idx, port) in read::list(container, "ports").iter().enumerate() {
        let path = format!("{path}.ports[{idx}]");
        if let Some(name) = read::some_text(port, "name") {
            let messages = names::port_name_errors(name);
            if messages.is_empty() && !seen.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
            invalid_each(&format!("{path}.name"), name, messages, errors);
        }
        let (number, host) = (read::number(port, "containerPort"), read::number(port, "hostPort"));
        if number == 0 {
            errors.push(FieldError::required(format!("{path}.containerPort"), ""));
        } else {
            invalid_each(&format!("{path}.containerPort"), number, names::port_number_errors(number), errors);
        }
        if host != 0 {
            invalid_each(&format!("{path}.hostPort"), host, names::port_number_errors(host), errors);
            if pod.host_network && host != number {
                let message = "must match `hostPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(format!("{path}.containerPort"), number, message));
            }
        }
    }
}

fn host_ports(container: &Value, path: &str, seen: &mut BTreeSet<String>, errors: &mut Errors) {
    for (idx, port) in read::list(container, "ports").iter().enumerate() {
        let host = read::number(port, "hostPort");
        let key = format!("{}/{}/{host}", read::text(port, "protocol"), read::text(port, "hostIP"));
        if host != 0 && !seen.insert(key.clone()) {
            errors.push(FieldError::duplicate(format!("{path}.ports[{idx}].hostPort"), key));
        }
    }
}

fn env(container: &Value, path: &str, errors: &mut Errors) {
    for (idx, variable) in read::list(container, "env").iter().enumerate() {
        let path = format!("{path}.env[{idx}]");
        let name = read::text(variable, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else {
            invalid_each(&format!("{path}.name"), name, names::env_name_errors(name), errors);
        }
        let Some(from) = read::map(variable, "valueFrom") else { continue };
        let path = format!("{path}.valueFrom");
        match from.values().filter(|v| !v.is_null()).count() {
            0 => errors.push(FieldError::invalid(
                path.as_str(),
                "",
                "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            )),
            _ if !read::text(variable, "value").is_empty() => {
                errors.push(FieldError::invalid(path.as_str(), "", "may not be specified when `value` is not empty"));
            }
            1 => {}
            _ => errors.push(FieldError::invalid(path.as_str(), "", "may not have more than one field specified at a time")),
        }
        for source in ["configMapKeyRef", "secretKeyRef"] {
            if let Some(reference) = from.get(source).filter(|v| v.is_object()) {
                let key = read::text(reference, "key");
                match key {
                    "" => errors.push(FieldError::required(format!("{path}.{source}.key"), "")),
                    _ => invalid_each(&format!("{path}.{source}.key"), key, names::config_key_errors(key), errors),
                }
            }
        }
        if let Some(reference) = from.get("fieldRef").filter(|v| v.is_object()) {
            required_text(reference, &format!("{path}.fieldRef"), "fieldPath", errors);
        }
    }
    for (idx, source) in read::list(container, "envFrom").iter().enumerate() {
        let path = format!("{path}.envFrom[{idx}]");
        let given = ["configMapRef", "secretRef"].iter().filter(|f| read::at(source, f).is_some()).count();
        match given {
            0 => errors.push(FieldError::invalid(path, "", "must specify one of: `configMapRef` or `secretRef`")),
            1 => {}
            _ => errors.push(FieldError::invalid(path, "", "may not have more than one field specified at a time")),
        }
    }
}

fn mounts(container: &Value, path: &str, pod: &Pod<'_>, errors: &mut Errors) {
    let mut points = BTreeSet::new();
    for (idx, mount) in read::list(container, "volumeMounts").iter().enumerate() {
        let path = format!("{path}.volumeMounts[{idx}]");
        let name = read::text(mount, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if !pod.volumes.contains(name) {
            errors.push(FieldError::not_found(format!("{path}.name"), name));
        }
        let point = read::text(mount, "mountPath");
        if point.is_empty() {
            errors.push(FieldError::required(format!("{path}.mountPath"), ""));
        } else if !points.insert(point) {
            errors.push(FieldError::invalid(format!("{path}.mountPath"), point, "must be unique"));
        }
        let (sub, expression) = (read::text(mount, "subPath"), read::text(mount, "subPathExpr"));
        if !sub.is_empty() {
            local_path(sub, &format!("{path}.subPath"), errors);
        }
        if !expression.is_empty() {
            if !sub.is_empty() {
                let message = "subPathExpr and subPath are mutually exclusive";
                errors.push(FieldError::invalid(format!("{path}.subPathExpr"), expression, message));
            }
            local_path(expression, &format!("{path}.subPathExpr"), errors);
        }
    }
}

/// A path that stays below where it starts.
pub(super) fn local_path(text: &str, path: &str, errors: &mut Errors) {
    if text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must be a relative path"));
    }
    no_back_steps(text, path, errors);
}

/// A path without `..`.
pub(super) fn no_back_steps(text: &str, path: &str, errors: &mut Errors) {
    if text.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, text, "must not contain '..'"));
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Probe {
    Liveness,
    Readiness,
    Startup,
}

fn probe(probe: &Value, path: &str, kind: Probe, errors: &mut Errors) {
    handler(probe, path, &["exec", "httpGet", "tcpSocket", "grpc"], errors);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        not_negative(probe, path, field, errors);
    }
    let successes = read::integer(probe, "successThreshold").unwrap_or(1);
    if kind != Probe::Readiness && successes != 1 {
        errors.push(FieldError::invalid(format!("{path}.successThreshold"), successes, "must be 1"));
    }
    if let Some(grace) = read::integer(probe, "terminationGracePeriodSeconds") {
        let field = format!("{path}.terminationGracePeriodSeconds");
        if kind == Probe::Readiness {
            errors.push(FieldError::invalid(field, grace, "must not be set for readinessProbes"));
        } else if grace <= 0 {
            errors.push(FieldError::invalid(field, grace, "must be greater than 0"));
        }
    }
}

fn handler(handler: &Value, path: &str, kinds: &[&str], errors: &mut Errors) {
    let given: Vec<&str> = kinds.iter().filter(|k| read::at(handler, k).is_some()).copied().collect();
    if given.is_empty() {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
    for (idx, kind) in given.iter().enumerate() {
        if idx > 0 {
            errors.push(FieldError::forbidden(format!("{path}.{kind}"), "may not specify more than 1 handler type"));
            continue;
        }
        match *kind {
            "exec" if read::list(handler, "exec.command").is_empty() => {
                errors.push(FieldError::required(format!("{path}.exec.command"), ""));
            }
            "httpGet" => {
                if read::text(handler, "httpGet.path").is_empty() {
                    errors.push(FieldError::required(format!("{path}.httpGet.path"), ""));
                }
                port(read::at(handler, "httpGet.port"), &format!("{path}.httpGet.port"), errors);
                for (idx, header) in read::list(handler, "httpGet.httpHeaders").iter().enumerate() {
                    let name = read::text(header, "name");
                    let field = format!("{path}.httpGet.httpHeaders[{idx}]");
                    invalid_each(&field, name, names::http_header_errors(name), errors);
                }
            }
            "tcpSocket" | "grpc" => {
                port(read::at(handler, &format!("{kind}.port")), &format!("{path}.{kind}.port"), errors);
            }
            "sleep" => not_negative(handler, path, "sleep.seconds", errors),
            _ => {}
        }
    }
}

/// A port by number or name.
pub(super) fn port(port: Option<&Value>, path: &str, errors: &mut Errors) {
    match port {
        Some(Value::String(name)) => invalid_each(path, name.as_str(), names::port_name_errors(name), errors),
        Some(number) => {
            let number = number.as_i64().unwrap_or(0);
            invalid_each(path, number, names::port_number_errors(number), errors);
        }
        None => invalid_each(path, 0, names::port_number_errors(0), errors),
    }
}

fn is_standard(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory" | "ephemeral-storage") || resource.starts_with("hugepages-")
}

/// `resources` of a container: known names, limits not below requests.
pub(super) fn resources(requirements: &Value, path: &str, errors: &mut Errors) {
    for list in ["limits", "requests"] {
        for (name, amount) in read::map(requirements, list).into_iter().flatten() {
            let here = format!("{}.{list}", join("", path));
            invalid_each(&here, name.as_str(), names::qualified_name_errors(name), errors);
            if !name.contains('/') && !is_standard(name) {
                errors.push(FieldError::invalid(here.as_str(), name.as_str(), "must be a standard resource for containers"));
            }
            let here = format!("{here}[{name}]");
            match Quantity::from_value(amount) {
                Err(e) => errors.push(FieldError::invalid(here, amount.clone(), e.to_string())),
                Ok(q) if q.sign() < 0 => errors.push(FieldError::invalid(here, q.to_string(), NOT_NEGATIVE)),
                Ok(q) if name.contains('/') && !name.contains("kubernetes.io/") && !q.is_whole() => {
                    errors.push(FieldError::invalid(here, q.to_string(), "must be an integer"));
                }
                Ok(_) => {}
            }
        }
    }
    let limits = read::map(requirements, "limits");
    for (name, amount) in read::map(requirements, "requests").into_iter().flatten() {
        let overcommit = matches!(name.as_str(), "cpu" | "memory" | "ephemeral-storage");
        let Ok(request) = Quantity::from_value(amount) else { continue };
        let limit = limits.and_then(|l| l.get(name)).and_then(|l| Quantity::from_value(l).ok());
        let here = format!("{path}.requests");
        match limit {
            Some(limit) if !overcommit && request != limit => {
                errors.push(FieldError::invalid(here, request.to_string(), format!("must be equal to {name} limit of {limit}")));
            }
            Some(limit) if request > limit => {
                let message = format!("must be less than or equal to {name} limit of {limit}");
                errors.push(FieldError::invalid(here, request.to_string(), message));
            }
            None if !overcommit => {
                let message = "Limit must be set for non overcommitable resources";
                errors.push(FieldError::required(format!("{path}.limits"), message));
            }
            _ => {}
        }
    }
}

fn security_context(context: &Value, path: &str, errors: &mut Errors) {
    for field in ["runAsUser", "runAsGroup"] {
        if let Some(id) = read::integer(context, field) {
            invalid_each(&format!("{path}.{field}"), id, names::range_errors(id, 0, i64::from(i32::MAX)), errors);
        }
    }
    let escalation = read::at(context, "allowPrivilegeEscalation").and_then(Value::as_bool);
    if escalation == Some(false) {
        if read::flag(context, "privileged") {
            let message = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(path, context.clone(), message));
        }
        if read::texts(context, "capabilities.add").iter().any(|c| matches!(*c, "CAP_SYS_ADMIN" | "SYS_ADMIN")) {
            let message = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(path, json!(context), message));
        }
    }
}
