//! Pods and the templates they are made from.

use std::collections::{BTreeMap, BTreeSet};

use model::names;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each, ip, label_selector};
use crate::validate::container::{self, Role};
use crate::validate::error::FieldError;
use crate::validate::path::Path;
use crate::validate::{env, metadata, pod_resources, security, volume};

pub(crate) fn create(object: &Value, errors: &mut Errors) {
    match read::at(object, "spec") {
        Some(spec) => pod_spec(spec, Path("spec"), errors),
        None => errors.push(FieldError::required("spec.containers", "")),
    }
}

pub(crate) fn template(object: &Value, errors: &mut Errors) {
    pod_template(object, "template", Path("template"), errors);
}

/// A `PodTemplateSpec` found at `field` of `owner`, called `path` in errors.
pub(super) fn pod_template(owner: &Value, field: &str, path: Path<'_>, errors: &mut Errors) {
    let Some(template) = read::at(owner, field) else {
        errors.push(FieldError::required(path, ""));
        return;
    };
    // Upstream leaves `metadata` out of these two paths.
    if let Some(map) = read::map(template, "metadata.labels") {
        metadata::labels(map, Path(&format!("{path}.labels")), errors);
    }
    if let Some(map) = read::map(template, "metadata.annotations") {
        metadata::annotations(map, Path(&format!("{path}.annotations")), errors);
    }
    let path = format!("{path}.spec");
    match read::at(template, "spec") {
        Some(spec) => {
            pod_spec(spec, Path(&path), errors);
            if !read::list(spec, "ephemeralContainers").is_empty() {
                let message = "ephemeral containers not allowed in pod template";
                errors.push(FieldError::forbidden(format!("{path}.ephemeralContainers"), message));
            }
        }
        None => errors.push(FieldError::required(format!("{path}.containers"), "")),
    }
}

/// A `PodSpec`.
pub(super) fn pod_spec(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let volumes = volume::volumes(spec, path, errors);
    let blocks: BTreeSet<&str> = read::list(spec, "volumes")
        .iter()
        .filter(|v| read::at(v, "persistentVolumeClaim").is_some() || read::at(v, "ephemeral").is_some())
        .map(|v| read::text(v, "name"))
        .collect();
    let claims: BTreeSet<&str> =
        read::list(spec, "resourceClaims").iter().map(|c| read::text(c, "name")).filter(|n| !n.is_empty()).collect();
    let pod = container::Pod {
        volumes: &volumes,
        host_network: read::flag(spec, "hostNetwork"),
        users: security::Users::of(spec),
        grace_secs: read::integer(spec, "terminationGracePeriodSeconds"),
        os: read::text(spec, "os.name"),
        restart_policy: read::text(spec, "restartPolicy"),
        blocks: &blocks,
        claims: &claims,
    };
    resource_claims(spec, path, errors);
    pod_resources::pod_resources(spec, path, errors);
    let main = read::list(spec, "containers");
    if main.is_empty() {
        errors.push(FieldError::required(format!("{path}.containers"), ""));
    }
    let mut seen = BTreeSet::new();
    container::containers(main, Path(&format!("{path}.containers")), Role::Main, &pod, &mut seen, errors);
    let lists = [("initContainers", Role::Init), ("ephemeralContainers", Role::Ephemeral)];
    for (field, role) in lists {
        container::containers(read::list(spec, field), Path(&format!("{path}.{field}")), role, &pod, &mut seen, errors);
    }
    let targets = ["containers", "initContainers"].into_iter().flat_map(|field| read::list(spec, field));
    let targets: BTreeSet<&str> = targets.map(|container| read::text(container, "name")).collect();
    for (idx, debugger) in read::list(spec, "ephemeralContainers").iter().enumerate() {
        ephemeral(&targets, debugger, Path(&format!("{path}.ephemeralContainers[{idx}]")), errors);
    }
    scalars(spec, path, errors);
    security::pod(spec, path, errors);
    host_users(spec, path, errors);
    tolerations(read::list(spec, "tolerations"), Path(&format!("{path}.tolerations")), errors);
    spread(spec, path, errors);
    affinity(spec, path, errors);
    if let Some(map) = read::map(spec, "nodeSelector") {
        metadata::labels(map, Path(&format!("{path}.nodeSelector")), errors);
    }
    for (idx, alias) in read::list(spec, "hostAliases").iter().enumerate() {
        ip(read::text(alias, "ip"), Path(&format!("{path}.hostAliases[{idx}].ip")), errors);
        for (at, name) in read::texts(alias, "hostnames").into_iter().enumerate() {
            invalid_each(
                Path(&format!("{path}.hostAliases[{idx}].hostnames[{at}]")),
                name,
                names::dns_subdomain_errors(name),
                errors,
            );
        }
    }
    for (idx, gate) in read::list(spec, "readinessGates").iter().enumerate() {
        let kind = read::text(gate, "conditionType");
        let path = format!("{path}.readinessGates[{idx}].conditionType");
        invalid_each(Path(&path), kind, names::qualified_name_errors(kind), errors);
    }
    let mut gates = BTreeSet::new();
    for (idx, gate) in read::list(spec, "schedulingGates").iter().enumerate() {
        let (here, name) = (format!("{path}.schedulingGates[{idx}]"), read::text(gate, "name"));
        invalid_each(Path(&here), name, names::qualified_name_errors(name), errors);
        if !gates.insert(name) {
            errors.push(FieldError::duplicate(here, name));
        }
    }
    dns(spec, path, errors);
    env::file_volumes(spec, path, errors);
}

/// `resourceClaims`: each has a name of its own and one source.
fn resource_claims(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (idx, claim) in read::list(spec, "resourceClaims").iter().enumerate() {
        let path = format!("{path}.resourceClaims[{idx}]");
        let name = read::text(claim, "name");
        if name.is_empty() {
            errors.push(FieldError::required(format!("{path}.name"), ""));
        } else if !seen.insert(name) {
            errors.push(FieldError::duplicate(format!("{path}.name"), name));
        } else {
            invalid_each(Path(&format!("{path}.name")), name, names::dns_label_errors(name), errors);
        }
        let sources: Vec<(&str, &str)> = ["resourceClaimName", "resourceClaimTemplateName"]
            .iter()
            .filter_map(|f| Some((*f, read::some_text(claim, f)?)))
            .collect();
        match sources.as_slice() {
            [] => {
                let why = "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`";
                errors.push(FieldError::invalid(path.as_str(), claim.clone(), why));
            }
            [_] => {}
            _ => {
                let why = "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified";
                errors.push(FieldError::invalid(path.as_str(), claim.clone(), why));
            }
        }
        for (field, name) in sources {
            invalid_each(Path(&format!("{path}.{field}")), name, names::dns_subdomain_errors(name), errors);
        }
    }
}

/// Rules for ephemeral containers alone.
fn ephemeral(targets: &BTreeSet<&str>, debugger: &Value, path: Path<'_>, errors: &mut Errors) {
    let target = read::text(debugger, "targetContainerName");
    if !target.is_empty() && !targets.contains(target) {
        errors.push(FieldError::not_found(format!("{path}.targetContainerName"), target));
    }
    let why = "cannot be set for an Ephemeral Container";
    for field in ["resources", "resizePolicy", "restartPolicy", "restartPolicyRules"] {
        if read::at(debugger, field).is_some_and(|v| v.as_object().is_none_or(|m| !m.is_empty())) {
            errors.push(FieldError::forbidden(format!("{path}.{field}"), why));
        }
    }
    for (idx, mount) in read::list(debugger, "volumeMounts").iter().enumerate() {
        for field in ["subPath", "subPathExpr"] {
            if !read::text(mount, field).is_empty() {
                errors.push(FieldError::forbidden(format!("{path}.volumeMounts[{idx}].{field}"), why));
            }
        }
    }
}

/// A pod with users of its own shares no other namespace of the host.
fn host_users(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let given = spec.get("hostnameOverride").and_then(Value::as_str);
    if let Some(name) = given {
        let field = format!("{path}.hostnameOverride");
        for (flag, why) in [
            ("setHostnameAsFQDN", "may not be specified when setHostnameAsFQDN is true"),
            ("hostNetwork", "may not be specified when hostNetwork is true"),
        ] {
            if read::flag(spec, flag) {
                errors.push(FieldError::forbidden(field.as_str(), why));
            }
        }
        if name.len() > 64 {
            errors.push(FieldError::too_long(field.as_str(), 64));
        }
        invalid_each(Path(&field), name, names::dns_subdomain_errors(name), errors);
    }
    if spec.get("hostUsers").and_then(Value::as_bool) != Some(false) {
        return;
    }
    // Upstream spells two of these with capitals.
    for (field, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if read::flag(spec, field) {
            errors.push(FieldError::forbidden(format!("{path}.{shown}"), "when `hostUsers` is false"));
        }
    }
}

fn scalars(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let max = i64::from(i32::MAX);
    if let Some(seconds) = read::integer(spec, "activeDeadlineSeconds") {
        invalid_each(
            Path(&format!("{path}.activeDeadlineSeconds")),
            seconds,
            names::range_errors(seconds, 1, max),
            errors,
        );
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
            invalid_each(Path(&format!("{path}.{field}")), text, check(text), errors);
        }
    }
    let policy = read::text(spec, "restartPolicy");
    if !matches!(policy, "" | "Always" | "OnFailure" | "Never") {
        let supported = &["Always", "OnFailure", "Never"];
        errors.push(FieldError::not_supported(format!("{path}.restartPolicy"), policy, supported));
    }
    for (field, supported) in [
        ("preemptionPolicy", &["Never", "PreemptLowerPriority"][..]),
        ("dnsPolicy", &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]),
    ] {
        if let Some(text) = read::some_text(spec, field).filter(|t| !t.is_empty() && !supported.contains(t)) {
            errors.push(FieldError::not_supported(format!("{path}.{field}"), text, supported));
        }
    }
    if let Some(os) = read::at(spec, "os") {
        match read::text(os, "name") {
            "" => errors.push(FieldError::required(format!("{path}.os.name"), "")),
            "linux" | "windows" => {}
            other => errors.push(FieldError::not_supported(format!("{path}.os"), other, &["linux", "windows"])),
        }
    }
    if read::map(spec, "overhead").is_some() {
        crate::validate::checks::resource_list(spec, path, "overhead", errors);
    }
    sysctls(spec, Path(&format!("{path}.securityContext.sysctls")), errors);
    if read::flag(spec, "shareProcessNamespace") && read::flag(spec, "hostPID") {
        let message = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(format!("{path}.shareProcessNamespace"), true, message));
    }
}

/// Names as upstream's `validateSysctls` has them. Which of them a node allows is the kubelet's matter.
fn sysctls(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    const TEXT: &str = "must have at most 253 characters and match regex \
        ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
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

pub(super) fn tolerations(list: &[Value], path: Path<'_>, errors: &mut Errors) {
    for (idx, toleration) in list.iter().enumerate() {
        let path = format!("{path}[{idx}]");
        let (key, operator) = (read::text(toleration, "key"), read::text(toleration, "operator"));
        if !key.is_empty() {
            invalid_each(Path(&format!("{path}.key")), key, names::qualified_name_errors(key), errors);
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
                errors.push(FieldError::invalid(format!("{path}.operator"), value, message));
            }
            "Exists" => {}
            "Equal" | "" => {
                let wrong = names::label_value_errors(value);
                if !wrong.is_empty() {
                    errors.push(FieldError::invalid(format!("{path}.operator"), value, wrong.join(";")));
                }
            }
            // Comparisons are behind a gate that is off upstream.
            other @ ("Lt" | "Gt") => {
                errors.push(FieldError::not_supported(
                    format!("{path}.operator"),
                    other,
                    &["Equal", "Exists", "Lt", "Gt"],
                ));
            }
            other => errors.push(FieldError::not_supported(format!("{path}.operator"), other, &["Equal", "Exists"])),
        }
        if !matches!(effect, "" | "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            let supported = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
            errors.push(FieldError::not_supported(format!("{path}.effect"), effect, supported));
        }
    }
}

fn spread(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let all = read::list(spec, "topologySpreadConstraints");
    let pair = |of| (read::text(of, "topologyKey"), read::text(of, "whenUnsatisfiable"));
    let last_of: BTreeMap<(&str, &str), usize> =
        all.iter().enumerate().map(|(idx, constraint)| (pair(constraint), idx)).collect();
    for (idx, constraint) in all.iter().enumerate() {
        let path = format!("{path}.topologySpreadConstraints[{idx}]");
        let skew = read::number(constraint, "maxSkew");
        if skew <= 0 {
            errors.push(FieldError::invalid(format!("{path}.maxSkew"), skew, "must be greater than zero"));
        }
        let key = read::text(constraint, "topologyKey");
        if key.is_empty() {
            errors.push(FieldError::required(format!("{path}.topologyKey"), "can not be empty"));
        }
        let when = read::text(constraint, "whenUnsatisfiable");
        if !matches!(when, "DoNotSchedule" | "ScheduleAnyway") {
            let supported = &["DoNotSchedule", "ScheduleAnyway"];
            errors.push(FieldError::not_supported(format!("{path}.whenUnsatisfiable"), when, supported));
        }
        if let Some(domains) = read::integer(constraint, "minDomains") {
            let field = format!("{path}.minDomains");
            if domains <= 0 {
                errors.push(FieldError::invalid(field.as_str(), domains, "must be greater than zero"));
            }
            if when != "DoNotSchedule" {
                let why = format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}");
                errors.push(FieldError::invalid(field, domains, why));
            }
        }
        for field in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if let Some(policy) = read::some_text(constraint, field).filter(|p| !["Honor", "Ignore"].contains(p)) {
                errors.push(FieldError::not_supported(format!("{path}.{field}"), policy, &["Honor", "Ignore"]));
            }
        }
        label_keys(constraint, "matchLabelKeys", Path(&path), errors);
        if last_of.get(&(key, when)).is_some_and(|last| *last > idx) {
            let pair = format!("{{{key}, {when}}}");
            errors.push(FieldError::duplicate(format!("{path}.{{topologyKey, whenUnsatisfiable}}"), pair));
        }
        if let Some(selector) = read::at(constraint, "labelSelector") {
            label_selector(selector, Path(&format!("{path}.labelSelector")), errors);
        }
    }
}

/// `matchLabelKeys` and `mismatchLabelKeys` name labels, and need a selector to add to.
fn label_keys(of: &Value, field: &str, path: Path<'_>, errors: &mut Errors) {
    let keys = read::texts(of, field);
    if !keys.is_empty() && read::at(of, "labelSelector").is_none() {
        errors.push(FieldError::forbidden(
            format!("{path}.{field}"),
            "must not be specified when labelSelector is not set",
        ));
    }
    for (idx, key) in keys.into_iter().enumerate() {
        invalid_each(Path(&format!("{path}.{field}[{idx}]")), key, names::qualified_name_errors(key), errors);
    }
}

fn affinity(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let path = format!("{path}.affinity");
    let preferred = "nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution";
    for (idx, term) in read::list(spec, &format!("affinity.{preferred}")).iter().enumerate() {
        let path = format!("{path}.{preferred}[{idx}]");
        let weight = read::number(term, "weight");
        if !(1..=100).contains(&weight) {
            errors.push(FieldError::invalid(format!("{path}.weight"), weight, "must be in the range 1-100"));
        }
        if let Some(preference) = read::at(term, "preference") {
            node_selector_term(preference, Path(&format!("{path}.preference")), errors);
        }
    }
    let required = "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution";
    if let Some(selector) = read::at(spec, &format!("affinity.{required}")) {
        node_selector(selector, Path(&format!("{path}.{required}")), errors);
    }
    for kind in ["podAffinity", "podAntiAffinity"] {
        let required = format!("{kind}.requiredDuringSchedulingIgnoredDuringExecution");
        for (idx, term) in read::list(spec, &format!("affinity.{required}")).iter().enumerate() {
            pod_affinity_term(term, Path(&format!("{path}.{required}[{idx}]")), errors);
        }
        let preferred = format!("{kind}.preferredDuringSchedulingIgnoredDuringExecution");
        for (idx, weighted) in read::list(spec, &format!("affinity.{preferred}")).iter().enumerate() {
            let path = format!("{path}.{preferred}[{idx}]");
            let weight = read::number(weighted, "weight");
            if !(1..=100).contains(&weight) {
                errors.push(FieldError::invalid(format!("{path}.weight"), weight, "must be in the range 1-100"));
            }
            if let Some(term) = read::at(weighted, "podAffinityTerm") {
                pod_affinity_term(term, Path(&format!("{path}.podAffinityTerm")), errors);
            }
        }
    }
}

fn pod_affinity_term(term: &Value, path: Path<'_>, errors: &mut Errors) {
    for field in ["labelSelector", "namespaceSelector"] {
        if let Some(selector) = read::at(term, field) {
            label_selector(selector, Path(&format!("{path}.{field}")), errors);
        }
    }
    for (idx, name) in read::texts(term, "namespaces").into_iter().enumerate() {
        invalid_each(Path(&format!("{path}.namespaces[{idx}]")), name, names::dns_label_errors(name), errors);
    }
    for field in ["matchLabelKeys", "mismatchLabelKeys"] {
        label_keys(term, field, path, errors);
    }
    let key = read::text(term, "topologyKey");
    if key.is_empty() {
        errors.push(FieldError::required(format!("{path}.topologyKey"), "can not be empty"));
    } else {
        invalid_each(Path(&format!("{path}.topologyKey")), key, names::qualified_name_errors(key), errors);
    }
}

/// A `NodeSelector`: at least one term, operators with the right number of values.
pub(super) fn node_selector(selector: &Value, path: Path<'_>, errors: &mut Errors) {
    let terms = read::list(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        errors.push(FieldError::required(
            format!("{path}.nodeSelectorTerms"),
            "must have at least one node selector term",
        ));
    }
    for (idx, term) in terms.iter().enumerate() {
        node_selector_term(term, Path(&format!("{path}.nodeSelectorTerms[{idx}]")), errors);
    }
}

fn node_selector_term(term: &Value, path: Path<'_>, errors: &mut Errors) {
    for (idx, requirement) in read::list(term, "matchFields").iter().enumerate() {
        let path = format!("{path}.matchFields[{idx}]");
        let values = read::texts(requirement, "values");
        match read::text(requirement, "operator") {
            "In" | "NotIn" if values.len() == 1 => {}
            "In" | "NotIn" => {
                let why = "must be only one value when `operator` is 'In' or 'NotIn' for node field selector";
                errors.push(FieldError::required(format!("{path}.values"), why));
            }
            other => {
                errors.push(FieldError::invalid(format!("{path}.operator"), other, "not a valid selector operator"))
            }
        }
        match read::text(requirement, "key") {
            "metadata.name" => {
                for (at, value) in values.into_iter().enumerate() {
                    invalid_each(
                        Path(&format!("{path}.values[{at}]")),
                        value,
                        names::dns_subdomain_errors(value),
                        errors,
                    );
                }
            }
            key => errors.push(FieldError::invalid(format!("{path}.key"), key, "not a valid field selector key")),
        }
    }
    for (at, requirement) in read::list(term, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{at}]");
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
            other => {
                errors.push(FieldError::invalid(format!("{path}.operator"), other, "not a valid selector operator"))
            }
        }
        let key = read::text(requirement, "key");
        invalid_each(Path(&format!("{path}.key")), key, names::qualified_name_errors(key), errors);
    }
}

fn dns(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let servers = read::texts(spec, "dnsConfig.nameservers");
    if read::text(spec, "dnsPolicy") == "None" && read::at(spec, "dnsConfig").is_none() {
        let message = "must provide `dnsConfig` when `dnsPolicy` is None";
        errors.push(FieldError::required(format!("{path}.dnsConfig"), message));
    } else if read::text(spec, "dnsPolicy") == "None" && servers.is_empty() {
        let message = "must provide at least one DNS nameserver when `dnsPolicy` is None";
        errors.push(FieldError::required(format!("{path}.dnsConfig.nameservers"), message));
    }
    if servers.len() > 3 {
        let message = "must not have more than 3 nameservers";
        errors.push(FieldError::invalid(format!("{path}.dnsConfig.nameservers"), servers.clone(), message));
    }
    for (idx, server) in servers.iter().enumerate() {
        ip(server, Path(&format!("{path}.dnsConfig.nameservers[{idx}]")), errors);
    }
    let searches = read::texts(spec, "dnsConfig.searches");
    let field = format!("{path}.dnsConfig.searches");
    if searches.len() > 32 {
        errors.push(FieldError::invalid(field.as_str(), searches.clone(), "must not have more than 32 search paths"));
    }
    if searches.join(" ").len() > 2048 {
        let message = "must not have more than 2048 characters (including spaces) in the search list";
        errors.push(FieldError::invalid(field.as_str(), searches.clone(), message));
    }
    for (idx, search) in searches.into_iter().enumerate().filter(|(_, s)| *s != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        invalid_each(
            Path(&format!("{field}[{idx}]")),
            search,
            names::dns_subdomain_errors(&search.replace('_', "x")),
            errors,
        );
    }
    for (idx, option) in read::list(spec, "dnsConfig.options").iter().enumerate() {
        if read::text(option, "name").is_empty() {
            errors.push(FieldError::required(format!("{path}.dnsConfig.options[{idx}]"), "must not be empty"));
        }
    }
}
