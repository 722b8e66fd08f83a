//! Watches over nodes: silence makes Ready Unknown, conditions become taints, and NoExecute taints drive pods away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, Preconditions};
use model::pod::Pod;
use serde_json::json;
use tokio::time::Instant;
use tracing::info;

use super::plan;
use super::zones::{Pace, Taint, Verdict};
use crate::driver::{self, Context, Error, EventSource, Next, Reconcile};
use crate::settings::{Evictions, Settings};

const NAME: &str = "node-controller";
/// A node whose turn is near is looked at again not sooner than after this.
const TURN_MIN: Duration = Duration::from_millis(100);
/// Where kubelets keep their leases.
const LEASES: &str = "kube-node-lease";

struct Nodes {
    client: kube::Client,
    recorder: Recorder,
    nodes: Informer<Node>,
    leases: Informer<Lease>,
    pods: Informer<Pod>,
    clock: Clock,
    /// Silence of this length makes a node unreachable (upstream's `--node-monitor-grace-period`).
    grace: Duration,
    /// The same of a node that never said how it is (upstream's `--node-startup-grace-period`).
    start_grace: Duration,
    /// A node that is not ready is looked at again after this (upstream's `--node-monitor-period`).
    period: Duration,
    evictions: Evictions,
    pace: Mutex<Pace>,
    /// The last sign of each node and when we saw it, by our own clock: nodes' clocks may be anything.
    seen: Mutex<BTreeMap<String, (String, Instant)>>,
}

/// Starts the controllers of silence, taints and eviction.
pub(crate) fn start(context: &Context, settings: &Settings) {
    let nodes = context.informers.get::<Node>();
    let pods = context.informers.get::<Pod>();
    // All leases are few: nodes' and leaders'.
    let leases = context.informers.get::<Lease>();
    let queue = Arc::new(Queue::default());
    context.feed_own(&nodes, &queue);
    // A renewed lease asks for nothing: the node's timer looks at it when it rings. One that came back to life must be
    // seen.
    context.feed(&leases, &queue, |change| match change {
        Change::Added(lease) if lease.namespace().as_deref() == Some(LEASES) => vec![Key::new("", &lease.name_any())],
        _ => Vec::new(),
    });
    let watcher = Nodes {
        client: context.client(NAME),
        recorder: context.recorder(NAME),
        nodes: nodes.clone(),
        leases: leases.clone(),
        pods: pods.clone(),
        clock: context.clock.clone(),
        grace: settings.node_grace,
        start_grace: settings.node_start_grace,
        period: settings.node_monitor_period,
        evictions: settings.evictions,
        pace: Mutex::default(),
        seen: Mutex::default(),
    };
    let ready = (nodes.clone(), leases, pods.clone());
    context.start("node-lifecycle-controller", &queue, watcher, async move {
        ready.0.synced().await;
        ready.1.synced().await;
        ready.2.synced().await;
    });
    start_eviction(context, nodes, pods);
}

#[async_trait::async_trait]
impl Reconcile for Nodes {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(node) = self.nodes.get("", &key.name) else {
            self.seen.lock().remove(&key.name);
            return Ok(Next::Wait);
        };
        self.renew_patience();
        let silent = self.silent_for(&node);
        let heard = plan::condition(&node, "Ready");
        let grace = if heard.is_none() { self.start_grace } else { self.grace };
        if silent >= grace && heard.is_none_or(|c| c.status != "Unknown") {
            self.mark_unknown(&node).await?;
            return Ok(Next::After(grace));
        }
        let ready = plan::condition(&node, "Ready").is_some_and(|c| c.status == "True");
        let verdict = if ready { Verdict::Evict } else { self.judge(&node) };
        if let Some(taints) = plan::taints(&node, verdict, self.clock.now()) {
            let patch = json!({"metadata": {"resourceVersion": node.resource_version()}, "spec": {"taints": taints}});
            let api: Api<Node> = Api::all(self.client.clone());
            // A merge patch replaces the list as a whole; the resource version keeps users' taints safe.
            api.patch(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        // A kubelet that says itself that it is not ready still tells the truth about its pods.
        if plan::condition(&node, "Ready").is_some_and(|c| c.status == "Unknown") {
            self.mark_pods_not_ready(&node).await?;
        }
        let wait = grace.saturating_sub(silent).max(Duration::from_secs(1));
        Ok(Next::After(match verdict {
            Verdict::Hold(turn) => wait.min(turn).max(TURN_MIN),
            // What becomes of a node that is not ready depends on the others.
            _ if !ready => wait.min(self.period),
            _ => wait,
        }))
    }
}

impl Nodes {
    /// After a time in which no node answered, all get the whole grace again (upstream's `handleDisruption`, 1.36.2).
    fn renew_patience(&self) {
        let has_recovered = {
            let mut pace = self.pace.lock();
            pace.has_recovered(|| self.nodes.list(), &self.evictions)
        };
        if has_recovered {
            info!("nodes answer again");
            begin_anew(&mut self.seen.lock(), Instant::now());
        }
    }

    fn judge(&self, node: &Node) -> Verdict {
        let taint = if plan::is_driven_away(node) { Taint::There } else { Taint::Fresh };
        let mut pace = self.pace.lock();
        pace.judge(node, taint, &self.nodes.list(), &self.evictions, Instant::now())
    }

    /// How long neither the node's lease nor its status has changed, by our clock.
    fn silent_for(&self, node: &Node) -> Duration {
        let lease = self.leases.get(LEASES, &node.name_any());
        let renewed = lease.and_then(|lease| lease.spec.clone()?.renew_time).map(|t| t.0.to_string());
        let heard =
            plan::condition(node, "Ready").and_then(|c| c.last_heartbeat_time.as_ref()).map(|t| t.0.to_string());
        let sign = format!("{renewed:?} {heard:?}");
        let mut seen = self.seen.lock();
        let now = Instant::now();
        let entry = seen.entry(node.name_any()).or_insert_with(|| (sign.clone(), now));
        if entry.0 != sign {
            *entry = (sign, now);
        }
        now - entry.1
    }

    async fn mark_unknown(&self, node: &Node) -> Result<(), Error> {
        let now = base::time::rfc3339_secs(self.clock.now());
        let conditions: Vec<_> = ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"]
            .into_iter()
            .map(|kind| match plan::condition(node, kind) {
                Some(old) => json!({
                    "type": kind, "status": "Unknown", "reason": "NodeStatusUnknown",
                        "message": "Kubelet stopped posting node status.",
                    "lastHeartbeatTime": old.last_heartbeat_time, "lastTransitionTime": now,
                }),
                None => json!({
                    "type": kind, "status": "Unknown", "reason": "NodeStatusNeverUpdated",
                        "message": "Kubelet never posted node status.",
                    "lastHeartbeatTime": node.metadata.creation_timestamp, "lastTransitionTime": now,
                }),
            })
            .collect();
        info!(node = %node.name_any(), "node fell silent");
        let api: Api<Node> = Api::all(self.client.clone());
        let patch =
            json!({"metadata": {"resourceVersion": node.resource_version()}, "status": {"conditions": conditions}});
        api.patch_status(&node.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await?;
        let text = format!("Node {} status is now: NodeNotReady", node.name_any());
        self.recorder.report(node, Severity::Normal, "NodeNotReady", text);
        Ok(())
    }

    /// Services must not send to pods of a node that fell silent.
    async fn mark_pods_not_ready(&self, node: &Node) -> Result<(), Error> {
        let name = node.name_any();
        let now = base::time::rfc3339_secs(self.clock.now());
        let mut results = Vec::new();
        for pod in self.pods.list().into_iter().filter(|pod| on_node(pod, &name) && model::phase::is_ready(pod)) {
            let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
            let ready =
                json!({"type": "Ready", "status": "False", "reason": "NodeNotReady", "lastTransitionTime": now});
            let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"conditions": [ready]}});
            let done = api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await;
            results.push(driver::gone_is_fine(done));
            self.recorder.report(&*pod, Severity::Warning, "NodeNotReady", "Node is not ready");
        }
        driver::all_of(results).map(drop)
    }
}

fn begin_anew(seen: &mut BTreeMap<String, (String, Instant)>, now: Instant) {
    seen.values_mut().for_each(|(_, at)| *at = now);
}

fn on_node(pod: &Pod, node: &str) -> bool {
    pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_deref() == Some(node))
}

struct Eviction {
    client: kube::Client,
    recorder: Recorder,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    clock: Clock,
}

fn start_eviction(context: &Context, nodes: Informer<Node>, pods: Informer<Pod>) {
    let queue = Arc::new(Queue::default());
    context.feed(&pods, &queue, |change| match change {
        Change::Deleted(_) => Vec::new(),
        Change::Added(pod) | Change::Modified { new: pod, .. } => vec![Key::of(&**pod)],
    });
    let all_pods = pods.clone();
    context.feed(&nodes, &queue, move |change| {
        let execute = |node: &Node| {
            let taints = node.spec.iter().flat_map(|s| s.taints.iter().flatten());
            taints.filter(|t| t.effect == "NoExecute").cloned().collect::<Vec<_>>()
        };
        let moved = match change {
            Change::Modified { old, new } if execute(old) == execute(new) => None,
            Change::Modified { new, .. } | Change::Added(new) => Some(new.name_any()),
            _ => None,
        };
        moved.map_or(Vec::new(), |name| {
            all_pods.list().iter().filter(|pod| on_node(pod, &name)).map(|pod| Key::of(&**pod)).collect()
        })
    });
    let client = context.client(NAME);
    let recorder =
        context.recorder_as(EventSource { account: "node-controller", component: "taint-eviction-controller" });
    let eviction =
        Eviction { client, recorder, nodes: nodes.clone(), pods: pods.clone(), clock: context.clock.clone() };
    context.start("taint-eviction-controller", &queue, eviction, async move {
        nodes.synced().await;
        pods.synced().await;
    });
}

/// The condition of the pod's end (upstream's `addConditionAndDeletePod`, 1.36.2).
fn disruption(pod: &Pod, now: Timestamp) -> serde_json::Value {
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint",
        "observedGeneration": pod.metadata.generation, "lastTransitionTime": base::time::rfc3339_secs(now),
    });
    json!({"metadata": {"uid": pod.uid()}, "status": {"conditions": [condition]}})
}

#[async_trait::async_trait]
impl Reconcile for Eviction {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let node_name = pod.spec.as_ref().and_then(|s| s.node_name.clone()).unwrap_or_default();
        let Some(node) = self.nodes.get("", &node_name) else { return Ok(Next::Wait) };
        let taints = node.spec.as_ref().and_then(|s| s.taints.clone()).unwrap_or_default();
        let now: Timestamp = self.clock.now();
        let Some(at) = plan::leave_at(&pod, &taints, now).filter(|_| pod.metadata.deletion_timestamp.is_none()) else {
            return Ok(Next::Wait);
        };
        if at > now {
            return Ok(Next::After(at.duration_since(now).unsigned_abs()));
        }
        self.recorder.report(
            &*pod,
            Severity::Normal,
            "TaintManagerEviction",
            format!("Marking for deletion Pod {key}"),
        );
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        // Before it goes: a job's policy may say that such an end is no failure.
        let told = api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(disruption(&pod, now))).await;
        driver::gone_is_fine(told)?;
        let uid = Preconditions { uid: pod.uid(), resource_version: None };
        driver::gone_is_fine(api.delete(&key.name, &DeleteParams::default().preconditions(uid)).await)?;
        Ok(Next::Wait)
    }
}
