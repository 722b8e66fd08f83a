//! Claims about the steps of a job.

use std::collections::BTreeSet;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

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
    assert_eq!(plan::format_indexes(&indexes), "0,2,3,5-7");
    assert_eq!(plan::parse_indexes("0,2,3,5-7"), indexes);
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
    assert_eq!((first.status.succeeded, first.counted.len(), first.create.len()), (Some(1), 1, 0));
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
    let job = job(json!({"completions": 4, "parallelism": 4, "completionMode": "Indexed"}), json!({"succeeded": 1, "completedIndexes": "1"}));
    let plan = plan::plan(&job, &[pod("a", "Running", Some(0)), pod("b", "Succeeded", Some(1))], Timestamp::UNIX_EPOCH);
    assert_eq!(plan.create, [Some(2), Some(3)]);
    assert_eq!(plan.status.succeeded, Some(1));
}
