//! Templates of pods: which ReplicaSet belongs to which, and what it is called.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use kube::ResourceExt as _;

/// The label that tells ReplicaSets of one Deployment apart.
pub(super) const HASH_LABEL: &str = "pod-template-hash";
/// Letters that replace the digits of a hash, so that no word arises; upstream's `SafeEncodeString`.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Whether two templates make the same pods: everything but the hash label counts.
pub(super) fn same(a: &PodTemplateSpec, b: &PodTemplateSpec) -> bool {
    let plain = |template: &PodTemplateSpec| {
        let mut template = template.clone();
        let meta = template.metadata.get_or_insert_default();
        if let Some(labels) = &mut meta.labels {
            labels.remove(HASH_LABEL);
        }
        meta.labels = meta.labels.take().filter(|labels| !labels.is_empty());
        meta.annotations = meta.annotations.take().filter(|annotations| !annotations.is_empty());
        meta.creation_timestamp = None;
        template
    };
    plain(a) == plain(b)
}

/// The suffix of a ReplicaSet's name: FNV-1a over the template, and over the collision count once there was one.
pub(super) fn hash(template: &PodTemplateSpec, collisions: Option<i32>) -> String {
    // A template came from JSON and goes back to it; its keys are in one order.
    let text = serde_json::to_vec(template).unwrap_or_default();
    let count = collisions.map(i32::to_le_bytes).unwrap_or_default();
    let bytes = text.iter().chain(collisions.is_some().then_some(&count).into_iter().flatten());
    let sum = bytes.fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    sum.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

/// The owned set that has the Deployment's template; the oldest, if a race made two.
pub(super) fn newest<'a>(
    deployment: &Deployment,
    sets: &'a [std::sync::Arc<ReplicaSet>],
) -> Option<&'a std::sync::Arc<ReplicaSet>> {
    let template = &deployment.spec.as_ref()?.template;
    let matching = sets
        .iter()
        .filter(|set| set.spec.as_ref().and_then(|s| s.template.as_ref()).is_some_and(|t| same(t, template)));
    matching.min_by_key(|set| (set.metadata.creation_timestamp.as_ref().map(|t| t.0), set.name_any()))
}
