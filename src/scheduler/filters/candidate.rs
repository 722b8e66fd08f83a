//! The pod that filters judge, and their answer.

use model::pod::{Pod, PodSpec};
use model::requests::{self, Amounts};

/// Why a node cannot take a pod, in upstream's words. Usually one; resources may name several.
pub type Reasons = Vec<String>;

/// A pod with what filters ask about it again and again.
pub struct Candidate<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its spec.
    pub spec: &'a PodSpec,
    /// Its needs.
    pub need: Amounts,
}

impl<'a> Candidate<'a> {
    /// `None` for a pod without a spec.
    pub fn of(pod: &'a Pod) -> Option<Candidate<'a>> {
        Some(Candidate { pod, spec: pod.spec.as_ref()?, need: requests::of_pod(pod) })
    }
}

/// The reason if it holds, else none.
pub(super) fn because(holds: bool, reason: &str) -> Reasons {
    if holds { vec![reason.to_owned()] } else { Vec::new() }
}

/// The names of a pod's claims.
pub(super) fn claims_of(pod: &Pod) -> impl Iterator<Item = String> + '_ {
    let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).filter_map(move |volume| {
        if let Some(claim) = &volume.persistent_volume_claim {
            return Some(claim.claim_name.clone());
        }
        volume.ephemeral.as_ref().map(|_| format!("{pod_name}-{}", volume.name))
    })
}
