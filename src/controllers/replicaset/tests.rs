//! The plan on small sets.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::ResourceExt as _;
use model::pod::Pod;
use serde_json::json;

use super::plan::{Action, plan, status};

fn set(replicas: i32) -> ReplicaSet {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "uid": "s", "generation": 3},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}},
                 "template": {"metadata": {"labels": {"app": "web"}}}},
    }))
    .unwrap()
}

fn pod(name: &str, node: &str, phase: &str, ready: bool) -> Arc<Pod> {
    let ready = if ready { "True" } else { "False" };
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "labels": {"app": "web"}},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready,
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap(),
    )
}

fn planned(replicas: i32, pods: &[Arc<Pod>]) -> String {
    planned_among(replicas, pods, pods)
}

fn planned_among(replicas: i32, pods: &[Arc<Pod>], related: &[Arc<Pod>]) -> String {
    match plan(&set(replicas), pods, || related.to_vec(), "2026-01-01T01:00:00Z".parse().unwrap()) {
        Action::None => "none".to_owned(),
        Action::Create(n) => format!("create {n}"),
        Action::Delete(pods) => format!("delete {}", pods.iter().map(|p| p.name_any()).collect::<Vec<_>>().join(" ")),
    }
}

#[test]
fn missing_pods_are_made_and_surplus_given_up() {
    let pods = [pod("a", "n1", "Running", true)];
    assert_eq!(planned(3, &pods), "create 2");
    assert_eq!(planned(1, &pods), "none");
    assert_eq!(planned(0, &pods), "delete a");
}

#[test]
fn those_who_lose_least_are_given_up_first() {
    let pods = [
        pod("ready", "n1", "Running", true),
        pod("unready", "n1", "Running", false),
        pod("pending", "n1", "Pending", false),
        pod("unassigned", "", "Pending", false),
    ];
    assert_eq!(planned(3, &pods), "delete unassigned");
    assert_eq!(planned(1, &pods), "delete unassigned pending unready");
}

#[test]
fn the_fuller_node_gives_up_first() {
    let pods = [pod("a", "n1", "Running", true), pod("b", "n2", "Running", true), pod("c", "n2", "Running", true)];
    assert!(matches!(planned(2, &pods).as_str(), "delete b" | "delete c"));
}

#[test]
fn status_counts_what_is_active() {
    let mut ended = (*pod("x", "n1", "Failed", false)).clone();
    ended.metadata.deletion_timestamp = None;
    let pods = [pod("a", "n1", "Running", true), pod("b", "n1", "Running", false), Arc::new(ended)];
    let status = status(&set(2), &pods, None, "2026-01-01T00:01:00Z".parse().unwrap());
    assert_eq!((status.replicas, status.ready_replicas, status.available_replicas), (2, Some(1), Some(1)));
    assert_eq!(status.observed_generation, Some(3));
}

/// Upstream 1.36.2: `getIndirectlyRelatedPods` and LogarithmicScaleDown.
#[test]
fn a_node_that_runs_other_sets_of_the_deployment_gives_up_first_and_ages_count_by_their_doublings() {
    let pods = [pod("a", "n1", "Running", true), pod("b", "n2", "Running", true)];
    assert_eq!(planned(1, &pods), "delete a");
    let others = [pods[0].clone(), pods[1].clone(), pod("other", "n2", "Running", true)];
    assert_eq!(planned_among(1, &pods, &others), "delete b");
    let aged = |name: &str, since: &str| {
        let mut aged = (*pod(name, "n1", "Running", true)).clone();
        aged.status.as_mut().unwrap().conditions.as_mut().unwrap()[0].last_transition_time =
            serde_json::from_value(json!(since)).unwrap();
        Arc::new(aged)
    };
    // 3600 and 3590 seconds are of one age, and 60 are not.
    assert_eq!(planned(1, &[aged("x", "2026-01-01T00:00:10Z"), aged("b", "2026-01-01T00:00:00Z")]), "delete b");
    assert_eq!(planned(1, &[aged("x", "2026-01-01T00:59:00Z"), aged("b", "2026-01-01T00:00:00Z")]), "delete x");
}
