//! Claims about the steps of a job.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use model::pod::Pod;
use serde_json::{Value, json};

use super::indexes;
use super::plan::{self, TRACKING};

fn job(spec: Value, status: Value) -> Job {
    let mut spec = spec;
    spec["template"] = json!({"spec": {"containers": [{"name": "c"}]}});
    serde_json::from_value(
        json!({"metadata": {"name": "j", "namespace": "d", "uid": "u"}, "spec": spec, "status": status}),
    )
    .unwrap()
}

fn pod(name: &str, phase: &str, index: Option<i32>) -> Arc<Pod> {
    let notes = index.map(|i| json!({"batch.kubernetes.io/job-completion-index": i.to_string()}));
    let pod = json!({"metadata": {"name": name, "uid": name, "finalizers": [TRACKING], "annotations": notes},
        "status": {"phase": phase}});
    Arc::new(serde_json::from_value(pod).unwrap())
}

/// The step of a controller that knows nothing of the steps before.
fn step(job: &Job, owned: &[Arc<Pod>], now: Timestamp) -> plan::Plan {
    plan::plan(job, owned, None, now)
}

#[test]
fn indexes_are_listed_in_runs_and_read_back() {
    let indexes = BTreeSet::from([0, 2, 3, 5, 6, 7]);
    assert_eq!(indexes::format_indexes(&indexes), "0,2,3,5-7");
    assert_eq!(indexes::parse_indexes("0,2,3,5-7", 7), BTreeSet::from([0, 2, 3, 5, 6]));
}

#[test]
fn no_more_pods_run_than_completions_are_missing() {
    let job = job(json!({"completions": 3, "parallelism": 5}), json!({"succeeded": 1}));
    let plan = step(&job, &[pod("a", "Running", None)], Timestamp::UNIX_EPOCH);
    assert_eq!(plan.create.len(), 1);
    assert_eq!(plan.status.active, Some(1));
}

#[test]
fn the_last_success_is_counted_once_and_completes_the_job_when_its_pod_is_let_go() {
    let fresh = job(json!({"completions": 1}), json!({}));
    let first = step(&fresh, &[pod("a", "Succeeded", None)], Timestamp::UNIX_EPOCH);
    assert_eq!((first.status.succeeded, first.release.len(), first.create.len()), (Some(1), 1, 0));
    let counted = job(json!({"completions": 1}), serde_json::to_value(&first.status).unwrap());
    let again = step(&counted, &[pod("a", "Succeeded", None)], Timestamp::UNIX_EPOCH);
    assert_eq!(again.status.succeeded, Some(1));
    let last = step(&counted, &[], Timestamp::UNIX_EPOCH);
    let kinds: Vec<String> = last.status.conditions.unwrap().into_iter().map(|c| c.type_).collect();
    assert_eq!((last.status.succeeded, kinds), (Some(1), vec!["SuccessCriteriaMet".to_owned(), "Complete".to_owned()]));
}

#[test]
fn one_failure_too_many_fails_the_job_and_stops_its_pods() {
    let job = job(json!({"completions": 2, "parallelism": 2, "backoffLimit": 0}), json!({}));
    let plan = step(&job, &[pod("a", "Failed", None), pod("b", "Running", None)], Timestamp::UNIX_EPOCH);
    assert_eq!(plan.delete.len(), 1);
    let conditions = plan.status.conditions.unwrap();
    assert_eq!(
        (conditions[0].type_.as_str(), conditions[0].reason.as_deref()),
        ("FailureTarget", Some("BackoffLimitExceeded"))
    );
}

#[test]
fn an_index_is_made_again_only_while_it_is_open() {
    let job = job(
        json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"}),
        json!({"succeeded": 1, "completedIndexes": "1"}),
    );
    let plan = step(&job, &[pod("a", "Running", Some(0)), pod("b", "Succeeded", Some(1))], Timestamp::UNIX_EPOCH);
    assert_eq!(plan.create.iter().map(|fresh| fresh.index).collect::<Vec<_>>(), [Some(2), Some(3)]);
    assert_eq!(plan.status.succeeded, Some(1));
}

fn failed(name: &str, index: i32, failures: i32, code: i32) -> Arc<Pod> {
    let notes = json!({"batch.kubernetes.io/job-completion-index": index.to_string(),
        "batch.kubernetes.io/job-index-failure-count": failures.to_string()});
    let ended = json!({"terminated": {"exitCode": code, "finishedAt": "1970-01-01T00:00:00Z"}});
    let status = json!({"phase": "Failed", "containerStatuses": [{"name": "c", "image": "", "imageID": "",
        "ready": false, "restartCount": 0, "state": ended}]});
    let pod = json!({"metadata": {"name": name, "uid": name, "finalizers": [TRACKING], "annotations": notes},
        "status": status});
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn later(secs: i64) -> Timestamp {
    Timestamp::from_second(secs).unwrap()
}

fn reasons(plan: &plan::Plan) -> Vec<String> {
    plan.status.conditions.iter().flatten().map(|c| format!("{} {}", c.type_, c.reason.clone().unwrap())).collect()
}

#[test]
fn failures_by_index_wait_and_end_for_each_index_alone() {
    let spec = json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1,
        "backoffLimit": i32::MAX});
    let fresh = job(spec.clone(), json!({}));
    let first = step(&fresh, &[failed("a", 0, 0, 1)], later(5));
    assert_eq!(first.create.iter().map(|f| f.index).collect::<Vec<_>>(), [Some(1)]);
    // The failed pod knows the count: it stays until its index has a new one.
    assert!(first.release.is_empty() && first.status.failed == Some(1));
    let after = step(&fresh, &[failed("a", 0, 0, 1), pod("b", "Running", Some(1))], later(11));
    assert_eq!(after.create, [plan::Fresh { index: Some(0), failures: Some((1, 0)) }]);
    let ended = step(&fresh, &[failed("a2", 0, 1, 1), pod("b", "Succeeded", Some(1))], later(30));
    assert_eq!(ended.status.failed_indexes.as_deref(), Some("0"));
    assert_eq!(reasons(&ended), ["FailureTarget FailedIndexes"]);
    let mut strict = spec;
    strict["maxFailedIndexes"] = json!(0);
    let strict = step(&job(strict, json!({})), &[failed("a2", 0, 1, 1), pod("b", "Running", Some(1))], later(30));
    assert_eq!((reasons(&strict), strict.delete.len()), (vec!["FailureTarget MaxFailedIndexesExceeded".to_owned()], 1));
}

#[test]
fn the_first_rule_that_matches_says_what_a_failure_means() {
    let rules = |action: &str| {
        let policy = json!({"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": [42]}}]});
        job(json!({"completions": 2, "parallelism": 1, "backoffLimit": 0, "podFailurePolicy": policy}), json!({}))
    };
    let ignored = step(&rules("Ignore"), &[failed("a", 0, 0, 42)], later(10));
    assert_eq!((ignored.status.failed, ignored.create.len(), ignored.release.len()), (None, 1, 1));
    let fatal = step(&rules("FailJob"), &[failed("a", 0, 0, 42)], later(0));
    assert_eq!(reasons(&fatal), ["FailureTarget PodFailurePolicy"]);
    let message = fatal.status.conditions.unwrap()[0].message.clone().unwrap();
    assert_eq!(message, "Container c for pod /a failed with exit code 42 matching FailJob rule at index 0");
    let other = step(&rules("Ignore"), &[failed("a", 0, 0, 1)], later(0));
    assert_eq!(reasons(&other), ["FailureTarget BackoffLimitExceeded"]);
}

#[test]
fn a_success_policy_ends_the_job_early_and_stops_the_rest() {
    let policy = json!({"rules": [{"succeededIndexes": "3", "succeededCount": 1}, {"succeededCount": 2}]});
    let job = job(
        json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed", "successPolicy": policy}),
        json!({}),
    );
    let one = step(&job, &[pod("a", "Succeeded", Some(0))], later(0));
    assert!(reasons(&one).is_empty());
    let two = step(
        &job,
        &[pod("a", "Succeeded", Some(0)), pod("b", "Succeeded", Some(1)), pod("c", "Running", Some(2))],
        later(0),
    );
    assert_eq!((reasons(&two), two.delete.len()), (vec!["SuccessCriteriaMet SuccessPolicy".to_owned()], 1));
    assert_eq!(two.status.conditions.unwrap()[0].message.as_deref(), Some("Matched rules at index 1"));
}

#[test]
fn an_indexed_job_shrinks_from_its_end() {
    let job = job(
        json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed"}),
        json!({"completedIndexes": "0,3", "succeeded": 2}),
    );
    let plan = step(&job, &[pod("b", "Running", Some(1)), pod("c", "Running", Some(2))], later(0));
    assert_eq!((plan.status.succeeded, plan.status.completed_indexes.as_deref()), (Some(1), Some("0")));
    assert_eq!(plan.delete.len(), 1);
}

// Semantics H4 (a): an ignored failure was none for the back-off, and the next pod came at once, for ever.
#[test]
fn ignored_failures_wait_as_all_others_do() {
    let policy = json!({"rules": [{"action": "Ignore", "onExitCodes": {"operator": "In", "values": [42]}}]});
    let job =
        job(json!({"completions": 1, "parallelism": 1, "backoffLimit": 6, "podFailurePolicy": policy}), json!({}));
    let first = step(&job, &[failed("a", 0, 0, 42)], later(1));
    assert_eq!(
        (first.status.failed, first.create.len(), first.look_again),
        (None, 0, Some(std::time::Duration::from_secs(9)))
    );
    let gone = plan::plan(&job, &[failed("b", 0, 0, 42)], Some(&first.record), later(11));
    assert_eq!((gone.create.len(), gone.look_again), (0, Some(std::time::Duration::from_secs(9))));
    assert_eq!(step(&job, &[failed("a", 0, 0, 42)], later(10)).create.len(), 1);
    let mut by_index =
        json!({"completions": 1, "parallelism": 1, "completionMode": "Indexed", "backoffLimitPerIndex": 3});
    by_index["podFailurePolicy"] = json!(job.spec.as_ref().unwrap().pod_failure_policy);
    let waits = step(&self::job(by_index, json!({})), &[failed("a", 0, 0, 42)], later(1));
    assert_eq!((waits.create.len(), waits.look_again), (0, Some(std::time::Duration::from_secs(9))));
}

// Semantics H4 (b): from the seventh failure of a long job on, every failure stopped it for ten minutes.
#[test]
fn a_success_ends_the_wait_of_a_job_with_many_failures() {
    let job =
        job(json!({"completions": 40, "parallelism": 1, "backoffLimit": 100}), json!({"failed": 20, "succeeded": 3}));
    let succeeded = json!({"metadata": {"name": "s", "uid": "s", "finalizers": [TRACKING]},
        "status": {"phase": "Succeeded",
        "containerStatuses": [{"name": "c", "restartCount": 0, "state": {"terminated": {"exitCode": 0,
            "finishedAt": "1970-01-01T00:00:05Z"}}}]}});
    let succeeded = Arc::new(serde_json::from_value(succeeded).unwrap());
    assert_eq!(step(&job, &[failed("a", 0, 0, 1), succeeded], later(6)).create.len(), 1);
}

// Semantics M18: a status names the pods that it has just counted, and an object has a largest size.
#[test]
fn pods_that_end_together_are_counted_by_the_five_hundred_and_decided_about_when_all_are() {
    let spec = json!({"completions": 1200, "parallelism": 1200, "backoffLimit": 6});
    let mut owned: Vec<Arc<Pod>> = (0..1200).map(|n| pod(&format!("p{n}"), "Succeeded", None)).collect();
    let mut status = json!({});
    let mut counts = Vec::new();
    for _ in 0..4 {
        let plan = step(&job(spec.clone(), status.clone()), &owned, later(1));
        let named =
            plan.status.uncounted_terminated_pods.clone().and_then(|u| u.succeeded).map_or(0, |uids| uids.len());
        counts.push((plan.status.succeeded, named, plan.create.len()));
        status = serde_json::to_value(&plan.status).unwrap();
        owned.retain(|pod| !plan.release.iter().any(|gone| gone.metadata.uid == pod.metadata.uid));
    }
    assert_eq!(counts, [(Some(500), 500, 0), (Some(1000), 500, 0), (Some(1200), 200, 0), (Some(1200), 0, 0)]);
    // Their finalizers are still there: none is counted on top.
    let stale: Vec<Arc<Pod>> = (0..1200).map(|n| pod(&format!("p{n}"), "Succeeded", None)).collect();
    let first = step(&job(spec.clone(), json!({})), &stale, later(1));
    let again = step(&job(spec, serde_json::to_value(&first.status).unwrap()), &stale, later(1));
    assert_eq!((again.status.succeeded, again.release.len()), (Some(500), 500));
}
