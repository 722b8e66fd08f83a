//! Containers: names, images, ports, environment, mounts, probes, resources.

use std::collections::BTreeSet;

use model::names;
use model::quantity::Quantity;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, NOT_NEGATIVE, invalid_each, not_negative};
use crate::validate::env;
use crate::validate::error::FieldError;
use crate::validate::path::Path;
use crate::validate::security::{self, Users};

/// Which list of a pod a container stands in: each allows a little less.
/// Names of a pod's claims that an error about a missing one shows.
const CLAIMS_TOLD_MAX: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Main,
    Init,
    Ephemeral,
}

/// Facts of a pod that its containers' checks need.
pub(super) struct Pod<'a> {
    pub(super) volumes: &'a BTreeSet<&'a str>,
    pub(super) host_network: bool,
    /// Root in a container is root of the host: `hostUsers` is not false.
    pub(super) users: Users,
    /// `terminationGracePeriodSeconds`.
    pub(super) grace_secs: Option<i64>,
    /// `os.name`.
    pub(super) os: &'a str,
    /// `restartPolicy`.
    pub(super) restart_policy: &'a str,
    /// Volumes that may be used as block devices.
    pub(super) blocks: &'a BTreeSet<&'a str>,
    /// Names of `resourceClaims`.
    pub(super) claims: &'a BTreeSet<&'a str>,
}

/// One list of containers. `seen` holds the names of all containers of the pod so far.
pub(super) fn containers<'a>(
    list: &'a [Value],
    path: Path<'_>,
    role: Role,
    pod: &Pod<'_>,
    seen: &mut BTreeSet<&'a str>,
    errors: &mut Errors,
) {
    let mut host_ports = BTreeSet::new();
    for (idx, container) in list.iter().enumerate() {
        let path = format!("{path}[{idx}]");
        let name = read::text(container, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else {
            invalid_each(Path(&format!("{path}.name")), name, names::dns_label_errors(name), errors);
            if !seen.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
        }
        one(container, Path(&path), role, pod, errors);
        // Init containers run one after the other, so they may share host ports.
        if role == Role::Init {
            host_ports.clear();
        }
        self::host_ports(container, Path(&path), &mut host_ports, errors);
    }
}

fn one(container: &Value, path: Path<'_>, role: Role, pod: &Pod<'_>, errors: &mut Errors) {
    let image = read::text(container, "image");
    if image.is_empty() {
        errors.push(FieldError::required(format!("{path}.image"), ""));
    } else if image.trim() != image {
        errors.push(FieldError::invalid(
            format!("{path}.image"),
            image,
            "must not have leading or trailing whitespace",
        ));
    }
    if role == Role::Ephemeral {
        for field in ["ports", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle"] {
            if read::at(container, field).is_some() {
                errors
                    .push(FieldError::forbidden(format!("{path}.{field}"), "cannot be set for an Ephemeral Container"));
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
    if let Some(policy) =
        read::some_text(container, "imagePullPolicy").filter(|p| !["Always", "IfNotPresent", "Never"].contains(p))
    {
        let supported = &["Always", "IfNotPresent", "Never"];
        errors.push(FieldError::not_supported(format!("{path}.imagePullPolicy"), policy, supported));
    }
    ports(container, path, pod, errors);
    env::env(container, path, errors);
    mounts(container, path, pod, errors);
    devices(container, path, pod, errors);
    let policy = read::text(container, "terminationMessagePolicy");
    if !matches!(policy, "" | "File" | "FallbackToLogsOnError") {
        let supported = &["File", "FallbackToLogsOnError"];
        errors.push(FieldError::not_supported(format!("{path}.terminationMessagePolicy"), policy, supported));
    }
    restart(container, path, role, errors);
    resize(container, path, pod, errors);
    probes_and_hooks(container, path, pod, errors);
    if let Some(requirements) = read::at(container, "resources") {
        resources(requirements, Path(&format!("{path}.resources")), errors);
        claims(requirements, Path(&format!("{path}.resources")), pod, errors);
    }
    if let Some(context) = read::at(container, "securityContext") {
        security::container(context, Path(&format!("{path}.securityContext")), pod.users, errors);
    }
}

/// Probes, the handlers of the lifecycle and its signal.
fn probes_and_hooks(container: &Value, path: Path<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    for (field, kind) in
        [("livenessProbe", Probe::Liveness), ("readinessProbe", Probe::Readiness), ("startupProbe", Probe::Startup)]
    {
        if let Some(probe) = read::at(container, field) {
            self::probe(probe, Path(&format!("{path}.{field}")), kind, pod.grace_secs, errors);
        }
    }
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = read::at(container, &format!("lifecycle.{hook}")) {
            self::handler(
                handler,
                Path(&format!("{path}.lifecycle.{hook}")),
                &["exec", "httpGet", "tcpSocket", "sleep"],
                pod.grace_secs,
                errors,
            );
        }
    }
    if let Some(signal) = read::some_text(container, "lifecycle.stopSignal") {
        stop_signal(signal, pod, Path(&format!("{path}.lifecycle.stopSignal")), errors);
    }
}

fn ports(container: &Value, path: Path<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (idx, port) in read::list(container, "ports").iter().enumerate() {
        let path = format!("{path}.ports[{idx}]");
        if let Some(name) = read::some_text(port, "name") {
            let messages = names::port_name_errors(name);
            if messages.is_empty() && !seen.insert(name) {
                errors.push(FieldError::duplicate(format!("{path}.name"), name));
            }
            invalid_each(Path(&format!("{path}.name")), name, messages, errors);
        }
        let (number, host) = (read::number(port, "containerPort"), read::number(port, "hostPort"));
        if number == 0 {
            errors.push(FieldError::required(format!("{path}.containerPort"), ""));
        } else {
            invalid_each(Path(&format!("{path}.containerPort")), number, names::port_number_errors(number), errors);
        }
        let protocol = read::text(port, "protocol");
        if !["", "SCTP", "TCP", "UDP"].contains(&protocol) {
            errors.push(FieldError::not_supported(format!("{path}.protocol"), protocol, &["SCTP", "TCP", "UDP"]));
        }
        if host != 0 {
            invalid_each(Path(&format!("{path}.hostPort")), host, names::port_number_errors(host), errors);
            if pod.host_network && host != number {
                let message = "must match `containerPort` when `hostNetwork` is true";
                errors.push(FieldError::invalid(format!("{path}.hostPort"), host, message));
            }
        }
    }
}

fn host_ports(container: &Value, path: Path<'_>, seen: &mut BTreeSet<String>, errors: &mut Errors) {
    for (idx, port) in read::list(container, "ports").iter().enumerate() {
        let host = read::number(port, "hostPort");
        let key = format!("{}/{}/{host}", read::text(port, "protocol"), read::text(port, "hostIP"));
        if host != 0 && !seen.insert(key.clone()) {
            errors.push(FieldError::duplicate(format!("{path}.ports[{idx}].hostPort"), key));
        }
    }
}

fn mounts(container: &Value, path: Path<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let mut points = BTreeSet::new();
    let devices = uses(read::list(container, "volumeDevices"), "devicePath");
    let list = format!("{path}.volumeMounts");
    for (idx, mount) in read::list(container, "volumeMounts").iter().enumerate() {
        let path = format!("{path}.volumeMounts[{idx}]");
        let (name, point) = (read::text(mount, "name"), read::text(mount, "mountPath"));
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        }
        if !pod.volumes.contains(name) {
            errors.push(FieldError::not_found(format!("{path}.name"), name));
        }
        if point.is_empty() {
            errors.push(FieldError::required(format!("{path}.mountPath"), ""));
        }
        if !points.insert(point) {
            errors.push(FieldError::invalid(format!("{path}.mountPath"), point, "must be unique"));
        }
        overlaps(mount, ["name", "mountPath"], Path(&path), (&devices, "volumeDevices"), errors);
        let (sub, expression) = (read::text(mount, "subPath"), read::text(mount, "subPathExpr"));
        // Upstream leaves the position out of the paths of these.
        if !sub.is_empty() {
            local_path(sub, Path(&format!("{list}.subPath")), errors);
        }
        if !expression.is_empty() {
            if !sub.is_empty() {
                let message = "subPathExpr and subPath are mutually exclusive";
                errors.push(FieldError::invalid(format!("{path}.subPathExpr"), expression, message));
            }
            local_path(expression, Path(&format!("{list}.subPathExpr")), errors);
        }
        propagation(container, mount, Path(&list), errors);
    }
}

/// A volume, or a place in the container.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Use<'v> {
    Volume(&'v str),
    Place(&'v str),
}

/// The volumes and places of a list of mounts or devices, whose places have this field.
fn uses<'v>(list: &'v [Value], place: &str) -> BTreeSet<Use<'v>> {
    let both = |one: &'v Value| [Use::Volume(read::text(one, "name")), Use::Place(read::text(one, place))];
    list.iter().flat_map(both).collect()
}

/// A mount and a device have no volume and no place together; `others` come with the name of their list.
fn overlaps(
    one: &Value,
    [name, place]: [&str; 2],
    path: Path<'_>,
    (others, list): (&BTreeSet<Use<'_>>, &str),
    errors: &mut Errors,
) {
    let (volume, at) = (read::text(one, name), read::text(one, place));
    if others.contains(&Use::Volume(volume)) {
        let why = format!("must not already exist in {list}");
        errors.push(FieldError::invalid(path.child(name), volume, why));
    }
    if others.contains(&Use::Place(at)) {
        let why = format!("must not already exist as a path in {list}");
        errors.push(FieldError::invalid(path.child(place), at, why));
    }
}

/// How mounts below a mount spread, and how far read-only goes.
fn propagation(container: &Value, mount: &Value, path: Path<'_>, errors: &mut Errors) {
    let how = read::some_text(mount, "mountPropagation");
    if let Some(how) = how.filter(|h| !["Bidirectional", "HostToContainer", "None"].contains(h)) {
        let supported = &["Bidirectional", "HostToContainer", "None"];
        errors.push(FieldError::not_supported(format!("{path}.mountPropagation"), how, supported));
    }
    if how == Some("Bidirectional") && !read::flag(container, "securityContext.privileged") {
        let why = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(FieldError::forbidden(format!("{path}.mountPropagation"), why));
    }
    let field = format!("{path}.recursiveReadOnly");
    match read::some_text(mount, "recursiveReadOnly") {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !read::flag(mount, "readOnly") {
                errors.push(FieldError::forbidden(field.as_str(), "may only be specified when readOnly is true"));
            }
            if !matches!(how, None | Some("None")) {
                errors.push(FieldError::forbidden(
                    field,
                    "may only be specified when mountPropagation is None or not specified",
                ));
            }
        }
        Some(other) => errors.push(FieldError::not_supported(field, other, &["Disabled", "Enabled", "IfPossible"])),
    }
}

fn devices(container: &Value, path: Path<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let (mut named, mut at) = (BTreeSet::new(), BTreeSet::new());
    let mounts = uses(read::list(container, "volumeMounts"), "mountPath");
    for (idx, device) in read::list(container, "volumeDevices").iter().enumerate() {
        let path = format!("{path}.volumeDevices[{idx}]");
        let (name, point) = (read::text(device, "name"), read::text(device, "devicePath"));
        let wrong = |field: &str, value: &str, why: &str| FieldError::invalid(format!("{path}.{field}"), value, why);
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if !named.insert(name) {
            errors.push(wrong("name", name, "must be unique"));
        }
        if !pod.volumes.contains(name) {
            errors.push(FieldError::not_found(format!("{path}.name"), name));
        } else if !pod.blocks.contains(name) {
            let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
            errors.push(wrong("name", name, why));
        }
        if point.is_empty() {
            errors.push(FieldError::required(format!("{path}.devicePath"), ""));
        }
        if at.contains(point) {
            errors.push(wrong("devicePath", point, "must be unique"));
        }
        if point.split('/').any(|part| part == "..") {
            errors.push(wrong("devicePath", point, "can not contain backsteps ('..')"));
        } else {
            at.insert(point);
        }
        overlaps(device, ["name", "devicePath"], Path(&path), (&mounts, "volumeMounts"), errors);
    }
}

/// `restartPolicy` and `restartPolicyRules` of a container.
fn restart(container: &Value, path: Path<'_>, role: Role, errors: &mut Errors) {
    let policy = read::at(container, "restartPolicy").and_then(Value::as_str);
    let rules = read::list(container, "restartPolicyRules");
    if role == Role::Ephemeral {
        return;
    }
    match policy {
        None if !rules.is_empty() => {
            let why = "must specify restartPolicy when restart rules are used";
            errors.push(FieldError::required(format!("{path}.restartPolicy"), why));
        }
        Some(policy) if !["Always", "Never", "OnFailure"].contains(&policy) => {
            errors.push(FieldError::not_supported(
                format!("{path}.restartPolicy"),
                policy,
                &["Always", "Never", "OnFailure"],
            ));
        }
        _ => {}
    }
    if rules.len() > 20 {
        errors.push(FieldError::too_many(format!("{path}.restartPolicyRules"), rules.len(), 20));
    }
    for (idx, rule) in rules.iter().enumerate() {
        let path = format!("{path}.restartPolicyRules[{idx}]");
        let action = read::text(rule, "action");
        if !["Restart", "RestartAllContainers"].contains(&action) {
            errors.push(FieldError::not_supported(
                format!("{path}.action"),
                action,
                &["Restart", "RestartAllContainers"],
            ));
        }
        let Some(codes) = read::at(rule, "exitCodes") else {
            errors.push(FieldError::required(format!("{path}.exitCodes"), "must be specified"));
            continue;
        };
        let operator = read::text(codes, "operator");
        if !["In", "NotIn"].contains(&operator) {
            errors.push(FieldError::not_supported(format!("{path}.exitCodes.operator"), operator, &["In", "NotIn"]));
        }
        let values = read::list(codes, "values").len();
        if values > 255 {
            errors.push(FieldError::too_many(format!("{path}.exitCodes.values"), values, 255));
        }
    }
}

fn resize(container: &Value, path: Path<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let path = format!("{path}.resizePolicy");
    let mut seen = BTreeSet::new();
    for (idx, policy) in read::list(container, "resizePolicy").iter().enumerate() {
        let (resource, restart) = (read::text(policy, "resourceName"), read::text(policy, "restartPolicy"));
        if !seen.insert(resource) {
            errors.push(FieldError::duplicate(format!("{path}[{idx}]"), resource));
        }
        match resource {
            "cpu" | "memory" => {}
            "" => errors.push(FieldError::required(path.as_str(), "")),
            other => errors.push(FieldError::not_supported(path.as_str(), other, &["cpu", "memory"])),
        }
        match restart {
            "NotRequired" | "RestartContainer" => {}
            "" => errors.push(FieldError::required(path.as_str(), "")),
            other => errors.push(FieldError::not_supported(path.as_str(), other, &["NotRequired", "RestartContainer"])),
        }
        if pod.restart_policy == "Never" && restart != "NotRequired" {
            let why = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(FieldError::invalid(path.as_str(), restart, why));
        }
    }
}

fn stop_signal(signal: &str, pod: &Pod<'_>, path: Path<'_>, errors: &mut Errors) {
    match pod.os {
        "" => errors.push(FieldError::forbidden(path, "may not be set for containers with empty `spec.os.name`")),
        "windows" if !["SIGKILL", "SIGTERM"].contains(&signal) => {
            errors.push(FieldError::not_supported(path, signal, &["SIGKILL", "SIGTERM"]));
        }
        _ => {}
    }
}

fn claims(requirements: &Value, path: Path<'_>, pod: &Pod<'_>, errors: &mut Errors) {
    let (mut seen, mut named) = (BTreeSet::new(), BTreeSet::new());
    for (idx, claim) in read::list(requirements, "claims").iter().enumerate() {
        let path = format!("{path}.claims[{idx}]");
        let (name, request) = (read::text(claim, "name"), read::text(claim, "request"));
        if name.is_empty() {
            errors.push(FieldError::required(path, ""));
            continue;
        }
        if !request.is_empty() {
            invalid_each(Path(&format!("{path}.request")), request, names::dns_label_errors(request), errors);
        }
        let whole = seen.contains(&(name, "")) || (request.is_empty() && named.contains(name));
        named.insert(name);
        if whole {
            errors.push(FieldError::duplicate(path.as_str(), name));
        } else if !seen.insert((name, request)) {
            errors.push(FieldError::duplicate(path.as_str(), format!("{name}/{request}")));
        }
        if !pod.claims.contains(name) {
            let mut error = FieldError::not_found(path, name);
            // As many of them as help: all of them again for each wrong name would be the square of the pod.
            let known: Vec<&str> = pod.claims.iter().copied().take(CLAIMS_TOLD_MAX).collect();
            let rest = if known.is_empty() { " which is empty".to_owned() } else { format!(": {}", known.join(", ")) };
            error.detail = format!("must be one of the names in pod.spec.resourceClaims{rest}");
            errors.push(error);
        }
    }
}

/// A path that stays below where it starts.
pub(super) fn local_path(text: &str, path: Path<'_>, errors: &mut Errors) {
    if text.starts_with('/') {
        errors.push(FieldError::invalid(path, text, "must be a relative path"));
    }
    no_back_steps(text, path, errors);
}

/// A path without `..`.
pub(super) fn no_back_steps(text: &str, path: Path<'_>, errors: &mut Errors) {
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

fn probe(probe: &Value, path: Path<'_>, kind: Probe, grace_secs: Option<i64>, errors: &mut Errors) {
    handler(probe, path, &["exec", "httpGet", "tcpSocket", "grpc"], grace_secs, errors);
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

fn handler(handler: &Value, path: Path<'_>, kinds: &[&str], grace_secs: Option<i64>, errors: &mut Errors) {
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
                port(read::at(handler, "httpGet.port"), Path(&format!("{path}.httpGet.port")), errors);
                let scheme = read::text(handler, "httpGet.scheme");
                if !matches!(scheme, "" | "HTTP" | "HTTPS") {
                    errors.push(FieldError::not_supported(
                        format!("{path}.httpGet.scheme"),
                        scheme,
                        &["HTTP", "HTTPS"],
                    ));
                }
                for header in read::list(handler, "httpGet.httpHeaders") {
                    let name = read::text(header, "name");
                    invalid_each(
                        Path(&format!("{path}.httpGet.httpHeaders")),
                        name,
                        names::http_header_errors(name),
                        errors,
                    );
                }
            }
            "tcpSocket" | "grpc" => {
                port(read::at(handler, &format!("{kind}.port")), Path(&format!("{path}.{kind}.port")), errors);
            }
            "sleep" => {
                let secs = read::number(handler, "sleep.seconds");
                if let Some(grace) = grace_secs.filter(|grace| secs < 0 || secs > *grace) {
                    let why = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
                    errors.push(FieldError::invalid(format!("{path}.sleep"), secs, why));
                }
            }
            _ => {}
        }
    }
}

/// A port by number or name.
pub(super) fn port(port: Option<&Value>, path: Path<'_>, errors: &mut Errors) {
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
pub(super) fn resources(requirements: &Value, path: Path<'_>, errors: &mut Errors) {
    for list in ["limits", "requests"] {
        for (name, amount) in read::map(requirements, list).into_iter().flatten() {
            let here = format!("{path}.{list}");
            invalid_each(Path(&here), name.as_str(), names::qualified_name_errors(name), errors);
            if !name.contains('/') && !is_standard(name) {
                errors.push(FieldError::invalid(
                    here.as_str(),
                    name.as_str(),
                    "must be a standard resource for containers",
                ));
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
                errors.push(FieldError::invalid(
                    here,
                    request.to_string(),
                    format!("must be equal to {name} limit of {limit}"),
                ));
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
