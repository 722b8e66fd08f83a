//! The conditions of the Node: pressures, and whether its runtime is ready.

use std::time::Duration;

use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::events::whole_secs;
use crate::node::Node;
use crate::runtime::Runtime;
use crate::signals::Signals;

/// A runtime that is silent for less than this is being restarted: its pods run on, and the node stays what it was.
/// Upstream's `maxWaitForContainerRuntime`.
const RUNTIME_SILENCE_MAX: Duration = Duration::from_secs(30);
/// Condition, reason and text when it holds, reason and text when not.
const PRESSURES: [(&str, &str, &str, &str, &str); 3] = [
    (
        "MemoryPressure",
        "KubeletHasInsufficientMemory",
        "kubelet has insufficient memory available",
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
    ),
    (
        "DiskPressure",
        "KubeletHasDiskPressure",
        "kubelet has disk pressure",
        "KubeletHasNoDiskPressure",
        "kubelet has no disk pressure",
    ),
    (
        "PIDPressure",
        "KubeletHasInsufficientPID",
        "kubelet has insufficient PID available",
        "KubeletHasSufficientPID",
        "kubelet has sufficient PID available",
    ),
];

/// What holds now; a condition that held before keeps its time of transition.
pub(crate) async fn conditions(node: &Node, before: &NodeStatus) -> Vec<NodeCondition> {
    let now = Time(whole_secs(node.clock.now()));
    let condition = |kind: &str, status: bool, reason: &str, message: String| {
        let status = if status { "True" } else { "False" };
        let same = before.conditions.iter().flatten().find(|c| c.type_ == kind && c.status == status);
        NodeCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_heartbeat_time: Some(now.clone()),
            last_transition_time: same.and_then(|c| c.last_transition_time.clone()).or_else(|| Some(now.clone())),
        }
    };
    let mut all = Vec::new();
    let pressure = node.signals.pressure();
    for (kind, bad, bad_text, good, good_text) in PRESSURES {
        all.push(match pressure.iter().any(|p| p == kind) {
            true => condition(kind, true, bad, bad_text.to_owned()),
            false => condition(kind, false, good, good_text.to_owned()),
        });
    }
    let problems = runtime_problems(&node.runtime, &node.signals, is_true(before, "Ready")).await;
    all.push(match problems.is_empty() {
        true => condition("Ready", true, "KubeletReady", "kubelet is posting ready status".to_owned()),
        false => condition("Ready", false, "KubeletNotReady", problems.join(", ")),
    });
    all
}

/// Why the node's runtime is not ready; empty if it is.
async fn runtime_problems(runtime: &Runtime, signals: &Signals, was_ready: bool) -> Vec<String> {
    let answer = runtime.cri.status().await;
    match answer {
        Ok(conditions) => {
            signals.note_runtime();
            conditions.iter().filter(|c| !c.status).map(problem).collect()
        }
        Err(err) => {
            if bears_silence(was_ready, signals.runtime_silence()) {
                Vec::new()
            } else {
                vec![format!("container runtime is down: {err}")]
            }
        }
    }
}

fn bears_silence(was_ready: bool, silence: Option<Duration>) -> bool {
    was_ready && silence.is_some_and(|silence| silence < RUNTIME_SILENCE_MAX)
}

fn problem(c: &k8s_cri::v1::RuntimeCondition) -> String {
    match c.r#type.as_str() {
        "NetworkReady" => {
            format!("container runtime network not ready: NetworkReady=false reason:{} message:{}", c.reason, c.message)
        }
        other => format!("container runtime not ready: {other}=false reason:{} message:{}", c.reason, c.message),
    }
}

/// Whether a condition holds.
pub(crate) fn is_true(status: &NodeStatus, kind: &str) -> bool {
    status.conditions.iter().flatten().any(|c| c.type_ == kind && c.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_node_bears_a_short_silence_of_its_runtime() {
        let secs = |n| Some(Duration::from_secs(n));
        assert!(bears_silence(true, secs(29)));
        assert!(!bears_silence(true, secs(30)));
        assert!(!bears_silence(false, secs(1)), "it was not ready before");
        assert!(!bears_silence(true, None), "it never answered");
    }
}
