//! Who owns whom: controller references, and the claim of pods by selector.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::{Resource, ResourceExt as _};

/// The reference that marks the managing controller.
pub(crate) fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_deref().unwrap_or_default().iter().find(|owner| owner.controller == Some(true))
}

/// A controller reference to `owner`, as upstream's `NewControllerRef`.
pub(crate) fn reference_to<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Whether `meta` is controlled by the object with this uid.
pub(crate) fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    controller_of(meta).is_some_and(|owner| owner.uid == uid)
}

/// Whether a selector picks these labels. An empty selector picks everything, as `LabelSelectorAsSelector` has it.
pub(crate) fn selects(selector: &LabelSelector, labels: Option<&BTreeMap<String, String>>) -> bool {
    let actual = |key: &str| labels.and_then(|labels| labels.get(key)).map(String::as_str);
    selector.match_labels.iter().flatten().all(|(key, value)| actual(key) == Some(value.as_str()))
        && selector.match_expressions.iter().flatten().all(|r| {
            let values = r.values.as_deref().unwrap_or_default();
            let listed = actual(&r.key).is_some_and(|actual| values.iter().any(|v| v == actual));
            match r.operator.as_str() {
                "In" => listed,
                "NotIn" => !listed,
                "Exists" => actual(&r.key).is_some(),
                "DoesNotExist" => actual(&r.key).is_none(),
                _ => false,
            }
        })
}

/// What the selector of a workload says about an object that might be its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
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
pub(crate) fn claim(owner: &ObjectMeta, selector: &LabelSelector, object: &ObjectMeta) -> Claim {
    let owner_uid = owner.uid.as_deref().unwrap_or_default();
    let selected = selects(selector, object.labels.as_ref());
    match controller_of(object) {
        Some(controller) if controller.uid != owner_uid => Claim::Foreign,
        Some(_) if selected => Claim::Owned,
        Some(_) if owner.deletion_timestamp.is_none() => Claim::Release,
        None if selected && owner.deletion_timestamp.is_none() && object.deletion_timestamp.is_none() => Claim::Adopt,
        _ => Claim::Foreign,
    }
}
