//! The scheduler's loop: events wake it, one pod a cycle, the Binding is written beside the next cycle.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::chain::Chain;
use base::rng::Rng;
use base::task::Group;
use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Informers, Key};
use client::pod::Pod;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::cycle::{self, Decision};
use crate::drivers::{self, Followed};
use crate::filters::volumes::SELECTED_NODE;
use crate::preempt::{Preemption, priority};
use crate::queue::Queue;
use crate::snapshot::{Snapshot, has_ended};

const ATTEMPTS: base::metrics::Metric =
    base::metrics::Metric { name: "scheduler_schedule_attempts_total", help: "Attempts to find a node for a pod." };
const ATTEMPT_TIME: base::metrics::Metric =
    base::metrics::Metric { name: "scheduler_scheduling_attempt_duration_seconds", help: "How long deciding took." };

/// Pods that name no scheduler, or this one, are ours.
const SCHEDULER_NAME: &str = "default-scheduler";
/// Bindings on their way at once; then the loop waits.
const BINDINGS_IN_FLIGHT: usize = 64;

/// How the loop's pods fared.
enum Outcome {
    Bound { uid: String, key: String },
    Failed { uid: String, key: String },
}

/// Everything the loop looks at.
struct Scheduler {
    client: kube::Client,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    namespaces: Informer<Namespace>,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
    classes: Informer<StorageClass>,
    budgets: Informer<PodDisruptionBudget>,
    informers: Informers,
    /// Once there is a driver of volumes.
    drivers: Option<Followed>,
    drivers_changed: Arc<Notify>,
    recorder: Recorder,
    queue: Queue,
    /// Node by uid of pods whose Binding was sent and has not come back through the watch.
    assumed: BTreeMap<String, String>,
    outcomes: mpsc::Sender<Outcome>,
    group: Group,
    rng: Rng,
}

/// Starts scheduling as the user behind `client` (`system:kube-scheduler`); reads through `informers`.
pub fn run(client: kube::Client, informers: &Informers, group: &Group) {
    let group = group.child("scheduler");
    // Full: the binding task waits, nothing is lost.
    let (outcomes, results) = mpsc::channel(BINDINGS_IN_FLIGHT);
    let scheduler = Scheduler {
        recorder: Recorder::new(client.clone(), SCHEDULER_NAME, "", &group),
        client,
        pods: informers.get(),
        nodes: informers.get(),
        namespaces: informers.get(),
        claims: informers.get(),
        volumes: informers.get(),
        classes: informers.get(),
        budgets: informers.get(),
        informers: informers.clone(),
        drivers: None,
        drivers_changed: Arc::default(),
        queue: Queue::default(),
        assumed: BTreeMap::new(),
        outcomes,
        group: group.clone(),
        rng: Rng::from_os(),
    };
    group.spawn("cycle", scheduler.cycle(results));
}

/// Counts a decision as upstream does.
fn attempted(decision: &Decision, took: std::time::Duration) {
    let result = if matches!(decision, Decision::Bind { .. }) { "scheduled" } else { "unschedulable" };
    let labels = [("profile", "default-scheduler"), ("result", result)];
    base::metrics::count(ATTEMPTS, &labels, 1);
    base::metrics::observe(ATTEMPT_TIME, &labels, took);
}

fn key(pod: &Pod) -> String {
    Key::of(pod).to_string()
}

/// Whether the pod waits for this scheduler.
fn wants_node(pod: &Pod) -> bool {
    let Some(spec) = &pod.spec else { return false };
    spec.node_name.as_deref().unwrap_or_default().is_empty()
        && pod.metadata.deletion_timestamp.is_none()
        && !has_ended(pod)
        && matches!(spec.scheduler_name.as_deref(), None | Some("" | SCHEDULER_NAME))
        && spec.scheduling_gates.as_deref().unwrap_or_default().is_empty()
}

/// What of a node can decide about pods: its status changes often, and mostly in ways that do not.
fn matters(old: &Node, new: &Node) -> bool {
    let allocatable = |node: &Node| node.status.as_ref().and_then(|s| s.allocatable.clone());
    old.spec != new.spec || old.metadata.labels != new.metadata.labels || allocatable(old) != allocatable(new)
}

impl Scheduler {
    async fn cycle(mut self, mut results: mpsc::Receiver<Outcome>) {
        let (mut pods, mut nodes) = (self.pods.changes(), self.nodes.changes());
        let (mut claims, mut volumes) = (self.claims.changes(), self.volumes.changes());
        self.pods.synced().await;
        self.nodes.synced().await;
        self.namespaces.synced().await;
        self.claims.synced().await;
        self.volumes.synced().await;
        self.classes.synced().await;
        self.budgets.synced().await;
        self.requeue_all();
        let drivers_changed = Arc::clone(&self.drivers_changed);
        loop {
            if let Some(next) = self.queue.pop(Instant::now()) {
                self.attempt(&next).await;
            }
            let idle = self.queue.pop(Instant::now()).is_none();
            let wake = self.queue.next_wake();
            // All arms are cancel safe: each yields a whole message or leaves it in its channel.
            tokio::select! {
                biased;
                change = pods.next() => self.pod_changed(change),
                change = nodes.next() => self.node_changed(&change),
                _ = claims.next() => self.queue.wake_all(Instant::now()),
                _ = volumes.next() => self.queue.wake_all(Instant::now()),
                () = drivers_changed.notified() => self.queue.wake_all(Instant::now()),
                Some(outcome) = results.recv() => self.settle(outcome),
                () = std::future::ready(()), if !idle => {}
                () = sleep_until(wake), if idle => {}
            }
        }
    }

    fn requeue_all(&mut self) {
        for pod in self.pods.list() {
            self.consider(&pod);
        }
        self.queue.wake_all(Instant::now());
    }

    fn consider(&mut self, pod: &Pod) {
        let uid = pod.uid().unwrap_or_default();
        if wants_node(pod) {
            if !self.assumed.contains_key(&uid) {
                self.queue.add(key(pod), pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0));
            }
        } else {
            // The Binding has come back, or the pod needs none any more.
            self.assumed.remove(&uid);
            self.queue.remove(&key(pod));
        }
    }

    fn pod_changed(&mut self, change: Change<Pod>) {
        match change {
            Change::Added(pod) => self.consider(&pod),
            Change::Modified { old, new } => {
                self.consider(&new);
                if old.spec != new.spec || old.metadata.labels != new.metadata.labels {
                    self.queue.updated(&key(&new), Instant::now());
                }
                if has_ended(&new) && !has_ended(&old) {
                    self.queue.wake_all(Instant::now());
                }
            }
            Change::Deleted(pod) => {
                self.assumed.remove(&pod.uid().unwrap_or_default());
                self.queue.remove(&key(&pod));
                // Its place is free now.
                self.queue.wake_all(Instant::now());
            }
        }
    }

    fn node_changed(&mut self, change: &Change<Node>) {
        let helps = match change {
            Change::Modified { old, new } => matters(old, new),
            Change::Added(_) | Change::Deleted(_) => true,
        };
        if helps {
            self.queue.wake_all(Instant::now());
        }
    }

    fn settle(&mut self, outcome: Outcome) {
        match outcome {
            // Stays assumed until the watch shows the pod with its node.
            Outcome::Bound { uid, key } => {
                self.queue.remove(&key);
                if self.pods.list().iter().all(|pod| pod.uid().as_deref() != Some(&uid)) {
                    self.assumed.remove(&uid);
                }
            }
            Outcome::Failed { uid, key } => {
                self.assumed.remove(&uid);
                self.queue.failed(&key, Instant::now());
            }
        }
    }

    /// The cluster as it will be when `wanting` runs: with the pods bound or assumed, and those at least as important for which
    /// room was made.
    fn snapshot(&self, wanting: &Pod) -> Snapshot {
        let mut assumed = self.assumed.clone();
        for pod in self.pods.list() {
            let nominated = pod.status.as_ref().and_then(|s| s.nominated_node_name.clone()).filter(|name| !name.is_empty());
            if let Some(node) = nominated
                && pod.metadata.uid != wanting.metadata.uid
                && wants_node(&pod)
                && priority(&pod) >= priority(wanting)
            {
                assumed.entry(pod.uid().unwrap_or_default()).or_insert(node);
            }
        }
        let mut snapshot = Snapshot::build(&self.nodes.list(), &self.pods.list(), &assumed);
        snapshot.namespaces = self.namespaces.list().into_iter().map(|ns| (ns.name_any(), ns)).collect();
        let claims = self.claims.list().into_iter();
        snapshot.claims = claims.map(|claim| ((claim.namespace().unwrap_or_default(), claim.name_any()), claim)).collect();
        snapshot.classes = self.classes.list().into_iter().map(|class| (class.name_any(), class)).collect();
        snapshot.volumes = self.volumes.list().into_iter().map(|volume| (volume.name_any(), volume)).collect();
        snapshot.csi = self.drivers.as_ref().map(Followed::look).unwrap_or_default();
        snapshot.budgets = self.budgets.list();
        snapshot
    }

    async fn attempt(&mut self, next: &str) {
        let (namespace, name) = next.split_once('/').unwrap_or(("", next));
        let Some(pod) = self.pods.get(namespace, name).filter(|pod| wants_node(pod)) else {
            return self.queue.remove(next);
        };
        let uid = pod.uid().unwrap_or_default();
        let watch = base::time::Stopwatch::start();
        if self.drivers.is_none() && drivers::any(&self.volumes, &self.classes) {
            self.drivers = Some(Followed::start(&self.informers, &self.drivers_changed, &self.group).await);
        }
        let snapshot = self.snapshot(&pod);
        let decision = cycle::decide(&pod, &snapshot, self.rng.below(u64::MAX));
        attempted(&decision, watch.elapsed());
        match decision {
            Decision::Bind { node } => {
                let waiting = cycle::waiting_claims(&pod, &snapshot);
                if !waiting.is_empty() {
                    // The volumes are made where the pod will run; each claim that gets its own wakes the pod again.
                    self.queue.unschedulable(next, Instant::now());
                    if let Err(err) = self.choose_node(&waiting, &node).await {
                        warn!(pod = next, node = %node, err = %Chain(&err), "cannot tell where a volume is wanted");
                        self.queue.failed(next, Instant::now());
                    }
                    return;
                }
                self.assumed.insert(uid, node.clone());
                self.queue.remove(next);
                self.bind(pod, node);
            }
            Decision::Unschedulable { message, preemption } => {
                self.queue.unschedulable(next, Instant::now());
                self.recorder.report(&*pod, Severity::Warning, "FailedScheduling", message.clone());
                let nominated = preemption.as_ref().map(|p| p.node.clone());
                if let Some(preemption) = preemption {
                    self.preempt(&pod, preemption);
                }
                if let Err(err) = self.mark_unschedulable(&pod, &message, nominated).await {
                    warn!(pod = next, err = %Chain(&err), "cannot write why a pod is not scheduled");
                }
            }
        }
    }

    /// Tells provisioners on which node the volumes of these claims are wanted.
    async fn choose_node(&self, claims: &[Arc<PersistentVolumeClaim>], node: &str) -> Result<(), kube::Error> {
        for claim in claims.iter().filter(|claim| claim.annotations().get(SELECTED_NODE).is_none_or(|chosen| chosen != node)) {
            let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
            let patch = json!({"metadata": {"uid": claim.uid(), "annotations": {SELECTED_NODE: node}}});
            api.patch(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
        }
        Ok(())
    }

    /// Writes the Binding in a task of its own, so that the next pod need not wait for it.
    fn bind(&self, pod: Arc<Pod>, node: String) {
        let (client, recorder, outcomes) = (self.client.clone(), self.recorder.clone(), self.outcomes.clone());
        self.group.spawn_short("bind", async move {
            let (uid, key) = (pod.uid().unwrap_or_default(), key(&pod));
            let outcome = match post_binding(&client, &pod, &node).await {
                Ok(()) => {
                    info!(pod = %key, node = %node, "pod scheduled");
                    recorder.report(&*pod, Severity::Normal, "Scheduled", format!("Successfully assigned {key} to {node}"));
                    Outcome::Bound { uid, key }
                }
                Err(err) => {
                    warn!(pod = %key, node = %node, err = %Chain(&err), "cannot bind a pod");
                    Outcome::Failed { uid, key }
                }
            };
            // The loop ends only with the process.
            let _ended = outcomes.send(outcome).await;
        });
    }

    /// Deletes the victims in tasks of their own; each one's end wakes the pod that waits for the room.
    fn preempt(&self, pod: &Pod, preemption: Preemption) {
        let (by, node) = (pod.uid().unwrap_or_default(), preemption.node);
        for victim in preemption.victims.into_iter().filter(|victim| victim.metadata.deletion_timestamp.is_none()) {
            let (client, recorder) = (self.client.clone(), self.recorder.clone());
            let (by, message) = (by.clone(), format!("Preempted by pod {by} on node {node}"));
            self.group.spawn_short("preempt", async move {
                match evict(&client, &victim).await {
                    Ok(()) => {
                        info!(pod = %key(&victim), by = %by, "pod preempted");
                        recorder.report(&*victim, Severity::Normal, "Preempted", message);
                    }
                    Err(err) => warn!(pod = %key(&victim), err = %Chain(&err), "cannot preempt a pod"),
                }
            });
        }
    }

    async fn mark_unschedulable(&self, pod: &Pod, message: &str, nominated: Option<String>) -> Result<(), kube::Error> {
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let told =
            |c: &client::pod::PodCondition| c.type_ == "PodScheduled" && c.status == "False" && c.message.as_deref() == Some(message);
        if nominated.is_none() && conditions.iter().any(told) {
            return Ok(());
        }
        let since = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False");
        let since = since.and_then(|c| c.last_transition_time.clone()).map(|t| t.0);
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "observedGeneration": pod.metadata.generation,
            "lastTransitionTime": base::time::rfc3339_secs(since.unwrap_or_else(|| base::time::Clock::system().now())),
        });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let mut status = json!({"conditions": [condition]});
        if let Some(node) = nominated {
            status["nominatedNodeName"] = node.into();
        }
        let patch = json!({"metadata": {"uid": pod.uid()}, "status": status});
        match api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop),
        }
    }
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Says why in the victim's status, then deletes it with its own grace.
async fn evict(client: &kube::Client, victim: &Pod) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &victim.namespace().unwrap_or_default());
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": format!("{SCHEDULER_NAME}: preempting to accommodate a higher priority pod"),
        "observedGeneration": victim.metadata.generation,
        "lastTransitionTime": base::time::rfc3339_secs(base::time::Clock::system().now()),
    });
    let patch = json!({"metadata": {"uid": victim.uid()}, "status": {"conditions": [condition]}});
    let gone = |err: &kube::Error| matches!(err, kube::Error::Api(status) if status.code == 404);
    match api.patch_status(&victim.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await {
        Err(err) if gone(&err) => return Ok(()),
        other => drop(other?),
    }
    let preconditions = Some(Preconditions { uid: victim.uid(), resource_version: None });
    match api.delete(&victim.name_any(), &DeleteParams { preconditions, ..DeleteParams::default() }).await {
        Err(err) if gone(&err) => Ok(()),
        other => other.map(drop),
    }
}

async fn post_binding(client: &kube::Client, pod: &Pod, node: &str) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let name = pod.name_any();
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding",
        "metadata": {"name": name, "namespace": pod.namespace(), "uid": pod.uid()},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    });
    api.create_subresource::<_, serde_json::Value>("binding", &name, &PostParams::default(), &binding).await.map(drop)
}
