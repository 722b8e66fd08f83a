//! A workload shown as a Scale, and what a Scale says put back into the workload.

use schema::custom::definition::Definition;
use serde_json::{Value, json};

pub(super) const API_VERSION: &str = "autoscaling/v1";

/// Writes the number of a Scale into its workload.
pub fn put_replicas(definition: Option<&Definition>, object: &mut Value, replicas: i64) {
    match definition.and_then(|d| d.scale.as_ref()) {
        None => object["spec"]["replicas"] = json!(replicas),
        Some(paths) => *at_path(object, &paths.spec) = json!(replicas),
    }
}

/// The value at a path, made on the way.
fn at_path<'v>(object: &'v mut Value, path: &[String]) -> &'v mut Value {
    path.iter().fold(object, |at, step| {
        if !at.is_object() {
            *at = json!({});
        }
        &mut at[step.as_str()]
    })
}

/// The Scale of a custom object: its definition says where the numbers are.
fn of_custom(paths: &schema::custom::definition::Scale, object: &Value, metadata: Value) -> Value {
    let find = |path: &[String]| path.iter().try_fold(object, |at, step| at.get(step));
    let number = |path: &[String]| find(path).and_then(Value::as_i64).unwrap_or(0);
    let selector = paths.selector.as_ref().and_then(|path| find(path)?.as_str()).unwrap_or_default();
    let mut scale = json!({
        "kind": "Scale", "apiVersion": API_VERSION, "metadata": metadata,
        "spec": { "replicas": number(&paths.spec) }, "status": { "replicas": number(&paths.status) },
    });
    if !selector.is_empty() {
        scale["status"]["selector"] = json!(selector);
    }
    scale
}

/// The Scale of a workload.
pub fn of(definition: Option<&Definition>, object: &Value) -> Value {
    let mut metadata = json!({});
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        if let Some(value) = object["metadata"].get(field) {
            metadata[field] = value.clone();
        }
    }
    if let Some(paths) = definition.and_then(|d| d.scale.as_ref()) {
        return of_custom(paths, object, metadata);
    }
    let selector = &object["spec"]["selector"];
    let labels = if selector.get("matchLabels").is_some() || selector.get("matchExpressions").is_some() {
        model::labels::format_label_selector(Some(selector)).trim_start_matches("<none>").to_owned()
    } else {
        selector.as_object().map(|m| model::labels::Selector::from_map(m).to_string()).unwrap_or_default()
    };
    json!({
        "kind": "Scale", "apiVersion": API_VERSION, "metadata": metadata,
        "spec": { "replicas": object["spec"]["replicas"].as_i64().unwrap_or(0) },
        "status": { "replicas": object["status"]["replicas"].as_i64().unwrap_or(0), "selector": labels },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_selectors_are_printed() {
        let deployment = json!({ "spec": { "replicas": 3, "selector": { "matchLabels": { "a": "b" } } } });
        assert_eq!(of(None, &deployment)["status"]["selector"], "a=b");
        let controller = json!({ "spec": { "selector": { "a": "b" } }, "status": { "replicas": 2 } });
        assert_eq!(of(None, &controller)["status"], json!({ "selector": "a=b", "replicas": 2 }));
    }
}
