//! Quotas of a namespace: what all its objects together may ask for.
//!
//! What is used is counted from the objects themselves at the moment of the request, so a stale status never lets too much in.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base::time::{Clock, Stopwatch};
use jiff::Timestamp;
use schema::meta;
use schema::quantity::{Notation, Quantity};
use schema::quota::{self, Usage};
use serde_json::Value;

use super::{Operation, Plugin, Review};
use crate::attributes::Attributes;
use crate::status::Status;

/// An object that was let in and is not in the cache after this time was refused by somebody else.
const STORED_WITHIN: Duration = Duration::from_secs(3);

/// Upstream's `ResourceQuota`.
pub struct ResourceQuota {
    clock: Clock,
    /// Let in and on its way to the store: requests side by side must not each take the last place.
    /// One list for the namespaces of one hash, so that counting in one namespace does not stop all others.
    coming: Vec<Mutex<Vec<Coming>>>,
}

const LISTS: usize = 64;

impl Default for ResourceQuota {
    fn default() -> ResourceQuota {
        ResourceQuota { clock: Clock::system(), coming: (0..LISTS).map(|_| Mutex::default()).collect() }
    }
}

impl ResourceQuota {
    fn coming_in(&self, namespace: &str) -> &Mutex<Vec<Coming>> {
        let sum = namespace.bytes().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte)));
        &self.coming[sum % LISTS]
    }
}

struct Coming {
    group: String,
    resource: String,
    object: Arc<Value>,
    since: Stopwatch,
}

impl Coming {
    fn is(&self, a: &Attributes) -> bool {
        self.group == a.group && self.resource == a.resource && meta::namespace(&self.object) == a.namespace
    }
}

#[async_trait]
impl Plugin for ResourceQuota {
    fn name(&self) -> &'static str {
        "ResourceQuota"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        let grows = match (a.resource.as_str(), a.subresource.as_str()) {
            ("persistentvolumeclaims" | "services", "") | ("pods", "resize") => operation == Operation::Update,
            _ => false,
        };
        !a.namespace.is_empty() && (grows || operation == Operation::Create && a.subresource.is_empty())
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let a = review.attributes;
        let quotas = review.lookup.list("", "resourcequotas", Some(&a.namespace));
        if quotas.is_empty() {
            return Ok(());
        }
        review.lookup.load(&a.group, &a.resource).await;
        let mut coming = self.coming_in(&a.namespace).lock().unwrap_or_else(PoisonError::into_inner);
        let stored = |c: &Coming| review.lookup.get(&c.group, &c.resource, meta::namespace(&c.object), meta::name(&c.object)).is_some();
        coming.retain(|c| c.since.elapsed() < STORED_WITHIN && !stored(c));
        let others: Vec<Arc<Value>> = coming.iter().filter(|c| c.is(a)).map(|c| Arc::clone(&c.object)).collect();
        for quota in quotas.iter().filter(|quota| quota::in_scope(quota, &a.resource, review.object)) {
            judge(review, quota, &others, self.clock.now())?;
        }
        if review.operation == Operation::Create && !review.dry_run {
            let mut object = review.object.clone();
            meta::set_namespace(&mut object, &a.namespace);
            meta::set_name(&mut object, &a.name);
            let (group, resource) = (a.group.clone(), a.resource.clone());
            coming.push(Coming { group, resource, object: Arc::new(object), since: Stopwatch::start() });
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

/// What the request asks for beyond what its object has already.
fn asked(review: &Review<'_>, quota: &Value, now: Timestamp) -> Usage {
    let a = review.attributes;
    let mut asked = quota::usage_of(&a.group, &a.resource, review.object, now);
    if let Some(old) = review.old.filter(|old| quota::in_scope(quota, &a.resource, old)) {
        let had = quota::usage_of(&a.group, &a.resource, old, now);
        asked = asked
            .into_iter()
            .filter_map(|(name, amount)| {
                let more = had.get(&name).map_or(amount, |had| amount.sub(*had));
                (more.sign() > 0).then_some((name, more))
            })
            .collect();
    }
    asked
}

fn judge(review: &Review<'_>, quota: &Value, others: &[Arc<Value>], now: Timestamp) -> Result<(), Status> {
    let a = review.attributes;
    let hard = |name: &str| Quantity::from_value(&quota["spec"]["hard"][name]).ok();
    let watched: Vec<&String> = quota["spec"]["hard"].as_object().into_iter().flatten().map(|(name, _)| name).collect();
    if a.resource == "pods" && a.group.is_empty() {
        let lacking: Vec<String> = quota::unspecified(review.object, &watched);
        if !lacking.is_empty() {
            return Err(review.forbidden(&format!("failed quota: {}: must specify {}", meta::name(quota), lacking.join("; "))));
        }
    }
    let asked = asked(review, quota, now);
    let concerned: Vec<(&String, Quantity)> =
        asked.iter().filter(|(name, _)| watched.contains(name)).map(|(name, amount)| (name, *amount)).collect();
    if concerned.is_empty() {
        return Ok(());
    }
    let used = used(review, quota, others, now);
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

/// What the stored and the coming objects of the resource use of a quota; a new object of a name that is taken replaces nothing.
fn used(review: &Review<'_>, quota: &Value, others: &[Arc<Value>], now: Timestamp) -> Usage {
    let a = review.attributes;
    let mut total = Usage::new();
    let stored = review.lookup.list(&a.group, &a.resource, Some(&a.namespace));
    let itself = |object: &Value| review.operation == Operation::Create && meta::name(object) == a.name;
    for object in stored.iter().chain(others).filter(|object| !itself(object) && quota::in_scope(quota, &a.resource, object)) {
        quota::add(&mut total, quota::usage_of(&a.group, &a.resource, object, now));
    }
    total
}
