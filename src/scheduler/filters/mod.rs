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

use candidate::because;
pub use candidate::{Candidate, Reasons};
use k8s_openapi::api::core::v1::Taint;
use model::taints::is_tolerated;

use crate::affinity;
use crate::snapshot::{NodeState, Snapshot};

/// The resource that counts a node's pods.
const PODS: &str = "pods";

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

/// The reason that makes a pod unschedulable on every node alike, e.g. a claim that does not exist.
pub fn reason_against_all(candidate: &Candidate<'_>, snapshot: &Snapshot) -> Option<String> {
    volumes::prefilter(candidate, snapshot).or_else(|| claims::prefilter(candidate))
}

/// Whether the node is cordoned and the pod does not tolerate it.
pub fn is_cordoned_for(candidate: &Candidate<'_>, node: &NodeState) -> bool {
    let cordoned = node.node.spec.as_ref().and_then(|s| s.unschedulable).unwrap_or(false);
    let taint = Taint {
        key: "node.kubernetes.io/unschedulable".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    cordoned && !is_tolerated(&taint, candidate.spec.tolerations.as_deref())
}

fn unschedulable(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    because(is_cordoned_for(candidate, node), "node(s) were unschedulable")
}

fn node_name(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    let wanted = candidate.spec.node_name.as_deref().unwrap_or_default();
    because(!wanted.is_empty() && wanted != node.name(), "node(s) didn't match the requested node name")
}

/// The node's taints that keep the pod away.
pub fn untolerated<'n>(candidate: &Candidate<'_>, node: &'n NodeState) -> impl Iterator<Item = &'n Taint> {
    let taints = node.node.spec.iter().flat_map(|s| s.taints.iter().flatten());
    let hard = taints.filter(|taint| matches!(taint.effect.as_str(), "NoSchedule" | "NoExecute"));
    hard.filter(|taint| !is_tolerated(taint, candidate.spec.tolerations.as_deref()))
}

fn taints(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    because(untolerated(candidate, node).next().is_some(), "node(s) had untolerated taint(s)")
}

/// The labels of the pod's `nodeSelector` that the node lacks.
pub fn missing_labels<'p>(
    candidate: &Candidate<'p>,
    node: &NodeState,
) -> impl Iterator<Item = (&'p String, &'p String)> {
    let selector = candidate.spec.node_selector.iter().flatten();
    selector.filter(|(key, value)| node.label(key) != Some(value.as_str()))
}

/// Whether the pod's required node affinity takes the node.
pub fn is_by_affinity(candidate: &Candidate<'_>, node: &NodeState) -> bool {
    affinity::is_allowed(candidate.spec.affinity.as_deref(), node)
}

fn node_affinity(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    let wanted = missing_labels(candidate, node).next().is_none() && is_by_affinity(candidate, node);
    because(!wanted, "node(s) didn't match Pod's node affinity/selector")
}

/// Whether the pod's selector and affinity take the node.
pub(crate) fn is_wanted(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> bool {
    node_affinity(candidate, node, snapshot).is_empty()
}

/// A resource of which a node has less left than a pod needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shortfall {
    /// `pods`, `cpu`, …
    pub resource: String,
    /// The pod's need: of CPU thousandths, else whole units.
    pub need: i64,
    /// The node's rest.
    pub free: i64,
}

/// Resources that the node lacks: room for one pod more, then CPU and memory first, as upstream names them, and the
/// rest by name.
pub fn shortfalls(candidate: &Candidate<'_>, node: &NodeState) -> Vec<Shortfall> {
    let allocatable = |name: &str| node.allocatable.get(name).copied().unwrap_or(0);
    let n_pods = i64::try_from(node.pods.len()).unwrap_or(i64::MAX);
    let pods = Shortfall { resource: PODS.to_owned(), need: 1, free: allocatable(PODS).saturating_sub(n_pods) };
    let first = ["cpu", "memory", "ephemeral-storage"];
    let rest = candidate.need.keys().map(String::as_str).filter(|name| !first.contains(name));
    let amounts = first.into_iter().chain(rest).map(|name| Shortfall {
        resource: name.to_owned(),
        need: candidate.need.get(name).copied().unwrap_or(0),
        free: allocatable(name) - node.used.get(name).copied().unwrap_or(0),
    });
    std::iter::once(pods).chain(amounts).filter(|one| one.need > 0 && one.need > one.free).collect()
}

fn fit(candidate: &Candidate<'_>, node: &NodeState, _: &Snapshot) -> Reasons {
    let text = |short: Shortfall| match short.resource.as_str() {
        PODS => "Too many pods".to_owned(),
        name => format!("Insufficient {name}"),
    };
    shortfalls(candidate, node).into_iter().map(text).collect()
}
