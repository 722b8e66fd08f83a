//! Takes away pods that nobody else will: those of vanished nodes, those that ended in great number, those deleted before they had a node.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use client::informer::{Change, Informer, Key};
use client::pod::Pod;
use client::queue::Queue;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use serde_json::json;
use tokio::time::Instant;

use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::pods;

const NAME: &str = "pod-garbage-collector";
/// A node may come back under its name right away: its pods wait this long (upstream's quarantine).
const QUARANTINE: Duration = Duration::from_secs(40);

struct Controller {
    client: kube::Client,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    /// Nodes that pods name and that are not there, and since when.
    missing: Mutex<BTreeMap<String, Instant>>,
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
    let all_pods = pods.clone();
    context.feed(&nodes, &queue, move |change| {
        // A node that went, or one that the operator has given up.
        let given_up = match change {
            Change::Deleted(node) => node,
            Change::Added(node) | Change::Modified { new: node, .. } if is_out_of_service(node) => node,
            _ => return Vec::new(),
        };
        let name = given_up.name_any();
        all_pods.list().iter().filter(|pod| node_of(pod) == name).map(|pod| Key::of(&**pod)).collect()
    });
    let missing = Mutex::default();
    let controller = Controller { client: context.client(NAME), nodes: nodes.clone(), pods: pods.clone(), missing, ended_max };
    context.start(NAME, &queue, controller, async move {
        nodes.synced().await;
        pods.synced().await;
    });
}

fn ended(pod: &Pod) -> bool {
    matches!(pods::phase(pod), "Succeeded" | "Failed")
}

fn is_evicted(pod: &Pod) -> bool {
    pods::phase(pod) == "Failed" && pod.status.as_ref().is_some_and(|s| s.reason.as_deref() == Some("Evicted"))
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

/// Whether the operator says that the node is dead, and it does not say otherwise (upstream's `gcTerminating`, 1.36.2).
fn is_out_of_service(node: &Node) -> bool {
    let tainted = node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|t| t.key == "node.kubernetes.io/out-of-service");
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    tainted && !conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// How the node of a pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It is there, or the pod has none yet.
    Fine,
    /// It is there, and dead: its kubelet will end nothing.
    OutOfService,
    /// It is not there.
    Gone,
}

/// What keeps a pod from ending by itself, in upstream's words.
fn reason(pod: &Pod, node: Standing) -> Option<&'static str> {
    match (node_of(pod).is_empty(), node, pod.metadata.deletion_timestamp.is_some()) {
        (true, _, true) => Some("PodGC: unscheduled and terminating"),
        (false, Standing::Gone, _) => Some(NODE_GONE),
        (false, Standing::OutOfService, true) => Some("PodGC: terminating on a node that is out of service"),
        _ => None,
    }
}

const NODE_GONE: &str = "PodGC: node no longer exists";

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        if key.name.is_empty() {
            return self.trim_ended().await;
        }
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let node = node_of(&pod);
        let standing = match self.nodes.get("", node) {
            _ if node.is_empty() => Standing::Fine,
            Some(found) => {
                self.missing().remove(node);
                if is_out_of_service(&found) { Standing::OutOfService } else { Standing::Fine }
            }
            None => {
                // However we heard of it: a node may register after its pods were bound, or come back under its name.
                let left = QUARANTINE.saturating_sub(self.missing().entry(node.to_owned()).or_insert_with(Instant::now).elapsed());
                if !left.is_zero() {
                    return Ok(Next::After(left));
                }
                // The cache of nodes may be behind the pod's: only the server knows for sure that a node is gone.
                let api: Api<Node> = Api::all(self.client.clone());
                if api.get_opt(node).await?.is_some() { Standing::Fine } else { Standing::Gone }
            }
        };
        match reason(&pod, standing) {
            Some(reason) => self.remove(&pod, reason).await.map(|()| Next::Wait),
            None => Ok(Next::Wait),
        }
    }
}

impl Controller {
    fn missing(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Instant>> {
        self.missing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn trim_ended(&self) -> Result<Next, Error> {
        let mut over: Vec<Arc<Pod>> = self.pods.list().into_iter().filter(|pod| ended(pod)).collect();
        let surplus = if self.ended_max == 0 { 0 } else { over.len().saturating_sub(self.ended_max) };
        // Evicted pods first: controllers may ask about the others.
        over.sort_by_key(|pod| (!is_evicted(pod), pod.metadata.creation_timestamp.clone(), pod.metadata.name.clone()));
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
            // Of the others somebody has decided that they end.
            let conditions = if reason == NODE_GONE { vec![target] } else { Vec::new() };
            let status = json!({"metadata": {"uid": pod.uid()}, "status": {"phase": "Failed", "conditions": conditions}});
            driver::gone_is_fine(api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(status)).await)?;
        }
        let uid = Preconditions { uid: pod.uid(), resource_version: None };
        let now = DeleteParams::default().grace_period(0).preconditions(uid);
        Ok(driver::gone_is_fine(api.delete(&pod.name_any(), &now).await)?)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_pods_that_nobody_will_end_are_taken() {
        let mut pod = Pod::default();
        assert_eq!(reason(&pod, Standing::Fine), None);
        pod.spec = Some(client::pod::PodSpec { node_name: Some("n".to_owned()), ..Default::default() });
        assert_eq!(reason(&pod, Standing::Fine), None);
        assert_eq!(reason(&pod, Standing::Gone), Some(NODE_GONE));
        // Semantics H2: a machine that is dead ends no pod, however long one waits.
        assert_eq!(reason(&pod, Standing::OutOfService), None);
        pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(reason(&pod, Standing::OutOfService), Some("PodGC: terminating on a node that is out of service"));
    }

    #[test]
    fn a_node_that_says_that_it_is_ready_is_not_given_up() {
        let node = |ready: &str| -> Node {
            let taint = json!({"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"});
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": [taint]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap()
        };
        assert!(is_out_of_service(&node("Unknown")) && is_out_of_service(&node("False")) && !is_out_of_service(&node("True")));
    }
}
