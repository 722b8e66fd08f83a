//! Roles and bindings.

use model::names::{dns_subdomain_errors, path_segment_errors};
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, invalid_each, label_selector};
use crate::validate::error::FieldError;

const GROUP: &str = "rbac.authorization.k8s.io";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    Namespace,
    Cluster,
}

fn rules(object: &Value, scope: Scope, errors: &mut Errors) {
    for (idx, rule) in read::list(object, "rules").iter().enumerate() {
        let path = format!("rules[{idx}]");
        let urls = read::texts(rule, "nonResourceURLs");
        let (groups, resources) = (read::list(rule, "apiGroups"), read::list(rule, "resources"));
        if read::list(rule, "verbs").is_empty() {
            errors.push(FieldError::required(format!("{path}.verbs"), "verbs must contain at least one value"));
        }
        if !urls.is_empty() {
            let mut bad = |message: &str| {
                errors.push(FieldError::invalid(format!("{path}.nonResourceURLs"), urls.clone(), message))
            };
            if scope == Scope::Namespace {
                bad("namespaced rules cannot apply to non-resource URLs");
            }
            if !groups.is_empty() || !resources.is_empty() || !read::list(rule, "resourceNames").is_empty() {
                bad("rules cannot apply to both regular resources and non-resource URLs");
            }
            continue;
        }
        if groups.is_empty() {
            errors.push(FieldError::required(
                format!("{path}.apiGroups"),
                "resource rules must supply at least one api group",
            ));
        }
        if resources.is_empty() {
            errors.push(FieldError::required(
                format!("{path}.resources"),
                "resource rules must supply at least one resource",
            ));
        }
    }
}

pub(crate) fn role(object: &Value, errors: &mut Errors) {
    rules(object, Scope::Namespace, errors);
}

pub(crate) fn cluster_role(object: &Value, errors: &mut Errors) {
    rules(object, Scope::Cluster, errors);
    if let Some(aggregation) = read::at(object, "aggregationRule") {
        let selectors = read::list(aggregation, "clusterRoleSelectors");
        if selectors.is_empty() {
            let message = "at least one clusterRoleSelector required if aggregationRule is non-nil";
            errors.push(FieldError::required("aggregationRule.clusterRoleSelectors", message));
        }
        for (idx, selector) in selectors.iter().enumerate() {
            label_selector(selector, &format!("aggregationRule.clusterRoleSelectors[{idx}]"), errors);
        }
    }
}

fn binding(object: &Value, kinds: &[&str], scope: Scope, errors: &mut Errors) {
    let group = read::text(object, "roleRef.apiGroup");
    if group != GROUP {
        errors.push(FieldError::not_supported("roleRef.apiGroup", group, &[GROUP]));
    }
    let kind = read::text(object, "roleRef.kind");
    if !kinds.contains(&kind) {
        errors.push(FieldError::not_supported("roleRef.kind", kind, kinds));
    }
    let name = read::text(object, "roleRef.name");
    if name.is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    } else {
        invalid_each("roleRef.name", name, path_segment_errors(name), errors);
    }
    for (idx, subject) in read::list(object, "subjects").iter().enumerate() {
        self::subject(subject, &format!("subjects[{idx}]"), scope, errors);
    }
}

fn subject(subject: &Value, path: &str, scope: Scope, errors: &mut Errors) {
    let name = read::text(subject, "name");
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), ""));
    }
    let group = read::text(subject, "apiGroup");
    match read::text(subject, "kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                invalid_each(&format!("{path}.name"), name, dns_subdomain_errors(name), errors);
            }
            if !group.is_empty() {
                errors.push(FieldError::not_supported(format!("{path}.apiGroup"), group, &[""]));
            }
            if scope == Scope::Cluster && read::text(subject, "namespace").is_empty() {
                errors.push(FieldError::required(format!("{path}.namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != GROUP {
                errors.push(FieldError::not_supported(format!("{path}.apiGroup"), group, &[GROUP]));
            }
        }
        other => {
            errors.push(FieldError::not_supported(format!("{path}.kind"), other, &["ServiceAccount", "User", "Group"]))
        }
    }
}

pub(crate) fn role_binding(object: &Value, errors: &mut Errors) {
    binding(object, &["Role", "ClusterRole"], Scope::Namespace, errors);
}

pub(crate) fn cluster_role_binding(object: &Value, errors: &mut Errors) {
    binding(object, &["ClusterRole"], Scope::Cluster, errors);
}

pub(crate) fn binding_update(new: &Value, old: &Value, errors: &mut Errors) {
    let (now, before) = (read::at(new, "roleRef"), read::at(old, "roleRef"));
    if now != before {
        errors.push(FieldError::invalid("roleRef", now.cloned().unwrap_or(Value::Null), "cannot change roleRef"));
    }
}
