//! Room for a pod that fits nowhere: which pods of lower priority would have to go, and from which node. Pure.
//!
//! Spec: upstream's DefaultPreemption plugin. Budgets are spared where that is possible, and only there: a preemption
//! may break one.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use model::budget::{self, Asker};
use model::pod::Pod;

use crate::filters::{self, Candidate, Reasons};
use crate::snapshot::{NodeState, Snapshot};

/// Pods that have to go, and their node.
#[derive(Clone, Debug, PartialEq)]
pub struct Preemption {
    /// The node that will have room.
    pub node: String,
    /// The pods to delete there, the most important first.
    pub victims: Vec<Arc<Pod>>,
    /// How many of them a disruption budget would spare.
    pub violations: usize,
}

/// The pod's priority; upstream's default is 0.
pub fn priority(pod: &Pod) -> i32 {
    pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0)
}

/// Why a pod makes no room for itself, in upstream's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ineligible {
    /// It asks not to.
    #[error("not eligible due to preemptionPolicy=Never.")]
    Never,
    /// It made room before, which is still being cleared.
    #[error("not eligible due to a terminating pod on the nominated node.")]
    Waits,
}

/// Why there is no preemption, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The pod makes no room for itself, or made it and waits.
    NotEligible(Ineligible),
    /// On no node would it help.
    NoVictims(String),
}

/// Finds the preemption that hurts least.
pub fn plan(candidate: &Candidate<'_>, snapshot: &Snapshot) -> Result<Preemption, Refusal> {
    eligible(candidate, snapshot).map_err(Refusal::NotEligible)?;
    // One copy, in which one node at a time is emptied: affinity and spread look at all nodes.
    let mut trial = snapshot.clone();
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    let mut best: Option<(Cost, Preemption)> = None;
    for (name, state) in &snapshot.nodes {
        let found = victims(candidate, name, state, &mut trial);
        trial.nodes.insert(name.clone(), state.clone());
        match found {
            Ok(preemption) => {
                let cost = cost(&preemption);
                if best.as_ref().is_none_or(|(least, _)| cost < *least) {
                    best = Some((cost, preemption));
                }
            }
            Err(reasons) => reasons.into_iter().for_each(|reason| *refused.entry(reason).or_default() += 1),
        }
    }
    let none = || Refusal::NoVictims(fit_error(snapshot.nodes.len(), &refused));
    best.map(|(_, preemption)| preemption).ok_or_else(none)
}

/// The answer when no node was even looked at, e.g. because a claim is missing.
pub fn not_helpful(snapshot: &Snapshot) -> String {
    let n = snapshot.nodes.len();
    fit_error(n, &BTreeMap::from([(NOT_HELPFUL.to_owned(), n)]))
}

const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

fn eligible(candidate: &Candidate<'_>, snapshot: &Snapshot) -> Result<(), Ineligible> {
    if candidate.spec.preemption_policy.as_deref() == Some("Never") {
        return Err(Ineligible::Never);
    }
    let nominated = candidate.pod.status.as_ref().and_then(|s| s.nominated_node_name.as_deref()).unwrap_or_default();
    let leaving = |pod: &Arc<Pod>| pod.metadata.deletion_timestamp.is_some() && priority(pod) < priority(candidate.pod);
    // The room made before is still being cleared: a second set of victims would go for nothing.
    if snapshot.nodes.get(nominated).is_some_and(|node| node.pods.iter().any(leaving)) {
        return Err(Ineligible::Waits);
    }
    Ok(())
}

/// The fewest and least important pods whose end makes room on this node.
fn victims(
    candidate: &Candidate<'_>,
    name: &str,
    state: &NodeState,
    trial: &mut Snapshot,
) -> Result<Preemption, Reasons> {
    let budgets = trial.budgets.clone();
    let mut refuses = |kept: &[Arc<Pod>]| -> Reasons {
        trial.nodes.insert(name.to_owned(), state.with_pods(kept));
        trial.nodes.get(name).map(|node| filters::reasons_against(candidate, node, trial)).unwrap_or_default()
    };
    if !refuses(&[]).is_empty() {
        return Err(vec![NOT_HELPFUL.to_owned()]);
    }
    let mine = priority(candidate.pod);
    let (mut lower, mut kept): (Vec<_>, Vec<_>) = state.pods.iter().cloned().partition(|pod| priority(pod) < mine);
    if lower.is_empty() {
        return Err(vec!["No preemption victims found for incoming pod".to_owned()]);
    }
    let reasons = refuses(&kept);
    if !reasons.is_empty() {
        return Err(reasons);
    }
    // The important and the long-running are spared first, and before them those that a budget protects.
    lower.sort_by_key(|pod| (Reverse(priority(pod)), started(pod)));
    let (protected, free) = split_by_budgets(lower, &budgets);
    let (mut victims, mut violations) = (Vec::new(), 0);
    let order = protected.into_iter().map(|pod| (pod, 1)).chain(free.into_iter().map(|pod| (pod, 0)));
    for (pod, violation) in order {
        kept.push(Arc::clone(&pod));
        if !refuses(&kept).is_empty() {
            kept.pop();
            victims.push(pod);
            violations += violation;
        }
    }
    victims.sort_by_key(|pod| (Reverse(priority(pod)), started(pod)));
    Ok(Preemption { node: name.to_owned(), victims, violations })
}

/// The pods whose end would break a budget, given that those before them end too, and the others.
fn split_by_budgets(pods: Vec<Arc<Pod>>, budgets: &[Arc<PodDisruptionBudget>]) -> (Vec<Arc<Pod>>, Vec<Arc<Pod>>) {
    let status = |budget: &PodDisruptionBudget| budget.status.clone().unwrap_or_default();
    let mut allowed: Vec<i32> = budgets.iter().map(|budget| status(budget).disruptions_allowed.unwrap_or(0)).collect();
    pods.into_iter().partition(|pod| {
        let mut breaks = false;
        for (budget, allowed) in budgets.iter().zip(&mut allowed) {
            let leaving = |budget: &PodDisruptionBudget| {
                status(budget)
                    .disrupted_pods
                    .is_some_and(|gone| pod.metadata.name.as_ref().is_some_and(|name| gone.contains_key(name)))
            };
            if budget::covers(budget, &pod.metadata, Asker::Preemption) && !leaving(budget) {
                *allowed -= 1;
                breaks |= *allowed < 0;
            }
        }
        breaks
    })
}

/// `0/3 nodes are available: 1 Insufficient cpu, 2 node(s) were unschedulable.`, sorted as upstream sorts: as text,
/// count included.
pub fn fit_error(total: usize, refused: &BTreeMap<String, usize>) -> String {
    let mut reasons: Vec<String> = refused.iter().map(|(reason, count)| format!("{count} {reason}")).collect();
    reasons.sort();
    format!("0/{total} nodes are available: {}.", reasons.join(", "))
}

fn started(pod: &Pod) -> Option<jiff::Timestamp> {
    pod.status.as_ref()?.start_time.as_ref().map(|time| time.0)
}

/// Cost of a preemption, the less the better: budgets broken, highest priority, sum of priorities, pods, and how
/// long they ran.
type Cost = (usize, i32, i64, usize, Reverse<Option<jiff::Timestamp>>);

fn cost(preemption: &Preemption) -> Cost {
    let victims = &preemption.victims;
    let highest = victims.iter().map(|pod| priority(pod)).max().unwrap_or(i32::MIN);
    let sum = victims.iter().map(|pod| i64::from(priority(pod)) + i64::from(i32::MAX) + 1).sum();
    let earliest = victims.iter().filter(|pod| priority(pod) == highest).filter_map(|pod| started(pod)).min();
    (preemption.violations, highest, sum, victims.len(), Reverse(earliest))
}
