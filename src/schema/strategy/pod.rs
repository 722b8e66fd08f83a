//! The fields that a new Pod gets: its status, the condition of a gated one, and selectors narrowed to the labels that
//! it carries itself.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use super::qos_class;

/// Spec: upstream's `podStrategy.PrepareForCreate`.
pub(crate) fn create(new: &mut Value) {
    new["status"] = json!({"phase": "Pending", "qosClass": qos_class(new)});
    if new.pointer("/spec/schedulingGates").and_then(Value::as_array).is_some_and(|gates| !gates.is_empty()) {
        new["status"]["conditions"] = json!([{
            "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
            "lastTransitionTime": new["metadata"]["creationTimestamp"],
        }]);
    }
    narrow_selectors(new);
    lift_grace(new);
}

/// Fields that a status leaves open stay: the class of service, and of which generation it and its conditions speak.
///
/// Spec: upstream v1.36 `podStatusStrategy.PrepareForUpdate`, `preserveOldObservedGeneration`.
pub(crate) fn status(new: &mut Value, old: &Value) {
    if !new["status"].is_object() {
        new["status"] = json!({});
    }
    let (status, before) = (&mut new["status"], &old["status"]);
    for field in ["qosClass", "observedGeneration"] {
        let is_open = status[field].as_str().is_none_or(str::is_empty) && status[field].as_i64().is_none_or(|n| n == 0);
        if let Some(kept) = before.get(field).filter(|_| is_open) {
            status[field] = kept.clone();
        }
    }
    let conditions = before["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    // Each stands for one new condition at most, in their order.
    let mut known: HashMap<&Value, VecDeque<&Value>> = HashMap::new();
    for condition in conditions {
        known.entry(&condition["type"]).or_default().push_back(condition);
    }
    for condition in status.get_mut("conditions").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(before) = known.get_mut(&condition["type"]).and_then(VecDeque::pop_front) else { continue };
        let generation = before.get("observedGeneration");
        if let Some(generation) = generation.filter(|_| condition["observedGeneration"].as_i64().unwrap_or(0) == 0) {
            condition["observedGeneration"] = generation.clone();
        }
    }
}

/// Less than nothing is one second, as upstream's conversion of pods has it; in templates it is refused.
pub(crate) fn lift_grace(new: &mut Value) {
    if let Some(grace) = new.pointer_mut("/spec/terminationGracePeriodSeconds")
        && let Some(secs) = grace.as_i64()
    {
        *grace = model::grace::read(secs).into();
    }
}

/// `matchLabelKeys` and `mismatchLabelKeys` speak of the values that this very pod has: they are written into the
/// selectors once.
fn narrow_selectors(new: &mut Value) {
    let labels = new["metadata"]["labels"].take();
    for kind in ["podAffinity", "podAntiAffinity"] {
        let Some(affinity) = new.pointer_mut(&format!("/spec/affinity/{kind}")) else { continue };
        let terms = |affinity: &mut Value, key: &str, narrow: &dyn Fn(&mut Value)| {
            affinity.get_mut(key).and_then(Value::as_array_mut).into_iter().flatten().for_each(narrow);
        };
        terms(affinity, "requiredDuringSchedulingIgnoredDuringExecution", &|term| narrow(term, &labels));
        terms(affinity, "preferredDuringSchedulingIgnoredDuringExecution", &|weighted| {
            if let Some(term) = weighted.get_mut("podAffinityTerm") {
                narrow(term, &labels);
            }
        });
    }
    let constraints = new.pointer_mut("/spec/topologySpreadConstraints").and_then(Value::as_array_mut);
    constraints.into_iter().flatten().for_each(|constraint| narrow(constraint, &labels));
    if let Some(metadata) = new["metadata"].as_object_mut() {
        if labels.is_null() {
            metadata.remove("labels");
        } else {
            metadata.insert("labels".to_owned(), labels);
        }
    }
}

/// Without a selector a term matches nothing, and still does.
fn narrow(term: &mut Value, labels: &Value) {
    let requirement = |operator: &str, key: &Value| {
        let value = key.as_str().and_then(|key| labels.get(key))?;
        Some(json!({"key": key, "operator": operator, "values": [value]}))
    };
    let keys = |list: &str| term[list].as_array().cloned().unwrap_or_default();
    let (same, other) = (keys("matchLabelKeys"), keys("mismatchLabelKeys"));
    let wanted = same.iter().filter_map(|key| requirement("In", key));
    let wanted: Vec<Value> = wanted.chain(other.iter().filter_map(|key| requirement("NotIn", key))).collect();
    let Some(selector) = term.get_mut("labelSelector").and_then(Value::as_object_mut).filter(|_| !wanted.is_empty())
    else {
        return;
    };
    if let Value::Array(all) = selector.entry("matchExpressions").or_insert_with(|| json!([])) {
        all.extend(wanted);
    }
}
