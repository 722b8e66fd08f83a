//! Probes of running containers: one task each, whose verdicts wake the pod's task.

pub(crate) mod counts;
mod dial;
mod grpc;
pub(crate) mod health;
mod target;
mod verdict;

pub(crate) mod http;

mod run;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use base::task::Group;
use k8s_openapi::api::core::v1::{Pod, Probe};
use tokio::sync::watch;

use crate::container::{self, Role};
use crate::events::Kind;
use crate::node::Node;
use crate::pods::desired::Desired;
use crate::pods::observed::Observed;
use crate::probes::health::{Health, Shared};
use crate::probes::target::{Target, What};
use crate::probes::verdict::Verdict;

/// A container that is not ready at its first probe is often so a moment later: in the first period it is looked at
/// again after this long, and twice as long each time. These looks can only find it ready; they count as no failure and
/// run no program.
const EARLY_LOOK: Duration = Duration::from_millis(50);

/// The probes of one pod.
pub(crate) struct Probes {
    node: Arc<Node>,
    wake: watch::Sender<Desired>,
    group: Group,
    health: Shared,
    tasks: BTreeMap<String, Tasks>,
    /// The pod is being ended: whether it is ready is still asked, whether it should be killed is not.
    ending: bool,
}

/// The probes of one container.
struct Tasks {
    id: String,
    all: Group,
    /// Those that want containers killed: startup and liveness.
    killers: Group,
}

impl Probes {
    pub(crate) fn new(node: Arc<Node>, wake: watch::Sender<Desired>, group: &Group) -> Probes {
        Probes {
            node,
            wake,
            group: group.child("probes"),
            health: Shared::default(),
            tasks: BTreeMap::new(),
            ending: false,
        }
    }

    /// The verdicts of the probes, by container name.
    pub(crate) fn health(&self) -> BTreeMap<String, Health> {
        self.health.lock().clone()
    }

    /// Where the probes write what they say.
    pub(crate) fn shared(&self) -> Shared {
        Arc::clone(&self.health)
    }

    /// Starts and ends probes so that they fit what runs.
    pub(crate) fn follow(&mut self, pod: &Arc<Pod>, observed: &Observed, ips: Vec<String>) {
        for (spec, role) in container::all(pod) {
            if role == Role::Init
                || [&spec.startup_probe, &spec.liveness_probe, &spec.readiness_probe].iter().all(|p| p.is_none())
            {
                continue;
            }
            let running = observed.latest(&spec.name).filter(|s| s.state == crate::pods::observed::State::Running);
            let Some(seen) = running else {
                self.end(&spec.name);
                continue;
            };
            if self.tasks.get(&spec.name).is_some_and(|tasks| tasks.id == seen.id) {
                continue;
            }
            self.end(&spec.name);
            // A container that an earlier kubelet found ready stays so until a probe says otherwise: a restart of ours
            // must not take it out of its Services.
            let statuses =
                pod.status.iter().flat_map(|s| s.container_statuses.iter().chain(&s.init_container_statuses).flatten());
            let told = statuses
                .into_iter()
                .find(|c| c.name == spec.name && c.container_id.as_deref().is_some_and(|id| id.ends_with(&seen.id)));
            let health = Health {
                id: seen.id.clone(),
                started: spec.startup_probe.is_none() || told.is_some_and(|c| c.started == Some(true)),
                ready: spec.readiness_probe.is_none() || told.is_some_and(|c| c.ready),
                kill: None,
            };
            self.health.lock().insert(spec.name.clone(), health);
            let all = self.group.child(&spec.name);
            let killers = all.child("killers");
            if self.ending {
                killers.token().cancel();
            }
            let target = Target {
                node: Arc::clone(&self.node),
                pod: Arc::clone(pod),
                container: spec.clone(),
                id: seen.id.clone(),
                ip: ips.first().cloned().unwrap_or_default(),
                field: role.field(&spec.name),
                health: Arc::clone(&self.health),
                wake: self.wake.clone(),
                started_at: seen.started_at,
            };
            let target = Arc::new(target);
            let probes = [
                (What::Startup, &spec.startup_probe),
                (What::Liveness, &spec.liveness_probe),
                (What::Readiness, &spec.readiness_probe),
            ];
            for (what, probe) in probes {
                if let Some(probe) = probe {
                    let group = if what == What::Readiness { &all } else { &killers };
                    group.spawn_short(what.title(), run_probe(Arc::clone(&target), what, probe.clone()));
                }
            }
            self.tasks.insert(spec.name.clone(), Tasks { id: seen.id.clone(), all, killers });
        }
    }

    fn end(&mut self, name: &str) {
        if let Some(tasks) = self.tasks.remove(name) {
            tasks.all.token().cancel();
        }
        self.health.lock().remove(name);
    }

    /// From now on no probe has a container killed: the pod is being ended.
    pub(crate) fn stop_killers(&mut self) {
        self.ending = true;
        self.tasks.values().for_each(|tasks| tasks.killers.token().cancel());
    }

    /// Ends all.
    pub(crate) fn stop(&mut self) {
        for name in self.tasks.keys().cloned().collect::<Vec<_>>() {
            self.end(&name);
        }
    }
}

impl Drop for Probes {
    /// A pod's task that ends in whatever way takes its probes along.
    fn drop(&mut self) {
        self.stop();
    }
}

/// Waits until the first probe is due.
async fn wait_for_first(target: &Target, what: What, probe: &Probe, period: Duration) {
    let age = target.node.clock.now().duration_since(target.started_at).as_secs().max(0);
    let delay = i64::from(probe.initial_delay_seconds.unwrap_or(0)) - age;
    tokio::time::sleep(Duration::from_secs(u64::try_from(delay).unwrap_or(0))).await;
    // A container adopted from an earlier kedge: spread the first probes over a period.
    if age > 60 && what != What::Readiness {
        tokio::time::sleep(within(&target.node.rng, period)).await;
    }
}

async fn run_probe(target: Arc<Target>, what: What, probe: Probe) {
    let secs = |value: Option<i32>, otherwise: u64| {
        value.and_then(|v| u64::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(otherwise)
    };
    let period = Duration::from_secs(secs(probe.period_seconds, 10));
    let timeout = Duration::from_secs(secs(probe.timeout_seconds, 1));
    let (failures_max, successes_min) = (secs(probe.failure_threshold, 3), secs(probe.success_threshold, 1));
    wait_for_first(&target, what, &probe, period).await;
    let (mut good, mut bad) = (0u64, 0u64);
    let mut ticks = tokio::time::interval(period);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut early = (what == What::Readiness && successes_min == 1 && probe.exec.is_none()).then_some(EARLY_LOOK);
    loop {
        ticks.tick().await;
        let Some(health) = target.health() else { return };
        if what != What::Startup && !health.started {
            // Held back until the startup probe passes; looked at again soon so that readiness is not a period late.
            if wait_for_start(&target).await.is_none() {
                return;
            }
            ticks.reset_immediately();
            continue;
        }
        let verdict = run::once(&target, &probe, timeout).await;
        target.count(what, &verdict);
        if let Verdict::Warning(text) = &verdict {
            let message = format!("{} probe warning: {text}", what.title());
            target.node.events.pod(&target.pod, Some(target.field.clone()), Kind::Warning, "ProbeWarning", message);
        }
        match verdict {
            Verdict::Success | Verdict::Warning(_) => {
                (good, bad) = (good + 1, 0);
                if good >= successes_min {
                    match what {
                        What::Startup => {
                            target.set(|h| h.started = true);
                            return;
                        }
                        What::Readiness => target.set(|h| h.ready = true),
                        What::Liveness => {}
                    }
                }
            }
            Verdict::Failure(text) => {
                (good, bad) = (0, bad + 1);
                if let Some(pause) = early.take()
                    && !health.ready
                    && tokio::time::timeout(period, look_early(&target, &probe, timeout, pause)).await.is_ok()
                {
                    continue;
                }
                let message = format!("{} probe failed: {text}", what.title());
                target.node.events.pod(&target.pod, Some(target.field.clone()), Kind::Warning, "Unhealthy", message);
                if bad >= failures_max {
                    match what {
                        What::Readiness => target.set(|h| h.ready = false),
                        // Its word is said: nothing more is asked until there is another container.
                        What::Startup => return target.set(|h| h.kill = Some("startup")),
                        What::Liveness => return target.set(|h| h.kill = Some("liveness")),
                    }
                }
            }
            Verdict::Error(text) => {
                let message = format!("{} probe errored and resulted in unknown state: {text}", what.title());
                target.node.events.pod(&target.pod, Some(target.field.clone()), Kind::Warning, "Unhealthy", message);
            }
        }
    }
}

/// A part of the period by chance.
fn within(rng: &Rng, period: Duration) -> Duration {
    Duration::from_millis(rng.below(u64::try_from(period.as_millis()).unwrap_or(u64::MAX).max(1)))
}

/// Looks until the container is ready.
async fn look_early(target: &Target, probe: &Probe, timeout: Duration, mut pause: Duration) {
    loop {
        tokio::time::sleep(pause).await;
        if let Verdict::Success | Verdict::Warning(_) = run::once(target, probe, timeout).await {
            return target.set(|h| h.ready = true);
        }
        pause *= 2;
    }
}

/// Wakes with every change of the pod; `None` when the container is not probed any more.
async fn wait_for_start(target: &Target) -> Option<()> {
    let mut rx = target.wake.subscribe();
    loop {
        if target.health()?.started {
            return Some(());
        }
        rx.changed().await.ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A hundred probes of ten minutes all began in the first second after kedge's start.
    #[test]
    fn first_probes_are_spread_over_the_whole_period() {
        let (rng, period) = (Rng::from_seed(3), Duration::from_secs(600));
        let all: Vec<Duration> = (0..100).map(|_| within(&rng, period)).collect();
        assert!(all.iter().all(|at| *at < period));
        let late = all.iter().filter(|at| **at > period / 2).count();
        assert!((25..75).contains(&late), "{late} of 100 in the second half");
    }
}
