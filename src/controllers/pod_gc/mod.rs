//! Takes away pods that nobody else will: those of vanished nodes, those that ended in great number, those deleted
//! before they had a node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::sync::{Mutex, MutexGuard};
use base::time::{Clock, rfc3339_secs};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use model::phase;
use model::pod::Pod;
use serde_json::json;
use tokio::time::Instant;

use crate::driver::{self, Context, Error, Next, Reconcile};

const NAME: &str = "pod-garbage-collector";
/// A node may come back under its name right away: its pods wait this long (upstream's quarantine).
const QUARANTINE: Duration = Duration::from_secs(40);
/// A node that is missing longer is forgotten when another is missed.
const MISSING_KEPT: Duration = Duration::from_secs(3600);

/// Nodes that pods name and that are not there, and since when. Whoever makes pods chooses the names: old ones are
/// forgotten, and a pod that still names one only waits once more.
#[derive(Default)]
struct Missing(Mutex<BTreeMap<String, Instant>>);

impl Missing {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.0.lock()
    }

    /// How long the node has been missed; from `now` on, if it was not.
    fn missed_for(&self, node: &str, now: Instant) -> Duration {
        let mut missing = self.lock();
        if let Some(since) = missing.get(node) {
            return now.duration_since(*since);
        }
        missing.retain(|_, since| now.duration_since(*since) < MISSING_KEPT);
        missing.insert(node.to_owned(), now);
        Duration::ZERO
    }

    /// The node is there: if it goes again, its pods wait again.
    fn found(&self, node: &str) {
        self.lock().remove(node);
    }

    /// The node whose pods are to be looked at now: one that went, or one that the operator has given up.
    fn given_up(&self, change: &Change<Node>) -> Option<String> {
        match change {
            Change::Deleted(node) => Some(node.name_any()),
            Change::Added(node) | Change::Modified { new: node, .. } => {
                self.found(&node.name_any());
                is_out_of_service(node).then(|| node.name_any())
            }
        }
    }
}

struct Controller {
    client: kube::Client,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    clock: Clock,
    missing: Arc<Missing>,
    /// Ended pods that are kept (upstream's `--terminated-pod-gc-threshold`); 0 keeps all.
    ended_max: usize,
}

/// Starts the controller.
pub(crate) fn start(context: &Context, ended_max: usize) {
    let (nodes, pods) = (context.informers.get::<Node>(), context.informers.get::<Pod>());
    let queue = Arc::new(Queue::default());
    // One key for the count of ended pods: an empty name; all others are pods.
    context.feed(&pods, &queue, |change| match change {
        Change::Added(pod) | Change::Modified { new: pod, .. } if phase::has_ended(pod) => {
            vec![Key::of(&**pod), Key::new("", "")]
        }
        Change::Added(pod) | Change::Modified { new: pod, .. } => vec![Key::of(&**pod)],
        _ => Vec::new(),
    });
    let all_pods = pods.clone();
    let missing = Arc::<Missing>::default();
    let heard = Arc::clone(&missing);
    context.feed(&nodes, &queue, move |change| {
        let Some(name) = heard.given_up(change) else { return Vec::new() };
        all_pods.list().iter().filter(|pod| node_of(pod) == name).map(|pod| Key::of(&**pod)).collect()
    });
    let (client, clock) = (context.client(NAME), context.clock.clone());
    let controller = Controller { client, nodes: nodes.clone(), pods: pods.clone(), clock, missing, ended_max };
    context.start(NAME, &queue, controller, async move {
        nodes.synced().await;
        pods.synced().await;
    });
}

fn is_evicted(pod: &Pod) -> bool {
    phase::phase(pod) == "Failed" && pod.status.as_ref().is_some_and(|s| s.reason.as_deref() == Some("Evicted"))
}

fn node_of(pod: &Pod) -> &str {
    pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default()
}

/// Whether the operator says that the node is dead, and it does not say otherwise (upstream's `gcTerminating`, 1.36.2).
fn is_out_of_service(node: &Node) -> bool {
    let tainted =
        node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(|t| t.key == "node.kubernetes.io/out-of-service");
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    tainted && !conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// How the node of a pod stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeState {
    /// It is there, or the pod has none yet.
    Fine,
    /// It is there, and dead: its kubelet will end nothing.
    OutOfService,
    /// It is not there.
    Gone,
}

/// The reason that keeps a pod from ending by itself, in upstream's words.
fn reason(pod: &Pod, node: NodeState) -> Option<&'static str> {
    match (node_of(pod).is_empty(), node, pod.metadata.deletion_timestamp.is_some()) {
        (true, _, true) => Some("PodGC: unscheduled and terminating"),
        (false, NodeState::Gone, _) => Some(NODE_GONE),
        (false, NodeState::OutOfService, true) => Some("PodGC: terminating on a node that is out of service"),
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
        let state = match self.nodes.get("", node) {
            _ if node.is_empty() => NodeState::Fine,
            Some(found) => {
                self.missing.found(node);
                if is_out_of_service(&found) { NodeState::OutOfService } else { NodeState::Fine }
            }
            None => {
                // However we heard of it: a node may register after its pods were bound, or come back under its name.
                let left = QUARANTINE.saturating_sub(self.missing.missed_for(node, Instant::now()));
                if !left.is_zero() {
                    return Ok(Next::After(left));
                }
                // The cache of nodes may be behind the pod's: only the server knows for sure that a node is gone.
                let api: Api<Node> = Api::all(self.client.clone());
                if api.get_opt(node).await?.is_some() { NodeState::Fine } else { NodeState::Gone }
            }
        };
        match reason(&pod, state) {
            Some(reason) => self.remove(&pod, reason).await.map(|()| Next::Wait),
            None => Ok(Next::Wait),
        }
    }
}

impl Controller {
    async fn trim_ended(&self) -> Result<Next, Error> {
        let mut over: Vec<Arc<Pod>> = self.pods.list().into_iter().filter(|pod| phase::has_ended(pod)).collect();
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
        if !phase::has_ended(pod) {
            let target = json!({
                "type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "message": reason,
                "lastTransitionTime": rfc3339_secs(self.clock.now()),
            });
            // Of the others somebody has decided that they end.
            let conditions = if reason == NODE_GONE { vec![target] } else { Vec::new() };
            let status =
                json!({"metadata": {"uid": pod.uid()}, "status": {"phase": "Failed", "conditions": conditions}});
            driver::gone_is_fine(
                api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(status)).await,
            )?;
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
    fn a_node_that_came_back_and_went_again_is_waited_for_again() {
        let (missing, began) = (Missing::default(), Instant::now());
        let node: Arc<Node> = Arc::new(serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap());
        assert_eq!(missing.given_up(&Change::Deleted(Arc::clone(&node))).as_deref(), Some("n"));
        assert_eq!(missing.missed_for("n", began), Duration::ZERO);
        assert_eq!(missing.missed_for("n", began + QUARANTINE), QUARANTINE);
        // None of its pods is looked at while it is there.
        assert_eq!(missing.given_up(&Change::Added(node)), None);
        assert_eq!(missing.missed_for("n", began + 2 * QUARANTINE), Duration::ZERO);
    }

    #[test]
    fn names_that_pods_invent_are_forgotten() {
        let (missing, began) = (Missing::default(), Instant::now());
        for n in 0..100 {
            missing.missed_for(&format!("invented-{n}"), began);
        }
        missing.missed_for("another", began + MISSING_KEPT);
        assert_eq!(missing.lock().len(), 1);
    }

    #[test]
    fn only_pods_that_nobody_will_end_are_taken() {
        let mut pod = Pod::default();
        assert_eq!(reason(&pod, NodeState::Fine), None);
        pod.spec = Some(model::pod::PodSpec { node_name: Some("n".to_owned()), ..Default::default() });
        assert_eq!(reason(&pod, NodeState::Fine), None);
        assert_eq!(reason(&pod, NodeState::Gone), Some(NODE_GONE));
        // Semantics H2: a machine that is dead ends no pod, however long one waits.
        assert_eq!(reason(&pod, NodeState::OutOfService), None);
        pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(reason(&pod, NodeState::OutOfService), Some("PodGC: terminating on a node that is out of service"));
    }

    #[test]
    fn a_node_that_says_that_it_is_ready_is_not_given_up() {
        let node = |ready: &str| -> Node {
            let taint = json!({"key": "node.kubernetes.io/out-of-service", "value": "x", "effect": "NoExecute"});
            serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"taints": [taint]},
                "status": {"conditions": [{"type": "Ready", "status": ready}]}}))
            .unwrap()
        };
        assert!(
            is_out_of_service(&node("Unknown"))
                && is_out_of_service(&node("False"))
                && !is_out_of_service(&node("True"))
        );
    }
}
