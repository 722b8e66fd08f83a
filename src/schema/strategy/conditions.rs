//! Times in conditions that the writer left out.

use std::collections::HashMap;

use serde_json::Value;

/// Gives each condition of `new` that has none a time of update and of transition; a transition that `old` knows keeps
/// its time.
///
/// `now` is in RFC 3339. Spec: upstream's `populateConditionTimestamps` of certificate signing requests.
pub(crate) fn stamp(new: &mut Value, old: &Value, now: &str) {
    let before = old.pointer("/status/conditions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut by_state: HashMap<[&Value; 2], &Value> = HashMap::new();
    for condition in before {
        by_state.entry([&condition["type"], &condition["status"]]).or_insert(condition);
    }
    let conditions = new.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let known = by_state.get(&[&condition["type"], &condition["status"]]);
        let since = known.and_then(|b| b["lastTransitionTime"].as_str()).unwrap_or(now).to_owned();
        if condition["lastUpdateTime"].as_str().is_none_or(str::is_empty) {
            condition["lastUpdateTime"] = now.into();
        }
        if condition["lastTransitionTime"].as_str().is_none_or(str::is_empty) {
            condition["lastTransitionTime"] = since.into();
        }
    }
}

/// A status write changes no verdict: what was approved or denied stays so, and nothing else becomes it.
///
/// Spec: upstream v1.36 `preserveConditionInstances`.
pub(crate) fn keep_verdicts(new: &mut Value, old: &Value) {
    let is_verdict = |c: &Value| matches!(c["type"].as_str(), Some("Approved" | "Denied"));
    let list = |v: &Value| v.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
    for kind in ["Approved", "Denied"] {
        let mut before = list(old).into_iter().filter(|c| c["type"] == kind);
        let mut kept: Vec<Value> =
            list(new).into_iter().filter_map(|c| if c["type"] == kind { before.next() } else { Some(c) }).collect();
        kept.extend(before);
        if kept.iter().any(is_verdict) || new.pointer("/status/conditions").is_some() {
            crate::strategy::keep::struct_at(new, &["status"]).insert("conditions".to_owned(), kept.into());
        }
    }
}
