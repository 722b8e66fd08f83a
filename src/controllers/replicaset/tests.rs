//! The plan on small sets.

use std::sync::Arc;

use client::pod::Pod;
use k8s_openapi::api::apps::v1::ReplicaSet;
use kube::ResourceExt as _;
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
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap(),
    )
}

fn planned(replicas: i32, pods: &[Arc<Pod>]) -> String {
    match plan(&set(replicas), pods) {
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
