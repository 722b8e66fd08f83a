//! Statuses, and what each fact makes of them.

use std::collections::BTreeMap;

use super::*;
use crate::pods::observed::Observed;
use crate::pods::resizing::{Grant, Resizing};
use crate::probes::health::Health;

fn facts<'a>(
    pod: &'a Pod,
    observed: &'a Observed,
    waiting: &'a BTreeMap<String, Cause>,
    before: &'a PodStatus,
) -> Facts<'a> {
    static NONE: BTreeMap<String, Health> = BTreeMap::new();
    Facts {
        pod,
        observed,
        health: &NONE,
        waiting,
        failure: None,
        is_terminal: false,
        before,
        resizing: Box::leak(Box::default()),
        recursive_read_only: false,
        host_ips: vec!["10.0.0.1".to_owned()],
        runtime_name: "containerd",
        now: Timestamp::UNIX_EPOCH,
    }
}

#[test]
fn a_pod_that_only_waits_is_pending_and_says_for_what() {
    let pod: Pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}}))
    .unwrap();
    let waiting = BTreeMap::from([("c".to_owned(), Cause::new("ErrImagePull", "no"))]);
    let (observed, before) = (Observed::default(), PodStatus::default());
    let status = compute(&facts(&pod, &observed, &waiting, &before));
    assert_eq!(status.phase.as_deref(), Some("Pending"));
    let state = status.container_statuses.unwrap().remove(0).state.unwrap().waiting.unwrap();
    assert_eq!((state.reason.as_deref(), state.message.as_deref()), (Some("ErrImagePull"), Some("no")));
    let ready = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!(ready.message.as_deref(), Some("containers with unready status: [c]"));
}

fn one_container(restart: &str) -> Pod {
    let spec = serde_json::json!({"restartPolicy": restart, "containers": [{"name": "c", "image": "i"}]});
    serde_json::from_value(serde_json::json!({"metadata": {"name": "p"}, "spec": spec})).unwrap()
}

fn with_container(state: State, exit_code: i32, sandbox_ready: bool) -> Observed {
    let mut observed = Observed::default();
    observed.recall(
        &serde_json::from_value(
            serde_json::json!({"containerStatuses": [{"name": "c", "containerID": "containerd://a", "image": "i",
        "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": {"exitCode": exit_code}}}]}),
        )
        .unwrap(),
    );
    observed.containers[0].state = state;
    let sandbox = crate::pods::observed::Sandbox {
        id: "s".to_owned(),
        ready: sandbox_ready,
        attempt: 0,
        created_at: 1,
        ips: Vec::new(),
    };
    observed.sandboxes.push(sandbox);
    observed
}

// review node.md N3
#[test]
fn no_pod_ends_before_all_that_may_run_of_it_is_gone() {
    let (pod, waiting) = (one_container("Never"), BTreeMap::new());
    let before: PodStatus = serde_json::from_value(serde_json::json!({"phase": "Running"})).unwrap();
    let failure = Cause::new("DeadlineExceeded", "too long");
    let told = |observed: &Observed, failure: Option<&Cause>| {
        let status = compute(&Facts { failure, ..facts(&pod, observed, &waiting, &before) });
        let ready = status.conditions.into_iter().flatten().find(|c| c.type_ == "Ready").unwrap();
        (status.phase.unwrap(), status.reason, ready.status)
    };
    let running = told(&with_container(State::Running, 0, true), Some(&failure));
    assert_eq!(running, ("Running".to_owned(), None, "False".to_owned()), "it must end, and runs still");
    for (state, sandbox_ready) in [(State::Unknown, false), (State::Exited, true), (State::Running, false)] {
        assert_eq!(told(&with_container(state, 0, sandbox_ready), Some(&failure)).0, "Running");
    }
    assert_eq!(told(&with_container(State::Exited, 0, true), None).0, "Running", "its sandbox still has its address");
    assert_eq!(told(&with_container(State::Exited, 0, false), None).0, "Succeeded");
    let over = told(&with_container(State::Exited, 137, false), Some(&failure));
    assert_eq!(over, ("Failed".to_owned(), Some("DeadlineExceeded".to_owned()), "False".to_owned()));
    assert_eq!(told(&Observed::default(), Some(&failure)).0, "Failed", "it was turned away at the door");
}

// review node.md M2
#[test]
fn a_deleted_pod_gets_a_phase_that_ends_it_whatever_its_restart_policy() {
    let waiting = BTreeMap::new();
    let before: PodStatus = serde_json::from_value(serde_json::json!({"phase": "Running"})).unwrap();
    let phase = |policy: &str, observed: &Observed| {
        let pod = one_container(policy);
        compute(&Facts { is_terminal: true, ..facts(&pod, observed, &waiting, &before) }).phase.unwrap()
    };
    assert_eq!(phase("Always", &with_container(State::Exited, 0, false)), "Succeeded");
    assert_eq!(phase("OnFailure", &with_container(State::Exited, 1, false)), "Failed");
    assert_eq!(phase("Always", &Observed::default()), "Failed", "it never ran");
}

#[test]
fn a_gate_without_its_condition_keeps_the_pod_unready() {
    let pod: Pod = serde_json::from_value(
        serde_json::json!({"spec": {"containers": [], "readinessGates": [{"conditionType": "x/y"}]}}),
    )
    .unwrap();
    assert_eq!(closed_gates(&pod).unwrap(), "corresponding condition of pod readiness gate \"x/y\" does not exist.");
}

#[test]
fn a_gate_that_is_not_true_is_named_with_its_status() {
    let pod: Pod = serde_json::from_value(serde_json::json!({
        "spec": {"containers": [], "readinessGates": [{"conditionType": "a"}, {"conditionType": "b"}]},
        "status": {"conditions": [{"type": "a", "status": "True"}, {"type": "b", "status": "Unknown"}]}}))
    .unwrap();
    assert_eq!(closed_gates(&pod).unwrap(), "the status of pod readiness gate \"b\" is not \"True\", but Unknown");
}

#[test]
fn a_resize_is_told_while_it_waits_goes_on_or_fails() {
    let (pod, observed, waiting, before) =
        (one_container("Always"), Observed::default(), BTreeMap::new(), PodStatus::default());
    let told = |resizing: &Resizing| -> Vec<(String, Option<String>, Option<String>)> {
        let facts = Facts { resizing, ..facts(&pod, &observed, &waiting, &before) };
        super::resizing(&facts).map(|c| (c.type_, c.reason, c.message)).collect()
    };
    let text = |text: &str| Some(text.to_owned());
    let mut resizing = Resizing::default();
    assert!(told(&resizing).is_empty());
    assert!(resizing.refuse(Grant::Deferred("full".to_owned())), "it is news");
    assert!(!resizing.refuse(Grant::Deferred("full".to_owned())), "and is none");
    assert_eq!(told(&resizing), [("PodResizePending".to_owned(), text("Deferred"), text("full"))]);
    resizing.grant(&pod, &pod);
    assert_eq!(told(&resizing), [("PodResizeInProgress".to_owned(), None, None)]);
    assert!(resizing.fail("no".to_owned()) && !resizing.fail("never".to_owned()), "the first is told");
    assert_eq!(told(&resizing), [("PodResizeInProgress".to_owned(), text("Error"), text("never"))]);
    resizing.complete();
    assert!(told(&resizing).is_empty());
}

#[test]
fn a_pod_that_was_ended_for_the_nodes_sake_says_so() {
    let (pod, observed, waiting, before) =
        (one_container("Always"), Observed::default(), BTreeMap::new(), PodStatus::default());
    let told = |reason: &str| {
        let failure = Cause::new(reason, "why");
        disruption(&Facts { failure: Some(&failure), ..facts(&pod, &observed, &waiting, &before) })
            .and_then(|c| c.message)
    };
    assert_eq!(told("Evicted").as_deref(), Some("why"));
    let preempted = "Pod was preempted by Kubelet to accommodate a critical pod.";
    assert_eq!(told("Preempting").as_deref(), Some(preempted));
    assert_eq!(told("DeadlineExceeded"), None);
}
