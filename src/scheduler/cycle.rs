//! One decision: a pod and a snapshot in, a node or the reasons out. Pure.

use std::collections::BTreeMap;

use model::pod::Pod;

use crate::filters::claims::after_filters;
use crate::filters::volumes::Placement;
use crate::filters::{self, Candidate};
use crate::preempt::{self, Preemption, Refusal, fit_error};
use crate::scores;
use crate::snapshot::{NodeState, Snapshot};

/// How a pod that no node can take may come to one.
#[derive(Clone, Debug, PartialEq)]
pub enum Room {
    /// By nothing that this scheduler could do: a node that was kept for it is given back.
    None,
    /// As it was before: it asks for no victims, or those that it asked for are still going.
    AsBefore,
    /// By the end of others.
    Of(Preemption),
}

/// Decision of one cycle.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Bind the pod to this node.
    Bind {
        /// The node's name.
        node: String,
    },
    /// No node can take it now; the text is that of the event and the condition.
    Unschedulable {
        /// Upstream's `FitError` text.
        message: String,
        /// The preemption that would make room for it.
        room: Room,
    },
}

/// Picks the node for `pod`. `tie` chooses among equally good nodes (any number; its remainder counts).
pub fn decide(pod: &Pod, snapshot: &Snapshot, tie: u64) -> Decision {
    let Some(candidate) = Candidate::of(pod) else { return hopeless("pod has no spec".to_owned()) };
    let total = snapshot.nodes.len();
    if total == 0 {
        return hopeless("no nodes available to schedule pods".to_owned());
    }
    if let Some(reason) = filters::reason_against_all(&candidate, snapshot) {
        let message = format!("0/{total} nodes are available: {reason}.");
        return hopeless(format!(
            "{message} {}, preemption: {}",
            after_filters(&candidate),
            preempt::not_helpful(snapshot)
        ));
    }
    let mut fit: Vec<&NodeState> = Vec::new();
    let mut refused: BTreeMap<String, usize> = BTreeMap::new();
    for node in snapshot.nodes.values() {
        let reasons = filters::reasons_against(&candidate, node, snapshot);
        if reasons.is_empty() {
            fit.push(node);
        }
        for reason in reasons {
            *refused.entry(reason).or_default() += 1;
        }
    }
    if fit.is_empty() {
        let message = fit_error(total, &refused);
        return match preempt::plan(&candidate, snapshot) {
            Ok(preemption) => Decision::Unschedulable { message, room: Room::Of(preemption) },
            Err(refusal) => {
                let (room, why) = match refusal {
                    Refusal::NotEligible(why) => (Room::AsBefore, why.to_string()),
                    Refusal::NoVictims(why) => (Room::None, why),
                };
                let message = format!("{message} {}, preemption: {why}", after_filters(&candidate));
                Decision::Unschedulable { message, room }
            }
        };
    }
    let totals = scores::totals(&candidate, &fit, snapshot);
    let best = totals.iter().copied().max().unwrap_or(0);
    let equals: Vec<&NodeState> =
        fit.iter().zip(&totals).filter(|(_, total)| **total == best).map(|(node, _)| *node).collect();
    let idx = usize::try_from(tie % u64::try_from(equals.len()).unwrap_or(1).max(1)).unwrap_or(0);
    Decision::Bind { node: equals[idx].name().to_owned() }
}

/// Where the pod's waiting claims get their volumes on the node that was picked.
pub fn placement(pod: &Pod, node: &str, snapshot: &Snapshot) -> Placement {
    let (Some(candidate), Some(node)) = (Candidate::of(pod), snapshot.nodes.get(node)) else {
        return Placement::default();
    };
    // The filter has found that it can be.
    filters::volumes::place(&candidate, node, snapshot).unwrap_or_default()
}

fn hopeless(message: String) -> Decision {
    Decision::Unschedulable { message, room: Room::None }
}
