//! Claims and volumes: who gets whom, and what happens to a volume whose claim is gone. Spec: upstream's
//! `PersistentVolumeController`.

use std::sync::Arc;
use std::time::Duration;

use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use client::volumes;
use k8s_openapi::api::core::v1::{
    Node, ObjectReference, PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus, PersistentVolumeSpec,
};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use kube::{Resource as _, ResourceExt as _};

use super::matching::{self, BIND_COMPLETED, BOUND_BY_US, PROVISIONED_BY, SELECTED_NODE};
use crate::driver::{self, Context, Error, EventSource, Next, Reconcile};

pub(super) const NAME: &str = "persistent-volume-binder";
/// Upstream's name for it as a source of events.
const SOURCE: &str = "persistentvolume-controller";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const OLD_PROVISIONER: &str = "volume.beta.kubernetes.io/storage-provisioner";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";
const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";
const NOTHING_FREE: &str = "no persistent volumes available for this claim and no storage class is set";

/// How a bound claim lost its volume.
enum Loss {
    /// It names none any more.
    Reference,
    /// The one that it names is gone.
    Volume,
    /// The one that it names is another claim's.
    ToAnother,
}

struct Binder {
    client: kube::Client,
    recorder: Recorder,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    nodes: Informer<Node>,
}

/// Starts the binder. Its queue holds claims, and volumes as keys without namespace.
pub(super) fn start(context: &Context) {
    let binder = Binder {
        client: context.client(NAME),
        recorder: context.recorder_as(EventSource { account: NAME, component: SOURCE }),
        claims: context.informers.get(),
        volumes: context.informers.get(),
        classes: context.informers.get(),
        nodes: context.informers.get(),
    };
    let queue = Arc::new(Queue::default());
    let all = binder.volumes.clone();
    context.feed(&binder.claims, &queue, move |change| {
        let claims = driver::objects_of(change);
        let concerned = |claim: &PersistentVolumeClaim| -> Vec<Key> {
            let theirs = all.list().into_iter().filter(|volume| volumes::names(volume, claim).is_some());
            theirs.map(|volume| Key::of(&*volume)).chain([Key::of(claim)]).collect()
        };
        claims.iter().flat_map(|claim| concerned(claim)).collect()
    });
    let claims = binder.claims.clone();
    context.feed(&binder.volumes, &queue, move |change| volume_concerns(change, &claims));
    let claims = binder.claims.clone();
    context.feed(&binder.classes, &queue, move |_| unbound(&claims));
    let waits = (binder.claims.clone(), binder.volumes.clone(), binder.classes.clone(), binder.nodes.clone());
    context.start(NAME, &queue, binder, async move {
        waits.0.synced().await;
        waits.1.synced().await;
        waits.2.synced().await;
        waits.3.synced().await;
    });
}

fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    claim.annotations().contains_key(BIND_COMPLETED)
}

fn unbound(claims: &Informer<PersistentVolumeClaim>) -> Vec<Key> {
    claims.list().iter().filter(|claim| !is_bound(claim)).map(|claim| Key::of(&**claim)).collect()
}

/// The volume, its claim, and, if it is free, every claim that waits.
fn volume_concerns(change: &Change<PersistentVolume>, claims: &Informer<PersistentVolumeClaim>) -> Vec<Key> {
    let mut keys = Vec::new();
    for volume in driver::objects_of(change) {
        match volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) {
            Some(claim) => keys.push(Key::new(
                claim.namespace.as_deref().unwrap_or_default(),
                claim.name.as_deref().unwrap_or_default(),
            )),
            None => keys.extend(unbound(claims)),
        }
        keys.push(Key::of(&*volume));
    }
    keys
}

#[async_trait::async_trait]
impl Reconcile for Binder {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        if key.namespace.is_empty() {
            let Some(volume) = self.volumes.get("", &key.name) else { return Ok(Next::Wait) };
            self.volume(&volume).await?;
        } else {
            let Some(claim) = self.claims.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
            if is_bound(&claim) {
                self.bound_claim(&claim).await?;
            } else {
                self.unbound_claim(&claim).await?;
            }
        }
        Ok(Next::Wait)
    }
}

impl Binder {
    async fn unbound_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        if claim.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        if let Some(name) = volumes::name_of(claim) {
            let Some(volume) = self.volumes.get("", name) else { return self.set_claim_phase(claim, "Pending").await };
            let foreign =
                volume.spec.as_ref().is_some_and(|s| s.claim_ref.is_some()) && volumes::names(&volume, claim).is_none();
            if foreign {
                let text = format!("volume {name:?} already bound to a different claim.");
                self.recorder.report(claim, Severity::Warning, "FailedBinding", text);
                return self.set_claim_phase(claim, "Pending").await;
            }
            if let Some(why) = volumes::misfit(&volume, claim) {
                let text = format!("Cannot bind to requested volume {name:?}: {why}");
                self.recorder.report(claim, Severity::Warning, "VolumeMismatch", text);
                return self.set_claim_phase(claim, "Pending").await;
            }
            return self.bind(&volume, claim).await;
        }
        if self.give_default_class(claim).await? {
            return Ok(());
        }
        let class = self.classes.get("", &volumes::class_of(claim));
        let delayed =
            class.as_ref().is_some_and(|class| class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer"));
        let node = claim.annotations().get(SELECTED_NODE).and_then(|name| self.nodes.get("", name));
        let waits = delayed && !claim.annotations().contains_key(SELECTED_NODE);
        let all = self.volumes.list();
        let near = |volume: &PersistentVolume| node.as_ref().is_none_or(|node| matching::reaches(volume, node));
        // A claim that waits for its pod gets what the scheduler has chosen for it, and that names it then.
        let free = || if waits { None } else { volumes::find_free(claim, &all, near) };
        match volumes::find_named(claim, &all).or_else(free) {
            Some(volume) => self.bind(volume, claim).await,
            None if waits => self.wait_for_pod(claim).await,
            None => self.wait(claim, class.as_deref()).await,
        }
    }

    /// A claim that named no class gets the default one once there is one. Says whether it was written.
    async fn give_default_class(&self, claim: &PersistentVolumeClaim) -> Result<bool, Error> {
        if claim.spec.as_ref().is_none_or(|s| s.storage_class_name.is_some()) || !volumes::class_of(claim).is_empty() {
            return Ok(false);
        }
        let mut defaults: Vec<_> = self.classes.list();
        defaults.retain(|class| class.annotations().get(DEFAULT_CLASS).is_some_and(|value| value == "true"));
        let Some(newest) = defaults.iter().max_by_key(|class| class.metadata.creation_timestamp.as_ref().map(|t| t.0))
        else {
            return Ok(false);
        };
        let mut updated = claim.clone();
        updated.spec.get_or_insert_default().storage_class_name = Some(newest.name_any());
        self.claims_api(claim).replace(&claim.name_any(), &PostParams::default(), &updated).await?;
        Ok(true)
    }

    /// No volume yet: a pod must come first.
    async fn wait_for_pod(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let text = "waiting for first consumer to be created before binding";
        self.recorder.report(claim, Severity::Normal, "WaitForFirstConsumer", text);
        self.set_claim_phase(claim, "Pending").await
    }

    /// No volume yet: somebody may make one.
    async fn wait(&self, claim: &PersistentVolumeClaim, class: Option<&StorageClass>) -> Result<(), Error> {
        let name = volumes::class_of(claim);
        match class {
            Some(class) if class.provisioner != NO_PROVISIONER => {
                return self.ask_provisioner(claim, &class.provisioner).await;
            }
            None if !name.is_empty() => {
                let text = format!("storageclass.storage.k8s.io {name:?} not found");
                self.recorder.report(claim, Severity::Warning, "ProvisioningFailed", text);
            }
            _ => self.recorder.report(claim, Severity::Normal, "FailedBinding", NOTHING_FREE),
        }
        self.set_claim_phase(claim, "Pending").await
    }

    async fn ask_provisioner(&self, claim: &PersistentVolumeClaim, provisioner: &str) -> Result<(), Error> {
        let text = format!(
            "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
             system administrator. If volume creation is delayed, please verify that the provisioner is running and \
             correctly registered."
        );
        self.recorder.report(claim, Severity::Normal, "ExternalProvisioning", text);
        if claim.annotations().get(PROVISIONER).is_none_or(|known| known != provisioner) {
            let mut updated = claim.clone();
            for annotation in [PROVISIONER, OLD_PROVISIONER] {
                updated.annotations_mut().insert(annotation.to_owned(), provisioner.to_owned());
            }
            self.claims_api(claim).replace(&claim.name_any(), &PostParams::default(), &updated).await?;
            return Ok(());
        }
        self.set_claim_phase(claim, "Pending").await
    }

    /// Four writes, each harmless to repeat: the volume names the claim, it is Bound, the claim names the volume, it is
    /// Bound.
    async fn bind(&self, volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let mut volume = volume.clone();
        if volumes::names(&volume, claim) != Some(true) {
            let by_user = volumes::names(&volume, claim).is_some();
            let mut reference: ObjectReference = claim.object_ref(&());
            reference.resource_version = claim.resource_version();
            volume.spec.get_or_insert_default().claim_ref = Some(reference);
            if !by_user {
                volume.annotations_mut().insert(BOUND_BY_US.to_owned(), "yes".to_owned());
            }
            volume = self.volumes_api().replace(&volume.name_any(), &PostParams::default(), &volume).await?;
        }
        self.set_volume_phase(&volume, "Bound").await?;
        let mut claim = claim.clone();
        if volumes::name_of(&claim).is_none() {
            claim.spec.get_or_insert_default().volume_name = Some(volume.name_any());
            claim.annotations_mut().insert(BOUND_BY_US.to_owned(), "yes".to_owned());
        }
        if !is_bound(&claim) {
            claim.annotations_mut().insert(BIND_COMPLETED.to_owned(), "yes".to_owned());
            claim = self.claims_api(&claim).replace(&claim.name_any(), &PostParams::default(), &claim).await?;
        }
        self.set_bound(&claim, &volume).await
    }

    async fn bound_claim(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let Some(name) = volumes::name_of(claim) else {
            return self.lose(claim, Loss::Reference).await;
        };
        let Some(volume) = self.volumes.get("", name) else {
            return self.lose(claim, Loss::Volume).await;
        };
        match (volume.spec.as_ref().is_some_and(|s| s.claim_ref.is_some()), volumes::names(&volume, claim)) {
            (false, _) | (true, Some(_)) => self.bind(&volume, claim).await,
            (true, None) => self.lose(claim, Loss::ToAnother).await,
        }
    }

    async fn lose(&self, claim: &PersistentVolumeClaim, loss: Loss) -> Result<(), Error> {
        let (reason, text) = match loss {
            Loss::Reference => {
                ("ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!")
            }
            Loss::Volume => ("ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"),
            Loss::ToAnother => {
                ("ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
            }
        };
        if claim.status.as_ref().and_then(|s| s.phase.as_deref()) != Some("Lost") {
            self.recorder.report(claim, Severity::Warning, reason, text);
        }
        self.set_claim_phase(claim, "Lost").await
    }

    async fn volume(&self, volume: &PersistentVolume) -> Result<(), Error> {
        let Some(reference) = volume.spec.as_ref().and_then(|s| s.claim_ref.as_ref()) else {
            return self.set_volume_phase(volume, "Available").await;
        };
        let Some(uid) = reference.uid.as_ref().filter(|uid| !uid.is_empty()) else {
            // Kept for a claim by a person: it is bound when the claim comes.
            return self.set_volume_phase(volume, "Available").await;
        };
        let (namespace, name) =
            (reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default());
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
        let cached = self.claims.get(&namespace, &name).filter(|claim| claim.uid().as_ref() == Some(uid));
        // Data is at stake: only the server's word that the claim is gone counts, not a cache's.
        let claim = match cached {
            Some(claim) => Some((*claim).clone()),
            None => api.get_opt(&name).await?.filter(|claim| claim.uid().as_ref() == Some(uid)),
        };
        match claim {
            None => self.release(volume).await,
            Some(claim) if volumes::name_of(&claim) == Some(&volume.name_any()) => {
                self.set_volume_phase(volume, "Bound").await
            }
            Some(claim) if volumes::name_of(&claim).is_none() => Ok(()),
            // The claim has another volume by now.
            Some(_) if volume.annotations().contains_key(BOUND_BY_US) => {
                let mut updated = volume.clone();
                updated.annotations_mut().remove(BOUND_BY_US);
                updated.spec.get_or_insert_default().claim_ref = None;
                self.volumes_api().replace(&volume.name_any(), &PostParams::default(), &updated).await?;
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    /// The claim is gone: keep the data, or delete it, as the volume's policy says.
    async fn release(&self, volume: &PersistentVolume) -> Result<(), Error> {
        if volumes::phase(volume) != "Failed" {
            self.set_volume_phase(volume, "Released").await?;
        }
        let spec = volume.spec.clone().unwrap_or_default();
        let policy = spec.persistent_volume_reclaim_policy.as_deref().unwrap_or("Retain");
        // What a provisioner made is for that provisioner to delete.
        if policy != "Delete"
            || volume.annotations().contains_key(PROVISIONED_BY)
            || volume.metadata.deletion_timestamp.is_some()
        {
            if policy == "Recycle" {
                let text = "No recycler plugin found for the volume!";
                self.recorder.report(volume, Severity::Warning, "VolumeFailedRecycle", text);
            }
            return Ok(());
        }
        let why = match spec.host_path {
            Some(path) => format!("host_path deleter only supports /tmp/.+ but received provided {}", path.path),
            None => "error getting deleter volume plugin for volume: no volume plugin matched".to_owned(),
        };
        self.recorder.report(volume, Severity::Warning, "VolumeFailedDelete", why.clone());
        let mut updated = volume.clone();
        let status = updated.status.get_or_insert_default();
        (status.phase, status.message) = (Some("Failed".to_owned()), Some(why));
        self.write_volume_status(volume, &updated).await
    }

    fn claims_api(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }

    fn volumes_api(&self) -> Api<PersistentVolume> {
        Api::all(self.client.clone())
    }

    async fn set_volume_phase(&self, volume: &PersistentVolume, phase: &str) -> Result<(), Error> {
        let mut updated = volume.clone();
        let status = updated.status.get_or_insert_default();
        (status.phase, status.message) = (Some(phase.to_owned()), None);
        self.write_volume_status(volume, &updated).await
    }

    async fn write_volume_status(&self, old: &PersistentVolume, updated: &PersistentVolume) -> Result<(), Error> {
        let told = |volume: &PersistentVolume| volume.status.as_ref().map(|s| (s.phase.clone(), s.message.clone()));
        if told(old) != told(updated) {
            // The version may have moved by our own write of the spec a moment ago: that is the one in `old`.
            self.volumes_api().replace_status(&old.name_any(), &PostParams::default(), updated).await?;
        }
        Ok(())
    }

    async fn set_claim_phase(&self, claim: &PersistentVolumeClaim, phase: &str) -> Result<(), Error> {
        if claim.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase) {
            return Ok(());
        }
        let mut updated = claim.clone();
        let status = updated.status.get_or_insert_default();
        status.phase = Some(phase.to_owned());
        (status.access_modes, status.capacity, status.current_volume_attributes_class_name) = (None, None, None);
        self.claims_api(claim).replace_status(&claim.name_any(), &PostParams::default(), &updated).await?;
        Ok(())
    }

    async fn set_bound(&self, claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Result<(), Error> {
        let mut updated = claim.clone();
        bind_status(updated.status.get_or_insert_default(), volume.spec.clone().unwrap_or_default());
        if updated.status != claim.status {
            self.claims_api(claim).replace_status(&claim.name_any(), &PostParams::default(), &updated).await?;
        }
        Ok(())
    }
}

/// The status of a claim that has its volume. Capacity and class are the volume's at the moment of binding; later they
/// are the resizer's.
fn bind_status(status: &mut PersistentVolumeClaimStatus, volume: PersistentVolumeSpec) {
    let was_bound = status.phase.as_deref() == Some("Bound");
    status.phase = Some("Bound".to_owned());
    status.access_modes = volume.access_modes;
    if !was_bound || status.capacity.is_none() {
        status.capacity = volume.capacity;
    }
    if !was_bound {
        status.current_volume_attributes_class_name = volume.volume_attributes_class_name;
    }
}

/// Deletes a volume whose data is gone.
pub(super) async fn delete(client: &kube::Client, volume: &PersistentVolume) -> Result<(), kube::Error> {
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let same = Preconditions { uid: volume.uid(), resource_version: None };
    driver::gone_is_fine(api.delete(&volume.name_any(), &DeleteParams::default().preconditions(same)).await)
}

/// Between looks at work that a pod does.
pub(super) const HELPER_AGAIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_takes_the_class_of_its_volume_once() {
        let volume = |class: &str| PersistentVolumeSpec {
            volume_attributes_class_name: Some(class.to_owned()),
            ..Default::default()
        };
        let mut status = PersistentVolumeClaimStatus { phase: Some("Pending".to_owned()), ..Default::default() };
        bind_status(&mut status, volume("gold"));
        assert_eq!(status.current_volume_attributes_class_name.as_deref(), Some("gold"));
        // From now on it is the resizer's: the volume may be ahead of it.
        bind_status(&mut status, volume("silver"));
        assert_eq!(status.current_volume_attributes_class_name.as_deref(), Some("gold"));
    }
}
