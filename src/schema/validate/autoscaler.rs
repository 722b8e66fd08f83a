//! Horizontal pod autoscalers: what they scale, by which metrics, and how fast.

use model::names;
use model::quantity::Quantity;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, NOT_NEGATIVE, invalid_each};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const SOURCES: [(&str, &str); 5] = [
    ("ContainerResource", "containerResource"),
    ("External", "external"),
    ("Object", "object"),
    ("Pods", "pods"),
    ("Resource", "resource"),
];
const WINDOW_SECS_MAX: i64 = 3600;
const PERIOD_SECS_MAX: i64 = 1800;

/// HorizontalPodAutoscaler, in `autoscaling/v2`.
pub(crate) fn autoscaler(object: &Value, errors: &mut Errors) {
    let spec = read::at(object, "spec").unwrap_or(&Value::Null);
    let (min, max) = (read::integer(spec, "minReplicas"), read::number(spec, "maxReplicas"));
    if let Some(min) = min.filter(|m| *m < 1) {
        errors.push(FieldError::invalid("spec.minReplicas", min, "must be greater than or equal to 1"));
    }
    if max == 0 {
        errors.push(FieldError::required("spec.maxReplicas", "must be set and greater than 0"));
    } else if max < 0 {
        errors.push(FieldError::invalid("spec.maxReplicas", max, "must be greater than or equal to 1"));
    }
    if min.is_some_and(|min| max < min) {
        errors.push(FieldError::invalid("spec.maxReplicas", max, "must be greater than or equal to `minReplicas`"));
    }
    reference(spec, "scaleTargetRef", Path("spec"), errors);
    let from_outside = |one: &Value| matches!(read::text(one, "type"), "Object" | "External");
    if min == Some(0) && !read::list(spec, "metrics").iter().any(from_outside) {
        let why = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.push(FieldError::forbidden("spec.metrics", why));
    }
    for (idx, one) in read::list(spec, "metrics").iter().enumerate() {
        metric(one, Path(&format!("spec.metrics[{idx}]")), errors);
    }
    for direction in ["scaleUp", "scaleDown"] {
        if let Some(rules) = read::at(spec, &format!("behavior.{direction}")) {
            pace(rules, Path(&format!("spec.behavior.{direction}")), errors);
        }
    }
}

/// The target is named with its group; autoscalers from before that was asked stay.
pub(crate) fn new_autoscaler(object: &Value, errors: &mut Errors) {
    let version = read::text(object, "spec.scaleTargetRef.apiVersion");
    // The one kind of the core group that can be scaled, as upstream has it.
    if !version.contains('/') && read::text(object, "spec.scaleTargetRef.kind") != "ReplicationController" {
        errors.push(FieldError::invalid(
            "spec.scaleTargetRef.apiVersion",
            version,
            "apiVersion must specify API group",
        ));
    }
}

/// A `CrossVersionObjectReference`.
fn reference(of: &Value, field: &str, path: Path<'_>, errors: &mut Errors) {
    let target = read::at(of, field).unwrap_or(&Value::Null);
    for part in ["kind", "name"] {
        let (text, here) = (read::text(target, part), format!("{path}.{field}.{part}"));
        if text.is_empty() {
            errors.push(FieldError::required(here, ""));
        } else {
            invalid_each(Path(&here), text, names::path_segment_errors(text), errors);
        }
    }
    let version = read::text(target, "apiVersion");
    if version.matches('/').count() > 1 {
        let why = format!("unexpected GroupVersion string: {version}");
        errors.push(FieldError::invalid(format!("{path}.{field}.apiVersion"), version, why));
    }
}

fn metric(one: &Value, path: Path<'_>, errors: &mut Errors) {
    let kind = read::text(one, "type");
    if kind.is_empty() {
        errors.push(FieldError::required(format!("{path}.type"), "must specify a metric source type"));
    }
    let wanted = SOURCES.iter().find(|(name, _)| *name == kind).map(|(_, field)| *field);
    if wanted.is_none() {
        let supported: Vec<&str> = SOURCES.iter().map(|(name, _)| *name).collect();
        errors.push(FieldError::not_supported(format!("{path}.type"), kind, &supported));
    }
    let present: Vec<&str> = ["object", "external", "pods", "resource", "containerResource"]
        .into_iter()
        .filter(|f| read::at(one, f).is_some())
        .collect();
    if let Some((first, given)) = present.first().and_then(|f| Some((*f, read::at(one, f)?))) {
        source(first, given, Path(&format!("{path}.{first}")), errors);
    }
    let Some(wanted) = wanted else { return };
    if !present.contains(&wanted) {
        errors.push(FieldError::required(
            format!("{path}.{wanted}"),
            "must populate information for the given metric source",
        ));
    }
    if present.len() > 1 {
        for other in present.into_iter().filter(|f| *f != wanted) {
            errors.push(FieldError::forbidden(format!("{path}.{other}"), "must populate the given metric source only"));
        }
    }
}

fn source(kind: &str, given: &Value, path: Path<'_>, errors: &mut Errors) {
    if kind == "object" {
        reference(given, "describedObject", path, errors);
    }
    match kind {
        "resource" | "containerResource" => {
            if read::text(given, "name").is_empty() {
                errors.push(FieldError::required(format!("{path}.name"), "must specify a resource name"));
            } else if kind == "containerResource" {
                let name = read::text(given, "name");
                invalid_each(Path(&format!("{path}.name")), name, names::qualified_name_errors(name), errors);
            }
            let container = read::text(given, "container");
            if kind == "containerResource" && container.is_empty() {
                errors.push(FieldError::required(format!("{path}.container"), "must specify a container"));
            } else if kind == "containerResource" {
                invalid_each(Path(&format!("{path}.container")), container, names::dns_label_errors(container), errors);
            }
        }
        _ => match read::text(given, "metric.name") {
            "" => errors.push(FieldError::required(format!("{path}.metric.name"), "must specify a metric name")),
            name => invalid_each(Path(&format!("{path}.metric.name")), name, names::path_segment_errors(name), errors),
        },
    }
    target(kind, given, Path(&format!("{path}.target")), errors);
}

fn target(kind: &str, source: &Value, path: Path<'_>, errors: &mut Errors) {
    let of = read::at(source, "target").unwrap_or(&Value::Null);
    let how = read::text(of, "type");
    if how.is_empty() {
        errors.push(FieldError::required(format!("{path}.type"), "must specify a metric target type"));
    }
    if !matches!(how, "Utilization" | "Value" | "AverageValue") {
        errors.push(FieldError::invalid(
            format!("{path}.type"),
            how,
            "must be either Utilization, Value, or AverageValue",
        ));
    }
    for field in ["value", "averageValue"] {
        if let Some(q) = of.get(field).and_then(|v| Quantity::from_value(v).ok()).filter(|q| q.sign() < 1) {
            errors.push(FieldError::invalid(format!("{path}.{field}"), q.to_string(), "must be positive"));
        }
    }
    if let Some(share) = read::integer(of, "averageUtilization").filter(|n| *n < 1) {
        errors.push(FieldError::invalid(format!("{path}.averageUtilization"), share, "must be greater than 0"));
    }
    let has = |field: &str| read::at(of, field).is_some();
    let (value, average, share) = (has("value"), has("averageValue"), has("averageUtilization"));
    let required = |field: &str, why: &str| FieldError::required(format!("{path}.{field}"), why);
    let forbidden = |field: &str, why: &str| FieldError::forbidden(format!("{path}.{field}"), why);
    match kind {
        "object" if !value && !average => {
            errors.push(required("averageValue", "must set either a target value or averageValue"))
        }
        "external" if !value && !average => {
            errors.push(required("averageValue", "must set either a target value for metric or a per-pod target"));
        }
        "external" if value && average => {
            errors.push(forbidden("value", "may not set both a target value for metric and a per-pod target"));
        }
        "pods" if !average => errors.push(required("averageValue", "must specify a positive target averageValue")),
        "resource" | "containerResource" if !share && !average => {
            errors.push(required("averageUtilization", "must set either a target raw value or a target utilization"));
        }
        "resource" | "containerResource" if share && average => {
            errors.push(forbidden("averageValue", "may not set both a target raw value and a target utilization"));
        }
        _ => {}
    }
}

fn pace(rules: &Value, path: Path<'_>, errors: &mut Errors) {
    if let Some(window) = read::integer(rules, "stabilizationWindowSeconds") {
        let field = format!("{path}.stabilizationWindowSeconds");
        if window < 0 {
            errors.push(FieldError::invalid(field.as_str(), window, "must be greater than or equal to zero"));
        }
        if window > WINDOW_SECS_MAX {
            errors.push(FieldError::invalid(field, window, format!("must be less than or equal to {WINDOW_SECS_MAX}")));
        }
    }
    if let Some(q) = rules.get("tolerance").and_then(|v| Quantity::from_value(v).ok()).filter(|q| q.sign() < 0) {
        errors.push(FieldError::invalid(format!("{path}.tolerance"), q.to_string(), NOT_NEGATIVE));
    }
    if let Some(select) =
        read::at(rules, "selectPolicy").and_then(Value::as_str).filter(|s| !["Disabled", "Max", "Min"].contains(s))
    {
        errors.push(FieldError::not_supported(format!("{path}.selectPolicy"), select, &["Disabled", "Max", "Min"]));
    }
    let policies = read::list(rules, "policies");
    if policies.is_empty() {
        errors.push(FieldError::required(format!("{path}.policies"), "must specify at least one Policy"));
    }
    for (idx, policy) in policies.iter().enumerate() {
        let path = format!("{path}.policies[{idx}]");
        let kind = read::text(policy, "type");
        if !matches!(kind, "Percent" | "Pods") {
            errors.push(FieldError::not_supported(format!("{path}.type"), kind, &["Percent", "Pods"]));
        }
        let period = read::number(policy, "periodSeconds");
        for (field, n) in [("value", read::number(policy, "value")), ("periodSeconds", period)] {
            if n <= 0 {
                errors.push(FieldError::invalid(format!("{path}.{field}"), n, "must be greater than zero"));
            }
        }
        if period > PERIOD_SECS_MAX {
            let why = format!("must be less than or equal to {PERIOD_SECS_MAX}");
            errors.push(FieldError::invalid(format!("{path}.periodSeconds"), period, why));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_metric_has_the_source_that_it_names_and_a_target() {
        let wrong = |spec: Value| {
            let mut errors = Vec::new();
            autoscaler(&json!({"spec": spec}), &mut errors);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let mut spec = json!({"maxReplicas": 3,
            "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"},
            "metrics": [{"type": "Resource",
                "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}]});
        assert!(wrong(spec.clone()).is_empty());
        spec["metrics"][0] = json!({"type": "Pods", "resource": {"name": "cpu", "target": {"type": "Odd"}}});
        spec["behavior"] = json!({"scaleUp": {"policies": []}});
        assert_eq!(
            wrong(spec),
            [
                "spec.metrics[0].resource.target.type: Invalid value: \"Odd\": must be either Utilization, Value, or \
                AverageValue",
                "spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target raw \
                value or a target utilization",
                "spec.metrics[0].pods: Required value: must populate information for the given metric source",
                "spec.behavior.scaleUp.policies: Required value: must specify at least one Policy",
            ]
        );
    }
}
