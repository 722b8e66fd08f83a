//! Takes away pods that nobody else will: those of vanished nodes, those that ended in great number, those deleted before they had a node.

use std::sync::Arc;
use std::time::Duration;

use client::informer::{Change, Informer, Key};
use client::pod::Pod;
use client::queue::Queue;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;

use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::pods;

const NAME: &str = "pod-garbage-collector";
/// A node may come back under its name right away: its pods wait this long (upstream's quarantine).
const QUARANTINE: Duration = Duration::from_secs(40);

struct Controller {
    client: kube::Client,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    /// Ended pods that are kept (upstream's `--terminated-pod-gc-threshold`); 0 keeps all.
    ended_max: usize,
}

/// Starts the controller.
pub(crate) fn start(context: &Context, ended_max: usize) {
    let (nodes, pods) = (context.informers.get::<Node>(), context.informers.get::<Pod>());
    let queue = Arc::new(Queue::default());
    // One key for the count of ended pods: an empty name; all others are pods.
    context.feed(&pods, &queue, |change| match change {
        Change::Added(pod) | Change::Modified { new: pod, .. } if ended(pod) => vec![Key::of(&**pod), Key::new("", "")],
        Change::Added(pod) | Change::Modified { new: pod, .. } => vec![Key::of(&**pod)],
        _ => Vec::new(),
    });
    let (all_pods, later) = (pods.clone(), Arc::clone(&queue));
    context.feed(&nodes, &queue, move |change| {
        if let Change::Deleted(node) = change {
            let name = node.name_any();
            all_pods.list().iter().filter(|pod| node_of(pod) == name).for_each(|pod| later.add_after(Key::of(&**pod), QUARANTINE));
        }
        Vec::new()
    });
    let controller = Controller { client: context.client(NAME), nodes: nodes.clone(), pods: pods.clone(), ended_max };
    context.start(NAME, &queue, controller, async move {
        nodes.synced().await;
        pods.synced().await;
    });
}

fn ended(pod: &Pod) -> bool {
    matches!(pods::phase(pod), "Succeeded" | "Failed")
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

/// What keeps a pod from ending by itself, in upstream's words.
fn reason(pod: &Pod, node_exists: bool) -> Option<&'static str> {
    match (node_of(pod).is_empty(), node_exists, pod.metadata.deletion_timestamp.is_some()) {
        (true, _, true) => Some("PodGC: unscheduled and terminating"),
        (false, false, _) => Some("PodGC: node no longer exists"),
        _ => None,
    }
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        if key.name.is_empty() {
            return self.trim_ended().await;
        }
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let node = node_of(&pod);
        // The cache of nodes may be behind the pod's: only the server knows for sure that a node is gone.
        let exists = node.is_empty() || self.nodes.get("", node).is_some() || {
            let api: Api<Node> = Api::all(self.client.clone());
            api.get_opt(node).await?.is_some()
        };
        match reason(&pod, exists) {
            Some(reason) => self.remove(&pod, reason).await.map(|()| Next::Wait),
            None => Ok(Next::Wait),
        }
    }
}

impl Controller {
    async fn trim_ended(&self) -> Result<Next, Error> {
        let mut over: Vec<Arc<Pod>> = self.pods.list().into_iter().filter(|pod| ended(pod)).collect();
        let surplus = if self.ended_max == 0 { 0 } else { over.len().saturating_sub(self.ended_max) };
        over.sort_by_key(|pod| pod.metadata.creation_timestamp.clone());
        for pod in over.iter().take(surplus) {
            self.remove(pod, "PodGC: too many terminated pods").await?;
        }
        Ok(Next::Wait)
    }

    async fn remove(&self, pod: &Pod, reason: &str) -> Result<(), Error> {
        tracing::info!(ns = %pod.namespace().unwrap_or_default(), name = %pod.name_any(), reason, "pod taken away");
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        if !ended(pod) {
            let target = json!({
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": reason,
                "lastTransitionTime": base::time::rfc3339_secs(base::time::Clock::system().now()),
            });
            let status = json!({"metadata": {"uid": pod.uid()}, "status": {"phase": "Failed", "conditions": [target]}});
            driver::gone_is_fine(api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(status)).await)?;
        }
        let uid = Preconditions { uid: pod.uid(), resource_version: None };
        let now = DeleteParams::default().grace_period(0).preconditions(uid);
        Ok(driver::gone_is_fine(api.delete(&pod.name_any(), &now).await)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_pods_that_nobody_will_end_are_taken() {
        let mut pod = Pod::default();
        assert_eq!(reason(&pod, true), None);
        pod.spec = Some(client::pod::PodSpec { node_name: Some("n".to_owned()), ..Default::default() });
        assert_eq!(reason(&pod, true), None);
        assert_eq!(reason(&pod, false), Some("PodGC: node no longer exists"));
    }
}
