//! Rollouts step by step, on paper.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::numbers::{self, Bounds, proportions};
use super::plan::{Action, Sets, plan};
use super::{status, template};

fn deployment(replicas: i32, image: &str, strategy: &Value) -> Deployment {
    serde_json::from_value(json!({
        "metadata": {"name": "web", "namespace": "default", "uid": "d", "generation": 1},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": "web"}}, "strategy": strategy,
            "progressDeadlineSeconds": 600,
                 "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c",
                     "image": image}]}}},
    }))
    .unwrap()
}

fn set(name: &str, image: &str, wanted: i32, available: i32, desired: i32) -> Arc<ReplicaSet> {
    let created = if image == "new" { "2026-01-02T00:00:00Z" } else { "2026-01-01T00:00:00Z" };
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name, "creationTimestamp": created, "annotations": {
                "deployment.kubernetes.io/desired-replicas": desired.to_string(),
                "deployment.kubernetes.io/max-replicas": (desired + 1).to_string()}},
            "spec": {"replicas": wanted, "selector": {}, "template": {
                "metadata": {"labels": {"app": "web", "pod-template-hash": name}},
                "spec": {"containers": [{"name": "c", "image": image}]}}},
            "status": {"replicas": wanted, "availableReplicas": available, "readyReplicas": available},
        }))
        .unwrap(),
    )
}

fn planned(deployment: &Deployment, sets: &[Arc<ReplicaSet>]) -> Vec<String> {
    let sets = Sets::of(deployment, sets);
    let actions = plan(deployment, &sets).into_iter().filter_map(|action| match action {
        Action::Create(set) => Some(format!("create {}", numbers::wanted(&set))),
        Action::Scale { set, to, .. } => Some(format!("{} to {to}", set.name_any())),
        Action::Delete(set) => Some(format!("delete {}", set.name_any())),
        Action::Renew { .. } | Action::SetRevision(_) => None,
    });
    actions.collect()
}

fn rolling(surge: &Value, unavailable: &Value) -> Value {
    json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}})
}

#[test]
fn percentages_round_so_that_a_rollout_can_move() {
    let of = |replicas, surge: &Value, unavailable: &Value| {
        numbers::bounds(&deployment(replicas, "i", &rolling(surge, unavailable)))
    };
    assert_eq!(of(10, &json!("25%"), &json!("25%")), Bounds { surge: 3, unavailable: 2 });
    assert_eq!(of(3, &json!("25%"), &json!("25%")), Bounds { surge: 1, unavailable: 0 });
    assert_eq!(of(3, &json!(0), &json!("1%")), Bounds { surge: 0, unavailable: 1 });
}

#[test]
fn a_rolling_update_never_falls_below_its_minimum() {
    let wanted = deployment(3, "new", &rolling(&json!(1), &json!(0)));
    assert_eq!(planned(&wanted, &[set("a", "old", 3, 3, 3)]), ["create 1"]);
    assert!(planned(&wanted, &[set("a", "old", 3, 3, 3), set("b", "new", 1, 0, 3)]).is_empty());
    assert_eq!(planned(&wanted, &[set("a", "old", 3, 3, 3), set("b", "new", 1, 1, 3)]), ["a to 2"]);
    assert_eq!(planned(&wanted, &[set("a", "old", 2, 2, 3), set("b", "new", 1, 1, 3)]), ["b to 2"]);
    assert_eq!(planned(&wanted, &[set("a", "old", 1, 1, 3), set("b", "new", 3, 3, 3)]), ["a to 0"]);
    assert!(planned(&wanted, &[set("a", "old", 0, 0, 3), set("b", "new", 3, 3, 3)]).is_empty());
}

#[test]
fn unhealthy_old_pods_go_first() {
    let wanted = deployment(3, "new", &rolling(&json!(1), &json!(1)));
    let sets = [set("a", "old", 3, 1, 3), set("b", "new", 1, 1, 3)];
    assert_eq!(planned(&wanted, &sets), ["a to 1"]);
}

#[test]
fn recreate_waits_until_the_old_pods_are_gone() {
    let wanted = deployment(2, "new", &json!({"type": "Recreate"}));
    assert_eq!(planned(&wanted, &[set("a", "old", 2, 2, 2)]), ["a to 0"]);
    let mut leaving = (*set("a", "old", 0, 0, 2)).clone();
    leaving.status.as_mut().unwrap().terminating_replicas = Some(1);
    assert!(planned(&wanted, &[Arc::new(leaving)]).is_empty());
    assert_eq!(planned(&wanted, &[set("a", "old", 0, 0, 2)]), ["create 2"]);
}

#[test]
fn scaling_in_the_middle_of_a_rollout_keeps_proportions() {
    assert_eq!(proportions(&[8, 4], 12, 24), [16, 8]);
    assert_eq!(proportions(&[5, 3, 2], 10, 12), [6, 4, 2]);
    assert_eq!(proportions(&[8, 4], 12, 0), [0, 0]);
    let wanted = deployment(6, "new", &rolling(&json!(1), &json!(0)));
    assert_eq!(planned(&wanted, &[set("b", "new", 3, 3, 3)]), ["b to 6"]);
}

#[test]
fn history_beyond_the_limit_is_forgotten() {
    let mut wanted = deployment(1, "new", &json!({}));
    wanted.spec.as_mut().unwrap().revision_history_limit = Some(0);
    let sets = [set("a", "old", 0, 0, 1), set("b", "new", 1, 1, 1)];
    assert_eq!(planned(&wanted, &sets), ["delete a"]);
}

#[test]
fn the_hash_is_stable_and_differs_by_template() {
    let hash =
        |image: &str, collisions| template::hash(&deployment(1, image, &json!({})).spec.unwrap().template, collisions);
    assert_eq!(hash("a", None), hash("a", None));
    assert_ne!(hash("a", None), hash("b", None));
    assert_ne!(hash("a", None), hash("a", Some(1)));
}

#[test]
fn conditions_say_what_upstream_says() {
    let wanted = deployment(1, "new", &json!({}));
    let now = "2026-01-03T00:00:00Z".parse().unwrap();
    let told = |sets: &[Arc<ReplicaSet>]| {
        let conditions = status::status(&wanted, &Sets::of(&wanted, sets), now).conditions.unwrap();
        conditions.into_iter().map(|c| format!("{}={} {}", c.type_, c.status, c.message.unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(
        told(&[set("b", "new", 1, 1, 1)]),
        [
            "Available=True Deployment has minimum availability.",
            "Progressing=True ReplicaSet \"b\" has successfully progressed.",
        ]
    );
    assert_eq!(
        told(&[set("b", "new", 1, 0, 1)]),
        [
            "Available=False Deployment does not have minimum availability.",
            "Progressing=True ReplicaSet \"b\" is progressing.",
        ]
    );
}

/// The reason of Progressing at a second, after the status of the second before.
fn progressing(of: &mut Deployment, sets: &[Arc<ReplicaSet>], second: i64) -> String {
    let now = "2026-01-03T00:00:00Z".parse::<jiff::Timestamp>().unwrap() + jiff::SignedDuration::from_secs(second);
    of.status = Some(status::status(of, &Sets::of(of, sets), now));
    let conditions = of.status.as_ref().unwrap().conditions.clone().unwrap();
    conditions.into_iter().find(|c| c.type_ == "Progressing").and_then(|c| c.reason).unwrap()
}

// Semantics H10 (a): more pods than the cluster has room for are no failed rollout.
#[test]
fn a_rollout_that_has_ended_is_not_judged_again() {
    let mut wanted = deployment(1, "new", &json!({}));
    assert_eq!(progressing(&mut wanted, &[set("b", "new", 1, 1, 1)], 0), "NewReplicaSetAvailable");
    wanted.spec.as_mut().unwrap().replicas = Some(5);
    assert_eq!(progressing(&mut wanted, &[set("b", "new", 5, 1, 5)], 1), "NewReplicaSetAvailable");
    assert_eq!(progressing(&mut wanted, &[set("b", "new", 5, 3, 5)], 2), "NewReplicaSetAvailable");
    assert_eq!(progressing(&mut wanted, &[set("b", "new", 5, 3, 5)], 700), "NewReplicaSetAvailable");
}

// Semantics H10 (b): a set that gets no pod moves nothing, and its rollout must still come to its deadline.
#[test]
fn a_rollout_that_cannot_start_misses_its_deadline() {
    let mut wanted = deployment(1, "old", &json!({}));
    assert_eq!(progressing(&mut wanted, &[set("a", "old", 1, 1, 1)], 0), "NewReplicaSetAvailable");
    wanted.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers[0].image = Some("new".to_owned());
    let mut empty = (*set("b", "new", 1, 0, 1)).clone();
    empty.metadata.creation_timestamp = serde_json::from_value(json!("2026-01-03T00:00:01Z")).unwrap();
    empty.status.as_mut().unwrap().replicas = 0;
    let sets = [set("a", "old", 1, 1, 1), Arc::new(empty)];
    assert_eq!(progressing(&mut wanted, &sets, 1), "NewReplicaSetCreated");
    assert_eq!(progressing(&mut wanted, &sets, 600), "NewReplicaSetCreated");
    assert_eq!(progressing(&mut wanted, &sets, 602), "ProgressDeadlineExceeded");
    // The way back is a rollout to a set that was there.
    wanted.status.as_mut().unwrap().conditions = None;
    assert_eq!(progressing(&mut wanted, &[set("b", "new", 1, 1, 1)], 700), "NewReplicaSetAvailable");
    wanted.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers[0].image = Some("old".to_owned());
    let back = [set("a", "old", 0, 0, 1), set("b", "new", 1, 1, 1)];
    assert_eq!(progressing(&mut wanted, &back, 701), "FoundNewReplicaSet");
}

#[test]
fn a_set_that_the_api_refuses_is_told_of_in_the_condition() {
    let wanted = deployment(1, "new", &json!({}));
    let status = status::create_failed(&wanted, "Failed to create".to_owned(), jiff::Timestamp::UNIX_EPOCH);
    let condition = &status.conditions.unwrap()[0];
    assert_eq!((condition.status.as_str(), condition.reason.as_deref()), ("False", Some("ReplicaSetCreateError")));
}

// Semantics M4.
#[test]
fn a_changed_time_to_be_ready_reaches_the_set() {
    let mut wanted = deployment(1, "new", &json!({}));
    wanted.spec.as_mut().unwrap().min_ready_seconds = Some(30);
    let renewed = |wanted: &Deployment| {
        let actions = plan(wanted, &Sets::of(wanted, &[set("b", "new", 1, 1, 1)]));
        actions.into_iter().find_map(|action| {
            if let Action::Renew { min_ready_secs, .. } = action { Some(min_ready_secs) } else { None }
        })
    };
    assert_eq!(renewed(&wanted), Some(30));
    wanted.spec.as_mut().unwrap().paused = Some(true);
    assert_eq!(renewed(&wanted), Some(30));
}

#[test]
fn a_paused_deployment_forgets_what_is_beyond_its_history() {
    let mut wanted = deployment(1, "new", &json!({}));
    let spec = wanted.spec.as_mut().unwrap();
    (spec.paused, spec.revision_history_limit) = (Some(true), Some(0));
    assert_eq!(planned(&wanted, &[set("a", "old", 0, 0, 1), set("b", "new", 1, 1, 1)]), ["delete a"]);
}
