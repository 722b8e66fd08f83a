//! Claims: a pod waits for its claims to exist and be bound, and goes where its volumes can be reached.

use std::sync::Arc;

use client::pod::Pod;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use super::{Candidate, Reasons, because, csi};
use crate::affinity;
use crate::snapshot::{NodeState, Snapshot};

/// The annotation that tells provisioners where the first pod will run.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

fn claim_names<'a>(candidate: &'a Candidate<'_>) -> impl Iterator<Item = String> + 'a {
    claims_of(candidate.pod)
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
        if volume_of(claim).is_empty() && delayed_class(claim, snapshot).is_none() {
            return Some("pod has unbound immediate PersistentVolumeClaims".to_owned());
        }
    }
    None
}

fn volume_of(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).unwrap_or_default()
}

/// The class of a claim without a volume, if it waits for its first pod.
fn delayed_class<'a>(claim: &PersistentVolumeClaim, snapshot: &'a Snapshot) -> Option<&'a StorageClass> {
    let name = claim.spec.as_ref().and_then(|s| s.storage_class_name.as_ref())?;
    let class = snapshot.classes.get(name)?;
    (class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer")).then_some(&**class)
}

/// The pod's claims that get their volume when the pod gets its node.
pub fn waiting_claims(candidate: &Candidate<'_>, snapshot: &Snapshot) -> Vec<Arc<PersistentVolumeClaim>> {
    let claims = claim_names(candidate).filter_map(|name| snapshot.claims.get(&(namespace(candidate), name)));
    claims.filter(|claim| volume_of(claim).is_empty() && delayed_class(claim, snapshot).is_some()).cloned().collect()
}

/// Whether a claim without a volume can get one on the node.
fn can_get(claim: &PersistentVolumeClaim, class: &StorageClass, node: &NodeState, snapshot: &Snapshot) -> bool {
    let chosen = claim.metadata.annotations.as_ref().and_then(|a| a.get(SELECTED_NODE));
    // A volume is being made there already.
    if let Some(chosen) = chosen.filter(|chosen| snapshot.nodes.contains_key(*chosen)) {
        return chosen == node.name();
    }
    let topologies = class.allowed_topologies.as_deref().unwrap_or_default();
    let allowed = topologies.is_empty()
        || topologies.iter().any(|term| {
            let mut all = term.match_label_expressions.iter().flatten();
            all.all(|r| node.label(&r.key).is_some_and(|value| r.values.iter().any(|v| v == value)))
        });
    if class.provisioner != NO_PROVISIONER {
        return allowed;
    }
    snapshot.volumes.values().any(|volume| {
        let spec = volume.spec.as_ref();
        let of_class = spec.and_then(|s| s.storage_class_name.as_ref()) == class.metadata.name.as_ref();
        let ours = spec.and_then(|s| s.claim_ref.as_ref()).map(|r| (r.namespace.as_ref(), r.name.as_ref()));
        let free = ours.is_none_or(|ours| ours == (claim.metadata.namespace.as_ref(), claim.metadata.name.as_ref()));
        of_class && free && volume.metadata.deletion_timestamp.is_none() && reaches(volume, node)
    })
}

fn reaches(volume: &PersistentVolume, node: &NodeState) -> bool {
    let required = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    required.is_none_or(|selector| affinity::node_selector_matches(selector, node))
}

/// Whether a claim that one pod at a time may use is in use, on whatever node.
fn taken(candidate: &Candidate<'_>, snapshot: &Snapshot) -> bool {
    let alone = claim_names(candidate).filter(|name| {
        let claim = snapshot.claims.get(&(namespace(candidate), name.clone()));
        let modes = claim.and_then(|claim| claim.spec.as_ref()?.access_modes.as_ref());
        modes.is_some_and(|modes| modes.iter().any(|mode| mode == "ReadWriteOncePod"))
    });
    let alone: Vec<String> = alone.collect();
    let uses = |pod: &Pod| {
        let Some(spec) = pod.spec.as_ref().filter(|_| pod.metadata.namespace == candidate.pod.metadata.namespace) else { return false };
        spec.volumes.iter().flatten().any(|v| v.persistent_volume_claim.as_ref().is_some_and(|c| alone.contains(&c.claim_name)))
    };
    !alone.is_empty() && snapshot.nodes.values().any(|node| node.pods.iter().any(|pod| uses(pod)))
}

pub(super) fn filter(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> Reasons {
    if taken(candidate, snapshot) {
        return because(true, "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode");
    }
    for name in claim_names(candidate) {
        let Some(claim) = snapshot.claims.get(&(namespace(candidate), name)) else { continue };
        match (snapshot.volumes.get(volume_of(claim)), delayed_class(claim, snapshot)) {
            (Some(volume), _) if !reaches(volume, node) => return because(true, "node(s) didn't match PersistentVolume's node affinity"),
            (None, Some(class)) if volume_of(claim).is_empty() && !can_get(claim, class, node, snapshot) => {
                return because(true, "node(s) didn't find available persistent volumes to bind");
            }
            (None, Some(class)) if volume_of(claim).is_empty() && !csi::has_room(claim, class, node, snapshot) => {
                return because(true, "node(s) did not have enough free storage");
            }
            _ => {}
        }
    }
    Reasons::new()
}
