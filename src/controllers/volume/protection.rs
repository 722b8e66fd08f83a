//! Claims that a pod uses, and volumes that a claim has, stay until they are free: their finalizers go when they are.

use std::sync::Arc;

use client::informer::{Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};
use model::phase;
use model::pod::Pod;

use super::ephemeral;
use crate::driver::{self, Context, Error, Next, Reconcile};

const CLAIMS: &str = "pvc-protection-controller";
const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
const VOLUMES: &str = "pv-protection-controller";
const VOLUME_FINALIZER: &str = "kubernetes.io/pv-protection";

struct Claims {
    client: kube::Client,
    claims: Informer<PersistentVolumeClaim>,
    pods: Informer<Pod>,
}

struct Volumes {
    client: kube::Client,
    volumes: Informer<PersistentVolume>,
}

/// Starts both controllers.
pub(super) fn start(context: &Context) {
    let claims =
        Claims { client: context.client(CLAIMS), claims: context.informers.get(), pods: context.informers.get() };
    let queue = Arc::new(Queue::default());
    context.feed_own(&claims.claims, &queue);
    context
        .feed(&claims.pods, &queue, |change| driver::objects_of(change).iter().flat_map(|pod| used_by(pod)).collect());
    let waits = (claims.claims.clone(), claims.pods.clone());
    context.start(CLAIMS, &queue, claims, async move {
        waits.0.synced().await;
        waits.1.synced().await;
    });
    let volumes = Volumes { client: context.client(VOLUMES), volumes: context.informers.get() };
    let queue = Arc::new(Queue::default());
    context.feed_own(&volumes.volumes, &queue);
    let waits = volumes.volumes.clone();
    context.start(VOLUMES, &queue, volumes, async move { waits.synced().await });
}

/// The claims that a pod names.
fn used_by(pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let named = volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(claim), _) => Some(claim.claim_name.clone()),
        (None, Some(_)) => Some(ephemeral::claim_name(pod, &volume.name)),
        (None, None) => None,
    });
    named.map(|name| Key::new(&namespace, &name)).collect()
}

/// Whether a pod may have the claim mounted: it has a node and has not ended.
fn holds(pod: &Pod, claim: &Key) -> bool {
    let placed = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).is_some_and(|node| !node.is_empty());
    placed && !phase::has_ended(pod) && used_by(pod).contains(claim)
}

fn without(finalizers: &[String], finalizer: &str) -> Option<Vec<String>> {
    finalizers.iter().any(|f| f == finalizer).then(|| finalizers.iter().filter(|f| *f != finalizer).cloned().collect())
}

#[async_trait::async_trait]
impl Reconcile for Claims {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(claim) = self.claims.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let Some(left) =
            without(claim.finalizers(), CLAIM_FINALIZER).filter(|_| claim.metadata.deletion_timestamp.is_some())
        else {
            return Ok(Next::Wait);
        };
        if self.pods.list_in(&key.namespace).iter().any(|pod| holds(pod, key)) {
            return Ok(Next::Wait);
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        // Once more from the server: a pod may have been placed a moment ago.
        if api.list(&kube::api::ListParams::default()).await?.iter().any(|pod| holds(pod, key)) {
            return Ok(Next::Wait);
        }
        let mut updated = (*claim).clone();
        updated.metadata.finalizers = Some(left);
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        driver::gone_is_fine(api.replace(&key.name, &PostParams::default(), &updated).await)?;
        Ok(Next::Wait)
    }
}

#[async_trait::async_trait]
impl Reconcile for Volumes {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(volume) = self.volumes.get("", &key.name) else { return Ok(Next::Wait) };
        let bound = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        let leaving = volume.metadata.deletion_timestamp.is_some() && !bound;
        if let Some(left) = without(volume.finalizers(), VOLUME_FINALIZER).filter(|_| leaving) {
            let mut updated = (*volume).clone();
            updated.metadata.finalizers = Some(left);
            let api: Api<PersistentVolume> = Api::all(self.client.clone());
            driver::gone_is_fine(api.replace(&key.name, &PostParams::default(), &updated).await)?;
        }
        Ok(Next::Wait)
    }
}
