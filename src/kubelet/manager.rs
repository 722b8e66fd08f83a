//! The pods of this node: a task for each, and the sync loop where all events arrive.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::clock_set::ClockSet;
use base::sync::Mutex;
use base::task::Group;
use futures_util::FutureExt as _;
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use model::reference::NamespacedName;
use tokio::sync::{mpsc, watch};
use tracing::{debug, error, info, warn};

use crate::config::RuntimeChoice;
use crate::csi;
use crate::node::{Inputs, Node};
use crate::pods;
use crate::pods::desired::Desired;
use crate::pods::map::Pods;
use crate::pods::observed::{Observed, State};
use crate::pods::resizing::granted_before;
use crate::pods::snapshot::Snapshot;
use crate::runtime::cri::CriError;
use crate::runtime::events::{self as runtime_events, RuntimeEvent};
use crate::runtime::labels;
use crate::sources::annotations::is_static;
use crate::sources::change::Change;
use crate::sources::manifests::Folder;
use crate::sources::{self, mirror};
use crate::volumes;
use crate::worker::Worker;

/// Changes that wait for the sync loop; when full their senders wait.
const BACKLOG_CHANGES: usize = 256;
/// Between two settings of what pods may use together, as upstream.
const WEIGH_PERIOD: Duration = Duration::from_secs(60);
/// Between two looks for what runs for nobody; after one that failed, and as a rule.
const ORPHANS_RETRY: Duration = Duration::from_secs(5);
const ORPHANS_PERIOD: Duration = Duration::from_secs(60);
/// Between two tries to remove what a pod left: the first and the longest pause.
const ORPHAN_RETRY: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

/// Starts the sources and the sync loop.
pub(crate) async fn start(node: Arc<Node>, inputs: Inputs, group: &Group) -> Pods {
    let pods = Pods::default();
    let (tx, rx) = mpsc::channel(BACKLOG_CHANGES);
    let Inputs { informers, ref_changes: refs } = inputs;
    let folder = node.config.manifest_dir.clone().map(|dir| Folder {
        dir,
        node_name: node.config.node_name.clone(),
        period: node.config.settings.file_check,
    });
    sources::start(folder, node.own.clone(), informers, tx, group);
    let runtime = runtime_events::listen(node.runtime.cri.clone(), &node.runtime.socket, group);
    let this = SyncLoop { node, pods: pods.clone(), group: group.child("pods"), leaving: Arc::default() };
    let (node, weighed) = (Arc::clone(&this.node), pods.clone());
    group.spawn("pod-weights", async move {
        loop {
            // systemd makes the slice of all pods with the first of them, and may forget what it was told.
            let (node, milli) = (Arc::clone(&node), weighed.burstable_milli());
            let set = Group::blocking(move || {
                node.enforce_allocatable();
                node.cgroups.weigh(milli);
            });
            if let Err(err) = set.await {
                warn!(err = %Chain(&err), "cannot set what all pods may use together");
            }
            tokio::time::sleep(WEIGH_PERIOD).await;
        }
    });
    group.spawn("pods", async move {
        this.run(rx, runtime, refs).await;
    });
    pods
}

#[derive(Clone)]
struct SyncLoop {
    node: Arc<Node>,
    pods: Pods,
    group: Group,
    /// Pods whose folders are being removed.
    leaving: Arc<Mutex<BTreeSet<String>>>,
}

impl SyncLoop {
    async fn run(
        self,
        mut changes: mpsc::Receiver<Change>,
        mut runtime: mpsc::Receiver<RuntimeEvent>,
        mut refs: mpsc::Receiver<volumes::refs::Ref>,
    ) {
        let mut node_ips = self.node.config.node_ips.clone();
        let clock = ClockSet::listen();
        loop {
            tokio::select! {
                Some(change) = changes.recv() => self.take(change).await,
                Some(event) = runtime.recv() => self.heard(event),
                Some(object) = refs.recv() => {
                    for uid in self.node.refs.users(&object) {
                        self.pods.modify(&uid, |d| d.refresh += 1);
                    }
                }
                // Every pod's status names the node's addresses.
                Ok(()) = node_ips.changed() => self.wake_all(),
                // Tokens that were good are old now, or of the future, and what waits for a time waits for another.
                () = ClockSet::next_if(&clock) => self.refresh_all(),
            }
        }
    }

    fn heard(&self, event: RuntimeEvent) {
        let (id, ended) = match event {
            RuntimeEvent::Began => return self.relist(),
            RuntimeEvent::Started(id) => (id, false),
            RuntimeEvent::Ended(id) => (id, true),
        };
        let uid = self.pods.owner(&id);
        if let Some(uid) = uid {
            self.pods.modify(&uid, |d| {
                if ended {
                    d.has_ended(id);
                }
            });
        }
    }

    /// Anything may have happened unheard: of two lists of the runtime, not of a look at each pod, it is seen which
    /// pods changed.
    fn relist(&self) {
        let this = self.clone();
        self.group.spawn_short("relist", async move {
            let cri = &this.node.runtime.cri;
            let Ok((sandboxes, containers)) = tokio::try_join!(cri.sandboxes(None), cri.containers(None)) else {
                return this.wake_all();
            };
            let shown = shown(&sandboxes, &containers);
            this.pods.wake_changed(|uid, observed| {
                let seen = seen(observed);
                shown.get(uid) != Some(&seen).filter(|seen| !seen.is_empty())
            });
        });
    }

    /// Has the volumes of every pod looked at.
    fn refresh_all(&self) {
        info!("the clock was set");
        self.pods.modify_all(|desired| desired.refresh += 1);
    }

    /// Has every pod looked at.
    fn wake_all(&self) {
        self.pods.modify_all(|_| {});
    }

    async fn take(&self, change: Change) {
        match change {
            Change::Set(pod) => self.set(pod),
            Change::Gone(uid) => {
                self.pods.drop_held(&uid);
                self.pods.modify(&uid, |d| d.gone = true);
            }
            Change::Disowned(pod) => {
                info!(
                    ns = ?pod.metadata.namespace,
                    name = ?pod.metadata.name,
                    "a pod that runs here calls itself a mirror: it is ended"
                );
                self.pods.modify(pod.metadata.uid.as_deref().unwrap_or_default(), |d| {
                    (d.pod, d.is_disowned) = (Arc::clone(&pod), true)
                });
            }
            Change::Mirror(pod) => {
                self.pods.note_mirror(Arc::clone(&pod));
                self.mirror_changed(&pod);
            }
            Change::MirrorGone(pod) => {
                self.pods.drop_mirror(&pod);
                self.mirror_changed(&pod);
            }
            Change::Synced => self.watch_orphans(),
        }
    }

    fn set(&self, pod: Arc<Pod>) {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let known = self.pods.modify(&uid, |d| d.pod = Arc::clone(&pod));
        let is_static = is_static(&pod);
        if is_static {
            self.keep_mirror(&pod);
        }
        if !known && is_static && self.pods.is_name_taken(&pod) {
            // An edited manifest: the old pod ends before the new one begins, for they would fight over ports and data.
            self.pods.hold_back(pod);
        } else if !known {
            self.begin(Desired::new(pod));
        }
    }

    fn begin(&self, desired: Desired) {
        let uid = desired.pod.metadata.uid.clone().unwrap_or_default();
        let holds = was_admitted(&desired.pod);
        // What an earlier kubelet granted, not what the spec asks for by now.
        let granted = holds.then(|| granted_before(&desired.pod));
        let shared = Arc::new(Mutex::new(Snapshot { holds, granted, ..Snapshot::default() }));
        let (tx, rx) = watch::channel(desired);
        let group = self.group.child(&uid);
        self.pods.begin(tx.clone(), Arc::clone(&shared));
        let this = self.clone();
        self.group.spawn_short("pod", async move {
            let work = || {
                let worker = Worker::new(
                    Arc::clone(&this.node),
                    this.pods.clone(),
                    rx.clone(),
                    tx.clone(),
                    Arc::clone(&shared),
                    &group,
                );
                Box::pin(worker.run())
            };
            to_the_end(work, Backoff::new(PANIC_RETRY.0, PANIC_RETRY.1), &this.node.rng, &uid).await;
            let Some(last) = this.pods.end(&uid) else { return };
            if let Some(next) = this.pods.take_held(&last.pod) {
                this.begin(Desired::new(next));
            } else if last.is_static
                && let Some(mirror) = this.pods.mirror(&last.pod)
            {
                // Its file is gone: so must be its picture in the API.
                mirror::remove(&this.node.client, &mirror).await;
            }
        });
    }

    fn keep_mirror(&self, pod: &Arc<Pod>) {
        let (node, pods, pod) = (Arc::clone(&self.node), self.pods.clone(), Arc::clone(pod));
        self.group.spawn_short("mirror", async move {
            mirror::keep(&node.client, &node.own, &node.rng, &pod, pods.mirror(&pod).as_deref()).await;
        });
    }

    /// A mirror that appeared, changed or vanished: its static pod publishes its status again, or makes it anew.
    fn mirror_changed(&self, mirror: &Pod) {
        let found = self.pods.find(NamespacedName::of(&mirror.metadata));
        match found {
            // Its own task ends it first, and deletes the object then.
            _ if self.pods.modify(mirror.metadata.uid.as_deref().unwrap_or_default(), |_| {}) => {}
            Some((pod, _)) if is_static(&pod) => {
                self.keep_mirror(&pod);
                self.pods.modify(pod.metadata.uid.as_deref().unwrap_or_default(), |_| {});
            }
            _ => {
                let (node, mirror) = (Arc::clone(&self.node), mirror.clone());
                self.group.spawn_short("mirror", async move { mirror::remove(&node.client, &mirror).await });
            }
        }
    }

    /// From when on both sources spoke: what runs for nobody is ended, what lies about of nobody is removed. A sandbox
    /// may also appear later, when the call that made it was dropped.
    fn watch_orphans(&self) {
        let this = self.clone();
        self.group.spawn("orphans", async move {
            let mut looked = false;
            loop {
                let outcome = this.end_orphans().await;
                match &outcome {
                    Ok(()) => looked = true,
                    // A runtime that is being restarted is told of elsewhere.
                    Err(err) if looked => debug!(err = %Chain(err), "cannot look for what runs for nobody"),
                    Err(err) => warn!(err = %Chain(err), "cannot look for pods of an earlier time"),
                }
                tokio::time::sleep(if outcome.is_ok() { ORPHANS_PERIOD } else { ORPHANS_RETRY }).await;
            }
        });
    }

    async fn end_orphans(&self) -> Result<(), CriError> {
        let known = |uid: &str| self.pods.has(uid);
        let sandboxes = self.node.runtime.cri.sandboxes(None).await?;
        let graces = graces(&self.node.runtime.cri.containers(None).await?);
        for sandbox in sandboxes {
            let label = |name: &str| sandbox.labels.get(name).cloned();
            // A runtime that only we use holds only our pods; on a shared one our mark decides.
            let private = matches!(self.node.config.runtime, RuntimeChoice::Managed { .. });
            let ours = private || label(labels::OWNER).as_deref() == self.node.config.root_dir.to_str();
            let Some(uid) = label(labels::POD_UID).filter(|uid| ours && !uid.is_empty() && !known(uid)) else {
                continue;
            };
            let name = label(labels::POD_NAME).unwrap_or_default();
            info!(uid = %uid, name, "ending a pod that no one wants any more");
            let spec = PodSpec { termination_grace_period_seconds: graces.get(&uid).copied(), ..PodSpec::default() };
            let mut pod = Pod { spec: Some(spec), ..Default::default() };
            pod.metadata.name = label(labels::POD_NAME);
            pod.metadata.namespace = label(labels::POD_NAMESPACE);
            pod.metadata.uid = Some(uid);
            self.begin(Desired { gone: true, is_static: true, ..Desired::new(Arc::new(pod)) });
        }
        let dirs = std::fs::read_dir(self.node.config.root_dir.join("pods")).into_iter().flatten().flatten();
        for dir in dirs {
            let uid = dir.file_name().to_string_lossy().into_owned();
            // Another kubelet's pods may lie in the same place.
            let is_ours = pods::folder::is_our_pod(&self.node.config.root_dir, &uid);
            if !is_ours || known(&uid) || !self.leaving.lock().insert(uid.clone()) {
                continue;
            }
            let (node, leaving) = (Arc::clone(&self.node), Arc::clone(&self.leaving));
            self.group.spawn_short("orphan", async move {
                orphaned(node, uid.clone(), dir.path()).await;
                leaving.lock().remove(&uid);
            });
        }
        let cgroups = self.node.cgroups.clone();
        let known = self.pods.uids();
        if let Err(err) = Group::blocking(move || cgroups.sweep(&known)).await {
            warn!(err = %Chain(&err), "cannot look for cgroups of pods that are gone");
        }
        Ok(())
    }
}

/// Ids of sandboxes and containers with their states, as the runtime numbers them.
type States = BTreeSet<(String, i32)>;

/// The sandboxes and containers that the runtime has of each pod, by uid.
fn shown(sandboxes: &[cri::PodSandbox], containers: &[cri::Container]) -> BTreeMap<String, States> {
    let mut all: BTreeMap<String, States> = BTreeMap::new();
    let sandboxes = sandboxes.iter().map(|s| (&s.labels, &s.id, s.state));
    for (labels, id, state) in sandboxes.chain(containers.iter().map(|c| (&c.labels, &c.id, c.state))) {
        if let Some(uid) = labels.get(labels::POD_UID) {
            all.entry(uid.clone()).or_default().insert((id.clone(), state));
        }
    }
    all
}

/// Those that a pod's task saw last, in the same form. Containers that it remembers and the runtime has lost do not
/// count.
fn seen(observed: &Observed) -> States {
    let ready = |ready| if ready { cri::PodSandboxState::SandboxReady } else { cri::PodSandboxState::SandboxNotready };
    let state = |state| match state {
        State::Created => cri::ContainerState::ContainerCreated,
        State::Running => cri::ContainerState::ContainerRunning,
        State::Exited => cri::ContainerState::ContainerExited,
        State::Unknown => cri::ContainerState::ContainerUnknown,
    };
    let containers =
        observed.containers.iter().filter(|c| !c.sandbox_id.is_empty()).map(|c| (c.id.clone(), state(c.state) as i32));
    observed.sandboxes.iter().map(|s| (s.id.clone(), ready(s.ready) as i32)).chain(containers).collect()
}

/// How long the containers of each pod may take to end, by uid: as was noted when they were made.
fn graces(containers: &[cri::Container]) -> HashMap<String, i64> {
    let mut graces = HashMap::new();
    for container in containers {
        let secs = container.annotations.get(labels::POD_GRACE).and_then(|secs| secs.parse::<i64>().ok());
        if let (Some(uid), Some(secs)) = (container.labels.get(labels::POD_UID), secs) {
            graces.entry(uid.clone()).and_modify(|most: &mut i64| *most = secs.max(*most)).or_insert(secs);
        }
    }
    graces
}

/// Whether an earlier kubelet took the pod: it wrote when the pod began.
fn was_admitted(pod: &Pod) -> bool {
    pod.status
        .as_ref()
        .is_some_and(|s| s.start_time.is_some() && !s.phase.as_deref().is_some_and(model::phase::is_terminal))
}

/// Between two beginnings of a pod's task that panicked: the first and the longest pause.
const PANIC_RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Runs a pod's task to its end. One that panics is begun anew, for its containers would be nobody's; the log has said
/// why.
async fn to_the_end<F: Future<Output = ()>>(
    mut work: impl FnMut() -> F,
    mut backoff: Backoff,
    rng: &base::rng::Rng,
    uid: &str,
) {
    while AssertUnwindSafe(async { work().await }).catch_unwind().await.is_err() {
        error!(uid, "the task of a pod panicked, it is begun anew");
        tokio::time::sleep(backoff.next(rng)).await;
    }
}

/// Removes the folder of a pod that is gone. A driver that must unmount something may come later than the kubelet.
async fn orphaned(node: Arc<Node>, uid: String, dir: PathBuf) {
    let mut backoff = Backoff::new(ORPHAN_RETRY.0, ORPHAN_RETRY.1);
    loop {
        let done = match Box::pin(csi::unmount::tear_down(&node.config, &node.csi, &uid)).await {
            Ok(()) => volumes::tidy(&dir).await.map_err(|err| err.to_string()),
            Err(err) => Err(Chain(&err).to_string()),
        };
        let Err(why) = done else {
            volumes::local::release_unused(&node.config, &node.csi).await;
            return;
        };
        warn!(path = %dir.display(), err = %why, "cannot remove the volumes of a pod that is gone");
        tokio::time::sleep(backoff.next(&node.rng)).await;
    }
}

#[cfg(test)]
mod tests;
