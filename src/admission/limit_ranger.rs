//! Limit ranges of a namespace: defaults for containers, and bounds that pods and claims must keep.

use std::sync::Arc;

use async_trait::async_trait;
use model::meta;
use model::quantity::Quantity;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;
use serde_json::{Map, Value, json};

use super::{Operation, Plugin, Review};

/// Upstream's `LimitRanger`.
pub struct LimitRanger;

#[async_trait]
impl Plugin for LimitRanger {
    fn name(&self) -> &'static str {
        "LimitRanger"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        match operation {
            Operation::Create => {
                a.is(GroupResource::core("pods")) || a.is(GroupResource::core("persistentvolumeclaims"))
            }
            // Spec: upstream v1.36 LimitRanger.SupportsAttributes: who may resize a pod keeps the bounds, too.
            Operation::Update => {
                a.is(GroupResource::core("persistentvolumeclaims"))
                    || a.is_subresource(GroupResource::core("pods"), "resize")
            }
            _ => false,
        }
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        if review.attributes.resource == "pods" && !is_dying(review) {
            for range in ranges(review) {
                fill(review.object, &range);
            }
        }
        Ok(())
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let mut problems: Vec<String> = Vec::new();
        if is_dying(review) {
            return Ok(());
        }
        for range in ranges(review) {
            for limit in range["spec"]["limits"].as_array().into_iter().flatten() {
                match (limit["type"].as_str().unwrap_or_default(), review.attributes.resource.as_str()) {
                    ("Container", "pods") => {
                        for container in containers(review.object) {
                            check(
                                limit,
                                &container["resources"]["requests"],
                                &container["resources"]["limits"],
                                &mut problems,
                            );
                        }
                    }
                    ("Pod", "pods") => {
                        let (requests, limits) = (sum(review.object, "requests"), sum(review.object, "limits"));
                        check(limit, &requests, &limits, &mut problems);
                    }
                    ("PersistentVolumeClaim", "persistentvolumeclaims") => {
                        check_claim(limit, &review.object["spec"]["resources"]["requests"], &mut problems);
                    }
                    _ => {}
                }
            }
        }
        match problems.as_slice() {
            [] => Ok(()),
            [one] => Err(review.forbidden(one)),
            many => Err(review.forbidden(&format!("[{}]", many.join(", ")))),
        }
    }
}

/// Whether the object is being deleted: such a one is left alone.
fn is_dying(review: &Review<'_>) -> bool {
    review.old.is_some_and(|old| meta::deletion_timestamp(old).is_some())
}

fn ranges(review: &Review<'_>) -> Vec<Arc<Value>> {
    review.lookup.list(GroupResource::core("limitranges"), Some(&review.attributes.namespace))
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().flat_map(|list| pod["spec"][list].as_array().into_iter().flatten())
}

/// Requests and limits that a container leaves open, from the range; the pod's annotation says what was set.
fn fill(pod: &mut Value, range: &Value) {
    let of_container = |limit: &&Value| limit["type"] == "Container";
    let mut notes: Vec<String> = Vec::new();
    for list in ["containers", "initContainers"] {
        let what = if list == "containers" { "container" } else { "init container" };
        // Not pod["spec"][list]: indexing for change would add a null where there is no such list.
        for container in pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            for (field, source) in [("requests", "defaultRequest"), ("limits", "default")] {
                let mut set: Vec<&str> = Vec::new();
                for limit in range["spec"]["limits"].as_array().into_iter().flatten().filter(of_container) {
                    for (resource, amount) in limit[source].as_object().into_iter().flatten() {
                        if container["resources"][field][resource].is_null() {
                            if !container["resources"].is_object() {
                                container["resources"] = json!({});
                            }
                            container["resources"][field][resource] = amount.clone();
                            set.push(resource);
                        }
                    }
                }
                if !set.is_empty() {
                    let one = field.trim_end_matches('s');
                    notes.push(format!(
                        "{} {one} for {what} {}",
                        set.join(", "),
                        container["name"].as_str().unwrap_or_default()
                    ));
                }
            }
        }
    }
    if !notes.is_empty() {
        meta::set_annotation(
            pod,
            "kubernetes.io/limit-ranger",
            &format!("LimitRanger plugin set: {}", notes.join("; ")),
        );
    }
}

/// Sum of the requests of all containers; of init containers, which run one by one, the greatest.
fn sum(pod: &Value, field: &str) -> Value {
    let mut total: std::collections::BTreeMap<String, Quantity> = Default::default();
    let amounts = |container: &Value| -> Vec<(String, Quantity)> {
        let list = container["resources"][field].as_object().into_iter().flatten();
        list.filter_map(|(name, value)| Some((name.clone(), Quantity::from_value(value).ok()?))).collect()
    };
    let list = |name: &str| pod["spec"][name].as_array().into_iter().flatten();
    let sidecars = list("initContainers").filter(|container| container["restartPolicy"] == "Always");
    for (name, amount) in list("containers").chain(sidecars).flat_map(amounts) {
        let sum = total.get(&name).map_or(amount, |have| have.add(amount));
        total.insert(name, sum);
    }
    for (name, amount) in list("initContainers").flat_map(amounts) {
        let most = total.get(&name).copied().filter(|have| *have >= amount).unwrap_or(amount);
        total.insert(name, most);
    }
    // What a pod asks for as a whole stands for its containers.
    for (name, amount) in amounts(&pod["spec"]) {
        total.insert(name, amount);
    }
    Value::Object(total.into_iter().map(|(name, amount)| (name, json!(amount.to_string()))).collect::<Map<_, _>>())
}

fn bounds<'a>(limit: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, Quantity)> {
    limit[field]
        .as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name, Quantity::from_value(value).ok()?)))
}

fn check(limit: &Value, requests: &Value, limits: &Value, problems: &mut Vec<String>) {
    let kind = limit["type"].as_str().unwrap_or_default();
    let amount = |from: &Value, name: &str| Quantity::from_value(&from[name]).ok();
    for (name, min) in bounds(limit, "min") {
        let head = format!("minimum {name} usage per {kind} is {min}");
        match (amount(requests, name), amount(limits, name)) {
            (None, _) => problems.push(format!("{head}.  No request is specified")),
            (Some(request), _) if request < min => problems.push(format!("{head}, but request is {request}")),
            (_, Some(limit)) if limit < min => problems.push(format!("{head}, but limit is {limit}")),
            _ => {}
        }
    }
    for (name, max) in bounds(limit, "max") {
        let head = format!("maximum {name} usage per {kind} is {max}");
        match (amount(requests, name), amount(limits, name)) {
            (_, None) => problems.push(format!("{head}.  No limit is specified")),
            (_, Some(limit)) if limit > max => problems.push(format!("{head}, but limit is {limit}")),
            (Some(request), _) if request > max => problems.push(format!("{head}, but request is {request}")),
            _ => {}
        }
    }
    for (name, ratio) in bounds(limit, "maxLimitRequestRatio") {
        let head = format!("{name} max limit to request ratio per {kind} is {ratio}");
        let (request, limit) =
            (amount(requests, name).filter(|q| !q.is_zero()), amount(limits, name).filter(|q| !q.is_zero()));
        match (request, limit) {
            (None, _) => problems.push(format!("{head}, but no request is specified or request is 0")),
            (_, None) => problems.push(format!("{head}, but no limit is specified or limit is 0")),
            (Some(request), Some(limit)) => {
                let observed = limit.milli_value() as f64 / request.milli_value() as f64;
                if observed > ratio.milli_value() as f64 / 1000.0 {
                    problems.push(format!("{head}, but provided ratio is {observed:.6}"));
                }
            }
        }
    }
}

fn check_claim(limit: &Value, requests: &Value, problems: &mut Vec<String>) {
    let kind = limit["type"].as_str().unwrap_or_default();
    for (word, field) in [("minimum", "min"), ("maximum", "max")] {
        for (name, bound) in bounds(limit, field) {
            let head = format!("{word} {name} usage per {kind} is {bound}");
            match Quantity::from_value(&requests[name]).ok() {
                None => problems.push(format!("{head}.  No request is specified")),
                Some(request) if (field == "min" && request < bound) || (field == "max" && request > bound) => {
                    problems.push(format!("{head}, but request is {request}"));
                }
                Some(_) => {}
            }
        }
    }
}
