//! ControllerRevisions: the templates that a StatefulSet or a DaemonSet had, for rollouts and for `kubectl rollout
//! undo`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use client::informer::{Informer, Kind};
use client::typed::typed;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use model::owners;
use serde_json::{Value, json};

use crate::adoption::{Adoption, Claimed};
use crate::driver::{self, Error};

/// Old templates that are kept when the spec does not say.
const LIMIT: i32 = 10;
/// Letters that replace the digits of a hash, so that no word arises; upstream's `SafeEncodeString`.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The state of a workload that is to be remembered.
pub(crate) struct State<'a> {
    /// Its template.
    pub(crate) template: &'a PodTemplateSpec,
    /// The label that holds the hash on the revision.
    pub(crate) hash_label: &'static str,
    /// Collisions of hashes so far, from the workload's status.
    pub(crate) collisions: i32,
}

/// The revisions of one workload.
pub(crate) struct History<'a, K> {
    pub(crate) client: kube::Client,
    pub(crate) revisions: &'a Informer<ControllerRevision>,
    pub(crate) owner: &'a K,
    pub(crate) selector: &'a LabelSelector,
}

/// Stored as a patch that puts the template back, which is what `kubectl rollout undo` applies.
fn as_patch(template: &PodTemplateSpec) -> Value {
    let mut template = json!(template);
    template["$patch"] = json!("replace");
    json!({"spec": {"template": template}})
}

/// FNV-1a over the stored form, and over the collision count once there was one.
fn hash(data: &Value, collisions: i32) -> String {
    let text = serde_json::to_vec(data).unwrap_or_default();
    let count = collisions.to_le_bytes();
    let bytes = text.iter().chain((collisions > 0).then_some(&count).into_iter().flatten());
    let sum = bytes.fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    sum.to_string().bytes().map(|digit| char::from(ALPHABET[usize::from(digit) % ALPHABET.len()])).collect()
}

fn is_of(revision: &ControllerRevision, data: &Value) -> bool {
    revision.data.as_ref().is_some_and(|stored| stored.0 == *data)
}

/// The template that a revision holds.
pub(crate) fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let mut template = revision.data.as_ref()?.0.get("spec")?.get("template")?.clone();
    template.as_object_mut()?.remove("$patch");
    typed(&template).ok()
}

impl<K: Kind + k8s_openapi::Metadata<Ty = ObjectMeta>> History<'_, K> {
    fn api(&self) -> Api<ControllerRevision> {
        Api::namespaced(self.client.clone(), &self.owner.namespace().unwrap_or_default())
    }

    /// The workload's revisions, oldest first, after adopting and releasing what its selector says.
    pub(crate) async fn claim(&self) -> Result<Vec<Arc<ControllerRevision>>, Error> {
        let revisions = self.revisions.list_in(&self.owner.namespace().unwrap_or_default());
        let adoption = Adoption { owner: self.owner, selector: self.selector, finalizer: None };
        let claimed = adoption.adopt_and_release(&self.api(), revisions, |_, claim| claim).await?;
        let mut owned: Vec<Arc<ControllerRevision>> = claimed.into_iter().filter_map(Claimed::owned).collect();
        owned.sort_by_key(|revision| {
            (revision.revision, revision.metadata.creation_timestamp.clone(), revision.name_any())
        });
        Ok(owned)
    }

    /// The revision of the present template, made or renumbered if it is not the newest of `owned`; and the collision
    /// count.
    pub(crate) async fn present(
        &self,
        owned: &[Arc<ControllerRevision>],
        state: &State<'_>,
    ) -> Result<(Arc<ControllerRevision>, i32), Error> {
        let data = as_patch(state.template);
        let next = owned.last().map_or(1, |newest| newest.revision + 1);
        match owned.iter().rposition(|revision| is_of(revision, &data)) {
            Some(at) if at + 1 == owned.len() => Ok((Arc::clone(&owned[at]), state.collisions)),
            // A rollback: the old template is the newest again.
            Some(at) => {
                let patch = Patch::Merge(json!({ "revision": next }));
                let renumbered = self.api().patch(&owned[at].name_any(), &PatchParams::default(), &patch).await?;
                Ok((Arc::new(renumbered), state.collisions))
            }
            None => self.make(&data, next, state).await,
        }
    }

    async fn make(
        &self,
        data: &Value,
        number: i64,
        state: &State<'_>,
    ) -> Result<(Arc<ControllerRevision>, i32), Error> {
        let mut collisions = state.collisions;
        loop {
            let revision = self.revision(data, number, collisions, state);
            match self.api().create(&PostParams::default(), &revision).await {
                Ok(made) => return Ok((Arc::new(made), collisions)),
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                    // Ours, which the cache does not show yet; or another template with the same hash.
                    let there = self.api().get(&revision.name_any()).await?;
                    let uid = self.owner.uid().unwrap_or_default();
                    if is_of(&there, data) && owners::is_controlled_by(&there.metadata, &uid) {
                        return Ok((Arc::new(there), collisions));
                    }
                    collisions += 1;
                }
                Err(err) => return Err(err.into()),
            }
        }
    }

    fn revision(&self, data: &Value, number: i64, collisions: i32, state: &State<'_>) -> ControllerRevision {
        let hash = hash(data, collisions);
        let mut revision = ControllerRevision {
            revision: number,
            data: Some(RawExtension(data.clone())),
            ..ControllerRevision::default()
        };
        revision.metadata.name = Some(format!("{}-{hash}", self.owner.name_any()));
        revision.metadata.namespace = self.owner.namespace();
        let mut labels: BTreeMap<String, String> =
            state.template.metadata.as_ref().and_then(|m| m.labels.clone()).unwrap_or_default();
        labels.insert(state.hash_label.to_owned(), hash);
        revision.metadata.labels = Some(labels);
        revision.metadata.annotations = self.owner.meta().annotations.clone();
        revision.metadata.owner_references = Some(vec![owners::reference_to(self.owner)]);
        revision
    }

    /// Forgets the oldest revisions beyond `limit`; those that `live` picks are not counted and stay.
    pub(crate) async fn truncate(
        &self,
        owned: &[Arc<ControllerRevision>],
        limit: Option<i32>,
        live: impl Fn(&ControllerRevision) -> bool,
    ) -> Result<(), Error> {
        for revision in surplus(owned, limit, live) {
            driver::gone_is_fine(self.api().delete(&revision.name_any(), &DeleteParams::default()).await)?;
        }
        Ok(())
    }
}

fn surplus(
    owned: &[Arc<ControllerRevision>],
    limit: Option<i32>,
    live: impl Fn(&ControllerRevision) -> bool,
) -> Vec<Arc<ControllerRevision>> {
    let old: Vec<_> = owned.iter().filter(|revision| !live(revision)).cloned().collect();
    let limit = usize::try_from(limit.unwrap_or(LIMIT)).unwrap_or(0);
    let n = old.len().saturating_sub(limit);
    old.into_iter().take(n).collect()
}

/// The names of all revisions that pods carry under `label`.
pub(crate) fn carried<'a>(pods: impl Iterator<Item = &'a model::pod::Pod>, label: &str) -> BTreeSet<String> {
    pods.filter_map(|pod| pod.labels().get(label).cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_comes_back_from_its_revision_and_collisions_change_its_hash() {
        let template: PodTemplateSpec = serde_json::from_value(
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}),
        )
        .unwrap();
        let data = as_patch(&template);
        assert_ne!(hash(&data, 0), hash(&data, 1));
        let revision = ControllerRevision { data: Some(RawExtension(data.clone())), ..ControllerRevision::default() };
        assert!(is_of(&revision, &data));
        assert_eq!(template_of(&revision), Some(template));
    }

    #[test]
    fn the_oldest_that_nobody_uses_go_first() {
        let revision = |name: &str| {
            let mut revision = ControllerRevision::default();
            revision.metadata.name = Some(name.to_owned());
            Arc::new(revision)
        };
        let owned = [revision("a"), revision("b"), revision("c"), revision("d")];
        let gone = surplus(&owned, Some(1), |r| matches!(r.name_any().as_str(), "a" | "d"));
        assert_eq!(gone.iter().map(|r| r.name_any()).collect::<Vec<_>>(), ["b"]);
    }
}
