//! Quotas of a namespace: what all its objects together may ask for.
//!
//! What is used is counted from the objects themselves at the moment of the request, so a stale status never lets too much in.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use schema::meta;
use schema::quantity::{Notation, Quantity};
use serde_json::Value;

use super::{Operation, Plugin, Review};
use crate::attributes::Attributes;
use crate::lookup::Lookup;
use crate::status::Status;

/// Upstream's `ResourceQuota`.
pub struct ResourceQuota;

/// Amounts by quota name, e.g. `requests.cpu`, `count/secrets`.
pub type Usage = BTreeMap<String, Quantity>;

#[async_trait]
impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        let grows = operation == Operation::Update && matches!(a.resource.as_str(), "persistentvolumeclaims" | "services");
        !a.namespace.is_empty() && a.subresource.is_empty() && (operation == Operation::Create || grows)
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let a = review.attributes;
        let quotas = review.lookup.list("", "resourcequotas", Some(&a.namespace));
        if quotas.is_empty() || a.resource == "resourcequotas" && a.group.is_empty() && review.operation == Operation::Update {
            return Ok(());
        }
        review.lookup.load(&a.group, &a.resource).await;
        let asked = usage_of(&a.group, &a.resource, review.object);
        for quota in quotas.iter().filter(|quota| in_scope(quota, &a.resource, review.object)) {
            judge(review, quota, &asked)?;
        }
        Ok(())
    }
}

/// One amount that would be over its limit.
struct Excess<'a> {
    name: &'a str,
    asked: Quantity,
    used: Quantity,
    limit: Quantity,
}

fn judge(review: &Review<'_>, quota: &Value, asked: &Usage) -> Result<(), Status> {
    let a = review.attributes;
    let hard = |name: &str| Quantity::from_value(&quota["spec"]["hard"][name]).ok();
    let watched: Vec<&String> = quota["spec"]["hard"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
    if a.resource == "pods" && a.group.is_empty() {
        let lacking: Vec<String> = unspecified(review.object, &watched);
        if !lacking.is_empty() {
            return Err(review.forbidden(&format!("failed quota: {}: must specify {}", meta::name(quota), lacking.join("; "))));
        }
    }
    let concerned: Vec<(&String, Quantity)> =
        asked.iter().filter(|(name, _)| watched.contains(name)).map(|(name, amount)| (name, *amount)).collect();
    if concerned.is_empty() {
        return Ok(());
    }
    let used = used(review.lookup, &a.namespace, (&a.group, &a.resource), quota, &a.name);
    let mut over: Vec<Excess<'_>> = Vec::new();
    for (name, amount) in concerned {
        let have = used.get(name).copied().unwrap_or(Quantity::from_units(0, Notation::DecimalSi));
        if let Some(limit) = hard(name).filter(|limit| have.add(amount) > *limit) {
            over.push(Excess { name, asked: amount, used: have, limit });
        }
    }
    if over.is_empty() {
        return Ok(());
    }
    let list = |pick: fn(&Excess<'_>) -> Quantity| over.iter().map(|e| format!("{}={}", e.name, pick(e))).collect::<Vec<_>>().join(",");
    let why = format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        meta::name(quota),
        list(|e| e.asked),
        list(|e| e.used),
        list(|e| e.limit)
    );
    Err(review.forbidden(&why))
}

/// What the stored objects of one resource use of a quota, without the one of this name (it is being replaced).
pub fn used(lookup: &dyn Lookup, namespace: &str, resource: (&str, &str), quota: &Value, but: &str) -> Usage {
    let mut total = Usage::new();
    let objects: Vec<Arc<Value>> = lookup.list(resource.0, resource.1, Some(namespace));
    for object in objects.iter().filter(|object| meta::name(object) != but && in_scope(quota, resource.1, object)) {
        for (name, amount) in usage_of(resource.0, resource.1, object) {
            let sum = total.get(&name).map_or(amount, |have| have.add(amount));
            total.insert(name, sum);
        }
    }
    total
}

/// What one object uses.
pub fn usage_of(group: &str, resource: &str, object: &Value) -> Usage {
    let one = Quantity::from_units(1, Notation::DecimalSi);
    let mut usage = Usage::new();
    let counted = if group.is_empty() { format!("count/{resource}") } else { format!("count/{resource}.{group}") };
    usage.insert(counted, one);
    let plain = ["services", "secrets", "configmaps", "replicationcontrollers", "resourcequotas", "persistentvolumeclaims"];
    if group.is_empty() && plain.contains(&resource) {
        usage.insert(resource.to_owned(), one);
    }
    match (group, resource) {
        ("", "pods") if !finished(object) => pod_usage(object, &mut usage),
        ("", "services") => {
            let kind = object["spec"]["type"].as_str().unwrap_or_default();
            let ports = object["spec"]["ports"].as_array().map_or(0, Vec::len);
            if matches!(kind, "NodePort" | "LoadBalancer") {
                let n = i64::try_from(ports).unwrap_or(i64::MAX);
                usage.insert("services.nodeports".to_owned(), Quantity::from_units(n, Notation::DecimalSi));
            }
            if kind == "LoadBalancer" {
                usage.insert("services.loadbalancers".to_owned(), one);
            }
        }
        ("", "persistentvolumeclaims") => {
            if let Ok(size) = Quantity::from_value(&object["spec"]["resources"]["requests"]["storage"]) {
                usage.insert("requests.storage".to_owned(), size);
                if let Some(class) = object["spec"]["storageClassName"].as_str().filter(|class| !class.is_empty()) {
                    usage.insert(format!("{class}.storageclass.storage.k8s.io/requests.storage"), size);
                    usage.insert(format!("{class}.storageclass.storage.k8s.io/persistentvolumeclaims"), one);
                }
            }
        }
        _ => {}
    }
    usage
}

/// A pod that has ended holds nothing but its place in the count of objects.
fn finished(pod: &Value) -> bool {
    matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
}

fn pod_usage(pod: &Value, usage: &mut Usage) {
    usage.insert("pods".to_owned(), Quantity::from_units(1, Notation::DecimalSi));
    for field in ["requests", "limits"] {
        for (resource, amount) in pod_amounts(pod, field) {
            if field == "requests" && matches!(resource.as_str(), "cpu" | "memory" | "ephemeral-storage") {
                usage.insert(resource.clone(), amount);
            }
            usage.insert(format!("{field}.{resource}"), amount);
        }
    }
}

/// Containers and sidecars together, or the greatest init container, plus overhead.
fn pod_amounts(pod: &Value, field: &str) -> Usage {
    let amounts = |container: &Value| -> Vec<(String, Quantity)> {
        let list = container["resources"][field].as_object().into_iter().flatten();
        list.filter_map(|(name, value)| Some((name.clone(), Quantity::from_value(value).ok()?))).collect()
    };
    let list = |name: &str| pod["spec"][name].as_array().into_iter().flatten();
    let sidecars = list("initContainers").filter(|container| container["restartPolicy"] == "Always");
    let mut total = Usage::new();
    for (name, amount) in list("containers").chain(sidecars).flat_map(amounts) {
        let sum = total.get(&name).map_or(amount, |have| have.add(amount));
        total.insert(name, sum);
    }
    for (name, amount) in list("initContainers").flat_map(amounts) {
        let most = total.get(&name).copied().filter(|have| *have >= amount).unwrap_or(amount);
        total.insert(name, most);
    }
    for (name, value) in pod["spec"]["overhead"].as_object().into_iter().flatten() {
        if let (Ok(amount), Some(have)) = (Quantity::from_value(value), total.get(name).copied()) {
            total.insert(name.clone(), have.add(amount));
        }
    }
    total
}

/// Under a quota on compute every container must say what it asks for: `requests.cpu for: a,b`.
fn unspecified(pod: &Value, watched: &[&String]) -> Vec<String> {
    let mut lacking = Vec::new();
    for name in watched {
        let (field, resource) = match name.as_str() {
            "cpu" | "memory" => ("requests", name.as_str()),
            other => match other.split_once('.') {
                Some((field @ ("requests" | "limits"), resource @ ("cpu" | "memory"))) => (field, resource),
                _ => continue,
            },
        };
        let containers = ["initContainers", "containers"].into_iter().flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
        let without: Vec<&str> = containers
            .filter(|container| container["resources"][field][resource].is_null())
            .filter_map(|container| container["name"].as_str())
            .collect();
        if !without.is_empty() {
            lacking.push(format!("{name} for: {}", without.join(",")));
        }
    }
    lacking
}

/// Whether a quota with scopes looks at an object. Scopes speak of pods only.
fn in_scope(quota: &Value, resource: &str, object: &Value) -> bool {
    let scopes = quota["spec"]["scopes"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let expressions = quota["spec"]["scopeSelector"]["matchExpressions"].as_array().into_iter().flatten();
    let mut scopes = scopes.peekable();
    let mut expressions = expressions.peekable();
    if scopes.peek().is_none() && expressions.peek().is_none() {
        return true;
    }
    resource == "pods" && scopes.all(|scope| pod_in(object, scope)) && expressions.all(|expression| matches(object, expression))
}

fn pod_in(pod: &Value, scope: &str) -> bool {
    let best_effort = || {
        let lists = ["initContainers", "containers"].into_iter().flat_map(|list| pod["spec"][list].as_array().into_iter().flatten());
        lists
            .flat_map(|container| ["requests", "limits"].map(|field| &container["resources"][field]))
            .all(|amounts| amounts.as_object().is_none_or(|a| a.is_empty()))
    };
    let terminating = || pod["spec"]["activeDeadlineSeconds"].is_i64();
    match scope {
        "Terminating" => terminating(),
        "NotTerminating" => !terminating(),
        "BestEffort" => best_effort(),
        "NotBestEffort" => !best_effort(),
        "PriorityClass" => pod["spec"]["priorityClassName"].as_str().is_some_and(|name| !name.is_empty()),
        "CrossNamespacePodAffinity" => cross_namespace(&pod["spec"]["affinity"]),
        _ => false,
    }
}

fn cross_namespace(affinity: &Value) -> bool {
    match affinity {
        Value::Object(fields) => fields.iter().any(|(key, inside)| {
            let named = key == "namespaces" && inside.as_array().is_some_and(|list| !list.is_empty());
            named || (key == "namespaceSelector" && inside.is_object()) || cross_namespace(inside)
        }),
        Value::Array(items) => items.iter().any(cross_namespace),
        _ => false,
    }
}

fn matches(pod: &Value, expression: &Value) -> bool {
    let scope = expression["scopeName"].as_str().unwrap_or_default();
    if scope != "PriorityClass" {
        return pod_in(pod, scope);
    }
    let class = pod["spec"]["priorityClassName"].as_str().filter(|name| !name.is_empty());
    let listed = || expression["values"].as_array().into_iter().flatten().any(|value| value.as_str() == class);
    match expression["operator"].as_str() {
        Some("In") => class.is_some() && listed(),
        Some("NotIn") => class.is_none() || !listed(),
        Some("DoesNotExist") => class.is_none(),
        _ => class.is_some(),
    }
}
