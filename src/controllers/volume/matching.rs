//! Which volume a claim gets, and what a claim and a volume are to each other. Pure.

use std::sync::Arc;

use client::labels;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt as _;
use schema::quantity::Quantity;

pub(super) const BOUND_BY_US: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// The class that a claim asks for; empty for none at all.
pub(super) fn class_of(claim: &PersistentVolumeClaim) -> String {
    let field = claim.spec.as_ref().and_then(|s| s.storage_class_name.clone());
    claim.annotations().get(OLD_CLASS).cloned().or(field).unwrap_or_default()
}

fn volume_class(volume: &PersistentVolume) -> String {
    let field = volume.spec.as_ref().and_then(|s| s.storage_class_name.clone());
    volume.annotations().get(OLD_CLASS).cloned().or(field).unwrap_or_default()
}

/// The name of the volume that a claim has or asks for.
pub(super) fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// Whether a volume names this claim as its own: `Some(true)` with its uid, `Some(false)` by name alone, `None` if it names another or none.
pub(super) fn names(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<bool> {
    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
    if reference.name.as_deref() != Some(&claim.name_any()) || reference.namespace != claim.namespace() {
        return None;
    }
    match reference.uid.as_deref().filter(|uid| !uid.is_empty()) {
        None => Some(false),
        uid => (uid == claim.metadata.uid.as_deref()).then_some(true),
    }
}

pub(super) fn phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// The size that a claim asks for.
pub(super) fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage")?.0.parse().ok()
}

fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0.parse().ok()
}

/// Why a volume cannot be a claim's; `None` if it can. Texts as upstream's `checkVolumeSatisfyClaim`.
pub(super) fn misfit(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    if capacity(volume) < requested(claim) {
        return Some("requested PV is too small");
    }
    if volume_class(volume) != class_of(claim) {
        return Some("storageClassName does not match");
    }
    let mode = |mode: Option<&String>| mode.map_or("Filesystem", String::as_str).to_owned();
    let (has, wants) = (volume.spec.as_ref(), claim.spec.as_ref());
    if mode(has.and_then(|s| s.volume_mode.as_ref())) != mode(wants.and_then(|s| s.volume_mode.as_ref())) {
        return Some("incompatible volumeMode");
    }
    let offered = has.and_then(|s| s.access_modes.clone()).unwrap_or_default();
    let fits = wants.and_then(|s| s.access_modes.as_ref()).into_iter().flatten().all(|mode| offered.contains(mode));
    (!fits).then_some("incompatible accessMode")
}

/// Whether a volume can be reached from a node.
pub(super) fn reaches(volume: &PersistentVolume, node: &Node) -> bool {
    let required = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()).and_then(|a| a.required.as_ref());
    required.is_none_or(|selector| labels::picks_node(selector, &node.name_any(), node.labels()))
}

/// The volume that names the claim, else the smallest free one that fits; from `node` if one was chosen.
/// With `only_named` a free one is not taken: the claim waits for its pod.
pub(super) fn find(
    claim: &PersistentVolumeClaim,
    volumes: &[Arc<PersistentVolume>],
    node: Option<&Node>,
    only_named: bool,
) -> Option<Arc<PersistentVolume>> {
    let fits = |volume: &&Arc<PersistentVolume>| volume.metadata.deletion_timestamp.is_none() && misfit(volume, claim).is_none();
    if let Some(named) = volumes.iter().filter(|volume| names(volume, claim).is_some()).find(fits) {
        return Some(Arc::clone(named));
    }
    if only_named {
        return None;
    }
    let selector = claim.spec.as_ref().and_then(|s| s.selector.as_ref());
    let free = volumes.iter().filter(|volume| volume.spec.as_ref().is_some_and(|s| s.claim_ref.is_none()) && phase(volume) == "Available");
    let picked = free.filter(|volume| selector.is_none_or(|s| labels::selects(s, volume.metadata.labels.as_ref())));
    let near = picked.filter(|volume| node.is_none_or(|node| reaches(volume, node)));
    near.filter(fits).min_by(|a, b| capacity(a).partial_cmp(&capacity(b)).unwrap_or(std::cmp::Ordering::Equal)).cloned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(spec: Value) -> PersistentVolumeClaim {
        let mut spec = spec;
        spec["resources"] = json!({"requests": {"storage": "5Gi"}});
        spec["accessModes"] = json!(["ReadWriteOnce"]);
        serde_json::from_value(json!({"metadata": {"name": "c", "namespace": "d", "uid": "u"}, "spec": spec})).unwrap()
    }

    fn volume(name: &str, size: &str, more: Value) -> Arc<PersistentVolume> {
        let mut spec = json!({"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}})).unwrap())
    }

    fn found(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>]) -> String {
        find(claim, volumes, None, false).map_or("-".to_owned(), |volume| volume.name_any())
    }

    #[test]
    fn the_smallest_free_volume_that_fits_is_taken() {
        let all = [
            volume("small", "1Gi", json!({})),
            volume("big", "20Gi", json!({})),
            volume("right", "6Gi", json!({})),
            volume("fast", "5Gi", json!({"storageClassName": "fast"})),
            volume("block", "5Gi", json!({"volumeMode": "Block"})),
            volume("shared", "5Gi", json!({"accessModes": ["ReadWriteMany"]})),
            volume("taken", "5Gi", json!({"claimRef": {"name": "other", "namespace": "d"}})),
        ];
        assert_eq!(found(&claim(json!({})), &all), "right");
        assert_eq!(found(&claim(json!({"storageClassName": "fast"})), &all), "fast");
        assert_eq!(found(&claim(json!({"selector": {"matchLabels": {"a": "b"}}})), &all), "-");
    }

    #[test]
    fn a_volume_that_names_the_claim_comes_first_even_before_a_pod_is_placed() {
        let named = |uid: Value| volume("named", "50Gi", json!({"claimRef": {"name": "c", "namespace": "d", "uid": uid}}));
        let right = volume("right", "6Gi", json!({}));
        assert_eq!(found(&claim(json!({})), &[Arc::clone(&right), named(json!(null))]), "named");
        assert_eq!(found(&claim(json!({})), &[Arc::clone(&right), named(json!("elder"))]), "right");
        assert!(find(&claim(json!({})), &[right], None, true).is_none());
    }
}
