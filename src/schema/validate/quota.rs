//! ResourceQuotas: what they may bound, and for which objects.

use std::collections::BTreeSet;

use model::names;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, IMMUTABLE, resource_list};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const STANDARD: [&str; 19] = [
    "configmaps",
    "cpu",
    "ephemeral-storage",
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "memory",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
    "requests.storage",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];
const COMPUTE: [&str; 6] = ["cpu", "memory", "limits.cpu", "limits.memory", "requests.cpu", "requests.memory"];
const SCOPES: [&str; 7] = [
    "Terminating",
    "NotTerminating",
    "BestEffort",
    "NotBestEffort",
    "PriorityClass",
    "VolumeAttributesClass",
    "CrossNamespacePodAffinity",
];
const CONFLICTS: [[&str; 2]; 2] = [["BestEffort", "NotBestEffort"], ["Terminating", "NotTerminating"]];

fn is_standard(name: &str) -> bool {
    STANDARD.contains(&name) || name.starts_with("hugepages-") || name.starts_with("requests.hugepages-")
}

/// Whether a scope makes sense for an amount.
fn fits(scope: &str, name: &str) -> bool {
    match scope {
        "Terminating" | "NotTerminating" | "NotBestEffort" | "PriorityClass" | "CrossNamespacePodAffinity" => {
            name == "pods" || COMPUTE.contains(&name)
        }
        "BestEffort" => name == "pods",
        "VolumeAttributesClass" => matches!(name, "persistentvolumeclaims" | "requests.storage"),
        _ => true,
    }
}

/// ResourceQuota.
pub(crate) fn quota(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    let names: Vec<&str> = read::map(spec, "hard").into_iter().flatten().map(|(name, _)| name.as_str()).collect();
    resource_list(spec, Path("spec"), "hard", errors);
    for name in
        names.iter().filter(|n| !n.contains('/') && !is_standard(n) && names::qualified_name_errors(n).is_empty())
    {
        let path = format!("spec.hard[{name}]");
        for why in ["must be a standard resource type or fully qualified", "must be a standard resource for quota"] {
            errors.push(FieldError::invalid(path.as_str(), *name, why));
        }
    }
    scopes(spec, &names, errors);
    if let Some(selector) = read::at(spec, "scopeSelector") {
        scope_selector(selector, &names, errors);
    }
}

fn scopes(spec: &Value, names: &[&str], errors: &mut Errors) {
    let scopes = read::texts(spec, "scopes");
    let mut wrong = |why: &str| errors.push(FieldError::invalid("spec.scopes", scopes.clone(), why));
    for scope in &scopes {
        if !SCOPES.contains(scope) {
            wrong("unsupported scope");
        }
        for _ in names.iter().filter(|n| is_standard(n) && !fits(scope, n)) {
            wrong("unsupported scope applied to resource");
        }
    }
    for _ in CONFLICTS.iter().filter(|pair| pair.iter().all(|s| scopes.contains(s))) {
        wrong("conflicting scopes");
    }
}

fn scope_selector(selector: &Value, names: &[&str], errors: &mut Errors) {
    let path = "spec.scopeSelector.matchExpressions";
    let mut seen = BTreeSet::new();
    for one in read::list(selector, "matchExpressions") {
        let (scope, operator, values) =
            (read::text(one, "scopeName"), read::text(one, "operator"), read::texts(one, "values"));
        if !SCOPES.contains(&scope) {
            errors.push(FieldError::invalid(format!("{path}.scopeName"), scope, "unsupported scope"));
        }
        for _ in names.iter().filter(|n| is_standard(n) && !fits(scope, n)) {
            errors.push(FieldError::invalid(path, selector.clone(), "unsupported scope applied to resource"));
        }
        let bare = SCOPES.contains(&scope) && !matches!(scope, "PriorityClass" | "VolumeAttributesClass");
        if bare && operator != "Exists" {
            let why = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, \
                ResourceQuotaScopeNotTerminating, \
                       ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or \
                           ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.push(FieldError::invalid(format!("{path}.operator"), operator, why));
        }
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let why = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.push(FieldError::required(format!("{path}.values"), why));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let why = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.push(FieldError::invalid(format!("{path}.values"), values, why));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                errors.push(FieldError::invalid(format!("{path}.operator"), other, "not a valid selector operator"))
            }
        }
        seen.insert(scope);
    }
    for _ in CONFLICTS.iter().filter(|pair| pair.iter().all(|s| seen.contains(s))) {
        errors.push(FieldError::invalid(path, Vec::<String>::new(), "conflicting scopes"));
    }
}

/// For which objects a quota is stays.
pub(crate) fn quota_update(new: &Value, old: &Value, errors: &mut Errors) {
    let of = |object| read::texts(object, "spec.scopes").into_iter().collect::<BTreeSet<_>>();
    if of(new) != of(old) {
        errors.push(FieldError::invalid("spec.scopes", read::texts(new, "spec.scopes"), IMMUTABLE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn wrong(spec: Value) -> Vec<String> {
        let mut errors = Vec::new();
        quota(&json!({"spec": spec}), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_quota_bounds_what_can_be_counted() {
        let hard = json!({"pods": "1", "requests.cpu": "1", "count/deployments.apps": "2", "example.com/gpu": "1",
            "hugepages-2Mi": "1",
            "gold.storageclass.storage.k8s.io/requests.storage": "1Gi"});
        assert_eq!(wrong(json!({"hard": hard})), Vec::<String>::new());
        assert_eq!(
            wrong(json!({"hard": {"apples": "1"}})),
            [
                "spec.hard[apples]: Invalid value: \"apples\": must be a standard resource type or fully qualified",
                "spec.hard[apples]: Invalid value: \"apples\": must be a standard resource for quota",
            ]
        );
    }

    #[test]
    fn scopes_fit_what_is_bounded_and_each_other() {
        assert!(wrong(json!({"hard": {"pods": "1"}, "scopes": ["BestEffort"]})).is_empty());
        assert_eq!(
            wrong(json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort", "NotBestEffort"]})),
            [
                "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: unsupported scope applied to resource",
                "spec.scopes: Invalid value: [\"BestEffort\",\"NotBestEffort\"]: conflicting scopes",
            ]
        );
        let expression = |scope: &str, operator: &str, values: &[&str]| {
            json!({"hard": {"pods": "1"},
                "scopeSelector": {"matchExpressions": [{"scopeName": scope, "operator": operator, "values": values}]}})
        };
        assert!(wrong(expression("PriorityClass", "In", &["high"])).is_empty());
        assert_eq!(wrong(expression("PriorityClass", "In", &[])).len(), 1);
        assert_eq!(wrong(expression("Terminating", "In", &["x"])).len(), 1);
        assert_eq!(wrong(expression("Odd", "Exists", &[])).len(), 1);
    }
}
