//! `resources` of a pod as a whole: what all of its containers share.

use model::names;
use model::quantity::Quantity;
use serde_json::{Value, json};

use crate::read;
use crate::validate::checks::{Errors, NOT_NEGATIVE, invalid_each};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const NAMES: [&str; 3] = ["cpu", "hugepages-", "memory"];

/// Judges `spec.resources` of a pod or of a template; `path` is that of the spec.
pub(super) fn pod_resources(spec: &Value, path: Path<'_>, errors: &mut Errors) {
    let Some(whole) = read::at(spec, "resources") else { return };
    let path = format!("{path}.resources");
    if read::at(whole, "claims").is_some() {
        errors
            .push(FieldError::forbidden(format!("{path}.claims"), "claims may not be set for Resources at pod-level"));
    }
    let shared = crate::quota::pod_amounts(&json!({"spec": alone(spec)}), "requests");
    let limit = |name: &str| read::map(whole, "limits").and_then(|limits| Quantity::from_value(limits.get(name)?).ok());
    let mut unlimited = false;
    for list in ["limits", "requests"] {
        for (name, amount) in read::map(whole, list).into_iter().flatten() {
            let here = format!("{path}.{list}[{name}]");
            resource_name(name, Path(&here), errors);
            let Ok(amount) = Quantity::from_value(amount) else { continue };
            if amount.sign() < 0 {
                errors.push(FieldError::invalid(here.as_str(), amount.to_string(), NOT_NEGATIVE));
            }
            if list == "limits" {
                continue;
            }
            if let Some(sum) = shared.get(name).filter(|sum| **sum > amount) {
                let why = format!("must be greater than or equal to aggregate container requests of {sum}");
                errors.push(FieldError::invalid(here, amount.to_string(), why));
            }
            match limit(name) {
                Some(limit) if amount > limit => {
                    let why = format!("must be less than or equal to {name} limit of {limit}");
                    errors.push(FieldError::invalid(format!("{path}.requests"), amount.to_string(), why));
                }
                None if !["cpu", "memory"].contains(&name.as_str()) => unlimited = true,
                _ => {}
            }
        }
    }
    if unlimited {
        errors
            .push(FieldError::required(format!("{path}.limits"), "Limit must be set for non overcommitable resources"));
    }
}

/// The spec as it would be without resources of the whole: what the containers ask for by themselves.
fn alone(spec: &Value) -> Value {
    let mut alone = spec.clone();
    if let Some(fields) = alone.as_object_mut() {
        fields.remove("resources");
        fields.remove("overhead");
    }
    alone
}

fn resource_name(name: &str, path: Path<'_>, errors: &mut Errors) {
    let wrong = names::qualified_name_errors(name);
    if !wrong.is_empty() {
        return invalid_each(path, name, wrong, errors);
    }
    let standard = matches!(name, "cpu" | "memory" | "ephemeral-storage" | "storage") || name.starts_with("hugepages-");
    if !standard && !name.contains('/') && !name.starts_with("requests.") && !name.starts_with("limits.") {
        errors.push(FieldError::invalid(path, name, "must be a standard resource type or fully qualified"));
    } else if !matches!(name, "cpu" | "memory") && !name.starts_with("hugepages-") {
        errors.push(FieldError::not_supported(path, name, &NAMES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(whole: Value, own_cpu: &str) -> Vec<String> {
        let mut errors = Vec::new();
        let containers = json!([{"name": "c", "resources": {"requests": {"cpu": own_cpu}}}]);
        pod_resources(&json!({"resources": whole, "containers": containers}), Path("spec"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_pod_as_a_whole_asks_for_cpu_memory_and_huge_pages_only() {
        assert!(
            said(json!({"requests": {"cpu": "2"}, "limits": {"cpu": "3", "hugepages-2Mi": "2Mi"}}), "1").is_empty()
        );
        let wanted = "spec.resources.limits[a.b/x]: Unsupported value: \"a.b/x\": supported values: \"cpu\", \
            \"hugepages-\", \"memory\"";
        assert_eq!(said(json!({"limits": {"a.b/x": "1"}}), "1"), [wanted]);
        let wanted =
            "spec.resources.limits[foo]: Invalid value: \"foo\": must be a standard resource type or fully qualified";
        assert_eq!(said(json!({"limits": {"foo": "1"}}), "1"), [wanted]);
        assert_eq!(said(json!({"claims": [{"name": "x"}]}), "1").len(), 1);
    }

    #[test]
    fn a_pod_as_a_whole_has_room_for_its_containers() {
        let wanted = "spec.resources.requests[cpu]: Invalid value: \"1\": must be greater than or equal to aggregate \
            container requests of 2";
        assert_eq!(said(json!({"requests": {"cpu": "1"}}), "2"), [wanted]);
        let wanted = "spec.resources.requests: Invalid value: \"3\": must be less than or equal to cpu limit of 2";
        assert_eq!(said(json!({"requests": {"cpu": "3"}, "limits": {"cpu": "2"}}), "2"), [wanted]);
    }
}
