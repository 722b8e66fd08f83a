//! Claims and volumes in use do not vanish: their finalizers are taken off when nobody uses them any more.

use std::sync::Arc;

use client::informer::{Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Volume};
use kube::ResourceExt as _;
use kube::api::{Api, PostParams};

use crate::driver::{self, Context, Error, Next, Reconcile};

const CLAIMS: &str = "pvc-protection-controller";
const VOLUMES: &str = "pv-protection-controller";
const CLAIM_FINALIZER: &str = "kubernetes.io/pvc-protection";
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
pub(crate) fn start(context: &Context) {
    let claims = Claims { client: context.client(CLAIMS), claims: context.informers.get(), pods: context.informers.get() };
    let queue = Arc::new(Queue::default());
    context.feed_own(&claims.claims, &queue);
    context.feed(&claims.pods, &queue, |change| {
        let mut keys: Vec<Key> = driver::objects_of(change).iter().flat_map(|pod| claims_of(pod)).collect();
        keys.dedup();
        keys
    });
    let waits = (claims.claims.clone(), claims.pods.clone());
    context.start(CLAIMS, &queue, claims, async move {
        waits.0.synced().await;
        waits.1.synced().await;
    });
    let volumes = Volumes { client: context.client(VOLUMES), volumes: context.informers.get() };
    let queue = Arc::new(Queue::default());
    context.feed_own(&volumes.volumes, &queue);
    let wait = volumes.volumes.clone();
    context.start(VOLUMES, &queue, volumes, async move { wait.synced().await });
}

/// The claim that a volume of the pod stands for.
fn claim_of(pod: &Pod, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone());
    named.or_else(|| volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name_any(), volume.name)))
}

fn claims_of(pod: &Pod) -> Vec<Key> {
    let namespace = pod.namespace().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| claim_of(pod, volume)).map(|name| Key::new(&namespace, &name)).collect()
}

/// Whether a pod uses the claim. A pod without a node does not: no kubelet starts it on a claim that is being deleted.
fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let Some(spec) = pod.spec.as_ref().filter(|spec| spec.node_name.as_ref().is_some_and(|n| !n.is_empty())) else { return false };
    let shut_down = pod.metadata.deletion_timestamp.is_some() && pod.metadata.deletion_grace_period_seconds == Some(0);
    let made_for_pod = claim.owner_references().iter().any(|owner| owner.controller == Some(true) && Some(&owner.uid) == pod.metadata.uid.as_ref());
    spec.volumes.iter().flatten().any(|volume| {
        let by_name = claim_of(pod, volume).as_ref() == claim.metadata.name.as_ref();
        by_name && (volume.persistent_volume_claim.is_some() || !shut_down && made_for_pod)
    })
}

#[async_trait::async_trait]
impl Reconcile for Claims {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(claim) = self.claims.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let dying = claim.metadata.deletion_timestamp.is_some() && claim.finalizers().iter().any(|f| f == CLAIM_FINALIZER);
        if !dying {
            return Ok(Next::Wait);
        }
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        // The cache may be behind a pod that was just bound: the API server has the last word, as upstream.
        let used = self.pods.list_in(&key.namespace).iter().any(|pod| uses(pod, &claim))
            || api.list(&Default::default()).await?.items.iter().any(|pod| uses(pod, &claim));
        if used {
            return Ok(Next::Wait);
        }
        let mut freed = (*claim).clone();
        freed.finalizers_mut().retain(|f| f != CLAIM_FINALIZER);
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        driver::gone_is_fine(api.replace(&key.name, &PostParams::default(), &freed).await)?;
        Ok(Next::Wait)
    }
}

#[async_trait::async_trait]
impl Reconcile for Volumes {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(volume) = self.volumes.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let bound = volume.status.as_ref().and_then(|s| s.phase.as_deref()) == Some("Bound");
        let dying = volume.metadata.deletion_timestamp.is_some() && volume.finalizers().iter().any(|f| f == VOLUME_FINALIZER);
        if !dying || bound {
            return Ok(Next::Wait);
        }
        let mut freed = (*volume).clone();
        freed.finalizers_mut().retain(|f| f != VOLUME_FINALIZER);
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        driver::gone_is_fine(api.replace(&key.name, &PostParams::default(), &freed).await)?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn claim(owner: Option<&str>) -> PersistentVolumeClaim {
        let owners: Vec<_> =
            owner.map(|uid| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid, "controller": true})).into_iter().collect();
        serde_json::from_value(json!({"metadata": {"name": "p-data", "namespace": "n", "ownerReferences": owners}})).unwrap()
    }

    fn pod(node: Option<&str>, volume: serde_json::Value) -> Pod {
        let spec = json!({"nodeName": node, "containers": [], "volumes": [volume]});
        serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec})).unwrap()
    }

    #[test]
    fn only_pods_with_a_node_hold_a_claim() {
        let by_claim = json!({"name": "v", "persistentVolumeClaim": {"claimName": "p-data"}});
        assert!(uses(&pod(Some("a"), by_claim.clone()), &claim(None)));
        assert!(!uses(&pod(None, by_claim), &claim(None)));
        assert!(!uses(&pod(Some("a"), json!({"name": "v", "persistentVolumeClaim": {"claimName": "other"}})), &claim(None)));
    }

    #[test]
    fn an_ephemeral_claim_is_held_by_its_own_pod_until_that_has_stopped() {
        let ephemeral = json!({"name": "data", "ephemeral": {}});
        let mut running = pod(Some("a"), ephemeral);
        assert!(uses(&running, &claim(Some("u"))));
        assert!(!uses(&running, &claim(Some("another"))));
        running.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        running.metadata.deletion_grace_period_seconds = Some(0);
        assert!(!uses(&running, &claim(Some("u"))));
    }
}
