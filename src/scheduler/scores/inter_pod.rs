//! Pods that would like to be near or far from other pods, from both sides of the wish.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, PodAffinityTerm, WeightedPodAffinityTerm};
use model::pod::Pod;

use crate::filters::{Candidate, inter_pod};
use crate::snapshot::{NodeState, Snapshot};

/// Weight of a required affinity of a pod that runs already when the other side is placed (upstream's
/// `hardPodAffinityWeight`).
const REQUIRED_WEIGHT: i64 = 1;

/// Liking by topology key and value.
type Likings<'a> = BTreeMap<(String, &'a str), i64>;

fn near(affinity: Option<&Affinity>) -> &[WeightedPodAffinityTerm] {
    let affinity = affinity.and_then(|a| a.pod_affinity.as_ref());
    affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref()).unwrap_or_default()
}

fn far(affinity: Option<&Affinity>) -> &[WeightedPodAffinityTerm] {
    let affinity = affinity.and_then(|a| a.pod_anti_affinity.as_ref());
    affinity.and_then(|a| a.preferred_during_scheduling_ignored_during_execution.as_deref()).unwrap_or_default()
}

/// The wishes of one pod, with their weights; negative is away.
fn wishes(pod: &Pod) -> impl Iterator<Item = (&PodAffinityTerm, i64)> {
    let affinity = pod.spec.as_ref().and_then(|s| s.affinity.as_deref());
    let near = near(affinity).iter().map(|term| (&term.pod_affinity_term, i64::from(term.weight)));
    near.chain(far(affinity).iter().map(|term| (&term.pod_affinity_term, -i64::from(term.weight))))
}

/// 0 to 100 for each node, as upstream's InterPodAffinity: the most liked gets 100, the least liked 0.
pub(super) fn scores(candidate: &Candidate<'_>, nodes: &[&NodeState], snapshot: &Snapshot) -> Vec<i64> {
    let home = candidate.pod.metadata.namespace.as_deref();
    let own: Vec<_> = wishes(candidate.pod).collect();
    let mut likings = Likings::new();
    for node in snapshot.nodes.values() {
        for pod in &node.pods {
            for (term, weight) in &own {
                if inter_pod::concerns(term, home, pod, snapshot) {
                    like(&mut likings, node, term, *weight);
                }
            }
            let required = inter_pod::required_affinity(pod).iter().map(|term| (term, REQUIRED_WEIGHT));
            for (term, weight) in wishes(pod).chain(required) {
                if inter_pod::concerns(term, pod.metadata.namespace.as_deref(), candidate.pod, snapshot) {
                    like(&mut likings, node, term, weight);
                }
            }
        }
    }
    let liking = |node: &&NodeState| -> i64 {
        likings.iter().filter(|((key, value), _)| node.label(key) == Some(*value)).map(|(_, weight)| weight).sum()
    };
    let raw: Vec<i64> = nodes.iter().map(liking).collect();
    let (min, max) = (raw.iter().copied().min().unwrap_or(0), raw.iter().copied().max().unwrap_or(0));
    raw.into_iter().map(|raw| ((raw - min) * 100).checked_div(max - min).unwrap_or(0)).collect()
}

fn like<'a>(likings: &mut Likings<'a>, node: &'a NodeState, term: &PodAffinityTerm, weight: i64) {
    if let Some(value) = node.label(&term.topology_key) {
        *likings.entry((term.topology_key.clone(), value)).or_insert(0) += weight;
    }
}
