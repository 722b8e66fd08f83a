//! Quotas of a namespace: what all its objects together may ask for.
//!
//! What is used is counted from the objects themselves as of the moment of the request, so a stale status never lets
//! too much in. The count is kept from one request to the next, and follows what has changed.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use base::time::Clock;
use jiff::Timestamp;
use model::meta;
use model::quantity::{Notation, Quantity};
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::objects::Objects;
use registry::status::Status;
use schema::quota::{self, Sums, Usage};
use serde_json::Value;

use super::charges::{Charges, Coming};
use super::tally::{Counted, Tallies};
use super::{Operation, Plugin, Review};

/// Upstream's `ResourceQuota`.
pub struct ResourceQuota {
    clock: Clock,
    /// Where it is charged; without it a request is judged and nothing more.
    objects: Option<Arc<Objects>>,
    /// Let in and on its way to the store: requests side by side, on one server or on several, must not each take the
    /// last place.
    charges: Charges,
    /// Sums of stored objects, as far as they were asked for.
    tallies: Tallies,
}

impl ResourceQuota {
    /// Charging what is let in to `objects`.
    pub fn new(objects: Option<Arc<Objects>>, clock: Clock) -> ResourceQuota {
        ResourceQuota { clock, objects, charges: Charges::default(), tallies: Tallies::default() }
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
        let (a, now) = (review.attributes, self.clock.now());
        let objects = self.objects.as_deref();
        let of_quotas = GroupResource::core("resourcequotas");
        review.lookup.load(of_quotas).await;
        known(objects, of_quotas)?;
        let mut quotas = review.lookup.list(of_quotas, Some(&a.namespace));
        quotas.retain(|quota| quota::in_scope(quota, &a.resource, review.object));
        for quota in &quotas {
            complete(review, quota)?;
        }
        quotas.retain(|quota| !concerned(review, quota, now).is_empty());
        if quotas.is_empty() {
            return Ok(());
        }
        review.lookup.load(a.group_resource()).await;
        let judge_all = |coming: &[Coming]| {
            known(objects, GroupResource { group: &a.group, resource: &a.resource })?;
            quotas.iter().try_for_each(|quota| judge(review, &self.tallies, quota, coming, now))
        };
        let Some(objects) = objects.filter(|_| !review.dry_run) else { return judge_all(&[]) };
        let moment = self.charges.moment(&objects.cache, &objects.rng, &a.namespace).await?;
        let mut object = review.object.clone();
        meta::set_namespace(&mut object, &a.namespace);
        meta::set_name(&mut object, &a.name);
        let coming = Coming { group: a.group.clone(), resource: a.resource.clone(), object: Arc::new(object) };
        let _one_each = review.charge.set(moment.charge(coming, judge_all)?);
        Ok(())
    }
}

/// Refuses what cannot be counted now: an empty cache would say that nothing is used.
fn known(objects: Option<&Objects>, of: GroupResource<'_>) -> Result<(), Status> {
    let is_known = objects.is_none_or(|objects| objects.cache.kind(of).is_ready());
    if is_known { Ok(()) } else { Err(store::error::Error::TimedOut.into()) }
}

/// One amount that would be over its limit.
struct Excess<'a> {
    name: &'a str,
    asked: Quantity,
    used: Quantity,
    limit: Quantity,
}

/// Usage that the request asks for beyond that of its stored object.
fn asked(review: &Review<'_>, quota: &Value, now: Timestamp) -> Usage {
    let a = review.attributes;
    let resource = GroupResource { group: &a.group, resource: &a.resource };
    let mut asked = quota::usage_of(resource, review.object, now);
    if let Some(old) = review.old.filter(|old| quota::in_scope(quota, &a.resource, old)) {
        let had = quota::usage_of(resource, old, now);
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

fn watched(quota: &Value) -> Vec<&String> {
    quota["spec"]["hard"].as_object().into_iter().flatten().map(|(name, _)| name).collect()
}

/// A pod says how much it wants of what a quota watches.
fn complete(review: &Review<'_>, quota: &Value) -> Result<(), Status> {
    if review.attributes.resource != "pods" || !review.attributes.group.is_empty() {
        return Ok(());
    }
    let lacking: Vec<String> = quota::unspecified(review.object, &watched(quota));
    if lacking.is_empty() {
        return Ok(());
    }
    Err(review.forbidden(&format!("failed quota: {}: must specify {}", meta::name(quota), lacking.join("; "))))
}

/// Usage of the request that a quota watches.
fn concerned(review: &Review<'_>, quota: &Value, now: Timestamp) -> Usage {
    let watched = watched(quota);
    asked(review, quota, now).into_iter().filter(|(name, _)| watched.contains(&name)).collect()
}

fn judge(
    review: &Review<'_>,
    tallies: &Tallies,
    quota: &Value,
    coming: &[Coming],
    now: Timestamp,
) -> Result<(), Status> {
    let hard = |name: &str| Quantity::from_value(&quota["spec"]["hard"][name]).ok();
    let concerned = concerned(review, quota, now);
    let used = used(review, tallies, quota, coming, now)?;
    let mut over: Vec<Excess<'_>> = Vec::new();
    for (name, amount) in &concerned {
        let (name, amount) = (name.as_str(), *amount);
        let have = used.get(name).unwrap_or(Quantity::from_units(0, Notation::DecimalSi));
        if let Some(limit) = hard(name).filter(|limit| have.add(amount) > *limit) {
            over.push(Excess { name, asked: amount, used: have, limit });
        }
    }
    if over.is_empty() {
        return Ok(());
    }
    let list = |pick: fn(&Excess<'_>) -> Quantity| {
        over.iter().map(|e| format!("{}={}", e.name, pick(e))).collect::<Vec<_>>().join(",")
    };
    let why = format!(
        "exceeded quota: {}, requested: {}, used: {}, limited: {}",
        meta::name(quota),
        list(|e| e.asked),
        list(|e| e.used),
        list(|e| e.limit)
    );
    Err(review.forbidden(&why))
}

/// Usage of a quota by the stored and the coming objects of the resource. A new object of a name that is taken replaces
/// nothing. One that is being changed counts as the larger of what it is and what it becomes.
fn used(
    review: &Review<'_>,
    tallies: &Tallies,
    quota: &Value,
    coming: &[Coming],
    now: Timestamp,
) -> Result<Sums, Status> {
    let a = review.attributes;
    let counted = Counted { quota, group: &a.group, resource: &a.resource, namespace: &a.namespace };
    // Of two changes of one object the store takes one: what is on its way beside this one does not come on top of it.
    let is_other = |c: &&Coming| {
        (c.group == a.group && c.resource == a.resource)
            && meta::namespace(&c.object) == a.namespace
            && meta::name(&c.object) != a.name
    };
    let mut becomes: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for one in coming.iter().filter(is_other) {
        becomes.entry(meta::name(&one.object)).or_default().push(&one.object);
    }
    if review.operation == Operation::Create {
        becomes.insert(&a.name, Vec::new());
    }
    let names: Vec<&str> = becomes.keys().copied().collect();
    let (mut sums, stored) = tallies.used(review.lookup, &counted, &names, now)?;
    for ((name, more), is) in becomes.into_iter().zip(stored) {
        let had = is.map_or_else(Usage::new, |is| counted.usage_of(&is, now));
        sums.take(&had);
        if name != a.name {
            sums.add(&more.into_iter().map(|object| counted.usage_of(object, now)).fold(had, larger));
        }
    }
    Ok(sums)
}

/// The larger of each amount.
fn larger(mut one: Usage, other: Usage) -> Usage {
    for (name, amount) in other {
        let most = one.get(&name).copied().filter(|have| *have > amount).unwrap_or(amount);
        one.insert(name, most);
    }
    one
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn of_two_sizes_of_one_object_the_larger_of_each_amount_counts() {
        let amount = |text: &str| Quantity::from_value(&json!(text)).unwrap();
        let usage = |cpu: &str, memory: &str| {
            Usage::from([("cpu".to_owned(), amount(cpu)), ("memory".to_owned(), amount(memory))])
        };
        assert_eq!(larger(usage("2", "1Gi"), usage("500m", "2Gi")), usage("2", "2Gi"));
        assert_eq!(larger(Usage::new(), usage("1", "1")), usage("1", "1"));
    }
}
