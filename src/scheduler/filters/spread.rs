//! Topology spread: no domain may run too far ahead of the emptiest. Spec: KEP-895.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use model::pod::Pod;

use super::candidate::{Candidate, Reasons, because};
use crate::affinity;
use crate::snapshot::{NodeState, Snapshot};

/// Pods on `node` that count for this constraint.
fn matching(candidate: &Candidate<'_>, constraint: &TopologySpreadConstraint, node: &NodeState) -> i64 {
    let counts = |pod: &Pod| {
        pod.metadata.namespace == candidate.pod.metadata.namespace
            && pod.metadata.deletion_timestamp.is_none()
            && affinity::label_selector_matches(constraint.label_selector.as_ref(), pod.metadata.labels.as_ref())
            && constraint.match_label_keys.iter().flatten().all(|key| label(pod, key) == label(candidate.pod, key))
    };
    i64::try_from(node.pods.iter().filter(|pod| counts(pod)).count()).unwrap_or(i64::MAX)
}

fn label<'a>(pod: &'a Pod, key: &str) -> Option<&'a String> {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get(key))
}

/// Pods that match, by value of the topology key, over the nodes the pod could use at all: those that have every label
/// that the constraints `together` speak of.
pub(crate) fn domains(
    candidate: &Candidate<'_>,
    constraint: &TopologySpreadConstraint,
    together: &[&TopologySpreadConstraint],
    snapshot: &Snapshot,
) -> BTreeMap<String, i64> {
    let honours_taints = constraint.node_taints_policy.as_deref() == Some("Honor");
    let honours_affinity = constraint.node_affinity_policy.as_deref() != Some("Ignore");
    let mut domains = BTreeMap::new();
    for node in snapshot.nodes.values() {
        let excluded = together.iter().any(|c| node.label(&c.topology_key).is_none())
            || honours_affinity && !super::node_affinity(candidate, node, snapshot).is_empty()
            || honours_taints && !super::taints(candidate, node, snapshot).is_empty();
        if let Some(domain) = node.label(&constraint.topology_key).filter(|_| !excluded) {
            *domains.entry(domain.to_owned()).or_insert(0) += matching(candidate, constraint, node);
        }
    }
    domains
}

pub(super) fn filter(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> Reasons {
    let constraints = candidate.spec.topology_spread_constraints.iter().flatten();
    let demanded: Vec<_> = constraints.filter(|c| c.when_unsatisfiable == "DoNotSchedule").collect();
    for constraint in &demanded {
        let Some(domain) = node.label(&constraint.topology_key) else {
            return because(true, "node(s) didn't match pod topology spread constraints (missing required label)");
        };
        let domains = domains(candidate, constraint, &demanded, snapshot);
        let enough_domains =
            i64::try_from(domains.len()).unwrap_or(i64::MAX) >= i64::from(constraint.min_domains.unwrap_or(1));
        let emptiest = if enough_domains { domains.values().copied().min().unwrap_or(0) } else { 0 };
        let own = i64::from(affinity::label_selector_matches(
            constraint.label_selector.as_ref(),
            candidate.pod.metadata.labels.as_ref(),
        ));
        let skew = domains.get(domain).copied().unwrap_or(0) + own - emptiest;
        if skew > i64::from(constraint.max_skew) {
            return because(true, "node(s) didn't match pod topology spread constraints");
        }
    }
    Reasons::new()
}
