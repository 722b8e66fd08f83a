//! Pods that want to be near or far from other pods.

use k8s_openapi::api::core::v1::PodAffinityTerm;
use model::pod::Pod;

use super::candidate::{Candidate, Reasons, because};
use crate::affinity;
use crate::snapshot::{NodeState, Snapshot};

/// Whether `term`, written in a pod of `home`, speaks of `pod`.
pub(crate) fn concerns(term: &PodAffinityTerm, home: Option<&str>, pod: &Pod, snapshot: &Snapshot) -> bool {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let named = term.namespaces.as_deref().unwrap_or_default();
    let in_namespace = if named.is_empty() && term.namespace_selector.is_none() {
        home == Some(namespace)
    } else {
        let labels = snapshot.namespaces.get(namespace).and_then(|ns| ns.metadata.labels.as_ref());
        named.iter().any(|n| n == namespace)
            || affinity::label_selector_matches(term.namespace_selector.as_ref(), labels)
    };
    in_namespace && affinity::label_selector_matches(term.label_selector.as_ref(), pod.metadata.labels.as_ref())
}

/// The terms without which the pod does not run.
pub(crate) fn required_affinity(pod: &Pod) -> &[PodAffinityTerm] {
    let affinity = pod.spec.as_ref().and_then(|s| s.affinity.as_ref()).and_then(|a| a.pod_affinity.as_ref());
    affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_deref()).unwrap_or_default()
}

fn required_anti_affinity(pod: &Pod) -> &[PodAffinityTerm] {
    let affinity = pod.spec.as_ref().and_then(|s| s.affinity.as_ref()).and_then(|a| a.pod_anti_affinity.as_ref());
    affinity.and_then(|a| a.required_during_scheduling_ignored_during_execution.as_deref()).unwrap_or_default()
}

/// Whether some pod in the domain of `node` satisfies `found`.
fn in_domain(key: &str, node: &NodeState, snapshot: &Snapshot, found: impl Fn(&Pod) -> bool) -> bool {
    let Some(domain) = node.label(key) else { return false };
    snapshot
        .nodes
        .values()
        .filter(|other| other.label(key) == Some(domain))
        .any(|other| other.pods.iter().any(|pod| found(pod)))
}

/// Whether the pod's own affinity holds on the node: in each term's domain runs a pod of which all the terms speak.
fn attracted(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> bool {
    let home = candidate.pod.metadata.namespace.as_deref();
    let terms = required_affinity(candidate.pod);
    let meant = |pod: &Pod| terms.iter().all(|term| concerns(term, home, pod, snapshot));
    if terms.iter().all(|term| in_domain(&term.topology_key, node, snapshot, meant)) {
        return true;
    }
    // The first pod of a group that wants its own kind: nobody of it runs anywhere yet, but the pod itself is one.
    terms.iter().all(|term| node.label(&term.topology_key).is_some())
        && meant(candidate.pod)
        && !snapshot.nodes.values().any(|n| n.pods.iter().any(|pod| meant(pod)))
}

/// Whether a pod that runs already wants the candidate out of the node's domain.
fn repelled(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> bool {
    snapshot.nodes.values().any(|other| {
        other.pods.iter().any(|pod| {
            required_anti_affinity(pod).iter().any(|term| {
                let same_domain =
                    node.label(&term.topology_key).is_some_and(|d| other.label(&term.topology_key) == Some(d));
                same_domain && concerns(term, pod.metadata.namespace.as_deref(), candidate.pod, snapshot)
            })
        })
    })
}

/// In upstream's order, which decides what the user reads.
pub(super) fn filter(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> Reasons {
    let home = candidate.pod.metadata.namespace.as_deref();
    if !attracted(candidate, node, snapshot) {
        return because(true, "node(s) didn't match pod affinity rules");
    }
    let repels = |term: &PodAffinityTerm| {
        in_domain(&term.topology_key, node, snapshot, |pod| concerns(term, home, pod, snapshot))
    };
    if required_anti_affinity(candidate.pod).iter().any(repels) {
        return because(true, "node(s) didn't match pod anti-affinity rules");
    }
    because(repelled(candidate, node, snapshot), "node(s) didn't satisfy existing pods anti-affinity rules")
}
