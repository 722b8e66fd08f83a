//! Which of the nodes that can take a pod suits it best. Each score is 0 to 100 times its weight, as upstream's
//! defaults.

mod inter_pod;
mod spread;

use model::requests::Amounts;
use model::taints::is_tolerated;

use crate::affinity;
use crate::filters::Candidate;
use crate::resources;
use crate::snapshot::{NodeState, Snapshot};

/// How a score looks at the nodes: one by one, or at all of them together.
#[derive(Clone, Copy)]
enum Score {
    Each(fn(&Candidate<'_>, &NodeState, &Snapshot) -> i64),
    All(fn(&Candidate<'_>, &[&NodeState], &Snapshot) -> Vec<i64>),
}

/// How raw scores become 0 to 100 over all nodes.
#[derive(Clone, Copy)]
enum Scale {
    /// They are already.
    AsIs,
    /// The highest becomes 100.
    HighIsGood,
    /// The lowest becomes 100.
    LowIsGood,
}

const SCORES: [(Score, Scale, i64); 7] = [
    (Score::Each(intolerable_taints), Scale::LowIsGood, 3),
    (Score::Each(preferred_node_affinity), Scale::HighIsGood, 2),
    (Score::All(spread::scores), Scale::AsIs, 2),
    (Score::All(inter_pod::scores), Scale::AsIs, 2),
    (Score::Each(least_allocated), Scale::AsIs, 1),
    (Score::Each(balanced), Scale::AsIs, 1),
    (Score::Each(image_locality), Scale::AsIs, 1),
];

/// An image under this size counts for nothing, one of five times as much a container fully (upstream's thresholds).
const IMAGE_BYTES_MIN: i64 = 23 * 1024 * 1024;
const IMAGE_BYTES_MAX: i64 = 1000 * 1024 * 1024;

/// The weighted sums of all scores, in the order of `nodes`.
pub fn totals(candidate: &Candidate<'_>, nodes: &[&NodeState], snapshot: &Snapshot) -> Vec<i64> {
    let mut totals = vec![0; nodes.len()];
    for (score, scale, weight) in SCORES {
        let raw = match score {
            Score::Each(score) => nodes.iter().map(|node| score(candidate, node, snapshot)).collect(),
            Score::All(scores) => scores(candidate, nodes, snapshot),
        };
        let max = raw.iter().copied().max().unwrap_or(0);
        for (total, raw) in totals.iter_mut().zip(raw) {
            let scaled = match scale {
                Scale::AsIs => raw,
                Scale::HighIsGood => (raw * 100).checked_div(max).unwrap_or(0),
                Scale::LowIsGood => 100 - (raw * 100).checked_div(max).unwrap_or(0),
            };
            *total += weight * scaled;
        }
    }
    totals
}

fn intolerable_taints(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> i64 {
    let taints =
        node.node.spec.iter().flat_map(|s| s.taints.iter().flatten()).filter(|t| t.effect == "PreferNoSchedule");
    let untolerated = taints.filter(|taint| !is_tolerated(taint, candidate.spec.tolerations.as_deref()));
    i64::try_from(untolerated.count()).unwrap_or(i64::MAX / 1000)
}

fn preferred_node_affinity(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> i64 {
    let affinity = candidate.spec.affinity.as_ref().and_then(|a| a.node_affinity.as_ref());
    let preferred =
        affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref()).unwrap_or_default();
    preferred.iter().filter(|p| affinity::term_matches(&p.preference, node)).map(|p| i64::from(p.weight)).sum()
}

fn after(candidate: &Candidate<'_>, node: &NodeState, name: &str) -> (i64, i64) {
    let need: Amounts = resources::of_pod_for_score(candidate.pod);
    let used = node.used_for_score.get(name).copied().unwrap_or(0) + need.get(name).copied().unwrap_or(0);
    (used, node.allocatable.get(name).copied().unwrap_or(0))
}

fn least_allocated(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> i64 {
    let free = |name| {
        let (used, all) = after(candidate, node, name);
        if all <= 0 || used >= all { 0 } else { (all - used) * 100 / all }
    };
    (free("cpu") + free("memory")) / 2
}

fn balanced(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> i64 {
    let percent = |name| {
        let (used, all) = after(candidate, node, name);
        if all <= 0 { 100 } else { (used.saturating_mul(100) / all).min(100) }
    };
    // With two resources the standard deviation is half of their distance.
    100 - (percent("cpu") - percent("memory")).abs() / 2
}

fn image_locality(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> i64 {
    let nodes_total = i64::try_from(snapshot.nodes.len()).unwrap_or(i64::MAX).max(1);
    let size_on = |node: &NodeState, image: &str| {
        let images = node.node.status.iter().flat_map(|s| s.images.iter().flatten());
        images.filter(|i| i.names.iter().flatten().any(|name| name == image)).find_map(|i| i.size_bytes)
    };
    let mut sum = 0i64;
    for container in &candidate.spec.containers {
        let image = container.image.as_deref().unwrap_or_default();
        if let Some(size) = size_on(node, image) {
            let holders = snapshot.nodes.values().filter(|n| size_on(n, image).is_some()).count();
            // An image on few nodes counts less, or one node would draw every pod that uses it.
            sum = sum.saturating_add(size.saturating_mul(i64::try_from(holders).unwrap_or(1)) / nodes_total);
        }
    }
    let max = IMAGE_BYTES_MAX.saturating_mul(i64::try_from(candidate.spec.containers.len()).unwrap_or(1).max(1));
    (sum.clamp(IMAGE_BYTES_MIN, max) - IMAGE_BYTES_MIN) * 100 / (max - IMAGE_BYTES_MIN)
}
