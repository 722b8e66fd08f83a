//! Namespaces, nodes, events, quotas, leases, classes, definitions.

use std::collections::BTreeSet;

use model::meta;
use model::names;
use model::quantity::Quantity;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, cidr, immutable, invalid_each, resource_list};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

pub(crate) fn namespace(object: &Value, errors: &mut Errors) {
    for finalizer in read::texts(object, "spec.finalizers") {
        let path = "spec.finalizers";
        invalid_each(Path(path), finalizer, names::qualified_name_errors(finalizer), errors);
        if !finalizer.contains('/') && finalizer != "kubernetes" {
            let message = "name is neither a standard finalizer name nor is it fully qualified";
            errors.push(FieldError::invalid(path, finalizer, message));
        }
    }
}

pub(crate) fn node(object: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (idx, taint) in read::list(object, "spec.taints").iter().enumerate() {
        let path = format!("spec.taints[{idx}]");
        let (key, value, effect) = (read::text(taint, "key"), read::text(taint, "value"), read::text(taint, "effect"));
        invalid_each(Path(&format!("{path}.key")), key, names::qualified_name_errors(key), errors);
        invalid_each(Path(&format!("{path}.value")), value, names::label_value_errors(value), errors);
        if effect.is_empty() {
            errors.push(FieldError::required(format!("{path}.effect"), ""));
        }
        if !seen.insert((key, effect)) {
            let message = "taints must be unique by key and effect pair";
            let mut error = FieldError::duplicate(path, taint.clone());
            error.detail = message.to_owned();
            errors.push(error);
        }
    }
    for (idx, range) in read::texts(object, "spec.podCIDRs").iter().enumerate() {
        cidr(range, Path(&format!("spec.podCIDRs[{idx}]")), errors);
    }
}

pub(crate) fn node_update(new: &Value, old: &Value, errors: &mut Errors) {
    let ranges = |object| read::texts(object, "spec.podCIDRs");
    // Beyond upstream: a node gets a range of the second family when the cluster gets that.
    let added = |now: &[&str], before: &[&str]| {
        matches!((before, now),
        ([first], [same, second]) if first == same && first.contains(':') != second.contains(':'))
    };
    if !ranges(old).is_empty() && ranges(new) != ranges(old) && !added(&ranges(new), &ranges(old)) {
        errors.push(FieldError::forbidden(
            "spec.podCIDRs",
            "node updates may not change podCIDR except from \"\" to valid",
        ));
    }
    let provider = |object| read::text(object, "spec.providerID");
    if !provider(old).is_empty() && provider(new) != provider(old) {
        errors.push(FieldError::forbidden(
            "spec.providerID",
            "node updates may not change providerID except from \"\" to valid",
        ));
    }
}

pub(crate) fn limit_range(object: &Value, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for (idx, limit) in read::list(object, "spec.limits").iter().enumerate() {
        let path = format!("spec.limits[{idx}]");
        let kind = read::text(limit, "type");
        if kind.is_empty() {
            errors.push(FieldError::required(format!("{path}.type"), ""));
        }
        if !seen.insert(kind) {
            errors.push(FieldError::duplicate(format!("{path}.type"), kind));
        }
        for field in ["max", "min", "default", "defaultRequest", "maxLimitRequestRatio"] {
            resource_list(limit, Path(&path), field, errors);
        }
        if kind == "Pod" {
            for field in ["default", "defaultRequest"].iter().filter(|f| read::at(limit, f).is_some()) {
                errors.push(FieldError::forbidden(
                    format!("{path}.{field}"),
                    "may not be specified when `type` is 'Pod'",
                ));
            }
        }
        limit_order(limit, Path(&path), errors);
    }
}

/// min ≤ defaultRequest ≤ default ≤ max, as far as they are given.
fn limit_order(limit: &Value, path: Path<'_>, errors: &mut Errors) {
    let amount = |field: &str, name: &str| {
        let list = read::map(limit, field)?;
        Quantity::from_value(list.get(name)?).ok()
    };
    let resources: BTreeSet<&String> = ["min", "defaultRequest", "default"]
        .iter()
        .filter_map(|f| read::map(limit, f))
        .flat_map(|m| m.keys())
        .collect();
    let pairs = [
        ("min", "max", "min", "max"),
        ("defaultRequest", "max", "default request", "max"),
        ("default", "max", "default", "max"),
        ("min", "defaultRequest", "min", "default request"),
        ("min", "default", "min", "default"),
        ("defaultRequest", "default", "default request", "default limit"),
    ];
    for name in resources {
        for (low, high, low_words, high_words) in pairs {
            if let (Some(lesser), Some(greater)) = (amount(low, name), amount(high, name))
                && lesser > greater
            {
                let field = if low == "min" && high != "max" { high } else { low };
                let message = format!("{low_words} value {lesser} is greater than {high_words} value {greater}");
                let bad = amount(field, name).unwrap_or(lesser).to_string();
                errors.push(FieldError::invalid(format!("{path}.{field}[{name}]"), bad, message));
            }
        }
    }
}

pub(crate) fn ip_address(object: &Value, errors: &mut Errors) {
    crate::validate::checks::ip(meta::name(object), Path("metadata.name"), errors);
    let path = "spec.parentRef";
    let Some(parent) = read::at(object, path) else {
        errors.push(FieldError::required(path, ""));
        return;
    };
    if let Some(group) = read::some_text(parent, "group") {
        invalid_each(Path(&format!("{path}.group")), group, names::dns_subdomain_errors(group), errors);
    }
    for field in ["resource", "name", "namespace"] {
        match read::text(parent, field) {
            "" if field == "namespace" => {}
            "" => errors.push(FieldError::required(format!("{path}.{field}"), "")),
            text => invalid_each(Path(&format!("{path}.{field}")), text, names::path_segment_errors(text), errors),
        }
    }
}

pub(crate) fn ip_address_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "spec.parentRef", errors);
}

const USER_PRIORITY_MAX: i64 = 1_000_000_000;

pub(crate) fn priority_class(object: &Value, errors: &mut Errors) {
    let (name, value) = (meta::name(object), read::number(object, "value"));
    let system = [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];
    if name.starts_with("system-") {
        if !system.contains(&(name, value)) {
            let message = "priority class names with 'system-' prefix are reserved for system use only. error: this \
                name is not a known system priority class";
            errors.push(FieldError::forbidden("metadata.name", message));
        }
    } else if value > USER_PRIORITY_MAX {
        let message = format!("maximum allowed value of a user defined priority is {USER_PRIORITY_MAX}");
        errors.push(FieldError::forbidden("value", message));
    }
}

pub(crate) fn priority_class_update(new: &Value, old: &Value, errors: &mut Errors) {
    if read::number(new, "value") != read::number(old, "value") {
        errors.push(FieldError::forbidden("value", "may not be changed in an update."));
    }
    immutable(new, old, "preemptionPolicy", errors);
}

pub(crate) fn runtime_class(object: &Value, errors: &mut Errors) {
    match read::text(object, "handler") {
        "" => errors.push(FieldError::required("handler", "")),
        handler => invalid_each(Path("handler"), handler, names::dns_label_errors(handler), errors),
    }
    resource_list(object, Path(""), "overhead.podFixed", errors);
    if let Some(selector) = read::map(object, "scheduling.nodeSelector") {
        crate::validate::metadata::labels(selector, Path("scheduling.nodeSelector"), errors);
    }
    let mut seen = BTreeSet::new();
    for (idx, one) in read::list(object, "scheduling.tolerations").iter().enumerate() {
        if !seen.insert(["key", "operator", "value", "effect"].map(|field| read::text(one, field))) {
            errors.push(FieldError::duplicate(format!("scheduling.tolerations[{idx}]"), one.clone()));
        }
    }
}

pub(crate) fn runtime_class_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "handler", errors);
}
