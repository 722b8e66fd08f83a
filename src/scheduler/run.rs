//! The scheduler's loop: events wake it, one pod a cycle, the Binding is written beside the next cycle.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::chain::Chain;
use base::rng::Rng;
use base::task::Group;
use base::time::{Clock, rfc3339_secs};
use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Informers, Key};
use client::volumes;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Resource as _, ResourceExt as _};
use model::phase::has_ended;
use model::pod::Pod;
use model::requests;
use serde_json::json;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;
use tracing::{info, warn};

use crate::assumed::Assumed;
use crate::cycle::{self, Decision, Room};
use crate::drivers::{self, Followed};
use crate::filters::volumes::{Placement, SELECTED_NODE};
use crate::preempt::{Preemption, priority};
use crate::queue::Queue;
use crate::snapshot::Snapshot;

const ATTEMPTS: base::exposition::Metric =
    base::exposition::Metric { name: "scheduler_schedule_attempts_total", help: "Attempts to find a node for a pod." };
const ATTEMPT_TIME: base::exposition::Metric =
    base::exposition::Metric { name: "scheduler_scheduling_attempt_duration_seconds", help: "How long deciding took." };

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
    services: Informer<Service>,
    informers: Informers,
    /// Once there is a driver of volumes.
    drivers: Option<Followed>,
    drivers_changed: Arc<Notify>,
    recorder: Recorder,
    queue: Queue,
    /// Node by uid of pods whose Binding was sent and has not come back through the watch.
    assumed: BTreeMap<String, String>,
    /// Claims and volumes that were written and have not come back.
    assumed_claims: Assumed<PersistentVolumeClaim>,
    assumed_volumes: Assumed<PersistentVolume>,
    outcomes: mpsc::Sender<Outcome>,
    group: Group,
    rng: Rng,
    clock: Clock,
}

/// Dependencies of the scheduler.
pub struct Deps {
    /// Writes as the scheduler's user (`system:kube-scheduler`).
    pub client: kube::Client,
    /// The process's shared informers.
    pub informers: Informers,
    /// Tells the time.
    pub clock: Clock,
    /// Chooses among nodes that are equally good.
    pub rng: Rng,
}

/// Starts scheduling.
pub fn run(deps: Deps, group: &Group) {
    let Deps { client, informers, clock, rng } = deps;
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
        services: informers.get(),
        informers,
        drivers: None,
        drivers_changed: Arc::default(),
        queue: Queue::default(),
        assumed: BTreeMap::new(),
        assumed_claims: Assumed::default(),
        assumed_volumes: Assumed::default(),
        outcomes,
        group: group.clone(),
        rng,
        clock,
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

/// Parts of a node that can decide about pods: its status changes often, and mostly in ways that do not.
fn matters(old: &Node, new: &Node) -> bool {
    let allocatable = |node: &Node| node.status.as_ref().and_then(|s| s.allocatable.clone());
    old.spec != new.spec || old.metadata.labels != new.metadata.labels || allocatable(old) != allocatable(new)
}

/// Whether a pod on a node needs less than before.
pub(crate) fn frees(old: &Pod, new: &Pod) -> bool {
    let told = |pod: &Pod| {
        let status = pod.status.as_ref()?;
        let whole = (status.resources.clone(), status.allocated_resources.clone(), requests::is_given_up(status));
        Some((status.container_statuses.clone(), status.init_container_statuses.clone(), whole))
    };
    if old.spec == new.spec && told(old) == told(new) {
        return false;
    }
    let need = requests::of_pod(new);
    requests::of_pod(old).iter().any(|(name, amount)| need.get(name).is_none_or(|now| now < amount))
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
        self.services.synced().await;
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
                // A resize on its way down, or given up, frees room without an end.
                if has_ended(&new) && !has_ended(&old) || frees(&old, &new) {
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

    /// The cluster as it will be when `wanting` runs: with the pods bound or assumed, and those at least as important
    /// for which room was made.
    fn snapshot(&mut self, wanting: &Pod) -> Snapshot {
        let mut assumed = self.assumed.clone();
        for pod in self.pods.list() {
            if let Some(node) = nominated(&pod).map(str::to_owned)
                && pod.metadata.uid != wanting.metadata.uid
                && wants_node(&pod)
                && priority(&pod) >= priority(wanting)
            {
                assumed.entry(pod.uid().unwrap_or_default()).or_insert(node);
            }
        }
        let mut snapshot = Snapshot::build(&self.nodes.list(), &self.pods.list(), &assumed);
        snapshot.namespaces = self.namespaces.list().into_iter().map(|ns| (ns.name_any(), ns)).collect();
        let claims = self.assumed_claims.over(self.claims.list());
        snapshot.claims = claims
            .into_iter()
            .map(|claim| ((claim.namespace().unwrap_or_default(), claim.name_any()), claim))
            .collect();
        snapshot.classes = self.classes.list().into_iter().map(|class| (class.name_any(), class)).collect();
        let volumes = self.assumed_volumes.over(self.volumes.list());
        snapshot.volumes = volumes.into_iter().map(|volume| (volume.name_any(), volume)).collect();
        snapshot.csi = self.drivers.as_ref().map(Followed::look).unwrap_or_default();
        snapshot.budgets = self.budgets.list();
        snapshot.services = self.services.list();
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
                let placement = cycle::placement(&pod, &node, &snapshot);
                if !placement.is_empty() {
                    // The pod is bound when its claims are; each claim that gets its volume wakes it again.
                    self.queue.unschedulable(next, Instant::now());
                    if let Err(err) = self.place(&placement, &node).await {
                        warn!(pod = next, node = %node, err = %Chain(&err), "cannot give a pod's claims their volumes");
                        let text =
                            format!("running PreBind plugin \"VolumeBinding\": binding volumes: {}", Chain(&err));
                        self.recorder.report(&*pod, Severity::Warning, "FailedScheduling", text);
                        self.queue.failed(next, Instant::now());
                    }
                    return;
                }
                self.assumed.insert(uid, node.clone());
                self.queue.remove(next);
                self.bind(pod, node);
            }
            Decision::Unschedulable { message, room } => {
                self.queue.unschedulable(next, Instant::now());
                self.recorder.report(&*pod, Severity::Warning, "FailedScheduling", message.clone());
                let nominated = match room {
                    Room::Of(preemption) => {
                        let node = preemption.node.clone();
                        self.preempt(&pod, preemption);
                        Nomination::To(node)
                    }
                    Room::AsBefore => Nomination::Stays,
                    Room::None => Nomination::Ends,
                };
                if let Err(err) = self.mark_unschedulable(&pod, &message, nominated).await {
                    warn!(pod = next, err = %Chain(&err), "cannot write why a pod is not scheduled");
                }
            }
        }
    }

    /// Gives volumes to the claims that have found one, and tells provisioners where the others are wanted. If one
    /// cannot be told none is: the pod may go elsewhere next time.
    async fn place(&mut self, placement: &Placement, node: &str) -> Result<(), kube::Error> {
        for (claim, volume) in
            placement.bind.iter().filter(|(claim, volume)| volumes::names(volume, claim) != Some(true))
        {
            let api: Api<PersistentVolume> = Api::all(self.client.clone());
            let given = api.replace(&volume.name_any(), &PostParams::default(), &given(volume, claim)).await?;
            self.assumed_volumes.wrote(volume, given);
        }
        let mut told = Vec::new();
        for claim in placement
            .provision
            .iter()
            .filter(|claim| claim.annotations().get(SELECTED_NODE).is_none_or(|chosen| chosen != node))
        {
            match select_node(&self.client, claim, Some(node)).await {
                Ok(updated) => {
                    self.assumed_claims.wrote(claim, updated.clone());
                    told.push(updated);
                }
                Err(err) => {
                    for claim in &told {
                        match select_node(&self.client, claim, None).await {
                            Ok(updated) => self.assumed_claims.wrote(claim, updated),
                            Err(err) => {
                                warn!(claim = %Key::of(claim), err = %Chain(&err), "cannot take a choice of node back")
                            }
                        }
                    }
                    return Err(err);
                }
            }
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
                    recorder.report(
                        &*pod,
                        Severity::Normal,
                        "Scheduled",
                        format!("Successfully assigned {key} to {node}"),
                    );
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
        self.end_nominations(pod, &node);
        for victim in preemption.victims.into_iter().filter(|victim| victim.metadata.deletion_timestamp.is_none()) {
            let (client, recorder, now) = (self.client.clone(), self.recorder.clone(), self.clock.now());
            let (by, message) = (by.clone(), format!("Preempted by pod {by} on node {node}"));
            self.group.spawn_short("preempt", async move {
                match evict(&client, &victim, now).await {
                    Ok(()) => {
                        info!(pod = %key(&victim), by = %by, "pod preempted");
                        recorder.report(&*victim, Severity::Normal, "Preempted", message);
                    }
                    Err(err) => warn!(pod = %key(&victim), err = %Chain(&err), "cannot preempt a pod"),
                }
            });
        }
    }

    /// Less important pods that hoped for the node may find another.
    fn end_nominations(&self, by: &Pod, node: &str) {
        for pod in self.pods.list() {
            let hopes =
                nominated(&pod).is_some_and(|of| of == node) && pod.metadata.uid != by.metadata.uid && wants_node(&pod);
            if hopes && priority(&pod) < priority(by) {
                let client = self.client.clone();
                self.group.spawn_short("end-nomination", async move {
                    let api: Api<Pod> = Api::namespaced(client, &pod.namespace().unwrap_or_default());
                    let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"nominatedNodeName": null}});
                    if let Err(err) =
                        api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
                    {
                        warn!(pod = %key(&pod), err = %Chain(&err), "cannot end a pod's nomination");
                    }
                });
            }
        }
    }

    async fn mark_unschedulable(&self, pod: &Pod, message: &str, nomination: Nomination) -> Result<(), kube::Error> {
        let conditions = pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let told = |c: &model::pod::PodCondition| {
            c.type_ == "PodScheduled" && c.status == "False" && c.message.as_deref() == Some(message)
        };
        let nominated = match nomination {
            Nomination::To(node) => Some(json!(node)),
            Nomination::Ends => nominated(pod).map(|_| json!(null)),
            Nomination::Stays => None,
        };
        if nominated.is_none() && conditions.iter().any(told) {
            return Ok(());
        }
        let since = conditions.iter().find(|c| c.type_ == "PodScheduled" && c.status == "False");
        let since = since.and_then(|c| c.last_transition_time.clone()).map(|t| t.0);
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "observedGeneration": pod.metadata.generation,
            "lastTransitionTime": rfc3339_secs(since.unwrap_or_else(|| self.clock.now())),
        });
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
        let mut status = json!({"conditions": [condition]});
        if let Some(node) = nominated {
            status["nominatedNodeName"] = node;
        }
        let patch = json!({"metadata": {"uid": pod.uid()}, "status": status});
        match api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            other => other.map(drop),
        }
    }
}

/// Fate of the node that is kept for a pod.
enum Nomination {
    To(String),
    Stays,
    Ends,
}

/// The node that is kept for a pod.
fn nominated(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.nominated_node_name.as_deref().filter(|name| !name.is_empty())
}

/// The volume as the claim's own; the binder writes the rest.
fn given(volume: &PersistentVolume, claim: &PersistentVolumeClaim) -> PersistentVolume {
    let mut given = volume.clone();
    let by_user = volumes::names(volume, claim).is_some();
    let mut reference = claim.object_ref(&());
    reference.resource_version = claim.resource_version();
    given.spec.get_or_insert_default().claim_ref = Some(reference);
    if !by_user {
        given.annotations_mut().insert("pv.kubernetes.io/bound-by-controller".to_owned(), "yes".to_owned());
    }
    given
}

/// Says on which node a claim's volume is wanted, or that the choice is open again.
async fn select_node(
    client: &kube::Client,
    claim: &PersistentVolumeClaim,
    node: Option<&str>,
) -> Result<PersistentVolumeClaim, kube::Error> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), &claim.namespace().unwrap_or_default());
    let patch = json!({"metadata": {"uid": claim.uid(), "annotations": {SELECTED_NODE: node}}});
    api.patch(&claim.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
}

async fn sleep_until(wake: Option<Instant>) {
    match wake {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Says why in the victim's status, then deletes it with its own grace.
async fn evict(client: &kube::Client, victim: &Pod, now: Timestamp) -> Result<(), kube::Error> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &victim.namespace().unwrap_or_default());
    let condition = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
        "message": format!("{SCHEDULER_NAME}: preempting to accommodate a higher priority pod"),
        "observedGeneration": victim.metadata.generation,
        "lastTransitionTime": rfc3339_secs(now),
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
