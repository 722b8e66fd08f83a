//! A pod's status: phase, conditions and container states with upstream's reasons. Pure, but for [`publish`].

pub(crate) mod facts;
pub(crate) mod phase;
pub(crate) mod publish;
pub(crate) mod resources;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    HostIP, Pod, PodCondition, PodIP, PodStatus, ResourceRequirements, VolumeMount, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use model::phase::is_terminal;

use crate::cgroups::limits;
use crate::container::{self, Role};
use crate::events::whole_secs;
use crate::pods::desired::Cause;
use crate::pods::observed::{Seen, State};
use crate::pods::resizing::Progress;
use crate::pods::spec::host_network;
use crate::status::facts::Facts;
use crate::status::resources::Run;
use crate::worker::plan;

/// The whole status.
pub(crate) fn compute(facts: &Facts<'_>) -> PodStatus {
    let all = container::all(facts.pod);
    let of = |wanted: fn(Role) -> bool| -> Vec<ContainerStatus> {
        all.iter().filter(|(_, role)| wanted(*role)).map(|(c, role)| container_status(facts, c, *role)).collect()
    };
    // A pod that was turned away at the door never had containers to speak of.
    let rejected =
        facts.failure.is_some() && facts.observed.sandboxes.is_empty() && facts.observed.containers.is_empty();
    let init = of(|role| role != Role::Main);
    let main = of(|role| role == Role::Main);
    let extra: Vec<ContainerStatus> =
        container::ephemeral(facts.pod).iter().map(|(c, _)| container_status(facts, c, Role::Ephemeral)).collect();
    let goal = phase::goal(facts, &init, &main);
    let phase = phase::told(facts, goal);
    // Reason and text belong to the end of the pod: they come with it.
    let failure = facts.failure.filter(|_| phase == goal);
    let ips = if host_network(facts.pod) {
        if facts.observed.sandboxes.is_empty() { Vec::new() } else { facts.host_ips.clone() }
    } else {
        facts.observed.sandbox().or(facts.observed.sandboxes.first()).map(|s| s.ips.clone()).unwrap_or_default()
    };
    let ips =
        if ips.is_empty() { facts.before.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect() } else { ips };
    let mut status = PodStatus {
        reason: failure.map(|f| f.reason.clone()),
        message: failure.map(|f| f.message.clone()),
        host_ip: facts.host_ips.first().cloned(),
        host_ips: Some(facts.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect()),
        pod_ip: ips.first().cloned(),
        pod_ips: (!ips.is_empty()).then(|| ips.iter().map(|ip| PodIP { ip: ip.clone() }).collect()),
        start_time: facts.before.start_time.clone().or_else(|| Some(Time(whole_secs(facts.now)))),
        qos_class: Some(limits::qos(facts.pod).name().to_owned()),
        observed_generation: facts.pod.metadata.generation,
        allocated_resources: (!rejected).then(|| resources::requests(facts.pod)).filter(|all| !all.is_empty()),
        resources: (!rejected).then(|| facts.resizing.of_pod(facts.pod, Run::of_phase(&phase))),
        init_container_statuses: (!init.is_empty() && !rejected).then_some(init),
        container_statuses: (!rejected).then_some(main),
        ephemeral_container_statuses: (!extra.is_empty()).then_some(extra),
        ..Default::default()
    };
    status.phase = Some(phase);
    status.conditions = Some(conditions(facts, &status, goal));
    status
}

fn container_status(facts: &Facts<'_>, container: &Container, role: Role) -> ContainerStatus {
    let latest = facts.observed.latest(&container.name);
    let previous = facts.observed.previous(&container.name);
    let health = latest.and_then(|seen| facts.health.get(&container.name).filter(|h| h.id == seen.id));
    let running = latest.is_some_and(|s| s.state == State::Running);
    let started = running && health.map_or(container.startup_probe.is_none(), |h| h.started);
    let ready = match role {
        Role::Init => latest.is_some_and(|s| s.state == State::Exited && s.exit_code == 0),
        Role::Ephemeral => false,
        _ => running && started && health.map_or(container.readiness_probe.is_none(), |h| h.ready),
    };
    let ended = |seen: &Seen| ContainerState { terminated: Some(terminated(facts, seen)), ..Default::default() };
    let mut state = match latest {
        Some(seen) if seen.state == State::Running => ContainerState {
            running: Some(ContainerStateRunning { started_at: Some(Time(whole_secs(seen.started_at))) }),
            ..Default::default()
        },
        Some(seen) if seen.state == State::Exited || seen.state == State::Unknown => ended(seen),
        _ => waiting_state(default_waiting(facts, role), None),
    };
    let mut last_state = previous.filter(|p| p.state == State::Exited).map(&ended);
    if last_state.is_none() {
        last_state = remembered(facts.before, &container.name, latest);
    }
    let waits = facts.waiting.get(&container.name).filter(|_| !running && facts.failure.is_none());
    if let Some(Cause { reason, message }) = waits {
        // The container that ended is the last state now, and the wait is the state.
        if latest.is_some_and(|s| s.state == State::Exited) {
            last_state = latest.map(&ended);
        }
        state = waiting_state(reason, Some(message.clone()).filter(|m| !m.is_empty()));
    }
    ContainerStatus {
        name: container.name.clone(),
        container_id: latest.map(|s| format!("{}://{}", facts.runtime_name, s.id)),
        image: latest
            .map(|s| s.image.clone())
            .filter(|i| !i.is_empty())
            .unwrap_or_else(|| container.image.clone().unwrap_or_default()),
        image_id: latest.map(|s| s.image_id.clone()).unwrap_or_default(),
        ready,
        started: (role != Role::Ephemeral).then_some(started),
        restart_count: latest.map_or(0, |s| i32::try_from(s.attempt).unwrap_or(i32::MAX)),
        state: Some(state),
        last_state: Some(last_state.unwrap_or_default()),
        resources: of_container(facts, container, role, latest.filter(|_| running)),
        allocated_resources: container
            .resources
            .as_ref()
            .and_then(|r| r.requests.clone())
            .filter(|_| role != Role::Ephemeral),
        stop_signal: container.lifecycle.as_ref().and_then(|l| l.stop_signal.clone()),
        user: latest.and_then(|s| s.user.clone()),
        volume_mounts: volume_mounts(facts, container),
        ..Default::default()
    }
}

/// The resources in force in a running container, or those that would be.
fn of_container(
    facts: &Facts<'_>,
    container: &Container,
    role: Role,
    running: Option<&Seen>,
) -> Option<ResourceRequirements> {
    if role == Role::Ephemeral {
        return None;
    }
    let applied = running.and_then(|seen| facts.resizing.applied(&seen.id)).cloned();
    Some(applied.or_else(|| container.resources.clone()).unwrap_or_default())
}

fn volume_mounts(facts: &Facts<'_>, container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let of = |mount: &VolumeMount| {
        let read_only = mount.read_only.unwrap_or(false);
        let recursive = match mount.recursive_read_only.as_deref() {
            _ if !read_only => None,
            Some("Enabled") => Some("Enabled"),
            Some("IfPossible") if facts.recursive_read_only => Some("Enabled"),
            _ => Some("Disabled"),
        };
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: Some(read_only).filter(|r| *r),
            recursive_read_only: recursive.map(str::to_owned),
            volume_status: None,
        }
    };
    container.volume_mounts.as_ref().map(|mounts| mounts.iter().map(of).collect())
}

/// The last state as an earlier status told it, for a forerunner that the runtime has forgotten.
fn remembered(before: &PodStatus, name: &str, latest: Option<&Seen>) -> Option<ContainerState> {
    let lists = [&before.container_statuses, &before.init_container_statuses];
    let old = lists.into_iter().flat_map(|l| l.iter().flatten()).find(|s| s.name == name)?;
    let attempt = i32::try_from(latest?.attempt).ok()?;
    let ended = |state: &Option<ContainerState>| state.clone().filter(|s| s.terminated.is_some());
    if old.restart_count == attempt {
        ended(&old.last_state)
    } else {
        ended(&old.state).or_else(|| ended(&old.last_state))
    }
}

fn default_waiting(facts: &Facts<'_>, role: Role) -> &'static str {
    let has_init = container::all(facts.pod).iter().any(|(_, role)| *role != Role::Main);
    if has_init || matches!(role, Role::Init | Role::Sidecar) { "PodInitializing" } else { "ContainerCreating" }
}

fn waiting_state(reason: &str, message: Option<String>) -> ContainerState {
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason.to_owned()), message }),
        ..Default::default()
    }
}

fn terminated(facts: &Facts<'_>, seen: &Seen) -> ContainerStateTerminated {
    let reason = match (seen.reason.as_str(), seen.exit_code) {
        ("", 0) => "Completed".to_owned(),
        ("", _) => "Error".to_owned(),
        (reason, _) => reason.to_owned(),
    };
    ContainerStateTerminated {
        container_id: Some(format!("{}://{}", facts.runtime_name, seen.id)),
        exit_code: seen.exit_code,
        reason: Some(reason),
        message: Some(seen.message.clone()).filter(|m| !m.is_empty()),
        started_at: known_time(seen.started_at),
        finished_at: known_time(seen.finished_at),
        signal: None,
    }
}

/// The runtime's zero stands for a time that nobody knows.
fn known_time(at: Timestamp) -> Option<Time> {
    (at > Timestamp::UNIX_EPOCH).then(|| Time(whole_secs(at)))
}

/// `goal` is the phase where the pod goes, and the phase of `status` the one to tell: a pod that must end is not ready
/// any more, as upstream.
fn conditions(facts: &Facts<'_>, status: &PodStatus, goal: &str) -> Vec<PodCondition> {
    let ended = status.phase.as_deref().is_some_and(is_terminal);
    let has_ip = facts.observed.sandbox().is_some() && (host_network(facts.pod) || status.pod_ip.is_some());
    let sandbox = if has_ip && !ended {
        good("PodReadyToStartContainers", None)
    } else {
        bad("PodReadyToStartContainers", Why::default())
    };
    let mut all = vec![sandbox];
    all.extend(readiness(facts, status, goal));
    let scheduled = facts
        .pod
        .status
        .iter()
        .flat_map(|s| s.conditions.iter().flatten())
        .find(|c| c.type_ == "PodScheduled")
        .cloned();
    all.push(scheduled.unwrap_or_else(|| good("PodScheduled", None)));
    if plan::could_restart_all(facts.pod) {
        let restarting = !ended && plan::restarting_all(facts.pod, facts.observed);
        all.push(if restarting { restarting_all() } else { not_restarting_all(goal) });
    }
    all.extend(resizing(facts));
    if ended {
        all.extend(disruption(facts));
    }
    for condition in &mut all {
        condition.observed_generation = facts.pod.metadata.generation;
        let before = facts
            .before
            .conditions
            .iter()
            .flatten()
            .find(|c| c.type_ == condition.type_ && c.status == condition.status);
        condition.last_transition_time =
            before.and_then(|c| c.last_transition_time.clone()).or_else(|| Some(Time(whole_secs(facts.now))));
    }
    all
}

/// Initialized, Ready and ContainersReady, by the states of the containers.
fn readiness(facts: &Facts<'_>, status: &PodStatus, phase: &str) -> [PodCondition; 3] {
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    let main = status.container_statuses.as_deref().unwrap_or_default();
    let sidecar =
        |name: &str| container::all(facts.pod).iter().any(|(c, role)| c.name == name && *role == Role::Sidecar);
    let not_init: Vec<&str> = init
        .iter()
        .filter(|s| !(s.ready || (sidecar(&s.name) && s.started == Some(true))))
        .map(|s| s.name.as_str())
        .collect();
    let main_ran = main.iter().any(|s| s.container_id.is_some());
    let unready: Vec<&str> =
        init.iter().filter(|s| sidecar(&s.name)).chain(main).filter(|s| !s.ready).map(|s| s.name.as_str()).collect();
    let initialized = match phase {
        "Succeeded" => good("Initialized", Some("PodCompleted")),
        _ if not_init.is_empty() || main_ran => good("Initialized", None),
        _ => bad(
            "Initialized",
            Why {
                reason: "ContainersNotInitialized",
                message: &format!("containers with incomplete status: [{}]", not_init.join(" ")),
            },
        ),
    };
    let containers_ready = |kind: &str| match phase {
        "Succeeded" => bad(kind, Why { reason: "PodCompleted", message: "" }),
        "Failed" => bad(kind, Why { reason: "PodFailed", message: "" }),
        _ if unready.is_empty() => good(kind, None),
        _ => {
            let message = format!("containers with unready status: [{}]", unready.join(" "));
            bad(kind, Why { reason: "ContainersNotReady", message: &message })
        }
    };
    let mut ready = containers_ready("Ready");
    if ready.status == "True"
        && let Some(text) = closed_gates(facts.pod)
    {
        ready = bad("Ready", Why { reason: "ReadinessGatesNotReady", message: &text });
    }
    [initialized, ready, containers_ready("ContainersReady")]
}

/// AllContainersRestarting while a rule of the pod restarts all its containers.
fn restarting_all() -> PodCondition {
    PodCondition {
        message: Some("container exited with restart policy rule".to_owned()),
        ..good("AllContainersRestarting", Some("RestartAllContainersStarted"))
    }
}

/// AllContainersRestarting at other times.
fn not_restarting_all(phase: &str) -> PodCondition {
    let reason = match phase {
        "Succeeded" => "PodCompleted",
        "Failed" => "PodFailed",
        _ => "",
    };
    bad("AllContainersRestarting", Why { reason, message: "" })
}

/// PodResizePending and PodResizeInProgress.
fn resizing(facts: &Facts<'_>) -> impl Iterator<Item = PodCondition> {
    let pending = facts.resizing.pending().map(|(reason, message)| PodCondition {
        message: Some(message.to_owned()),
        ..good("PodResizePending", Some(reason))
    });
    let in_progress = |reason| good("PodResizeInProgress", reason);
    let progress = match facts.resizing.progress() {
        Progress::Done => None,
        Progress::Going => Some(in_progress(None)),
        Progress::Failing(why) => Some(PodCondition { message: Some(why.clone()), ..in_progress(Some("Error")) }),
    };
    pending.into_iter().chain(progress)
}

/// DisruptionTarget, of a pod that the kubelet ended for the node's sake.
fn disruption(facts: &Facts<'_>) -> Option<PodCondition> {
    let failure = facts.failure?;
    let message = match failure.reason.as_str() {
        "Evicted" => failure.message.as_str(),
        "Preempting" => "Pod was preempted by Kubelet to accommodate a critical pod.",
        _ => return None,
    };
    Some(PodCondition { message: Some(message.to_owned()), ..good("DisruptionTarget", Some("TerminationByKubelet")) })
}

/// The text for readiness gates whose condition is not True yet.
fn closed_gates(pod: &Pod) -> Option<String> {
    let conditions: Vec<&PodCondition> = pod.status.iter().flat_map(|s| s.conditions.iter().flatten()).collect();
    let texts: Vec<String> = pod
        .spec
        .iter()
        .flat_map(|s| s.readiness_gates.iter().flatten())
        .filter_map(|gate| match conditions.iter().find(|c| c.type_ == gate.condition_type) {
            None => Some(format!(
                "corresponding condition of pod readiness gate \"{}\" does not exist.",
                gate.condition_type
            )),
            Some(c) if c.status != "True" => Some(format!(
                "the status of pod readiness gate \"{}\" is not \"True\", but {}",
                gate.condition_type, c.status
            )),
            Some(_) => None,
        })
        .collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

fn good(kind: &str, reason: Option<&str>) -> PodCondition {
    PodCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: reason.map(str::to_owned),
        ..Default::default()
    }
}

/// Why a condition does not hold; what is empty is not told.
#[derive(Clone, Copy, Default)]
struct Why<'a> {
    reason: &'a str,
    message: &'a str,
}

fn bad(kind: &str, why: Why<'_>) -> PodCondition {
    let text = |s: &str| Some(s.to_owned()).filter(|s| !s.is_empty());
    PodCondition {
        type_: kind.to_owned(),
        status: "False".to_owned(),
        reason: text(why.reason),
        message: text(why.message),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests;
