//! The end of a pod: hooks, signals, sandbox, volumes, cgroup, and last the API object.

use std::collections::BTreeSet;
use std::time::Duration;

use base::chain::Chain;
use base::confined::deadline::within;
use base::confined::tree;
use base::task::Group;
use futures_util::future::join_all;
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler, Pod};
use kube::Api;
use kube::api::{DeleteParams, Preconditions};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::hooks::{HookError, Hooked, Hooks};
use super::{Outcome, Worker};
use crate::container::{self, Role};
use crate::events::Kind;
use crate::pods::desired::{Desired, Notice, Ousting};
use crate::pods::observed::{Seen, State};
use crate::runtime::tasks;
use crate::{csi, images, sandbox, volumes};

/// The logs of a pod are gone within this.
const LOGS_LIMIT: Duration = Duration::from_secs(60);

/// A container always gets this long after its preStop hook, as upstream.
const GRACE_MIN: Duration = Duration::from_secs(2);
const GRACE_DEFAULT_SECS: i64 = 30;
/// No container has longer: the API takes any number of seconds, and deadlines of calls are made of it.
pub(super) const GRACE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// An evicted pod gets this long, as upstream's hard thresholds.
const GRACE_EVICTED: Duration = Duration::from_secs(1);
/// Between two looks whether a container obeyed its own stop signal.
const SIGNAL_POLL: Duration = Duration::from_millis(100);

/// The time that an evicted pod has: after a soft threshold its own, bounded by `soft_max_secs` unless that is below
/// zero. Upstream's `evictionMaxPodGracePeriod`.
fn evicted_grace(pod: &Pod, soft_max_secs: Option<i64>) -> Duration {
    let Some(max_secs) = soft_max_secs else { return GRACE_EVICTED };
    let of_spec = pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds).unwrap_or(GRACE_DEFAULT_SECS);
    let secs = if max_secs < 0 { of_spec } else { of_spec.min(max_secs) };
    Duration::from_secs(u64::try_from(secs).unwrap_or(0)).clamp(GRACE_EVICTED, GRACE_MAX)
}

impl Worker {
    /// One round of a pod that must end, or of one that failed as a whole.
    pub(super) async fn end(&mut self, desired: &Desired) -> Outcome {
        self.wake_at = None;
        self.probes.stop_killers();
        if let Err(err) = self.look().await {
            warn!(pod = %self.name(), err = %Chain(&err), "cannot ask the runtime about a pod");
            return Outcome::Retry;
        }
        let (telling, heard, done) = (self.telling(), self.rx.clone(), CancellationToken::new());
        let told = telling.until(heard, done.clone());
        let grace = self.grace();
        let mut rx = self.rx.clone();
        let sooner = async move {
            let shorter = |d: &Desired| {
                d.pod
                    .metadata
                    .deletion_grace_period_seconds
                    .is_some_and(|secs| secs >= 0 && Duration::from_secs(secs.unsigned_abs()) < grace)
            };
            if rx.wait_for(shorter).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let work = async {
            let killed = tokio::select! {
                () = sooner => None,
                killed = self.kill_all(grace, "") => Some(killed),
            };
            done.cancel();
            killed
        };
        let (killed, told) = tokio::join!(work, told);
        self.heard(told);
        let Some(killed) = killed else { return Outcome::Again };
        if !killed || self.look().await.is_err() {
            return Outcome::Retry;
        }
        if self.observed.may_run() {
            return Outcome::Retry;
        }
        self.is_terminal = desired.is_deleted();
        let reported = self.report().await;
        if !self.tidy_node().await {
            return Outcome::Retry;
        }
        self.let_go();
        if !desired.is_deleted() {
            // What an evicted pod's containers have written is what the node lacks: they go at once. Upstream's
            // `IsEvicted`.
            if desired.ousted.is_some() && !self.forget_containers().await {
                return Outcome::Retry;
            }
            // Failed as a whole (deadline, eviction): the object and the dead containers stay for the user to look at.
            return if reported { Outcome::Settled } else { Outcome::Retry };
        }
        if !self.forget_containers().await || (!desired.gone && !self.delete_object().await) {
            return Outcome::Retry;
        }
        self.finished_log();
        Outcome::Done
    }

    /// How long containers have.
    pub(super) fn grace(&self) -> Duration {
        if self.failure.as_ref().is_some_and(|cause| cause.reason == "Evicted")
            && self.pod.metadata.deletion_timestamp.is_none()
        {
            let soft = match &self.rx.borrow().ousted {
                Some(Ousting::Evicted(_, Notice::Soft(max_secs))) => Some(*max_secs),
                _ => None,
            };
            return evicted_grace(&self.pod, soft);
        }
        let of_spec = self.pod.spec.as_ref().and_then(|s| s.termination_grace_period_seconds);
        let secs = self.pod.metadata.deletion_grace_period_seconds.or(of_spec).unwrap_or(GRACE_DEFAULT_SECS);
        Duration::from_secs(u64::try_from(secs).unwrap_or(0)).min(GRACE_MAX)
    }

    /// Ends all containers, then the sandboxes. Every preStop hook begins at once; a sidecar's signal waits for those
    /// that need it, the main and init containers and the sidecars after it, as long as the grace lasts (upstream's
    /// `killContainer`, pkg/kubelet/kuberuntime/kuberuntime_container.go v1.36).
    pub(super) async fn kill_all(&self, grace: Duration, why: &str) -> bool {
        let roles = container::all(&self.pod).into_iter().map(|(c, role)| (c.name.clone(), role)).collect::<Vec<_>>();
        let alive = |s: &&Seen| matches!(s.state, State::Running | State::Unknown | State::Created);
        let all: Vec<&Seen> = self.observed.containers.iter().filter(alive).collect();
        let ended = tokio::sync::watch::Sender::new(BTreeSet::<String>::new());
        let one = |seen: &Seen| {
            let before: BTreeSet<String> =
                all.iter().filter(|other| goes_before(&roles, other, seen)).map(|s| s.id.clone()).collect();
            let (mut heard, seen, ended, this) = (ended.subscribe(), seen.clone(), &ended, self);
            async move {
                // The sender lives as long as we wait.
                let turn = async { drop(heard.wait_for(|ended| before.is_subset(ended)).await) };
                let good = this.stop(&seen, grace, why, turn).await;
                ended.send_modify(|all| {
                    all.insert(seen.id.clone());
                });
                good
            }
        };
        let mut good = join_all(all.iter().map(|seen| one(seen))).await.into_iter().all(|ok| ok);
        for sandbox in self.observed.sandboxes.iter().filter(|s| s.ready) {
            if let Err(err) = self.node.runtime.cri.stop_sandbox(&sandbox.id).await {
                self.node.events.pod(
                    &self.pod,
                    None,
                    Kind::Warning,
                    "FailedKillPod",
                    format!("error killing pod: failed to \"KillPodSandbox\": {err}"),
                );
                good = false;
            }
        }
        good
    }

    /// Ends one container: event, preStop hook within the grace, then in its `turn` the signal with what is left of it,
    /// and never less than two seconds.
    pub(super) async fn stop(&self, seen: &Seen, grace: Duration, why: &str, turn: impl Future<Output = ()>) -> bool {
        let watch = base::time::Stopwatch::start();
        if seen.state == State::Running {
            self.say_killing(seen, why);
            let hook = seen.pre_stop.as_deref().and_then(|json| serde_json::from_str(json).ok());
            if let Some(hook) = hook
                && !grace.is_zero()
            {
                let spec = container::find(&self.pod, &seen.name).map(|(c, _)| c);
                if let Err(err) = self.hook(&hook, &spec.unwrap_or_default(), &seen.id, Some(grace)).await {
                    debug!(pod = %self.name(), container = %seen.name, err = %Chain(&err), "preStop hook failed");
                    let text = "PreStopHook failed".to_owned();
                    self.node.events.pod(&self.pod, self.field(&seen.name), Kind::Warning, "FailedPreStopHook", text);
                }
            }
        }
        let _too_late_goes_all_the_same = tokio::time::timeout(grace.saturating_sub(watch.elapsed()), turn).await;
        let left = grace.saturating_sub(watch.elapsed()).max(GRACE_MIN);
        let left = self.own_signal(seen, left).await;
        self.signal(seen, left).await
    }

    /// Runs a hook of a running container.
    pub(super) async fn hook(
        &self,
        handler: &LifecycleHandler,
        container: &Container,
        id: &str,
        bound: Option<Duration>,
    ) -> Result<(), HookError> {
        let (node, ips) = (&self.node, self.ips());
        let hooks = Hooks { cri: &node.runtime.cri, events: &node.events, group: &node.group };
        let pod_ip = ips.first().map(String::as_str);
        hooks.run(&Hooked { pod: &self.pod, container, id, pod_ip }, handler, bound).await
    }

    /// Kills a container without any grace.
    pub(super) async fn kill_now(&self, seen: &Seen, why: &str) -> bool {
        self.say_killing(seen, why);
        self.signal(seen, Duration::ZERO).await
    }

    fn say_killing(&self, seen: &Seen, why: &str) {
        let text = if why.is_empty() { format!("Stopping container {}", seen.name) } else { why.to_owned() };
        self.node.events.pod(&self.pod, self.field(&seen.name), Kind::Normal, "Killing", text);
    }

    async fn signal(&self, seen: &Seen, left: Duration) -> bool {
        match self.node.runtime.cri.stop_container(&seen.id, left).await {
            Ok(()) => true,
            Err(err) => {
                warn!(pod = %self.name(), container = %seen.name, err = %Chain(&err), "cannot stop a container");
                false
            }
        }
    }

    /// Ends a container in the way that `lifecycle.stopSignal` asks for. Returns how long the usual way may take after
    /// it.
    async fn own_signal(&self, seen: &Seen, left: Duration) -> Duration {
        let spec = container::find(&self.pod, &seen.name).map(|(c, _)| c);
        let wish = spec.and_then(|c| c.lifecycle?.stop_signal);
        let Some(signal) =
            wish.as_deref().and_then(tasks::number).filter(|_| seen.state == State::Running && !left.is_zero())
        else {
            return left;
        };
        if let Err(status) = tasks::signal(&self.node.runtime.socket, &seen.id, signal).await {
            warn!(
                pod = %self.name(),
                container = %seen.name,
                err = %Chain(&status),
                "cannot send a container its stop signal, it gets the usual one"
            );
            return left;
        }
        let ended = async {
            while self
                .node
                .runtime
                .cri
                .container(&seen.id)
                .await
                .is_ok_and(|s| s.is_some_and(|s| s.state() == cri::ContainerState::ContainerRunning))
            {
                tokio::time::sleep(SIGNAL_POLL).await;
            }
        };
        let _too_slow_is_killed = tokio::time::timeout(left, ended).await;
        Duration::ZERO
    }

    /// Gives back what the node holds for the pod: probes, watches, volumes, cgroup.
    pub(super) async fn tidy_node(&mut self) -> bool {
        self.probes.stop();
        self.node.refs.release(&self.uid);
        self.node.known.release(&self.uid);
        images::forget(&self.node.pulls, &self.uid);
        self.node.stats.probes.forget(&self.uid);
        let dir = volumes::pod_dir(&self.node.config, &self.uid);
        self.node.tokens.forget(&dir);
        self.node.devices.release(&self.uid);
        if let Err(err) = Box::pin(csi::unmount::tear_down(&self.node.config, &self.node.csi, &self.uid)).await {
            warn!(pod = %self.name(), err = %Chain(&err), "cannot give a volume back yet");
            return false;
        }
        let (cgroups, pod) = (self.node.cgroups.clone(), self.pod.clone());
        if let Err(err) = Group::blocking(move || cgroups.remove(&pod)).await {
            warn!(err = %Chain(&err), "removing a pod's cgroup failed");
        }
        match volumes::tidy(&dir).await {
            Ok(()) => {
                volumes::image::release(&self.node.runtime, &self.pod).await;
                volumes::local::release_unused(&self.node.config, &self.node.csi).await;
                self.mounted = volumes::mounted::Mounted::default();
                true
            }
            Err(err) => {
                warn!(pod = %self.name(), path = %dir.display(), err = %Chain(&err), "cannot tidy a pod's volumes");
                false
            }
        }
    }

    async fn forget_containers(&mut self) -> bool {
        let cri = &self.node.runtime.cri;
        for seen in &self.observed.containers {
            self.unlink_log(seen);
            if let Err(err) = cri.remove_container(&seen.id).await {
                warn!(pod = %self.name(), container = %seen.name, err = %Chain(&err), "cannot remove a container");
                return false;
            }
        }
        for sandbox in &self.observed.sandboxes {
            if let Err(err) = cri.remove_sandbox(&sandbox.id).await {
                warn!(pod = %self.name(), err = %Chain(&err), "cannot remove a sandbox");
                return false;
            }
        }
        self.observed.ids().for_each(|id| self.pods.unindex(id));
        let logs = sandbox::log_dir(&self.node.config, &self.pod);
        let gone = logs.clone();
        let removed = within(&logs, LOGS_LIMIT, move || tree::remove(&gone).as_error()).await;
        if let Err(err) = removed {
            warn!(path = %logs.display(), err = %err, "cannot remove logs");
        }
        true
    }

    /// Confirms the deletion: only now may another pod take the name.
    async fn delete_object(&self) -> bool {
        let Some(target) = self.pods.api_pod(&self.node.own, &self.pod) else { return true };
        let api: Api<Pod> =
            Api::namespaced(self.node.client.clone(), target.metadata.namespace.as_deref().unwrap_or_default());
        let preconditions = Preconditions { uid: target.metadata.uid.clone(), resource_version: None };
        let params =
            DeleteParams { grace_period_seconds: Some(0), preconditions: Some(preconditions), ..Default::default() };
        match api.delete(target.metadata.name.as_deref().unwrap_or_default(), &params).await {
            Ok(_) => true,
            Err(kube::Error::Api(status)) if status.code == 404 => true,
            // Another pod has the name; anything else that conflicts is tried again.
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let name = target.metadata.name.as_deref().unwrap_or_default();
                let is_ours = |now: Option<&Pod>| now.is_some_and(|now| now.metadata.uid == target.metadata.uid);
                api.get_opt(name).await.is_ok_and(|now| !is_ours(now.as_ref()))
            }
            Err(err) => {
                warn!(pod = %self.name(), err = %Chain(&err), "cannot confirm the deletion of a pod");
                false
            }
        }
    }
}

/// Whether `other` must have ended before `seen` gets its signal: a sidecar serves the main and init containers, and
/// the sidecars that began after it.
fn goes_before(roles: &[(String, Role)], other: &Seen, seen: &Seen) -> bool {
    let at = |seen: &Seen| roles.iter().position(|(name, role)| *name == seen.name && *role == Role::Sidecar);
    match (at(other), at(seen)) {
        (None, Some(_)) => true,
        (Some(other), Some(own)) => other > own,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // review node.md N13
    #[test]
    fn a_sidecar_ends_after_all_that_it_serves() {
        let roles = [("first", Role::Sidecar), ("init", Role::Init), ("second", Role::Sidecar), ("main", Role::Main)];
        let roles = roles.map(|(name, role)| (name.to_owned(), role));
        let seen = |name: &str| crate::worker::plan::tests::seen(name, State::Running, 0);
        let before = |name: &str| {
            let others = ["first", "init", "second", "main", "debugger"];
            others.into_iter().filter(|other| goes_before(&roles, &seen(other), &seen(name))).collect::<Vec<_>>()
        };
        assert_eq!(before("first"), ["init", "second", "main", "debugger"]);
        assert_eq!(before("second"), ["init", "main", "debugger"]);
        assert!(before("main").is_empty());
    }
}
