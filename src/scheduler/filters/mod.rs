//! Which nodes can take a pod at all. Each filter is one function; the list below is their order, as upstream's default
//! plugins.

mod candidate;
mod capacity;
pub(crate) mod claims;
pub mod csi;
pub(crate) mod inter_pod;
mod ports;
pub(crate) mod spread;
pub mod volumes;

use std::collections::BTreeSet;

use candidate::because;
pub use candidate::{Candidate, Reasons};

use crate::affinity;
use crate::snapshot::{NodeState, Snapshot};

type Filter = fn(&Candidate<'_>, &NodeState, &Snapshot) -> Reasons;

const FILTERS: [Filter; 11] = [
    unschedulable,
    node_name,
    taints,
    node_affinity,
    ports::filter,
    fit,
    csi::filter,
    volumes::filter,
    spread::filter,
    inter_pod::filter,
    claims::filter,
];

/// The first filter's reasons against this node; empty if the node can take the pod.
pub fn reasons_against(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> Reasons {
    FILTERS
        .iter()
        .map(|filter| filter(candidate, node, snapshot))
        .find(|reasons| !reasons.is_empty())
        .unwrap_or_default()
}

/// What makes a pod unschedulable on every node alike, e.g. a claim that does not exist.
pub fn reason_against_all(candidate: &Candidate<'_>, snapshot: &Snapshot) -> Option<String> {
    volumes::prefilter(candidate, snapshot).or_else(|| claims::prefilter(candidate))
}

fn unschedulable(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    let cordoned = node.node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
    let taint = k8s_openapi::api::core::v1::Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Default::default()
    };
    let tolerated = candidate.spec.tolerations.iter().flatten().any(|t| affinity::tolerates(t, &taint));
    because(cordoned && !tolerated, "node(s) were unschedulable")
}

fn node_name(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    let wanted = candidate.spec.node_name.as_deref().unwrap_or_default();
    because(!wanted.is_empty() && wanted != node.name(), "node(s) didn't match the requested node name")
}

fn taints(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    let taints = node.node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    let mut hard = taints.filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"));
    let untolerated =
        hard.any(|taint| !candidate.spec.tolerations.iter().flatten().any(|t| affinity::tolerates(t, taint)));
    because(untolerated, "node(s) had untolerated taint(s)")
}

fn node_affinity(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    let selector = candidate.spec.node_selector.iter().flatten();
    let by_labels = selector.into_iter().all(|(key, value)| node.label(key) == Some(value.as_str()));
    let required = candidate
        .spec
        .affinity
        .as_ref()
        .and_then(|a| a.node_affinity.as_ref())
        .and_then(|a| a.required_during_scheduling_ignored_during_execution.as_ref());
    let by_affinity = required.is_none_or(|selector| affinity::node_selector_matches(selector, node));
    because(!(by_labels && by_affinity), "node(s) didn't match Pod's node affinity/selector")
}

/// Whether the pod's selector and affinity take the node.
pub(crate) fn is_wanted(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> bool {
    node_affinity(candidate, node, snapshot).is_empty()
}

fn fit(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    let mut reasons = Reasons::new();
    let pods_max = node.allocatable.get("pods").copied().unwrap_or(0);
    if i64::try_from(node.pods.len()).unwrap_or(i64::MAX) >= pods_max {
        reasons.push("Too many pods".to_owned());
    }
    // CPU and memory first, as upstream names them; then the rest by name.
    let first = ["cpu", "memory", "ephemeral-storage"];
    let named: BTreeSet<&str> = first.into_iter().collect();
    let rest = candidate.need.keys().map(String::as_str).filter(|name| !named.contains(name));
    for name in first.into_iter().chain(rest) {
        let need = candidate.need.get(name).copied().unwrap_or(0);
        let free = node.allocatable.get(name).copied().unwrap_or(0) - node.used.get(name).copied().unwrap_or(0);
        if need > 0 && need > free {
            reasons.push(format!("Insufficient {name}"));
        }
    }
    reasons
}
