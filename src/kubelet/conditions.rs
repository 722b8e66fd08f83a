//! The conditions of the Node: pressures, and whether its runtime is ready.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{NodeCondition, NodeStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::events::whole_secs;
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

/// The conditions as they are `now`; one that held before keeps its time of transition.
pub(crate) async fn conditions(
    runtime: &Runtime,
    signals: &Signals,
    before: &NodeStatus,
    now: Timestamp,
) -> Vec<NodeCondition> {
    let now = Time(whole_secs(now));
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
    let pressure = signals.pressure();
    for (kind, bad, bad_text, good, good_text) in PRESSURES {
        all.push(match pressure.iter().any(|p| p == kind) {
            true => condition(kind, true, bad, bad_text.to_owned()),
            false => condition(kind, false, good, good_text.to_owned()),
        });
    }
    let problems = runtime_problems(runtime, signals, before).await;
    all.push(match problems.is_empty() {
        true => condition("Ready", true, "KubeletReady", "kubelet is posting ready status".to_owned()),
        false => condition("Ready", false, "KubeletNotReady", problems.join(", ")),
    });
    all
}

/// Why the node's runtime is not ready; empty if it is.
async fn runtime_problems(runtime: &Runtime, signals: &Signals, before: &NodeStatus) -> Vec<String> {
    let answer = runtime.cri.status().await;
    match answer {
        Ok(conditions) => {
            signals.note_runtime();
            conditions.iter().filter(|c| !c.status).filter_map(problem).collect()
        }
        Err(err) => {
            if bears_silence(before, signals.runtime_silence()) {
                Vec::new()
            } else {
                vec![format!("container runtime is down: {err}")]
            }
        }
    }
}

/// Whether a node stays ready though its runtime is silent.
fn bears_silence(before: &NodeStatus, silence: Option<Duration>) -> bool {
    is_true(before, "Ready") && silence.is_some_and(|silence| silence < RUNTIME_SILENCE_MAX)
}

/// Of a runtime's conditions two make a node not ready, as with upstream. Others, such as containerd's
/// `ContainerdHasNoDeprecationWarnings`, are words to its administrator.
fn problem(c: &k8s_cri::v1::RuntimeCondition) -> Option<String> {
    let (reason, message) = (&c.reason, &c.message);
    match c.r#type.as_str() {
        "NetworkReady" => {
            Some(format!("container runtime network not ready: NetworkReady=false reason:{reason} message:{message}"))
        }
        "RuntimeReady" => {
            Some(format!("container runtime not ready: RuntimeReady=false reason:{reason} message:{message}"))
        }
        _ => None,
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
        let of = |ready: &str| -> NodeStatus {
            serde_json::from_value(serde_json::json!({"conditions": [{"type": "Ready", "status": ready}]})).unwrap()
        };
        assert!(bears_silence(&of("True"), secs(29)));
        assert!(!bears_silence(&of("True"), secs(30)));
        assert!(!bears_silence(&of("False"), secs(1)), "it was not ready before");
        assert!(!bears_silence(&NodeStatus::default(), secs(1)), "nor was it when nothing was told");
        assert!(!bears_silence(&of("True"), None), "it never answered");
    }

    #[test]
    fn a_runtime_that_is_not_ready_is_told_in_upstreams_words() {
        let of = |kind: &str| {
            problem(&k8s_cri::v1::RuntimeCondition {
                r#type: kind.to_owned(),
                status: false,
                reason: "R".to_owned(),
                message: "m".to_owned(),
            })
        };
        assert_eq!(of("ContainerdHasNoDeprecationWarnings"), None);
        let of = |kind: &str| of(kind).unwrap();
        assert_eq!(of("NetworkReady"), "container runtime network not ready: NetworkReady=false reason:R message:m");
        assert_eq!(of("RuntimeReady"), "container runtime not ready: RuntimeReady=false reason:R message:m");
    }
}
