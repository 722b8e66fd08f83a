//! Claims about the steps of a job.

use std::collections::BTreeSet;
use std::sync::Arc;

use client::pod::Pod;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use super::indexes;
use super::plan::{self, TRACKING};

fn job(spec: Value, status: Value) -> Job {
    let mut spec = spec;
    spec["template"] = json!({"spec": {"containers": [{"name": "c"}]}});
    serde_json::from_value(json!({"metadata": {"name": "j", "namespace": "d", "uid": "u"}, "spec": spec, "status": status})).unwrap()
}

fn pod(name: &str, phase: &str, index: Option<i32>) -> Arc<Pod> {
    let notes = index.map(|i| json!({"batch.kubernetes.io/job-completion-index": i.to_string()}));
    let pod = json!({"metadata": {"name": name, "uid": name, "finalizers": [TRACKING], "annotations": notes}, "status": {"phase": phase}});
    Arc::new(serde_json::from_value(pod).unwrap())
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
    let plan = plan::plan(&job, &[pod("a", "Running", None)], Timestamp::UNIX_EPOCH);
    assert_eq!(plan.create.len(), 1);
    assert_eq!(plan.status.active, Some(1));
}

#[test]
fn the_last_success_is_counted_once_and_completes_the_job_when_its_pod_is_let_go() {
    let fresh = job(json!({"completions": 1}), json!({}));
    let first = plan::plan(&fresh, &[pod("a", "Succeeded", None)], Timestamp::UNIX_EPOCH);
    assert_eq!((first.status.succeeded, first.release.len(), first.create.len()), (Some(1), 1, 0));
    let counted = job(json!({"completions": 1}), serde_json::to_value(&first.status).unwrap());
    let again = plan::plan(&counted, &[pod("a", "Succeeded", None)], Timestamp::UNIX_EPOCH);
    assert_eq!(again.status.succeeded, Some(1));
    let last = plan::plan(&counted, &[], Timestamp::UNIX_EPOCH);
    let kinds: Vec<String> = last.status.conditions.unwrap().into_iter().map(|c| c.type_).collect();
    assert_eq!((last.status.succeeded, kinds), (Some(1), vec!["SuccessCriteriaMet".to_owned(), "Complete".to_owned()]));
}

#[test]
fn one_failure_too_many_fails_the_job_and_stops_its_pods() {
    let job = job(json!({"completions": 2, "parallelism": 2, "backoffLimit": 0}), json!({}));
    let plan = plan::plan(&job, &[pod("a", "Failed", None), pod("b", "Running", None)], Timestamp::UNIX_EPOCH);
    assert_eq!(plan.delete.len(), 1);
    let conditions = plan.status.conditions.unwrap();
    assert_eq!((conditions[0].type_.as_str(), conditions[0].reason.as_deref()), ("FailureTarget", Some("BackoffLimitExceeded")));
}

#[test]
fn an_index_is_made_again_only_while_it_is_open() {
    let job =
        job(json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"}), json!({"succeeded": 1, "completedIndexes": "1"}));
    let plan = plan::plan(&job, &[pod("a", "Running", Some(0)), pod("b", "Succeeded", Some(1))], Timestamp::UNIX_EPOCH);
    assert_eq!(plan.create.iter().map(|fresh| fresh.index).collect::<Vec<_>>(), [Some(2), Some(3)]);
    assert_eq!(plan.status.succeeded, Some(1));
}

fn failed(name: &str, index: i32, failures: i32, code: i32) -> Arc<Pod> {
    let notes = json!({"batch.kubernetes.io/job-completion-index": index.to_string(), "batch.kubernetes.io/job-index-failure-count": failures.to_string()});
    let ended = json!({"terminated": {"exitCode": code, "finishedAt": "1970-01-01T00:00:00Z"}});
    let status = json!({"phase": "Failed", "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": ended}]});
    let pod = json!({"metadata": {"name": name, "uid": name, "finalizers": [TRACKING], "annotations": notes}, "status": status});
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
    let spec =
        json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed", "backoffLimitPerIndex": 1, "backoffLimit": i32::MAX});
    let fresh = job(spec.clone(), json!({}));
    let first = plan::plan(&fresh, &[failed("a", 0, 0, 1)], later(5));
    assert_eq!(first.create.iter().map(|f| f.index).collect::<Vec<_>>(), [Some(1)]);
    // The failed pod knows the count: it stays until its index has a new one.
    assert!(first.release.is_empty() && first.status.failed == Some(1));
    let after = plan::plan(&fresh, &[failed("a", 0, 0, 1), pod("b", "Running", Some(1))], later(11));
    assert_eq!(after.create, [plan::Fresh { index: Some(0), failures: Some((1, 0)) }]);
    let ended = plan::plan(&fresh, &[failed("a2", 0, 1, 1), pod("b", "Succeeded", Some(1))], later(30));
    assert_eq!(ended.status.failed_indexes.as_deref(), Some("0"));
    assert_eq!(reasons(&ended), ["FailureTarget FailedIndexes"]);
    let mut strict = spec;
    strict["maxFailedIndexes"] = json!(0);
    let strict = plan::plan(&job(strict, json!({})), &[failed("a2", 0, 1, 1), pod("b", "Running", Some(1))], later(30));
    assert_eq!((reasons(&strict), strict.delete.len()), (vec!["FailureTarget MaxFailedIndexesExceeded".to_owned()], 1));
}

#[test]
fn the_first_rule_that_matches_says_what_a_failure_means() {
    let rules = |action: &str| {
        let policy = json!({"rules": [{"action": action, "onExitCodes": {"operator": "In", "values": [42]}}]});
        job(json!({"completions": 2, "parallelism": 1, "backoffLimit": 0, "podFailurePolicy": policy}), json!({}))
    };
    let ignored = plan::plan(&rules("Ignore"), &[failed("a", 0, 0, 42)], later(0));
    assert_eq!((ignored.status.failed, ignored.create.len(), ignored.release.len()), (None, 1, 1));
    let fatal = plan::plan(&rules("FailJob"), &[failed("a", 0, 0, 42)], later(0));
    assert_eq!(reasons(&fatal), ["FailureTarget PodFailurePolicy"]);
    let message = fatal.status.conditions.unwrap()[0].message.clone().unwrap();
    assert_eq!(message, "Container c for pod /a failed with exit code 42 matching FailJob rule at index 0");
    let other = plan::plan(&rules("Ignore"), &[failed("a", 0, 0, 1)], later(0));
    assert_eq!(reasons(&other), ["FailureTarget BackoffLimitExceeded"]);
}

#[test]
fn a_success_policy_ends_the_job_early_and_stops_the_rest() {
    let policy = json!({"rules": [{"succeededIndexes": "3", "succeededCount": 1}, {"succeededCount": 2}]});
    let job = job(json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed", "successPolicy": policy}), json!({}));
    let one = plan::plan(&job, &[pod("a", "Succeeded", Some(0))], later(0));
    assert!(reasons(&one).is_empty());
    let two = plan::plan(&job, &[pod("a", "Succeeded", Some(0)), pod("b", "Succeeded", Some(1)), pod("c", "Running", Some(2))], later(0));
    assert_eq!((reasons(&two), two.delete.len()), (vec!["SuccessCriteriaMet SuccessPolicy".to_owned()], 1));
    assert_eq!(two.status.conditions.unwrap()[0].message.as_deref(), Some("Matched rules at index 1"));
}

#[test]
fn an_indexed_job_shrinks_from_its_end() {
    let job =
        job(json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed"}), json!({"completedIndexes": "0,3", "succeeded": 2}));
    let plan = plan::plan(&job, &[pod("b", "Running", Some(1)), pod("c", "Running", Some(2))], later(0));
    assert_eq!((plan.status.succeeded, plan.status.completed_indexes.as_deref()), (Some(1), Some("0")));
    assert_eq!(plan.delete.len(), 1);
}
