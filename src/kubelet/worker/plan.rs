//! The decision: from what a pod should be and what the runtime has, to what is done next. Pure; upstream's
//! `computePodActions`.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, Pod};

use crate::backoffs::Backoffs;
use crate::container::{self, Role, crash_loop, hash};
use crate::pods::observed::{Observed, Seen, State};
use crate::pods::spec::pod_text;
use crate::probes::health::Health;

/// All that the decision rests on.
pub(crate) struct View<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) observed: &'a Observed,
    pub(crate) health: &'a BTreeMap<String, Health>,
    pub(crate) backoffs: &'a Backoffs,
    /// Containers that a resize must make again.
    pub(crate) anew: &'a BTreeSet<String>,
    pub(crate) now: Timestamp,
}

/// How long a container may take to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grace {
    /// As the pod says.
    Pod,
    /// As the probe says that failed, in seconds; else as the pod.
    Probe(Option<i64>),
    /// Not at all.
    None,
}

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// End what is left of dead sandboxes, then make a new one.
    MakeSandbox { attempt: u32 },
    /// End a container so that it can be made again.
    Kill { id: String, name: String, why: String, grace: Grace },
    /// Make and start a container; `ended` is when its forerunner did.
    Start { name: String, attempt: u32, ended: Option<Timestamp> },
    /// Forget an old dead container.
    Prune { id: String },
    /// All is done: end what still runs (sidecars) and the sandbox.
    Finish,
}

/// The next step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) commands: Vec<Command>,
    /// Containers that wait in a crash loop: name → text.
    pub(crate) crash_loops: BTreeMap<String, String>,
    /// When to look again although nothing happened.
    pub(crate) wake_at: Option<Timestamp>,
}

/// The action of the first rule of a container that its exit code meets.
fn action(container: &Container, exit_code: i32) -> Option<&str> {
    let meets = |rule: &&ContainerRestartRule| {
        rule.exit_codes.as_ref().is_some_and(|codes| {
            let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
            if codes.operator == "NotIn" { !listed } else { listed }
        })
    };
    container.restart_policy_rules.iter().flatten().find(meets).map(|rule| rule.action.as_str())
}

/// The action of a rule by which a container has all of its pod made again (KEP-5532).
const RESTART_ALL: &str = "RestartAllContainers";

/// Whether a container may ask for all to be made again.
pub(crate) fn could_restart_all(pod: &Pod) -> bool {
    container::all(pod)
        .iter()
        .any(|(c, _)| c.restart_policy_rules.iter().flatten().any(|rule| rule.action == RESTART_ALL))
}

/// When a container ended last that asked for all to be made again: those made before do not count any more.
fn asked_for_all(pod: &Pod, observed: &Observed) -> Option<Timestamp> {
    if !could_restart_all(pod) {
        return None;
    }
    let all = container::all(pod);
    let asks = |seen: &&Seen| {
        let of_name = all.iter().find(|(c, _)| c.name == seen.name);
        seen.state == State::Exited && of_name.is_some_and(|(c, _)| action(c, seen.exit_code) == Some(RESTART_ALL))
    };
    observed.containers.iter().filter(asks).map(|seen| seen.finished_at).max()
}

/// Whether all containers are about to be made again, and one of those before is still the newest of its name.
pub(crate) fn restarting_all(pod: &Pod, observed: &Observed) -> bool {
    let Some(asked) = asked_for_all(pod, observed) else { return false };
    container::all(pod).iter().any(|(c, _)| observed.latest(&c.name).is_some_and(|seen| seen.created_at <= asked))
}

/// Whether an ended container is started again.
pub(crate) fn restarts(pod: &Pod, container: &Container, role: Role, exit_code: i32) -> bool {
    if let Some(action) = action(container, exit_code) {
        return action == "Restart" || action == RESTART_ALL;
    }
    let of_pod = pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()).unwrap_or("Always");
    match (container.restart_policy.as_deref().unwrap_or(of_pod), role) {
        ("Never", _) => false,
        ("OnFailure", _) => exit_code != 0,
        (_, Role::Init) => exit_code != 0,
        _ => true,
    }
}

/// Decides what to do now.
pub(crate) fn plan(view: &View<'_>) -> Plan {
    let mut plan = Plan::default();
    prune(view, &mut plan);
    let all = container::all(view.pod);
    let Some(sandbox) = view.observed.sandbox() else {
        if is_over(view.pod, view.observed) {
            if view.observed.may_run() {
                plan.commands.push(Command::Finish);
            }
            return plan;
        }
        let attempt = view.observed.sandboxes.first().map_or(0, |s| s.attempt + 1);
        plan.commands.push(Command::MakeSandbox { attempt });
        return plan;
    };
    let extra_ready = view.observed.sandboxes.iter().skip(1).any(|s| s.ready);
    if extra_ready {
        let attempt = sandbox.attempt + 1;
        plan.commands.push(Command::MakeSandbox { attempt });
        return plan;
    }
    if is_over(view.pod, view.observed) {
        plan.commands.push(Command::Finish);
        return plan;
    }
    for (container, _) in container::ephemeral(view.pod) {
        // Started once and never again, whatever stage the others are in.
        if view.observed.latest(&container.name).is_none() {
            plan.commands.push(Command::Start { name: container.name, attempt: 0, ended: None });
        }
    }
    let asked = asked_for_all(view.pod, view.observed);
    let counts = |seen: &&Seen| asked.is_none_or(|asked| seen.created_at > asked);
    if let Some(asked) = asked
        && end_all(view, &mut plan, asked)
    {
        return plan;
    }
    // Who asked still waits as long as its crash loop says.
    let asks =
        |seen: &&Seen| all.iter().any(|(c, _)| c.name == seen.name && action(c, seen.exit_code) == Some(RESTART_ALL));
    let current = |name: &str| {
        let seen = view.observed.latest(name).filter(|seen| seen.sandbox_id == sandbox.id);
        seen.filter(|seen| counts(seen) || asks(seen))
    };
    // A main container that ended for good in an earlier sandbox does not run again in this one.
    let ended_before = |container: &Container| {
        let seen = view.observed.latest(&container.name).filter(counts);
        seen.is_some_and(|s| {
            s.sandbox_id != sandbox.id
                && s.state == State::Exited
                && !restarts(view.pod, container, Role::Main, s.exit_code)
        })
    };
    let mains_began =
        all.iter().any(|(c, role)| *role == Role::Main && current(&c.name).is_some_and(|seen| counts(&seen)));
    for (container, role) in all.iter().filter(|(_, role)| *role != Role::Main) {
        let done = match role {
            Role::Sidecar => keep_running(view, &mut plan, container, *role, current(&container.name)) || mains_began,
            // Once main containers ran in this sandbox, its init containers had ended well, though they may be pruned.
            _ => mains_began || run_once(view, &mut plan, container, current(&container.name)),
        };
        if !done {
            return plan;
        }
    }
    for (container, role) in all.iter().filter(|(c, role)| *role == Role::Main && !ended_before(c)) {
        keep_running(view, &mut plan, container, *role, current(&container.name));
    }
    plan
}

/// Ends what runs since before all were asked to be made again, the last first: returns whether there was such.
fn end_all(view: &View<'_>, plan: &mut Plan, asked: Timestamp) -> bool {
    let left =
        |name: &str| view.observed.latest(name).filter(|seen| seen.created_at <= asked && seen.state == State::Running);
    for (container, _) in container::all(view.pod).into_iter().rev() {
        let Some(seen) = left(&container.name) else { continue };
        let why = format!("Container {} will be restarted with all others of its pod", container.name);
        plan.commands.push(Command::Kill {
            id: seen.id.clone(),
            name: container.name.clone(),
            why,
            grace: Grace::None,
        });
    }
    plan.commands.iter().any(|command| matches!(command, Command::Kill { .. }))
}

/// An init container: returns whether it ended well.
fn run_once(view: &View<'_>, plan: &mut Plan, container: &Container, seen: Option<&Seen>) -> bool {
    match seen {
        Some(seen)
            if seen.state == State::Exited && seen.exit_code == 0 && action(container, 0) != Some(RESTART_ALL) =>
        {
            true
        }
        Some(seen) if seen.state == State::Unknown => {
            kill_unknown(plan, container, seen);
            false
        }
        Some(seen) if seen.state == State::Running => {
            if let Some(health) = view.health.get(&container.name).filter(|h| h.id == seen.id)
                && let Some(probe) = health.kill
            {
                kill_for_probe(plan, container, seen, probe);
            }
            false
        }
        seen => {
            start(view, plan, container, Role::Init, seen);
            false
        }
    }
}

/// A main container or sidecar: returns whether it has started (a sidecar lets the next one begin then).
fn keep_running(view: &View<'_>, plan: &mut Plan, container: &Container, role: Role, seen: Option<&Seen>) -> bool {
    let Some(seen) = seen else {
        start(view, plan, container, role, None);
        return false;
    };
    if seen.state == State::Unknown {
        kill_unknown(plan, container, seen);
        return false;
    }
    if seen.state != State::Running {
        start(view, plan, container, role, Some(seen));
        return false;
    }
    if !seen.hash.is_empty() && seen.hash != hash(container) {
        let why = format!("Container {} definition changed, will be restarted", container.name);
        plan.commands.push(Command::Kill { id: seen.id.clone(), name: container.name.clone(), why, grace: Grace::Pod });
        return false;
    }
    if view.anew.contains(&container.name) {
        let why = format!("Container {} resize requires restart", container.name);
        plan.commands.push(Command::Kill { id: seen.id.clone(), name: container.name.clone(), why, grace: Grace::Pod });
        return false;
    }
    let health = view.health.get(&container.name).filter(|h| h.id == seen.id);
    if let Some(probe) = health.and_then(|h| h.kill) {
        kill_for_probe(plan, container, seen, probe);
        return false;
    }
    match health {
        Some(health) => health.started,
        None => container.startup_probe.is_none(),
    }
}

fn kill_for_probe(plan: &mut Plan, container: &Container, seen: &Seen, probe: &str) {
    let why = format!("Container {} failed {probe} probe, will be restarted", container.name);
    let failed = if probe == "startup" { &container.startup_probe } else { &container.liveness_probe };
    let grace = Grace::Probe(failed.as_ref().and_then(|p| p.termination_grace_period_seconds));
    plan.commands.push(Command::Kill { id: seen.id.clone(), name: container.name.clone(), why, grace });
}

/// Nobody knows whether it runs: it is ended first, or two of it would (upstream's `computePodActions`).
fn kill_unknown(plan: &mut Plan, container: &Container, seen: &Seen) {
    let why = "Container is in \"unknown\" state, try killing it before restart".to_owned();
    plan.commands.push(Command::Kill { id: seen.id.clone(), name: container.name.clone(), why, grace: Grace::Pod });
}

/// Starts a container, unless its policy or a crash loop forbids. A new sandbox does not shorten a crash loop.
fn start(view: &View<'_>, plan: &mut Plan, container: &Container, role: Role, seen: Option<&Seen>) {
    if seen.is_some_and(|s| s.state == State::Exited && !restarts(view.pod, container, role, s.exit_code)) {
        return;
    }
    let latest = view.observed.latest(&container.name);
    let ended = latest.filter(|l| l.state == State::Exited).map(|l| l.finished_at);
    if let Some(ended) = ended.filter(|_| seen.is_some())
        && let Some((until, secs)) = view.backoffs.wait(&crash_loop(container), ended, view.now)
    {
        let text = format!(
            "back-off {} restarting failed container={} pod={}",
            go_duration(secs),
            container.name,
            pod_text(view.pod)
        );
        plan.crash_loops.insert(container.name.clone(), text);
        plan.wake_at = Some(plan.wake_at.map_or(until, |at| at.min(until)));
        return;
    }
    let attempt = latest.map_or(0, |l| l.attempt + 1);
    plan.commands.push(Command::Start {
        name: container.name.clone(),
        attempt,
        ended: ended.filter(|_| seen.is_some()),
    });
}

/// `10s`, `1m20s`, `5m0s`: how Go prints a duration.
fn go_duration(secs: i64) -> String {
    if secs < 60 { format!("{secs}s") } else { format!("{}m{}s", secs / 60, secs % 60) }
}

/// Keeps the newest of each name and one dead before it.
fn prune(view: &View<'_>, plan: &mut Plan) {
    let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
    for seen in &view.observed.containers {
        let n = kept.entry(&seen.name).or_default();
        *n += 1;
        if *n > 2 && seen.state != State::Running {
            plan.commands.push(Command::Prune { id: seen.id.clone() });
        }
    }
}

/// Nothing of the pod will be started again.
fn is_over(pod: &Pod, observed: &Observed) -> bool {
    finished(pod, observed) || init_failed(pod, observed) || stranded(pod, observed)
}

/// A pod that never restarts lost its sandbox before all its containers had begun: those that ran do not run again, so
/// the others never can. Spec: `computePodActions` in pkg/kubelet/kuberuntime/kuberuntime_manager.go v1.36, which makes
/// no new sandbox then.
pub(crate) fn stranded(pod: &Pod, observed: &Observed) -> bool {
    let never = pod.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) == Some("Never");
    let kept = observed.sandbox().is_some() || observed.sandboxes.is_empty();
    if !never || kept || finished(pod, observed) || restarting_all(pod, observed) {
        return false;
    }
    let latest = |name: &str| observed.latest(name).filter(|seen| seen.state != State::Created);
    let all = container::all(pod);
    let again = |seen: &Seen, c: &Container, role| {
        restarts(pod, c, role, if seen.state == State::Exited { seen.exit_code } else { KILLED })
    };
    all.iter().any(|(c, _)| latest(&c.name).is_some())
        && !all
            .iter()
            .any(|(c, role)| *role != Role::Sidecar && latest(&c.name).is_some_and(|seen| again(seen, c, *role)))
}

/// The exit code of what is killed.
const KILLED: i32 = 137;

/// All main containers ended and none will be started again.
pub(crate) fn finished(pod: &Pod, observed: &Observed) -> bool {
    let mut mains = container::all(pod).into_iter().filter(|(_, role)| *role == Role::Main).peekable();
    !restarting_all(pod, observed)
        && mains.peek().is_some()
        && mains.all(|(c, role)| {
            observed
                .latest(&c.name)
                .is_some_and(|seen| seen.state == State::Exited && !restarts(pod, c, role, seen.exit_code))
        })
}

/// An init container failed for good.
pub(crate) fn init_failed(pod: &Pod, observed: &Observed) -> bool {
    if restarting_all(pod, observed) {
        return false;
    }
    container::all(pod).into_iter().filter(|(_, role)| *role == Role::Init).any(|(c, role)| {
        let failed =
            |seen: &Seen| seen.state == State::Exited && seen.exit_code != 0 && !restarts(pod, c, role, seen.exit_code);
        observed.latest(&c.name).is_some_and(failed)
    })
}

#[cfg(test)]
pub(crate) mod tests;
