//! The phase of a pod: where it goes, and what may be told of that. Pure.
//!
//! Others take a phase that ends a pod for word that its address, ports, devices and volumes are free, and that no
//! policy is needed for it any more. So it is told only when nothing of the pod can run: whoever computes a status
//! passes through [`told`].

use k8s_openapi::api::core::v1::ContainerStatus;
use model::phase::is_terminal;

use crate::container::{self, Role};
use crate::sources::annotations::is_static;
use crate::status::facts::Facts;
use crate::worker::plan;

/// The phase that the pod's containers and its fate make.
pub(super) fn goal(facts: &Facts<'_>, init: &[ContainerStatus], main: &[ContainerStatus]) -> &'static str {
    let goal = by_containers(facts, init, main);
    if !facts.is_terminal || is_terminal(goal) || is_static(facts.pod) {
        return goal;
    }
    // It was ended from outside: what would be started again otherwise is over (upstream's `TerminatePod`,
    // pkg/kubelet/status/status_manager.go v1.36).
    let ended_well =
        |s: &ContainerStatus| s.state.as_ref().and_then(|st| st.terminated.as_ref()).is_some_and(|t| t.exit_code == 0);
    if goal != "Pending" && main.iter().all(ended_well) { "Succeeded" } else { "Failed" }
}

/// The phase to tell: the goal, but one that ends the pod only when nothing of it may run any more (upstream's
/// `mergePodStatus`, pkg/kubelet/status/status_manager.go v1.36).
pub(super) fn told(facts: &Facts<'_>, goal: &str) -> String {
    let before = facts.before.phase.as_deref().filter(|phase| !phase.is_empty()).unwrap_or("Pending");
    let too_early = is_terminal(goal) && !is_terminal(before) && facts.observed.may_run();
    if too_early { before.to_owned() } else { goal.to_owned() }
}

fn by_containers(facts: &Facts<'_>, init: &[ContainerStatus], main: &[ContainerStatus]) -> &'static str {
    if facts.failure.is_some() {
        return "Failed";
    }
    match facts.before.phase.as_deref() {
        Some("Succeeded") => return "Succeeded",
        Some("Failed") => return "Failed",
        _ => {}
    }
    if plan::init_failed(facts.pod, facts.observed) || plan::stranded(facts.pod, facts.observed) {
        return "Failed";
    }
    let ran = |s: &ContainerStatus| {
        let state = s.state.as_ref();
        let last = s.last_state.as_ref().is_some_and(|l| l.terminated.is_some());
        state.is_some_and(|st| st.running.is_some() || st.terminated.is_some()) || last
    };
    let sidecar =
        |name: &str| container::all(facts.pod).iter().any(|(c, role)| c.name == name && *role == Role::Sidecar);
    let init_done =
        init.iter().all(|s| if sidecar(&s.name) { s.started == Some(true) || main.iter().any(ran) } else { s.ready });
    if !init_done && !main.iter().any(ran) {
        return "Pending";
    }
    if plan::finished(facts.pod, facts.observed) {
        let failed = main
            .iter()
            .any(|s| s.state.as_ref().and_then(|st| st.terminated.as_ref()).is_some_and(|t| t.exit_code != 0));
        return if failed { "Failed" } else { "Succeeded" };
    }
    if main.iter().all(ran) && !main.is_empty() { "Running" } else { "Pending" }
}
