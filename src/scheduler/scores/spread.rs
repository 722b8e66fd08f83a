//! Topology spread that is wished, not demanded (`ScheduleAnyway`): emptier domains score higher. Spec: KEP-895.

use k8s_openapi::api::core::v1::TopologySpreadConstraint;

use crate::filters::{Candidate, spread};
use crate::snapshot::{NodeState, Snapshot};

/// 0 to 100 for each node, as upstream's PodTopologySpread; a node without one of the topology labels gets 0.
pub(super) fn scores(candidate: &Candidate<'_>, nodes: &[&NodeState], snapshot: &Snapshot) -> Vec<i64> {
    let constraints = candidate.spec.topology_spread_constraints.iter().flatten();
    let wished: Vec<&TopologySpreadConstraint> = constraints.filter(|c| c.when_unsatisfiable == "ScheduleAnyway").collect();
    if wished.is_empty() {
        return vec![0; nodes.len()];
    }
    let counted: Vec<bool> = nodes.iter().map(|node| wished.iter().all(|c| node.label(&c.topology_key).is_some())).collect();
    let mut raw = vec![0f64; nodes.len()];
    for constraint in &wished {
        let domains = spread::domains(candidate, constraint, &wished, snapshot);
        let usable = nodes.iter().zip(&counted).filter(|(_, counted)| **counted);
        let values: std::collections::BTreeSet<&str> = usable.filter_map(|(node, _)| node.label(&constraint.topology_key)).collect();
        // Few domains hold many pods each: without the weight they would drown a constraint over many.
        let weight = real(i64::try_from(values.len()).unwrap_or(i64::MAX).saturating_add(2)).ln();
        for (raw, node) in raw.iter_mut().zip(nodes) {
            let count = node.label(&constraint.topology_key).and_then(|value| domains.get(value)).copied().unwrap_or(0);
            *raw += real(count) * weight + f64::from(constraint.max_skew - 1);
        }
    }
    let counts = || raw.iter().zip(&counted).filter(|(_, counted)| **counted).map(|(raw, _)| raw.round());
    let (min, max) = (counts().fold(f64::MAX, f64::min), counts().fold(0f64, f64::max));
    let scaled = |raw: f64| if max == 0.0 { 100.0 } else { 100.0 * (max + min - raw.round()) / max };
    raw.iter().zip(&counted).map(|(raw, counted)| if *counted { whole(scaled(*raw)) } else { 0 }).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts of pods and nodes are far below 2^52")]
fn real(count: i64) -> f64 {
    count as f64
}

#[expect(clippy::cast_possible_truncation, reason = "between 0 and 100")]
fn whole(score: f64) -> i64 {
    score as i64
}
