//! HorizontalPodAutoscaler: v1 knows only the cpu target; the rest of v2 rides in annotations, as upstream does it.

use serde_json::{Map, Value, json};

use crate::behaviour::{Object, Versions};

use super::{annotation, make, take_annotation};

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const TARGET: &str = "targetCPUUtilizationPercentage";
const NOW: &str = "currentCPUUtilizationPercentage";

/// Between v1 and v2.
pub(crate) fn between(map: &mut Object, versions: Versions<'_>) {
    if versions.to.ends_with("/v2") { up(map) } else { down(map) }
}

fn up(map: &mut Map<String, Value>) {
    let (metrics, behavior) = (take_annotation(map, METRICS), take_annotation(map, BEHAVIOR));
    let (current, conditions) = (take_annotation(map, CURRENT), take_annotation(map, CONDITIONS));
    let spec = make(map, "spec");
    let mut all = Vec::new();
    if let Some(percent) = spec.remove(TARGET) {
        all.push(cpu("target", json!({"type": "Utilization", "averageUtilization": percent})));
    }
    all.extend(metrics.and_then(|m| m.as_array().cloned()).into_iter().flatten());
    if !all.is_empty() {
        spec.insert("metrics".into(), all.into());
    }
    put(spec, "behavior", behavior);
    let status = make(map, "status");
    let mut all = Vec::new();
    if let Some(percent) = status.remove(NOW) {
        all.push(cpu("current", json!({"averageUtilization": percent})));
    }
    all.extend(current.and_then(|m| m.as_array().cloned()).into_iter().flatten());
    if !all.is_empty() {
        status.insert("currentMetrics".into(), all.into());
    }
    put(status, "conditions", conditions);
}

fn down(map: &mut Map<String, Value>) {
    let spec = make(map, "spec");
    let (percent, metrics) = split(spec.remove("metrics"), "target");
    put(spec, TARGET, percent);
    let behavior = spec.remove("behavior");
    let status = make(map, "status");
    let (percent, current) = split(status.remove("currentMetrics"), "current");
    put(status, NOW, percent);
    let conditions = status.remove("conditions");
    for (key, value) in [(METRICS, metrics), (BEHAVIOR, behavior), (CURRENT, current), (CONDITIONS, conditions)] {
        if let Some(value) = value.filter(|v| !v.is_null()) {
            annotation(map, key, value);
        }
    }
}

fn cpu(part: &str, value: Value) -> Value {
    let mut resource = json!({"name": "cpu"});
    resource[part] = value;
    json!({"type": "Resource", "resource": resource})
}

/// The utilization of the first cpu metric, and what remains.
fn split(metrics: Option<Value>, part: &str) -> (Option<Value>, Option<Value>) {
    let Some(Value::Array(mut all)) = metrics else { return (None, None) };
    let is_cpu = |m: &Value| {
        m["type"] == "Resource"
            && m["resource"]["name"] == "cpu"
            && m["resource"][part]["averageUtilization"].is_number()
    };
    let percent = all.iter().position(is_cpu).map(|i| {
        // What else the metric says (the average value) is derived and comes back with the next status.
        let metric = all.remove(i);
        metric["resource"][part]["averageUtilization"].clone()
    });
    (percent, (!all.is_empty()).then_some(Value::Array(all)))
}

fn put(map: &mut Map<String, Value>, key: &str, value: Option<Value>) {
    if let Some(value) = value.filter(|v| !v.is_null()) {
        map.insert(key.to_owned(), value);
    }
}
