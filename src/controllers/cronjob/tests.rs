//! Claims about starts, active jobs and history.

use std::sync::Arc;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, Job};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::plan::{self, Plan};

fn cron(spec: Value, status: Value) -> CronJob {
    let mut spec = spec;
    spec["jobTemplate"] = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"template": {}}});
    let meta = json!({"name": "c", "namespace": "d", "uid": "u", "creationTimestamp": "2026-01-01T00:00:30Z"});
    serde_json::from_value(json!({"metadata": meta, "spec": spec, "status": status})).unwrap()
}

fn job(name: &str, end: Option<&str>, start: &str) -> Arc<Job> {
    let conditions: Vec<Value> = end.iter().map(|end| json!({"type": end, "status": "True"})).collect();
    let status = json!({"conditions": conditions, "startTime": start, "completionTime": end.map(|_| start)});
    Arc::new(serde_json::from_value(json!({"metadata": {"name": name, "uid": name}, "status": status})).unwrap())
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn reasons(plan: &Plan) -> Vec<&'static str> {
    plan.events.iter().map(|(_, reason, _)| *reason).collect()
}

#[test]
fn a_job_starts_at_its_minute_and_is_looked_for_again_at_the_next() {
    let every = cron(json!({"schedule": "*/5 * * * *"}), json!({}));
    let early = plan::plan(&every, &[], &TimeZone::UTC, at("2026-01-01T00:04:59Z"));
    assert_eq!((early.start, early.look_again.unwrap().as_millis()), (None, 1100));
    let due = plan::plan(&every, &[], &TimeZone::UTC, at("2026-01-01T00:05:00.1Z"));
    assert_eq!(due.start, Some(at("2026-01-01T00:05:00Z")));
    let made = plan::job(&every, &TimeZone::UTC, due.start.unwrap());
    assert_eq!(made.name_any(), "c-29453765");
    assert_eq!(made.annotations()["batch.kubernetes.io/cronjob-scheduled-timestamp"], "2026-01-01T00:05:00Z");
    let done = cron(json!({"schedule": "*/5 * * * *"}), json!({"lastScheduleTime": "2026-01-01T00:05:00Z"}));
    assert_eq!(plan::plan(&done, &[], &TimeZone::UTC, at("2026-01-01T00:06:00Z")).start, None);
    let asleep = cron(json!({"schedule": "*/5 * * * *", "suspend": true}), json!({}));
    assert_eq!(plan::plan(&asleep, &[], &TimeZone::UTC, at("2026-01-01T00:06:00Z")).start, None);
}

#[test]
fn after_many_missed_starts_only_the_last_is_made_up_for() {
    let every = cron(json!({"schedule": "* * * * *"}), json!({}));
    let late = plan::plan(&every, &[], &TimeZone::UTC, at("2026-01-02T00:00:30Z"));
    assert_eq!((late.start, reasons(&late)), (Some(at("2026-01-02T00:00:00Z")), vec!["TooManyMissedTimes"]));
    let strict = cron(json!({"schedule": "0 12 * * *", "startingDeadlineSeconds": 60}), json!({}));
    assert_eq!(plan::plan(&strict, &[], &TimeZone::UTC, at("2026-01-01T12:05:00Z")).start, None);
    assert!(plan::plan(&strict, &[], &TimeZone::UTC, at("2026-01-01T12:00:59Z")).start.is_some());
}

#[test]
fn the_concurrency_policy_forbids_or_replaces() {
    let with = |policy: &str| {
        cron(
            json!({"schedule": "* * * * *", "concurrencyPolicy": policy}),
            json!({"active": [{"name": "a", "uid": "a"}]}),
        )
    };
    let running = [job("a", None, "2026-01-01T00:01:00Z")];
    let now = at("2026-01-01T00:02:00Z");
    let forbid = plan::plan(&with("Forbid"), &running, &TimeZone::UTC, now);
    assert_eq!((forbid.start, reasons(&forbid)), (None, vec!["JobAlreadyActive"]));
    let replace = plan::plan(&with("Replace"), &running, &TimeZone::UTC, now);
    assert!(replace.start.is_some() && replace.replace.len() == 1 && replace.status.active.is_none());
    let allow = plan::plan(&with("Allow"), &running, &TimeZone::UTC, now);
    assert!(allow.start.is_some() && allow.replace.is_empty());
}

#[test]
fn ended_and_missing_jobs_leave_the_list_and_the_oldest_are_forgotten() {
    let spec = json!({"schedule": "0 0 1 1 *", "successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0});
    let cron = cron(spec, json!({"active": [{"name": "a", "uid": "a"}, {"name": "x", "uid": "x"}]}));
    let jobs = [
        job("a", Some("Complete"), "2026-01-03T00:00:00Z"),
        job("b", Some("Complete"), "2026-01-02T00:00:00Z"),
        job("c", Some("Failed"), "2026-01-01T00:00:00Z"),
    ];
    let plan = plan::plan(&cron, &jobs, &TimeZone::UTC, at("2026-01-04T00:00:00Z"));
    assert_eq!(reasons(&plan), ["SawCompletedJob", "MissingJob"]);
    assert_eq!(plan.status.active, None);
    assert_eq!(plan.status.last_successful_time.unwrap().0, at("2026-01-03T00:00:00Z"));
    assert_eq!(plan.forget.iter().map(|j| j.name_any()).collect::<Vec<_>>(), ["b", "c"]);
}

#[test]
fn a_schedule_means_the_clocks_of_its_zone() {
    let cron = cron(json!({"schedule": "0 9 * * *", "timeZone": "Asia/Tokyo"}), json!({}));
    let plan = plan::plan(&cron, &[], &TimeZone::UTC, at("2026-01-02T00:00:01Z"));
    assert_eq!(plan.start, Some(at("2026-01-02T00:00:00Z")));
    let job = plan::job(&cron, &TimeZone::UTC, plan.start.unwrap());
    assert_eq!(job.annotations()["batch.kubernetes.io/cronjob-scheduled-timestamp"], "2026-01-02T09:00:00+09:00");
}

#[test]
fn an_interval_counts_from_the_last_start_and_not_from_ours() {
    let hourly = cron(json!({"schedule": "@every 1h"}), json!({"lastScheduleTime": "2026-01-01T10:00:00Z"}));
    let restarted = plan::plan(&hourly, &[], &TimeZone::UTC, at("2026-01-01T10:50:00Z"));
    assert_eq!((restarted.start, restarted.look_again.unwrap().as_secs()), (None, 600));
    let fresh = cron(json!({"schedule": "@every 1h"}), json!({}));
    let first = plan::plan(&fresh, &[], &TimeZone::UTC, at("2026-01-01T00:30:30Z"));
    assert_eq!(first.look_again.unwrap().as_secs(), 1800);
}
