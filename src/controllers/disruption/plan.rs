//! Disruptions that a PodDisruptionBudget allows now. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use model::phase;
use model::pod::Pod;

use super::error::BoundError;

/// An evicted pod that is still there after this time was not evicted.
const DELETION_TIMEOUT: SignedDuration = SignedDuration::from_secs(120);
const ALLOWED: &str = "DisruptionAllowed";

/// How many pods the budget counts on, and how many of them must be healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) pods: i32,
    pub(super) healthy: i32,
}

/// Whether the sum of what the pods' controllers want must be known.
pub(super) fn needs_scale(budget: &PodDisruptionBudget) -> bool {
    let spec = budget.spec.as_ref();
    spec.is_some_and(|s| s.max_unavailable.is_some() || matches!(s.min_available, Some(IntOrString::String(_))))
}

/// `scale` is the sum of what the pods' controllers want, asked for if [`needs_scale`].
pub(super) fn expected(budget: &PodDisruptionBudget, n_pods: i32, scale: i32) -> Result<Expected, BoundError> {
    let Some(spec) = &budget.spec else { return Ok(Expected { pods: 0, healthy: 0 }) };
    let of = |bound: &IntOrString| -> Result<i32, BoundError> {
        match bound {
            IntOrString::Int(n) => Ok(*n),
            IntOrString::String(text) => {
                let percent: i32 = text
                    .strip_suffix('%')
                    .and_then(|p| p.parse().ok())
                    .ok_or_else(|| BoundError { text: text.clone() })?;
                Ok((scale * percent + 99) / 100)
            }
        }
    };
    match (&spec.max_unavailable, &spec.min_available) {
        (Some(max), _) => Ok(Expected { pods: scale, healthy: (scale - of(max)?).max(0) }),
        (None, Some(min @ IntOrString::Int(_))) => Ok(Expected { pods: n_pods, healthy: of(min)? }),
        (None, Some(min)) => Ok(Expected { pods: scale, healthy: of(min)? }),
        // Who says nothing has not said that a pod may go: upstream's `getExpectedPodCount` (1.36.2) expects none, and
        // allows none.
        (None, None) => Ok(Expected { pods: 0, healthy: 0 }),
    }
}

/// The new status, pods whose eviction never came, and when to look again.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) status: PodDisruptionBudgetStatus,
    pub(super) not_deleted: Vec<Arc<Pod>>,
    pub(super) look_again: Option<Duration>,
}

/// Counts. Spec: upstream's `DisruptionController.trySync`.
pub(super) fn plan(budget: &PodDisruptionBudget, covered: &[Arc<Pod>], expected: Expected, now: Timestamp) -> Plan {
    let old = budget.status.clone().unwrap_or_default();
    let (mut disrupted, mut not_deleted, mut next) = (BTreeMap::new(), Vec::new(), None::<Timestamp>);
    for pod in covered.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        let name = pod.name_any();
        let Some(at) = old.disrupted_pods.as_ref().and_then(|pods| pods.get(&name)) else { continue };
        let until = at.0.checked_add(DELETION_TIMEOUT).unwrap_or(Timestamp::MAX);
        if until < now {
            not_deleted.push(Arc::clone(pod));
        } else {
            next = Some(next.map_or(until, |other| other.min(until)));
            disrupted.insert(name, at.clone());
        }
    }
    let counts = |pod: &&Arc<Pod>| {
        pod.metadata.deletion_timestamp.is_none() && !disrupted.contains_key(&pod.name_any()) && phase::is_ready(pod)
    };
    let healthy = i32::try_from(covered.iter().filter(counts).count()).unwrap_or(i32::MAX);
    // Without expected pods nothing is allowed: the first ones may be there before this controller has seen them.
    let allowed = if expected.pods > 0 { (healthy - expected.healthy).max(0) } else { 0 };
    let status = PodDisruptionBudgetStatus {
        current_healthy: Some(healthy),
        desired_healthy: Some(expected.healthy),
        expected_pods: Some(expected.pods),
        disruptions_allowed: Some(allowed),
        disrupted_pods: Some(disrupted).filter(|pods| !pods.is_empty()),
        observed_generation: budget.metadata.generation,
        conditions: old.conditions.clone(),
    };
    let verdict = if allowed > 0 { Verdict::Sufficient } else { Verdict::Insufficient };
    let status = with_condition(status, budget, verdict, now);
    let look_again = next.map(|at| at.duration_since(now).unsigned_abs() + Duration::from_secs(1));
    Plan { status, not_deleted, look_again }
}

/// The status when counting failed: nothing is allowed.
pub(super) fn failed(budget: &PodDisruptionBudget, why: String, now: Timestamp) -> PodDisruptionBudgetStatus {
    let mut status = budget.status.clone().unwrap_or_default();
    status.disruptions_allowed = Some(0);
    for n in [&mut status.current_healthy, &mut status.desired_healthy, &mut status.expected_pods] {
        n.get_or_insert(0);
    }
    with_condition(status, budget, Verdict::Unknown(why), now)
}

/// The condition DisruptionAllowed, in short.
enum Verdict {
    Sufficient,
    Insufficient,
    /// Counting failed, for this reason.
    Unknown(String),
}

fn with_condition(
    mut status: PodDisruptionBudgetStatus,
    budget: &PodDisruptionBudget,
    verdict: Verdict,
    now: Timestamp,
) -> PodDisruptionBudgetStatus {
    let (text, reason, message) = match verdict {
        Verdict::Sufficient => ("True", "SufficientPods", String::new()),
        Verdict::Insufficient => ("False", "InsufficientPods", String::new()),
        Verdict::Unknown(why) => ("False", "SyncFailed", why),
    };
    let conditions = status.conditions.get_or_insert_default();
    let same = conditions.iter().find(|c| c.type_ == ALLOWED && c.status == text);
    let since = same.map_or(Time(now), |c| c.last_transition_time.clone());
    conditions.retain(|c| c.type_ != ALLOWED);
    conditions.push(Condition {
        type_: ALLOWED.to_owned(),
        status: text.to_owned(),
        reason: reason.to_owned(),
        message,
        last_transition_time: since,
        observed_generation: budget.metadata.generation,
    });
    status
}

/// When a pod's announcement of its disruption is out of date, from now; `None` if it has none, or is going.
pub(super) fn stale_after(pod: &Pod, now: Timestamp) -> Option<SignedDuration> {
    if !phase::is_active(pod) {
        return None;
    }
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let target = conditions.iter().find(|c| c.type_ == "DisruptionTarget" && c.status == "True")?;
    let since = target.last_transition_time.as_ref()?.0;
    Some(DELETION_TIMEOUT - now.duration_since(since))
}
