//! Times in conditions that the writer left out.

use serde_json::Value;

/// Gives each condition of `new` that has none a time of update and of transition; a transition that `old` knows keeps its time.
///
/// `now` is in RFC 3339. Spec: upstream's `populateConditionTimestamps` of certificate signing requests.
pub fn stamp_conditions(new: &mut Value, old: &Value, now: &str) {
    let before = old.pointer("/status/conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let conditions = new.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let known = before.iter().find(|b| b["type"] == condition["type"] && b["status"] == condition["status"]);
        let since = known.and_then(|b| b["lastTransitionTime"].as_str()).unwrap_or(now).to_owned();
        if condition["lastUpdateTime"].as_str().is_none_or(str::is_empty) {
            condition["lastUpdateTime"] = now.into();
        }
        if condition["lastTransitionTime"].as_str().is_none_or(str::is_empty) {
            condition["lastTransitionTime"] = since.into();
        }
    }
}
