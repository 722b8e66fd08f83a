//! Claims: a pod waits for its claims to exist and be bound, and goes where its volumes can be reached.

use super::{Candidate, Reasons, because};
use crate::affinity;
use crate::snapshot::{NodeState, Snapshot};

fn claim_names<'a>(candidate: &'a Candidate<'_>) -> impl Iterator<Item = String> + 'a {
    let pod_name = candidate.pod.metadata.name.as_deref().unwrap_or_default();
    candidate.spec.volumes.iter().flatten().filter_map(move |volume| {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(claim.claim_name.clone());
        }
        volume.ephemeral.as_ref().map(|_| format!("{pod_name}-{}", volume.name))
    })
}

fn namespace(candidate: &Candidate<'_>) -> String {
    candidate.pod.metadata.namespace.clone().unwrap_or_default()
}

/// A claim that is missing, being deleted or lost keeps the pod off every node.
pub(super) fn prefilter(candidate: &Candidate<'_>, snapshot: &Snapshot) -> Option<String> {
    for name in claim_names(candidate) {
        let Some(claim) = snapshot.claims.get(&(namespace(candidate), name.clone())) else {
            return Some(format!("persistentvolumeclaim {name:?} not found"));
        };
        if claim.metadata.deletion_timestamp.is_some() {
            return Some(format!("persistentvolumeclaim {name:?} is being deleted"));
        }
        if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Lost") {
            return Some(format!("persistentvolumeclaim {name:?} bound to non-existent persistentvolume {:?}", volume_of(claim)));
        }
        if volume_of(claim).is_empty() {
            return Some("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
    }
    None
}

fn volume_of(claim: &k8s_openapi::api::core::v1::PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default()
}

pub(super) fn filter(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> Reasons {
    let out_of_reach = claim_names(candidate).any(|name| {
        let claim = snapshot.claims.get(&(namespace(candidate), name));
        let volume = claim.and_then(|claim| snapshot.volumes.get(volume_of(claim)));
        let required = volume.and_then(|v| v.spec.as_ref()).and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
        required.is_some_and(|selector| !affinity::node_selector_matches(selector, node))
    });
    because(out_of_reach, "node(s) didn't match PersistentVolume's node affinity")
}
