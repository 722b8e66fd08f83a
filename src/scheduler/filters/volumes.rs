//! Claims: a pod waits for its claims to exist and be bound, and goes where its volumes can be reached.

use std::sync::Arc;

use client::volumes;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use model::pod::Pod;

use super::candidate::{Candidate, Reasons, because, claims_of};
use super::capacity;
use crate::affinity;
use crate::snapshot::{NodeState, Snapshot};

/// The annotation that tells provisioners where the first pod will run.
pub const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
/// Set when claim and volume are each other's.
const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

fn claim_names<'a>(candidate: &'a Candidate<'_>) -> impl Iterator<Item = String> + 'a {
    claims_of(candidate.pod)
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
            return Some(format!(
                "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {:?}",
                volume_of(claim)
            ));
        }
        // A claim that names its volume is not bound to it yet: whether it will be is the binder's to say.
        let named = !volume_of(claim).is_empty()
            && !claim.metadata.annotations.iter().flatten().any(|(name, _)| name == BIND_COMPLETED);
        if named || volume_of(claim).is_empty() && delayed_class(claim, snapshot).is_none() {
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

/// Where the claims of a pod that wait for it get their volumes, if it goes to one node.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// Claims and the volumes that are there for them.
    pub bind: Vec<(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>)>,
    /// Claims whose volumes are to be made.
    pub provision: Vec<Arc<PersistentVolumeClaim>>,
}

impl Placement {
    /// Whether no claim waits.
    pub fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.provision.is_empty()
    }
}

const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";

/// Finds volumes for the pod's claims on the node; the error says why that cannot be. Spec: upstream's `FindPodVolumes`
/// (1.36.2): every waiting claim gets a volume of its own, the smallest claim first, and what is not there is made if
/// its class can.
pub fn place(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> Result<Placement, Reasons> {
    let mut waiting = Vec::new();
    for claim in claim_names(candidate).filter_map(|name| snapshot.claims.get(&(namespace(candidate), name))) {
        match (snapshot.volumes.get(volume_of(claim)), delayed_class(claim, snapshot)) {
            (Some(volume), _) if !affinity::is_reached(volume, node) => {
                return Err(vec!["node(s) didn't match PersistentVolume's node affinity".to_owned()]);
            }
            (None, _) if !volume_of(claim).is_empty() => {
                return Err(vec![
                    "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)".to_owned(),
                ]);
            }
            (None, Some(class)) => waiting.push((claim, class)),
            _ => {}
        }
    }
    waiting.sort_by(|(a, _), (b, _)| {
        volumes::requested(a).partial_cmp(&volumes::requested(b)).unwrap_or(std::cmp::Ordering::Equal)
    });
    let mut placement = Placement::default();
    for (claim, class) in waiting {
        if being_made(claim, class, node, snapshot)? {
            placement.provision.push(Arc::clone(claim));
            continue;
        }
        match there_is(claim, node, snapshot, &placement)? {
            Some(volume) => placement.bind.push((Arc::clone(claim), volume)),
            None => {
                can_be_made(claim, class, node, snapshot)?;
                placement.provision.push(Arc::clone(claim));
            }
        }
    }
    Ok(placement)
}

/// Whether a provisioner was told to make the claim's volume on this node. One that was told of another node is at work
/// there.
fn being_made(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &NodeState,
    snapshot: &Snapshot,
) -> Result<bool, Reasons> {
    let chosen = claim.metadata.annotations.as_ref().and_then(|a| a.get(SELECTED_NODE));
    // Nobody makes volumes of a class without a provisioner, nor on a node that is gone: there the choice is open
    // again.
    let chosen = chosen.filter(|chosen| class.provisioner != NO_PROVISIONER && snapshot.nodes.contains_key(*chosen));
    match chosen {
        Some(chosen) if chosen != node.name() => Err(vec![NO_VOLUME.to_owned()]),
        Some(_) => can_be_made(claim, class, node, snapshot).map(|()| true),
        None => Ok(false),
    }
}

/// The volume for a claim on this node that none of the pod's other claims has got. Spec: upstream's
/// `FindMatchingVolume` (1.36.2).
fn there_is(
    claim: &PersistentVolumeClaim,
    node: &NodeState,
    snapshot: &Snapshot,
    placement: &Placement,
) -> Result<Option<Arc<PersistentVolume>>, Reasons> {
    let given =
        |volume: &PersistentVolume| placement.bind.iter().any(|(_, other)| other.metadata.name == volume.metadata.name);
    if let Some(own) = volumes::find_named(claim, snapshot.volumes.values()) {
        // It was kept for this claim, and is somewhere else.
        return if affinity::is_reached(own, node) {
            Ok(Some(Arc::clone(own)))
        } else {
            Err(vec![NO_VOLUME.to_owned()])
        };
    }
    let near = |volume: &PersistentVolume| !given(volume) && affinity::is_reached(volume, node);
    Ok(volumes::find_free(claim, snapshot.volumes.values(), near).cloned())
}

/// Whether the class can make the claim's volume on this node.
fn can_be_made(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &NodeState,
    snapshot: &Snapshot,
) -> Result<(), Reasons> {
    let topologies = class.allowed_topologies.as_deref().unwrap_or_default();
    let allowed = topologies.is_empty()
        || topologies.iter().any(|term| {
            let mut all = term.match_label_expressions.iter().flatten();
            all.all(|r| node.label(&r.key).is_some_and(|value| r.values.iter().any(|v| v == value)))
        });
    if class.provisioner == NO_PROVISIONER || !allowed {
        return Err(vec![NO_VOLUME.to_owned()]);
    }
    if !capacity::has_room(claim, class, node, snapshot) {
        return Err(vec!["node(s) did not have enough free storage".to_owned()]);
    }
    Ok(())
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
        let Some(spec) = pod.spec.as_ref().filter(|_| pod.metadata.namespace == candidate.pod.metadata.namespace)
        else {
            return false;
        };
        spec.volumes
            .iter()
            .flatten()
            .any(|v| v.persistent_volume_claim.as_ref().is_some_and(|c| alone.contains(&c.claim_name)))
    };
    !alone.is_empty() && snapshot.nodes.values().any(|node| node.pods.iter().any(|pod| uses(pod)))
}

pub(super) fn filter(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> Reasons {
    if taken(candidate, snapshot) {
        return because(
            true,
            "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode",
        );
    }
    place(candidate, node, snapshot).err().unwrap_or_default()
}
