//! Claims about budgets.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use model::pod::Pod;
use serde_json::{Value, json};

use super::plan::{self, Expected};

fn budget(spec: Value, status: Value) -> PodDisruptionBudget {
    serde_json::from_value(json!({"metadata": {"name": "b", "generation": 3}, "spec": spec, "status": status})).unwrap()
}

fn pod(name: &str, ready: bool) -> Arc<Pod> {
    let ready = json!([{"type": "Ready", "status": if ready { "True" } else { "False" }}]);
    Arc::new(
        serde_json::from_value(
            json!({"metadata": {"name": name}, "status": {"phase": "Running", "conditions": ready}}),
        )
        .unwrap(),
    )
}

#[test]
fn bounds_are_counted_from_pods_or_from_what_controllers_want() {
    let of = |spec: Value| plan::expected(&budget(spec, json!({})), 4, 10).unwrap();
    assert_eq!(of(json!({"minAvailable": 3})), Expected { pods: 4, healthy: 3 });
    assert_eq!(of(json!({"minAvailable": "25%"})), Expected { pods: 10, healthy: 3 });
    assert_eq!(of(json!({"maxUnavailable": 1})), Expected { pods: 10, healthy: 9 });
    assert_eq!(of(json!({"maxUnavailable": "25%"})), Expected { pods: 10, healthy: 7 });
    assert!(!plan::needs_scale(&budget(json!({"minAvailable": 3}), json!({}))));
}

#[test]
fn what_is_healthy_beyond_the_need_may_go_and_evicted_ones_count_no_more() {
    let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
    let pods = [pod("a", true), pod("b", true), pod("c", false)];
    let fresh = plan::plan(&budget(json!({}), json!({})), &pods, Expected { pods: 3, healthy: 1 }, now);
    assert_eq!((fresh.status.current_healthy, fresh.status.disruptions_allowed), (Some(2), Some(1)));
    assert_eq!(fresh.status.conditions.unwrap()[0].reason, "SufficientPods");
    let evicted =
        budget(json!({}), json!({"disruptedPods": {"a": "2026-01-01T00:00:30Z", "gone": "2026-01-01T00:00:30Z"}}));
    let after = plan::plan(&evicted, &pods, Expected { pods: 3, healthy: 1 }, now);
    assert_eq!((after.status.current_healthy, after.status.disruptions_allowed), (Some(1), Some(0)));
    assert_eq!(after.status.disrupted_pods.unwrap().len(), 1);
    assert_eq!(after.look_again.unwrap().as_secs(), 91);
    let late = plan::plan(&evicted, &pods, Expected { pods: 3, healthy: 1 }, "2026-01-01T00:05:00Z".parse().unwrap());
    assert_eq!((late.not_deleted.len(), late.status.disruptions_allowed), (1, Some(1)));
}

#[test]
fn nothing_is_allowed_before_pods_are_expected_or_when_counting_fails() {
    let pods = [pod("a", true)];
    let none =
        plan::plan(&budget(json!({}), json!({})), &pods, Expected { pods: 0, healthy: 0 }, Timestamp::UNIX_EPOCH);
    assert_eq!(none.status.disruptions_allowed, Some(0));
    let failed =
        plan::failed(&budget(json!({}), json!({"disruptionsAllowed": 2})), "why".to_owned(), Timestamp::UNIX_EPOCH);
    assert_eq!((failed.disruptions_allowed, failed.conditions.unwrap()[0].reason.as_str()), (Some(0), "SyncFailed"));
}

// Semantics M12.
#[test]
fn a_budget_that_says_nothing_allows_nothing() {
    let silent = budget(json!({"selector": {}}), json!({}));
    let expected = plan::expected(&silent, 3, 3).unwrap();
    assert_eq!(expected, Expected { pods: 0, healthy: 0 });
    let plan = plan::plan(&silent, &[pod("a", true), pod("b", true)], expected, Timestamp::UNIX_EPOCH);
    assert_eq!(plan.status.disruptions_allowed, Some(0));
}

#[test]
fn a_bound_that_is_no_number_is_refused_in_upstreams_words() {
    for text in ["half", "5", "%", "1.5%"] {
        for spec in [json!({"minAvailable": text}), json!({"maxUnavailable": text})] {
            let said = plan::expected(&budget(spec, json!({})), 4, 10).unwrap_err().to_string();
            assert_eq!(said, format!("invalid value for IntOrString: {text}"));
        }
    }
}

// Upstream's table: `TestPDBControllerPercentage` and `getExpectedPodCount` (disruption.go, 1.36.2).
#[test]
fn percentages_are_rounded_up_and_nothing_below_zero_is_needed() {
    let healthy = |spec: Value, scale: i32| plan::expected(&budget(spec, json!({})), scale, scale).unwrap().healthy;
    for (spec, scale, wanted) in [
        (json!({"minAvailable": "28%"}), 7, 2),
        (json!({"minAvailable": "29%"}), 7, 3),
        (json!({"minAvailable": "0%"}), 7, 0),
        (json!({"minAvailable": "100%"}), 7, 7),
        (json!({"maxUnavailable": "28%"}), 7, 5),
        (json!({"maxUnavailable": "100%"}), 7, 0),
        (json!({"maxUnavailable": 9}), 7, 0),
        (json!({"maxUnavailable": 0}), 7, 7),
        (json!({"minAvailable": 9}), 7, 9),
    ] {
        assert_eq!(healthy(spec.clone(), scale), wanted, "{spec}");
    }
}

#[test]
fn a_condition_keeps_its_time_while_it_says_the_same() {
    let now: Timestamp = "2026-01-01T00:01:00Z".parse().unwrap();
    let said = json!([{"type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    let before = budget(json!({}), json!({"conditions": said}));
    let since = |pods: &[Arc<Pod>]| {
        let plan = plan::plan(&before, pods, Expected { pods: 1, healthy: 0 }, now);
        plan.status.conditions.unwrap()[0].last_transition_time.0
    };
    assert_eq!(since(&[]), "2026-01-01T00:00:00Z".parse().unwrap());
    assert_eq!(since(&[pod("a", true)]), now);
}

#[test]
fn an_announced_disruption_is_stale_after_two_minutes_unless_it_came() {
    let now: Timestamp = "2026-01-01T00:01:30Z".parse().unwrap();
    let of = |phase: &str, condition: Value, deleted: Value| {
        let metadata = json!({"name": "p", "deletionTimestamp": deleted});
        let pod = json!({"metadata": metadata, "status": {"phase": phase, "conditions": [condition]}});
        plan::stale_after(&serde_json::from_value(pod).unwrap(), now).map(|left| left.as_secs())
    };
    let since = "2026-01-01T00:00:00Z";
    let target = |status: &str| json!({"type": "DisruptionTarget", "status": status, "lastTransitionTime": since});
    assert_eq!(of("Running", target("True"), json!(null)), Some(30));
    assert_eq!(of("Running", target("False"), json!(null)), None);
    assert_eq!(of("Failed", target("True"), json!(null)), None);
    assert_eq!(of("Running", target("True"), json!("2026-01-01T00:01:00Z")), None, "it is going");
}
