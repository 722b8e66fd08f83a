//! One task per pod: it looks, decides, acts, reports and sleeps until something happens. Every wake-up takes the same
//! road, so a lost signal, a restart of kedge and a normal event are one case.

mod act;

mod hooks;

mod kill;

mod links;

pub(crate) mod observe;

pub(crate) mod plan;

pub(crate) mod resize;

mod isolation;

mod pauses;

mod tell;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::exposition::Metric;
use base::sync::Mutex;
use base::time::Stopwatch;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::observe::observe;
use self::pauses::{Polls, RETRY, pause};
use self::plan::{Command, Plan, View};
use self::tell::Told;
use crate::backoffs::Backoffs;
use crate::events::Kind;
use crate::node::Node;
use crate::pods::desired::{Cause, Desired, Ousting};
use crate::pods::map::{Pods, Refusal};
use crate::pods::observed::{Observed, State};
use crate::pods::resizing::Resizing;
use crate::pods::snapshot::Snapshot;
use crate::probes::Probes;
use crate::volumes;
use crate::volumes::mounted::Mounted;

/// Between two looks whether a deferred resize fits now.
const RESIZE_RETRY: SignedDuration = SignedDuration::from_secs(5);
/// A volume that is mounted and could not be renewed is tried again after so long.
const REFRESH_RETRY: SignedDuration = SignedDuration::from_secs(10);
/// A volume that is on its way for so long is told of.
const VOLUME_PATIENCE: Duration = Duration::from_secs(120);
/// The safety net below all events.
const RELIST: Duration = Duration::from_secs(300);

const START: Metric = Metric {
    name: "kubelet_pod_start_duration_seconds",
    help: "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
};
/// Upper bounds of its histogram, as upstream's.
const START_SECS: [f64; 24] = [
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 3600.0,
];

/// A pod's task.
pub(crate) struct Worker {
    node: Arc<Node>,
    pods: Pods,
    uid: String,
    pod: Arc<Pod>,
    rx: watch::Receiver<Desired>,
    shared: Arc<Mutex<Snapshot>>,
    probes: Probes,
    observed: Observed,
    mounted: Mounted,
    refreshed: u64,
    backoffs: Backoffs,
    waiting: BTreeMap<String, Cause>,
    failure: Option<Cause>,
    /// It was ended for good and nothing of it runs.
    is_terminal: bool,
    told: Told,
    admitted: bool,
    settled: bool,
    /// Nothing has happened since the runtime was looked at.
    looked: bool,
    wake_at: Option<Timestamp>,
    /// The pod's own user namespace, once its sandbox was made.
    userns: Option<k8s_cri::v1::UserNamespace>,
    resizing: Resizing,
    /// Rounds in a row that could not start or mount something.
    failures: u32,
    /// Since when the kubelet has known a pod none of whose containers ran before; gone once all have.
    seen: Option<Stopwatch>,
    /// Since when a volume has been on its way.
    waits_since: Option<Stopwatch>,
    /// Held where a call must not be dropped half-way.
    uncut: Arc<tokio::sync::Mutex<()>>,
}

impl Worker {
    pub(crate) fn new(
        node: Arc<Node>,
        pods: Pods,
        rx: watch::Receiver<Desired>,
        wake: watch::Sender<Desired>,
        shared: Arc<Mutex<Snapshot>>,
        group: &base::task::Group,
    ) -> Worker {
        let pod = Arc::clone(&rx.borrow().pod);
        let status = pod.status.clone().unwrap_or_default();
        let failed = status.phase.as_deref() == Some("Failed");
        let fresh = status.phase.as_deref().is_none_or(|phase| phase == "Pending");
        Worker {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            probes: Probes::new(Arc::clone(&node), wake, group),
            failure: status
                .reason
                .clone()
                .filter(|_| failed)
                .map(|reason| Cause { reason, message: status.message.clone().unwrap_or_default() }),
            backoffs: Backoffs::up_to(node.config.settings.restart_pause_max),
            node,
            pods,
            pod,
            rx,
            shared,
            observed: Observed::default(),
            mounted: Mounted::default(),
            refreshed: 0,
            waiting: BTreeMap::new(),
            uncut: Arc::default(),
            waits_since: None,
            is_terminal: false,
            told: Told { published: Some(status.clone()).filter(|s| s.phase.is_some()), status, ..Told::default() },
            admitted: false,
            settled: false,
            looked: false,
            wake_at: None,
            userns: None,
            resizing: Resizing::default(),
            failures: 0,
            seen: fresh.then(Stopwatch::start),
        }
    }

    /// Runs until the pod is gone from the API and from the machine.
    pub(crate) async fn run(mut self) {
        let mut polls = Polls::default();
        loop {
            self.looked &= matches!(self.rx.has_changed(), Ok(false));
            let desired = self.rx.borrow_and_update().clone();
            self.pod = self.resizing.effective(&desired.pod);
            if let (Some(why), None) = (&desired.ousted, &self.failure) {
                // The one that preempted it has told of that.
                if matches!(why, Ousting::Evicted(..)) {
                    self.node.events.pod(&self.pod, None, Kind::Warning, why.reason(), why.message());
                }
                self.failure = Some(Cause::new(why.reason(), why.message()));
            }
            let ending = desired.is_deleted() || self.failure.is_some();
            let outcome = if ending { self.end(&desired).await } else { Box::pin(self.advance(&desired)).await };
            let mut sleep = match outcome {
                Outcome::Done => return,
                Outcome::Settled => RELIST,
                Outcome::Again => Duration::ZERO,
                Outcome::Retry => pause(self.failures),
            };
            let now = self.node.clock.now();
            if let Some(at) = self.wake_at {
                sleep =
                    sleep.min(Duration::try_from(at.duration_since(now).max(SignedDuration::ZERO)).unwrap_or(RETRY));
            }
            // The runtime said that a container ended, but still shows it running: look again in a moment.
            let behind: Vec<&String> = desired.ended.iter().filter(|id| self.observed.shows_alive(id)).collect();
            if let Some(poll) = polls.next(&behind) {
                sleep = sleep.min(poll);
            }
            if !sleep.is_zero() {
                tokio::select! {
                    changed = self.rx.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(sleep) => {}
                }
            }
        }
    }

    /// One round of a pod that should run.
    async fn advance(&mut self, desired: &Desired) -> Outcome {
        self.wake_at = None;
        if !std::mem::take(&mut self.looked)
            && let Err(err) = self.look().await
        {
            warn!(pod = %self.name(), err = %Chain(&err), "cannot ask the runtime about a pod");
            return Outcome::Retry;
        }
        self.note_start();
        if !self.admitted
            && let Some(outcome) = self.enter().await
        {
            return outcome;
        }
        if self.ended_phase() {
            return self.rest().await;
        }
        if self.past_deadline() {
            let text = "Pod was active on the node longer than the specified deadline";
            self.node.events.pod(&self.pod, None, Kind::Normal, "DeadlineExceeded", text);
            self.failure = Some(Cause::new("DeadlineExceeded", text));
            return Outcome::Again;
        }
        self.consider_resize(&desired.pod);
        if self.apply_resize().await && self.resizing.restart().is_empty() {
            self.wake(self.node.clock.now().checked_add(RESIZE_RETRY).ok());
        }
        let plan = self.decide();
        self.note_waits(&plan);
        // The API server is told beside the work.
        let (telling, rx, done) = (self.telling(), self.rx.clone(), CancellationToken::new());
        let told = telling.until(rx, done.clone());
        let work = async {
            let worked = self.work(desired, plan).await;
            done.cancel();
            worked
        };
        let (worked, told) = tokio::join!(work, told);
        let reported = self.heard(told);
        match worked {
            Err(outcome) => outcome,
            // What it was told to be leads on: an ended pod is tidied.
            Ok(None) if reported && self.ended_phase() => Outcome::Again,
            Ok(None) => {
                self.failures = 0;
                if reported { Outcome::Settled } else { Outcome::Retry }
            }
            Ok(Some(worked)) => {
                self.failures = if worked { 0 } else { self.failures.saturating_add(1) };
                if self.look().await.is_err() {
                    return Outcome::Retry;
                }
                // One that was to be ended and is still of no known state must not be tried again at once.
                let unclear = self.observed.containers.iter().any(|c| c.state == State::Unknown);
                if worked && reported && !unclear {
                    // The next round begins with telling what this one did.
                    self.looked = true;
                    return Outcome::Again;
                }
                self.report().await;
                Outcome::Retry
            }
        }
    }

    /// Has the node take the pod in, once. Returns how the round ends where it does not; a pod that has a sandbox was
    /// taken in before.
    async fn enter(&mut self) -> Option<Outcome> {
        let is_new =
            self.observed.sandboxes.is_empty() && self.told.status.phase.as_deref().is_none_or(|p| p == "Pending");
        if is_new && let Err(refusal) = self.pods.admit(&self.node.host(), &self.node.events, &self.pod) {
            // Those that are ended for it need their time.
            let Refusal::Final(Cause { reason, message }) = refusal else { return Some(Outcome::Retry) };
            self.node.events.pod(&self.pod, None, Kind::Warning, &reason, message.clone());
            self.failure = Some(Cause { reason, message: format!("Pod was rejected: {message}") });
            return Some(Outcome::Again);
        }
        if is_new && let Err(refused) = Box::pin(self.node.devices.admit(&self.pod)).await {
            let message = refused.to_string();
            self.node.events.pod(&self.pod, None, Kind::Warning, "UnexpectedAdmissionError", message.clone());
            self.failure = Some(Cause::new("UnexpectedAdmissionError", format!("Pod was rejected: {message}")));
            return Some(Outcome::Again);
        }
        self.admitted = true;
        self.hold();
        self.resizing.admit(&self.pod, &self.told.status);
        self.node.refs.hold(&self.pod);
        None
    }

    /// Counts how long the pod took to run, once.
    fn note_start(&mut self) {
        let all = |pod: &Pod| {
            pod.spec.iter().flat_map(|spec| &spec.containers).all(|c| self.observed.latest(&c.name).is_some())
        };
        if self.seen.is_some() && all(&self.pod) && self.observed.running().next().is_some() {
            let took = self.seen.take().map_or(0.0, |seen| seen.elapsed().as_secs_f64());
            base::metrics::observe_among(START, &[], took, &START_SECS);
        }
    }

    /// Volumes, then the commands. Says whether they worked; nothing if there were none.
    async fn work(&mut self, desired: &Desired, plan: Plan) -> Result<Option<bool>, Outcome> {
        self.keep_volumes(desired, &plan).await?;
        if plan.commands.is_empty() {
            return Ok(None);
        }
        Ok(Some(self.act_until_ended(plan.commands).await))
    }

    /// Does the commands in order; the pod's end (a deletion, an eviction, its deadline) interrupts. Dropping a call
    /// cancels it in containerd too: the start of a container, which then would count as failed, is waited for.
    async fn act_until_ended(&mut self, commands: Vec<Command>) -> bool {
        let (mut rx, uncut) = (self.rx.clone(), Arc::clone(&self.uncut));
        let left =
            self.deadline().map(|at| Duration::try_from(at.duration_since(self.node.clock.now())).unwrap_or_default());
        let deadline = async move {
            match left {
                Some(left) => tokio::time::sleep(left).await,
                None => std::future::pending().await,
            }
        };
        let ended = async move {
            tokio::select! {
                alone = async { rx.wait_for(|d| d.is_deleted() || d.ousted.is_some()).await.is_err() } => if alone {
                    std::future::pending::<()>().await;
                },
                () = deadline => {}
            }
            drop(uncut.lock().await);
        };
        tokio::select! {
            () = ended => true,
            worked = self.act_all(commands) => worked,
        }
    }

    async fn act_all(&mut self, commands: Vec<Command>) -> bool {
        let mut worked = true;
        let mut left = commands.len();
        for command in commands {
            let starts = matches!(command, Command::Start { .. });
            worked &= Box::pin(self.act(command)).await;
            left -= 1;
            // The next may take long (a pull, a hook): what runs already is probed and told of meanwhile.
            if starts
                && left > 0
                && let Err(err) = self.look().await
            {
                warn!(pod = %self.name(), err = %Chain(&err), "cannot ask the runtime about a pod");
            }
        }
        worked
    }

    fn decide(&self) -> Plan {
        let health = self.probes.health();
        plan::plan(&View {
            pod: &self.pod,
            observed: &self.observed,
            health: &health,
            backoffs: &self.backoffs,
            anew: self.resizing.restart(),
            now: self.node.clock.now(),
        })
    }

    fn note_waits(&mut self, plan: &Plan) {
        for (name, text) in &plan.crash_loops {
            let fresh = self.waiting.get(name).is_none_or(|cause| cause.reason != "CrashLoopBackOff");
            self.waiting.insert(name.clone(), Cause::new("CrashLoopBackOff", text));
            if fresh {
                let message = format!(
                    "Back-off restarting failed container {name} in pod {}",
                    crate::pods::spec::pod_text(&self.pod)
                );
                self.node.events.pod(&self.pod, self.field(name), Kind::Warning, "BackOff", message);
            }
        }
        self.wake(plan.wake_at);
        self.wake(self.deadline());
    }

    fn wake(&mut self, at: Option<Timestamp>) {
        if let Some(at) = at {
            self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
        }
    }

    /// Mounts before the first container, renews tokens in time and files when their objects change.
    async fn keep_volumes(&mut self, desired: &Desired, plan: &Plan) -> Result<(), Outcome> {
        let now = self.node.clock.now();
        let starts = plan.commands.iter().any(|c| matches!(c, Command::MakeSandbox { .. } | Command::Start { .. }));
        // An ephemeral container may be the first to use a volume.
        let incomplete = self.mounted.paths.is_empty() || !volumes::missing(&self.pod, &self.mounted).is_empty();
        let first = incomplete && (starts || self.observed.running().next().is_some());
        let due = self.mounted.refresh_at.is_some_and(|at| at <= now)
            || desired.refresh > self.refreshed
            || self.mounted.is_outdated(&self.pod);
        if first || due {
            let around = self.node.surroundings(self.ips());
            match volumes::mount_all(&self.node, &self.pod, &around, &self.mounted).await {
                Ok(mounted) => {
                    self.waits_since = None;
                    self.mounted = mounted;
                    self.refreshed = desired.refresh;
                }
                Err(err) => {
                    self.tell_unmounted(&err);
                    if incomplete {
                        self.failures = if err.is_waiting { 0 } else { self.failures.saturating_add(1) };
                        return Err(Outcome::Retry);
                    }
                    // What is mounted is good enough for containers that run or start again; it is renewed later.
                    self.wake(now.checked_add(REFRESH_RETRY).ok());
                    return Ok(());
                }
            }
        }
        self.wake(self.mounted.refresh_at);
        Ok(())
    }

    /// A volume that is on its way is told of only when it takes long, as upstream.
    fn tell_unmounted(&mut self, err: &volumes::error::VolumeError) {
        if !err.is_waiting {
            self.waits_since = None;
            return self.node.events.pod(&self.pod, None, Kind::Warning, err.reason(), Chain(err).to_string());
        }
        let since = self.waits_since.get_or_insert_with(Stopwatch::start);
        if since.elapsed() >= VOLUME_PATIENCE {
            self.waits_since = None;
            let missing = volumes::missing(&self.pod, &self.mounted);
            let text = format!(
                "Unable to attach or mount volumes: unmounted volumes=[{missing}], unattached volumes=[{missing}], \
                 failed to process volumes=[]: context deadline exceeded",
                missing = missing.join(" ")
            );
            self.node.events.pod(&self.pod, None, Kind::Warning, "FailedMount", text);
        }
    }

    async fn look(&mut self) -> Result<(), crate::runtime::cri::CriError> {
        self.observed = observe(&self.node.runtime.cri, &self.uid, &self.observed).await?;
        self.observed.recall(&self.told.status);
        self.observed.order_ips(self.node.config.node_ips.borrow().first());
        let running: Vec<String> = self.observed.running().map(|c| c.name.clone()).collect();
        self.waiting.retain(|name, _| !running.contains(name));
        self.probes.follow(&self.pod, &self.observed, self.ips());
        self.pods.index(&self.uid, self.observed.ids());
        let mut shared = self.shared.lock();
        shared.observed = self.observed.clone();
        shared.holds |= self.observed.may_run();
        Ok(())
    }

    /// From now on others must leave the pod's share alone.
    fn hold(&self) {
        self.shared.lock().holds = true;
    }

    /// The share of the pod may be others' from now on.
    fn let_go(&self) {
        self.shared.lock().holds = false;
    }

    /// A pod that ended by itself and is kept for its logs: only its volumes and cgroup go.
    async fn rest(&mut self) -> Outcome {
        if !self.settled {
            if !self.kill_all(self.grace(), "").await
                || self.look().await.is_err()
                || self.observed.may_run()
                || !self.tidy_node().await
            {
                return Outcome::Retry;
            }
            self.let_go();
            self.settled = true;
        }
        if self.report().await { Outcome::Settled } else { Outcome::Retry }
    }

    fn ended_phase(&self) -> bool {
        self.told.status.phase.as_deref().is_some_and(model::phase::is_terminal)
    }

    fn deadline(&self) -> Option<Timestamp> {
        let secs = self.pod.spec.as_ref()?.active_deadline_seconds?;
        self.told.status.start_time.as_ref()?.0.checked_add(SignedDuration::from_secs(secs)).ok()
    }

    fn past_deadline(&self) -> bool {
        self.deadline().is_some_and(|at| at <= self.node.clock.now())
    }

    fn ips(&self) -> Vec<String> {
        if crate::pods::spec::host_network(&self.pod) {
            return self.node.config.internal_ips();
        }
        self.observed.sandbox().map(|s| s.ips.clone()).unwrap_or_default()
    }

    fn field(&self, name: &str) -> Option<String> {
        crate::container::find(&self.pod, name).map(|(_, role)| role.field(name))
    }

    fn name(&self) -> String {
        let meta = &self.pod.metadata;
        format!("{}/{}", meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
    }

    fn finished_log(&self) {
        info!(pod = %self.name(), uid = %self.uid, "pod is gone");
    }
}

/// How a round ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing to do until something happens.
    Settled,
    /// Something was done: look at once.
    Again,
    /// Something failed: look soon.
    Retry,
    /// The pod is gone.
    Done,
}
