//! What may change in a running pod: images, deadlines, more tolerations, fewer scheduling gates.

use serde_json::Value;

use crate::read;
use crate::validate::checks::Errors;
use crate::validate::error::FieldError;

const ALLOWED: &str = "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// A pod gated from scheduling may still change where it can go.
fn is_gated(pod: &Value) -> bool {
    !read::list(pod, "spec.schedulingGates").is_empty()
}

pub(super) fn update(new: &Value, old: &Value, errors: &mut Errors) {
    for field in ["containers", "initContainers"] {
        let path = format!("spec.{field}");
        if read::list(new, &path).len() != read::list(old, &path).len() {
            errors.push(FieldError::forbidden(path, "pod updates may not add or remove containers"));
            return;
        }
    }
    deadline(new, old, errors);
    let tolerations = read::list(new, "spec.tolerations");
    if !read::list(old, "spec.tolerations").iter().all(|t| tolerations.contains(t)) {
        let message = "existing toleration can not be modified except its tolerationSeconds";
        let kept = |old: &Value| tolerations.iter().any(|t| without(t, "tolerationSeconds") == without(old, "tolerationSeconds"));
        if !read::list(old, "spec.tolerations").iter().all(kept) {
            errors.push(FieldError::forbidden("spec.tolerations", message));
        }
    }
    let gates = read::list(old, "spec.schedulingGates");
    if let Some(idx) = read::list(new, "spec.schedulingGates").iter().position(|g| !gates.contains(g)) {
        let message = "only deletion is allowed, but found new scheduling gate";
        errors.push(FieldError::forbidden(format!("spec.schedulingGates[{idx}]"), message));
    }
    let changed = changed_fields(new, old);
    if !changed.is_empty() {
        errors.push(FieldError::forbidden("spec", format!("{ALLOWED}\n{}", changed.join("\n"))));
    }
}

/// Ephemeral containers only ever come.
pub(super) fn ephemeral(new: &Value, old: &Value, errors: &mut Errors) {
    let path = "spec.ephemeralContainers";
    let now = read::list(new, path);
    for container in read::list(old, path) {
        let name = read::text(container, "name");
        let found = read::find(now, "name", name);
        if found != Some(container) {
            let what = if found.is_none() { "removed" } else { "changed" };
            errors.push(FieldError::forbidden(path, format!("existing ephemeral containers {name:?} may not be {what}\n")));
        }
    }
}

fn without(value: &Value, field: &str) -> Value {
    let mut value = value.clone();
    if let Some(map) = value.as_object_mut() {
        map.remove(field);
    }
    value
}

fn deadline(new: &Value, old: &Value, errors: &mut Errors) {
    let path = "spec.activeDeadlineSeconds";
    match (read::integer(new, path), read::integer(old, path)) {
        (Some(now), Some(before)) if now > before => {
            let message = format!("must be less than or equal to previous value {before}");
            errors.push(FieldError::invalid(path, now, message));
        }
        (None, Some(_)) => {
            errors.push(FieldError::invalid(path, Value::Null, "must not update from a positive integer to nil value"));
        }
        _ => {}
    }
}

/// Top-level fields of the spec that changed although they may not.
fn changed_fields(new: &Value, old: &Value) -> Vec<String> {
    let comparable = |pod: &Value| {
        let mut spec = read::at(pod, "spec").cloned().unwrap_or_default();
        for list in ["containers", "initContainers"] {
            for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                if let Some(map) = container.as_object_mut() {
                    map.remove("image");
                }
            }
        }
        let mut loose = vec!["activeDeadlineSeconds", "tolerations", "schedulingGates"];
        if read::number(old, "spec.terminationGracePeriodSeconds") < 0 {
            loose.push("terminationGracePeriodSeconds");
        }
        if is_gated(old) {
            loose.extend(["nodeSelector", "affinity"]);
        }
        if let Some(map) = spec.as_object_mut() {
            map.retain(|k, _| !loose.contains(&k.as_str()));
        }
        spec
    };
    let (now, before) = (comparable(new), comparable(old));
    let empty = serde_json::Map::new();
    let (now, before) = (now.as_object().unwrap_or(&empty), before.as_object().unwrap_or(&empty));
    let mut names: Vec<&String> = now.keys().chain(before.keys()).filter(|k| now.get(*k) != before.get(*k)).collect();
    names.sort();
    names.dedup();
    let show = |v: Option<&Value>| v.map_or_else(|| "nil".to_owned(), Value::to_string);
    names.into_iter().map(|k| format!("  {k}: {} -> {}", show(before.get(k)), show(now.get(k)))).collect()
}
