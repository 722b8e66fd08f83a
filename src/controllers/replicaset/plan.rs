//! How many pods to make or give up. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use model::pod::Pod;

use model::phase;

/// At most this many pods are made or given up in one go (upstream's `BurstReplicas`).
const BURST: usize = 500;

/// Work to do on the number of pods.
#[derive(Debug)]
pub(super) enum Action {
    /// As it should be.
    None,
    /// Make this many.
    Create(usize),
    /// Give these up.
    Delete(Vec<Arc<Pod>>),
}

/// Compares the pods that are `active` and owned with what the spec wants. `related` gives the pods of all sets of the
/// same controller, e.g. of a Deployment in a rollout: a node that has many of them gives up one first.
pub(super) fn plan(
    set: &ReplicaSet,
    active: &[Arc<Pod>],
    related: impl FnOnce() -> Vec<Arc<Pod>>,
    now: Timestamp,
) -> Action {
    let wanted = usize::try_from(set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)).unwrap_or(0);
    if active.len() < wanted {
        return Action::Create((wanted - active.len()).min(BURST));
    }
    let surplus = (active.len() - wanted).min(BURST);
    if surplus == 0 {
        return Action::None;
    }
    let mut on_node: BTreeMap<String, usize> = BTreeMap::new();
    let node = |pod: &Pod| pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default();
    for pod in related().iter().filter(|pod| phase::is_active(pod)) {
        *on_node.entry(node(pod)).or_default() += 1;
    }
    let mut ranked: Vec<Arc<Pod>> = active.to_vec();
    ranked.sort_by_cached_key(|pod| {
        phase::deletion_rank(pod, on_node.get(&node(pod)).copied().unwrap_or(0), phase::Ages::Doubling(now))
    });
    ranked.truncate(surplus);
    Action::Delete(ranked)
}

/// The status that the pods amount to. `failure` is the last failed attempt to make or give up pods: its reason and
/// text.
pub(super) fn status(
    set: &ReplicaSet,
    owned: &[Arc<Pod>],
    failure: Option<(&str, &str)>,
    now: Timestamp,
) -> ReplicaSetStatus {
    let spec = set.spec.clone().unwrap_or_default();
    let min_ready = spec.min_ready_seconds.unwrap_or(0);
    let template = spec.template.and_then(|t| t.metadata).and_then(|m| m.labels).unwrap_or_default();
    let has_labels =
        |pod: &Pod| template.iter().all(|(k, v)| pod.metadata.labels.as_ref().and_then(|l| l.get(k)) == Some(v));
    let count = |test: &dyn Fn(&Pod) -> bool| {
        i32::try_from(owned.iter().filter(|pod| phase::is_active(pod) && test(pod)).count()).unwrap_or(i32::MAX)
    };
    let terminating = owned.iter().filter(|p| p.metadata.deletion_timestamp.is_some() && !phase::has_ended(p));
    let old = set.status.clone().unwrap_or_default();
    ReplicaSetStatus {
        replicas: count(&|_| true),
        fully_labeled_replicas: Some(count(&has_labels)),
        ready_replicas: Some(count(&phase::is_ready)),
        available_replicas: Some(count(&|pod| phase::is_available(pod, min_ready, now))),
        terminating_replicas: Some(i32::try_from(terminating.count()).unwrap_or(i32::MAX)),
        observed_generation: set.metadata.generation,
        conditions: conditions(old.conditions.unwrap_or_default(), failure, now),
    }
}

fn conditions(
    old: Vec<ReplicaSetCondition>,
    failure: Option<(&str, &str)>,
    now: Timestamp,
) -> Option<Vec<ReplicaSetCondition>> {
    let before = old.iter().find(|c| c.type_ == "ReplicaFailure").cloned();
    let mut conditions: Vec<ReplicaSetCondition> = old.into_iter().filter(|c| c.type_ != "ReplicaFailure").collect();
    if let Some((reason, message)) = failure {
        // One that says so already stays as it is: each pod has another name in the message, and a status that changes
        // with every failure asks for the next try at once.
        conditions.push(before.filter(|c| c.reason.as_deref() == Some(reason)).unwrap_or_else(|| {
            ReplicaSetCondition {
                type_: "ReplicaFailure".to_owned(),
                status: "True".to_owned(),
                reason: Some(reason.to_owned()),
                message: Some(message.to_owned()),
                last_transition_time: Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now)),
            }
        }));
    }
    (!conditions.is_empty()).then_some(conditions)
}

/// When the next ready pod becomes available, in seconds from now.
pub(super) fn next_available_secs(set: &ReplicaSet, active: &[Arc<Pod>], now: Timestamp) -> Option<u64> {
    let min_ready = i64::from(set.spec.as_ref().and_then(|s| s.min_ready_seconds).unwrap_or(0));
    let left = |pod: &Arc<Pod>| Some(min_ready - now.duration_since(phase::ready_since(pod)?).as_secs());
    active.iter().filter_map(left).filter(|left| *left > 0).min().and_then(|left| u64::try_from(left).ok())
}
