//! Which volume a claim gets, and what a claim and a volume are to each other. Pure: the binder of volumes and the
//! scheduler must be of one mind about it, or one waits for what the other never does.

use std::cmp::Ordering;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt as _;
use model::quantity::Quantity;

use model::selectors;

const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// The class that a claim asks for; empty for none at all.
pub fn class_of(claim: &PersistentVolumeClaim) -> String {
    let field = claim.spec.as_ref().and_then(|s| s.storage_class_name.clone());
    claim.annotations().get(OLD_CLASS).cloned().or(field).unwrap_or_default()
}

fn volume_class(volume: &PersistentVolume) -> String {
    let field = volume.spec.as_ref().and_then(|s| s.storage_class_name.clone());
    volume.annotations().get(OLD_CLASS).cloned().or(field).unwrap_or_default()
}

/// The name of the volume that a claim has or asks for.
pub fn name_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// Whether a volume names this claim as its own: `Some(true)` with its uid, `Some(false)` by name alone, `None` if it
/// names another one, an earlier one of that name included, or none.
pub fn names(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<bool> {
    let reference = volume.spec.as_ref()?.claim_ref.as_ref()?;
    if reference.name.as_deref() != Some(&claim.name_any()) || reference.namespace != claim.namespace() {
        return None;
    }
    match reference.uid.as_deref().filter(|uid| !uid.is_empty()) {
        None => Some(false),
        uid => (uid == claim.metadata.uid.as_deref()).then_some(true),
    }
}

/// The phase of a volume, empty if none was written yet.
pub fn phase(volume: &PersistentVolume) -> &str {
    volume.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// The size that a claim asks for.
pub fn requested(claim: &PersistentVolumeClaim) -> Option<Quantity> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    requests.get("storage")?.0.parse().ok()
}

fn capacity(volume: &PersistentVolume) -> Option<Quantity> {
    volume.spec.as_ref()?.capacity.as_ref()?.get("storage")?.0.parse().ok()
}

/// Why a volume cannot be a claim's; `None` if it can. Texts as upstream's `checkVolumeSatisfyClaim` (1.36.2).
pub fn misfit(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Option<&'static str> {
    if capacity(volume) < requested(claim) {
        return Some("requested PV is too small");
    }
    if volume_class(volume) != class_of(claim) {
        return Some("storageClassName does not match");
    }
    let (has, wants) = (volume.spec.as_ref(), claim.spec.as_ref());
    let text = |text: Option<&String>| text.cloned().unwrap_or_default();
    let attributes = (
        has.and_then(|s| s.volume_attributes_class_name.as_ref()),
        wants.and_then(|s| s.volume_attributes_class_name.as_ref()),
    );
    if text(attributes.0) != text(attributes.1) {
        return Some("volumeAttributesClassName does not match");
    }
    let mode = |mode: Option<&String>| mode.map_or("Filesystem", String::as_str).to_owned();
    if mode(has.and_then(|s| s.volume_mode.as_ref())) != mode(wants.and_then(|s| s.volume_mode.as_ref())) {
        return Some("incompatible volumeMode");
    }
    let offered = has.and_then(|s| s.access_modes.clone()).unwrap_or_default();
    let fits = wants.and_then(|s| s.access_modes.as_ref()).into_iter().flatten().all(|mode| offered.contains(mode));
    (!fits).then_some("incompatible accessMode")
}

fn fits(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> bool {
    volume.metadata.deletion_timestamp.is_none() && misfit(volume, claim).is_none()
}

/// The volume that names the claim, and that can be its.
pub fn find_named<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a Arc<PersistentVolume>>,
) -> Option<&'a Arc<PersistentVolume>> {
    volumes.into_iter().find(|volume| names(volume, claim).is_some() && fits(volume, claim))
}

/// The smallest free volume that the claim can have, of those that `pick` takes (e.g. what a node reaches).
pub fn find_free<'a>(
    claim: &PersistentVolumeClaim,
    volumes: impl IntoIterator<Item = &'a Arc<PersistentVolume>>,
    pick: impl Fn(&PersistentVolume) -> bool,
) -> Option<&'a Arc<PersistentVolume>> {
    let selector = claim.spec.as_ref().and_then(|s| s.selector.as_ref());
    let is_free = |volume: &&Arc<PersistentVolume>| {
        volume.spec.as_ref().is_some_and(|s| s.claim_ref.is_none()) && phase(volume) == "Available"
    };
    let free = volumes.into_iter().filter(is_free);
    let picked = free.filter(|volume| selector.is_none_or(|s| selectors::selects(s, volume.metadata.labels.as_ref())));
    let near = picked.filter(|volume| fits(volume, claim) && pick(volume));
    near.min_by(|a, b| capacity(a).partial_cmp(&capacity(b)).unwrap_or(Ordering::Equal))
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
        Arc::new(
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}}))
                .unwrap(),
        )
    }

    fn found_of<'a>(
        claim: &PersistentVolumeClaim,
        volumes: &'a [Arc<PersistentVolume>],
    ) -> Option<&'a Arc<PersistentVolume>> {
        find_named(claim, volumes).or_else(|| find_free(claim, volumes, |_| true))
    }

    fn found(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>]) -> String {
        found_of(claim, volumes).map_or("-".to_owned(), |volume| volume.name_any())
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
        // The attributes of a volume are what was paid for.
        let gold = json!({"volumeAttributesClassName": "gold"});
        assert_eq!(found(&claim(gold.clone()), &all), "-");
        assert_eq!(found(&claim(gold.clone()), &[volume("gold", "5Gi", gold.clone())]), "gold");
        assert_eq!(found(&claim(json!({})), &[volume("gold", "5Gi", gold)]), "-");
        assert_eq!(found(&claim(json!({"selector": {"matchLabels": {"a": "b"}}})), &all), "-");
    }

    #[test]
    fn a_volume_that_names_the_claim_comes_first_even_before_a_pod_is_placed() {
        let named =
            |uid: Value| volume("named", "50Gi", json!({"claimRef": {"name": "c", "namespace": "d", "uid": uid}}));
        let right = volume("right", "6Gi", json!({}));
        assert_eq!(found(&claim(json!({})), &[Arc::clone(&right), named(json!(null))]), "named");
        assert_eq!(found(&claim(json!({})), &[Arc::clone(&right), named(json!("elder"))]), "right");
        assert!(find_named(&claim(json!({})), &[right]).is_none());
    }
}
