//! Pods that want to be near or far from other pods.

use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm};

use super::{Candidate, Reasons, because};
use crate::affinity;
use crate::snapshot::{NodeState, Snapshot};

/// Whether `term`, written in a pod of `home`, speaks of `pod`.
fn concerns(term: &PodAffinityTerm, home: Option<&str>, pod: &Pod, snapshot: &Snapshot) -> bool {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let named = term.namespaces.as_deref().unwrap_or_default();
    let in_namespace = if named.is_empty() && term.namespace_selector.is_none() {
        home == Some(namespace)
    } else {
        let labels = snapshot.namespaces.get(namespace).and_then(|ns| ns.metadata.labels.as_ref());
        named.iter().any(|n| n == namespace) || affinity::label_selector_matches(term.namespace_selector.as_ref(), labels)
    };
    in_namespace && affinity::label_selector_matches(term.label_selector.as_ref(), pod.metadata.labels.as_ref())
}

fn required_affinity(pod: &Pod) -> &[PodAffinityTerm] {
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
    snapshot.nodes.values().filter(|other| other.label(key) == Some(domain)).any(|other| other.pods.iter().any(|pod| found(pod)))
}

pub(super) fn filter(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> Reasons {
    let home = candidate.pod.metadata.namespace.as_deref();
    let repelled = snapshot.nodes.values().any(|other| {
        other.pods.iter().any(|pod| {
            required_anti_affinity(pod).iter().any(|term| {
                let same_domain = node.label(&term.topology_key).is_some_and(|d| other.label(&term.topology_key) == Some(d));
                same_domain && concerns(term, pod.metadata.namespace.as_deref(), candidate.pod, snapshot)
            })
        })
    });
    if repelled {
        return because(true, "node(s) didn't satisfy existing pods anti-affinity rules");
    }
    let repels = |term: &PodAffinityTerm| in_domain(&term.topology_key, node, snapshot, |pod| concerns(term, home, pod, snapshot));
    if required_anti_affinity(candidate.pod).iter().any(repels) {
        return because(true, "node(s) didn't match pod anti-affinity rules");
    }
    let terms = required_affinity(candidate.pod);
    let attracted = |term: &PodAffinityTerm| in_domain(&term.topology_key, node, snapshot, |pod| concerns(term, home, pod, snapshot));
    if terms.iter().all(attracted) {
        return Reasons::new();
    }
    // The first pod of a group that wants its own kind: nobody matches anywhere yet, but the pod itself does.
    let alone = terms.iter().all(|term| {
        let nobody = !snapshot.nodes.values().any(|n| n.pods.iter().any(|pod| concerns(term, home, pod, snapshot)));
        nobody && node.label(&term.topology_key).is_some() && concerns(term, home, candidate.pod, snapshot)
    });
    because(!alone, "node(s) didn't match pod affinity rules")
}
