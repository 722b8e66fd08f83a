//! Pods and the templates they are made from.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each, ip, label_selector};
use crate::validate::container::{self, Role};
use crate::validate::error::FieldError;
use crate::validate::{metadata, names, volume};

pub(super) fn create(object: &Value, errors: &mut Errors) {
    match read::at(object, "spec") {
        Some(spec) => pod_spec(spec, "spec", errors),
        None => errors.push(FieldError::required("spec.containers", "")),
    }
}

pub(super) fn template(object: &Value, errors: &mut Errors) {
    pod_template(object, "template", "template", errors);
}

/// A `PodTemplateSpec` found at `field` of `owner`, called `path` in errors.
pub(super) fn pod_template(owner: &Value, field: &str, path: &str, errors: &mut Errors) {
    let Some(template) = read::at(owner, field) else {
        errors.push(FieldError::required(path, ""));
        return;
    };
    if let Some(map) = read::map(template, "metadata.labels") {
        metadata::labels(map, &format!("{path}.metadata.labels"), errors);
    }
    if let Some(map) = read::map(template, "metadata.annotations") {
        metadata::annotations(map, &format!("{path}.metadata.annotations"), errors);
    }
    let path = format!("{path}.spec");
    match read::at(template, "spec") {
        Some(spec) => {
            pod_spec(spec, &path, errors);
            if !read::list(spec, "ephemeralContainers").is_empty() {
                let message = "ephemeral containers not allowed in pod template";
                errors.push(FieldError::forbidden(format!("{path}.ephemeralContainers"), message));
            }
        }
        None => errors.push(FieldError::required(format!("{path}.containers"), "")),
    }
}

/// A `PodSpec`.
pub(super) fn pod_spec(spec: &Value, path: &str, errors: &mut Errors) {
    let volumes = volume::volumes(spec, path, errors);
    let pod = container::Pod { volumes: &volumes, host_network: read::flag(spec, "hostNetwork") };
    let main = read::list(spec, "containers");
    if main.is_empty() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
    }
    let mut seen = BTreeSet::new();
    container::containers(main, &format!("{path}.containers"), Role::Main, &pod, &mut seen, errors);
    let lists = [("initContainers", Role::Init), ("ephemeralContainers", Role::Ephemeral)];
    for (field, role) in lists {
        container::containers(read::list(spec, field), &format!("{path}.{field}"), role, &pod, &mut seen, errors);
    }
    scalars(spec, path, errors);
    tolerations(spec, path, errors);
    spread(spec, path, errors);
    affinity(spec, path, errors);
    if let Some(map) = read::map(spec, "nodeSelector") {
        metadata::labels(map, &format!("{path}.nodeSelector"), errors);
    }
    for (idx, alias) in read::list(spec, "hostAliases").iter().enumerate() {
        ip(read::text(alias, "ip"), &format!("{path}.hostAliases[{idx}].ip"), errors);
    }
    for (idx, gate) in read::list(spec, "readinessGates").iter().enumerate() {
        let kind = read::text(gate, "conditionType");
        let path = format!("{path}.readinessGates[{idx}].conditionType");
        invalid_each(&path, kind, names::qualified_name_errors(kind), errors);
    }
    dns(spec, path, errors);
}

fn scalars(spec: &Value, path: &str, errors: &mut Errors) {
    let max = i64::from(i32::MAX);
    if let Some(seconds) = read::integer(spec, "activeDeadlineSeconds") {
        invalid_each(&format!("{path}.activeDeadlineSeconds"), seconds, names::range_errors(seconds, 1, max), errors);
    }
    if let Some(seconds) = read::integer(spec, "terminationGracePeriodSeconds").filter(|s| *s < 0) {
        let message = "must be greater than or equal to 0";
        errors.push(FieldError::invalid(format!("{path}.terminationGracePeriodSeconds"), seconds, message));
    }
    type Check = fn(&str) -> Vec<String>;
    let checks: [(&str, Check); 6] = [
        ("serviceAccountName", names::dns_subdomain_errors),
        ("nodeName", names::dns_subdomain_errors),
        ("hostname", names::dns_label_errors),
        ("subdomain", names::dns_label_errors),
        ("priorityClassName", names::dns_subdomain_errors),
        ("runtimeClassName", names::dns_subdomain_errors),
    ];
    for (field, check) in checks {
        if let Some(text) = read::some_text(spec, field) {
            invalid_each(&format!("{path}.{field}"), text, check(text), errors);
        }
    }
    let policy = read::text(spec, "restartPolicy");
    if !matches!(policy, "" | "Always" | "OnFailure" | "Never") {
        let supported = &["Always", "OnFailure", "Never"];
        errors.push(FieldError::not_supported(format!("{path}.restartPolicy"), policy, supported));
    }
    for field in ["runAsUser", "runAsGroup", "fsGroup"] {
        if let Some(id) = read::integer(spec, &format!("securityContext.{field}")) {
            invalid_each(&format!("{path}.securityContext.{field}"), id, names::range_errors(id, 0, max), errors);
        }
    }
    sysctls(spec, &format!("{path}.securityContext.sysctls"), errors);
    if read::flag(spec, "shareProcessNamespace") && read::flag(spec, "hostPID") {
        let message = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(format!("{path}.shareProcessNamespace"), true, message));
    }
}

/// Names as upstream's `validateSysctls` has them. Which of them a node allows is the kubelet's matter.
fn sysctls(spec: &Value, path: &str, errors: &mut Errors) {
    const TEXT: &str =
        "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
    let mut seen = BTreeSet::new();
    for (idx, sysctl) in read::list(spec, "securityContext.sysctls").iter().enumerate() {
        let (path, name) = (format!("{path}[{idx}].name"), read::text(sysctl, "name"));
        if name.is_empty() {
            errors.push(FieldError::required(path, ""));
        } else if name.len() > 253 || !name.split(['.', '/']).all(is_sysctl_segment) {
            errors.push(FieldError::invalid(path, name, TEXT));
        } else if !seen.insert(name) {
            errors.push(FieldError::duplicate(path, name));
        }
    }
}

fn is_sysctl_segment(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ends = [text.bytes().next(), text.bytes().last()].into_iter().all(|b| b.is_some_and(plain));
    ends && text.bytes().all(|b| plain(b) || b == b'-' || b == b'_')
}

fn tolerations(spec: &Value, path: &str, errors: &mut Errors) {
    for (idx, toleration) in read::list(spec, "tolerations").iter().enumerate() {
        let path = format!("{path}.tolerations[{idx}]");
        let (key, operator) = (read::text(toleration, "key"), read::text(toleration, "operator"));
        if !key.is_empty() {
            invalid_each(&format!("{path}.key"), key, names::qualified_name_errors(key), errors);
        } else if operator != "Exists" {
            let message = "operator must be Exists when `key` is empty, which means \"match all values and all keys\"";
            errors.push(FieldError::invalid(format!("{path}.operator"), operator, message));
        }
        let (effect, value) = (read::text(toleration, "effect"), read::text(toleration, "value"));
        if read::at(toleration, "tolerationSeconds").is_some() && effect != "NoExecute" {
            let message = "effect must be 'NoExecute' when `tolerationSeconds` is set";
            errors.push(FieldError::invalid(format!("{path}.effect"), effect, message));
        }
        match operator {
            "Exists" if !value.is_empty() => {
                let message = "value must be empty when `operator` is 'Exists'";
                errors.push(FieldError::invalid(format!("{path}.operator"), toleration.clone(), message));
            }
            "Exists" => {}
            "Equal" | "" => invalid_each(&format!("{path}.operator"), value, names::label_value_errors(value), errors),
            _ => {}
        }
    }
}

fn spread(spec: &Value, path: &str, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (idx, constraint) in read::list(spec, "topologySpreadConstraints").iter().enumerate() {
        let path = format!("{path}.topologySpreadConstraints[{idx}]");
        let skew = read::number(constraint, "maxSkew");
        if skew <= 0 {
            errors.push(FieldError::invalid(format!("{path}.maxSkew"), skew, "must be greater than zero"));
        }
        let key = read::text(constraint, "topologyKey");
        if key.is_empty() {
            errors.push(FieldError::required(format!("{path}.topologyKey"), "can not be empty"));
        } else {
            invalid_each(&format!("{path}.topologyKey"), key, names::qualified_name_errors(key), errors);
        }
        let when = read::text(constraint, "whenUnsatisfiable");
        if !seen.insert((key, when)) {
            let pair = format!("{{{key}, {when}}}");
            errors.push(FieldError::duplicate(format!("{path}.{{topologyKey, whenUnsatisfiable}}"), pair));
        }
        if let Some(selector) = read::at(constraint, "labelSelector") {
            label_selector(selector, &format!("{path}.labelSelector"), errors);
        }
    }
}

fn affinity(spec: &Value, path: &str, errors: &mut Errors) {
    let path = format!("{path}.affinity");
    let required = "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution";
    if let Some(selector) = read::at(spec, &format!("affinity.{required}")) {
        node_selector(selector, &format!("{path}.{required}"), errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let required = format!("{kind}.requiredDuringSchedulingIgnoredDuringExecution");
        for (idx, term) in read::list(spec, &format!("affinity.{required}")).iter().enumerate() {
            pod_affinity_term(term, &format!("{path}.{required}[{idx}]"), errors);
        }
        let preferred = format!("{kind}.preferredDuringSchedulingIgnoredDuringExecution");
        for (idx, weighted) in read::list(spec, &format!("affinity.{preferred}")).iter().enumerate() {
            let path = format!("{path}.{preferred}[{idx}]");
            let weight = read::number(weighted, "weight");
            if !(1..=100).contains(&weight) {
                errors.push(FieldError::invalid(format!("{path}.weight"), weight, "must be in the range 1-100"));
            }
            if let Some(term) = read::at(weighted, "podAffinityTerm") {
                pod_affinity_term(term, &format!("{path}.podAffinityTerm"), errors);
            }
        }
    }
}

fn pod_affinity_term(term: &Value, path: &str, errors: &mut Errors) {
    for field in ["labelSelector", "namespaceSelector"] {
        if let Some(selector) = read::at(term, field) {
            label_selector(selector, &format!("{path}.{field}"), errors);
        }
    }
    let key = read::text(term, "topologyKey");
    if key.is_empty() {
        errors.push(FieldError::required(format!("{path}.topologyKey"), "can not be empty"));
    } else {
        invalid_each(&format!("{path}.topologyKey"), key, names::qualified_name_errors(key), errors);
    }
}

/// A `NodeSelector`: at least one term, operators with the right number of values.
pub(super) fn node_selector(selector: &Value, path: &str, errors: &mut Errors) {
    let terms = read::list(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(FieldError::required(format!("{path}.nodeSelectorTerms"), "must have at least one node selector term"));
    }
    for (idx, term) in terms.iter().enumerate() {
        for (at, requirement) in read::list(term, "matchExpressions").iter().enumerate() {
            let path = format!("{path}.nodeSelectorTerms[{idx}].matchExpressions[{at}]");
            let count = read::list(requirement, "values").len();
            match read::text(requirement, "operator") {
                "In" | "NotIn" if count == 0 => {
                    let message = "must be specified when `operator` is 'In' or 'NotIn'";
                    errors.push(FieldError::required(format!("{path}.values"), message));
                }
                "Exists" | "DoesNotExist" if count > 0 => {
                    let message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                    errors.push(FieldError::forbidden(format!("{path}.values"), message));
                }
                "Gt" | "Lt" if count != 1 => {
                    let message = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                    errors.push(FieldError::required(format!("{path}.values"), message));
                }
                "In" | "NotIn" | "Exists" | "DoesNotExist" | "Gt" | "Lt" => {}
                other => errors.push(FieldError::invalid(format!("{path}.operator"), other, "not a valid selector operator")),
            }
            let key = read::text(requirement, "key");
            invalid_each(&format!("{path}.key"), key, names::qualified_name_errors(key), errors);
        }
    }
}

fn dns(spec: &Value, path: &str, errors: &mut Errors) {
    let servers = read::texts(spec, "dnsConfig.nameservers");
    if read::text(spec, "dnsPolicy") == "None" && servers.is_empty() {
        let message = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        errors.push(FieldError::required(format!("{path}.dnsConfig.nameservers"), message));
    }
    if servers.len() > 3 {
        let message = "must not have more than 3 nameservers";
        errors.push(FieldError::invalid(format!("{path}.dnsConfig.nameservers"), servers.clone(), message));
    }
    for (idx, server) in servers.iter().enumerate() {
        ip(server, &format!("{path}.dnsConfig.nameservers[{idx}]"), errors);
    }
}
