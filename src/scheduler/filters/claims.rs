//! Devices that a pod claims (DRA). Nothing in this cluster makes claims of templates, allocates them, or prepares them
//! on a node: a pod that needs one waits, and never runs without its device.

use k8s_openapi::api::core::v1::PodResourceClaim;
use model::pod::Pod;

use super::candidate::{Candidate, Reasons, because};
use crate::snapshot::{NodeState, Snapshot};

/// How far one of a pod's claims is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its template has been seen, and asks for nothing.
    NotNeeded,
    /// Nobody has made it of its template.
    NotMade,
    /// It has a name.
    Named,
}

/// Spec: upstream's `resourceclaim.Name` (1.36.2).
fn stage(pod: &Pod, claim: &PodResourceClaim) -> Stage {
    if claim.resource_claim_name.is_some() {
        return Stage::Named;
    }
    let known = pod
        .status
        .iter()
        .flat_map(|s| s.resource_claim_statuses.iter().flatten())
        .find(|status| status.name == claim.name);
    match known {
        None => Stage::NotMade,
        Some(status) if status.resource_claim_name.is_none() => Stage::NotNeeded,
        Some(_) => Stage::Named,
    }
}

fn any(candidate: &Candidate<'_>, wanted: Stage) -> bool {
    candidate.spec.resource_claims.iter().flatten().any(|claim| stage(candidate.pod, claim) == wanted)
}

/// A claim that was not made of its template keeps the pod off every node.
pub(super) fn prefilter(candidate: &Candidate<'_>) -> Option<String> {
    let meta = &candidate.pod.metadata;
    let name =
        format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    any(candidate, Stage::NotMade).then(|| format!("pod {name:?}: ResourceClaim not created yet"))
}

/// No node has a device to give, one that somebody else has allocated included: its kubelet would not prepare it.
pub(super) fn filter(candidate: &Candidate<'_>, _: &NodeState, _: &Snapshot) -> Reasons {
    because(any(candidate, Stage::Named), "cannot allocate all claims")
}

/// Words of upstream's DynamicResources after all nodes were refused, before the words about preemption.
pub(crate) fn after_filters(candidate: &Candidate<'_>) -> &'static str {
    let looked_at = any(candidate, Stage::Named) && !any(candidate, Stage::NotMade);
    if looked_at { "still not schedulable" } else { "no new claims to deallocate" }
}
