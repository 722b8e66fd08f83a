//! Ownership: controller references, and the claim of pods by selector.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::{Metadata, Resource};

use crate::selectors;

/// The reference that marks the managing controller.
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_deref().unwrap_or_default().iter().find(|owner| owner.controller == Some(true))
}

/// A controller reference to `owner`, as upstream's `NewControllerRef`.
pub fn reference_to<K: Resource + Metadata<Ty = ObjectMeta>>(owner: &K) -> OwnerReference {
    let meta = owner.metadata();
    OwnerReference {
        api_version: K::API_VERSION.to_owned(),
        kind: K::KIND.to_owned(),
        name: meta.name.clone().unwrap_or_default(),
        uid: meta.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Whether `meta` is controlled by the object with this uid.
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.uid == uid)
}

/// Verdict of a workload's selector about an object that might be its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Controlled by the owner and selected.
    Owned,
    /// Selected, and nobody's: adopt it.
    Adopt,
    /// Controlled by the owner but not selected any more: let it go.
    Release,
    /// Somebody else's.
    Foreign,
}

/// Decides about one object. An owner that is being deleted adopts nothing. Spec: upstream's `ControllerRefManager`.
pub fn claim(owner: &ObjectMeta, selector: &LabelSelector, object: &ObjectMeta) -> Claim {
    let owner_uid = owner.uid.as_deref().unwrap_or_default();
    let selected = selectors::selects(selector, object.labels.as_ref());
    match controller_of(object) {
        Some(controller) if controller.uid != owner_uid => Claim::Foreign,
        Some(_) if selected => Claim::Owned,
        Some(_) if owner.deletion_timestamp.is_none() => Claim::Release,
        None if selected && owner.deletion_timestamp.is_none() && object.deletion_timestamp.is_none() => Claim::Adopt,
        _ => Claim::Foreign,
    }
}
