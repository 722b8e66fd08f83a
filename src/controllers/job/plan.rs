//! What a job needs next: pods to make, pods to give up, and the status that its pods amount to. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use client::events::Severity;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use crate::{owners, pods};

pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
pub(super) const MANAGED_BY_US: &str = "kubernetes.io/job-controller";
const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// After a failure the next pod waits 10 s, 20 s, 40 s, … up to ten minutes.
const BACKOFF_FIRST_SECS: u64 = 10;
const BACKOFF_MAX_SECS: u64 = 600;
const BURST: usize = 500;

/// The next step of a job.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// One entry per pod to make, with its completion index if the job is indexed.
    pub(super) create: Vec<Option<i32>>,
    pub(super) delete: Vec<Arc<Pod>>,
    pub(super) status: JobStatus,
    /// Ended pods that `status` counts: they lose their finalizer once it is stored.
    pub(super) counted: Vec<Arc<Pod>>,
    pub(super) events: Vec<(Severity, &'static str, String)>,
    pub(super) look_again: Option<Duration>,
}

fn has_condition(job: &Job, kind: &str) -> bool {
    job.status.iter().flat_map(|s| s.conditions.iter().flatten()).any(|c| c.type_ == kind && c.status == "True")
}

/// Whether the job has come to its end, well or not.
pub(super) fn is_finished(job: &Job) -> bool {
    has_condition(job, "Complete") || has_condition(job, "Failed")
}

/// When it did.
pub(super) fn finished_at(job: &Job) -> Option<Timestamp> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let end = conditions.iter().find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")?;
    end.last_transition_time.as_ref().map(|t| t.0)
}

/// The completion index of a pod of an indexed job.
pub(super) fn index_of(pod: &Pod) -> Option<i32> {
    pod.annotations().get(INDEX)?.parse().ok()
}

/// `1,3-5`: the form in which status lists indexes.
pub(super) fn format_indexes(indexes: &BTreeSet<i32>) -> String {
    let mut runs: Vec<(i32, i32)> = Vec::new();
    for &index in indexes {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => runs.push((index, index)),
        }
    }
    let text = |(first, last): &(i32, i32)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}-{last}"),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

/// The reverse of [`format_indexes`]; what is no number is skipped.
pub(super) fn parse_indexes(text: &str) -> BTreeSet<i32> {
    let mut indexes = BTreeSet::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<i32>(), last.parse::<i32>()) {
            indexes.extend(first..=last);
        }
    }
    indexes
}

/// A pod of the job, for one index if the job is indexed.
pub(super) fn pod(job: &Job, index: Option<i32>) -> Pod {
    let template = job.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
    let name = job.name_any();
    let prefix = index.map_or_else(|| name.clone(), |index| format!("{name}-{index}"));
    let mut pod = pods::from_template(&template, &prefix, &job.namespace().unwrap_or_default(), owners::reference_to(job));
    pod.metadata.finalizers.get_or_insert_default().push(TRACKING.to_owned());
    let Some(index) = index else { return pod };
    pod.metadata.annotations.get_or_insert_default().insert(INDEX.to_owned(), index.to_string());
    pod.metadata.labels.get_or_insert_default().insert(INDEX.to_owned(), index.to_string());
    let Some(spec) = pod.spec.as_mut() else { return pod };
    spec.hostname.get_or_insert_with(|| format!("{name}-{index}"));
    let field = ObjectFieldSelector { field_path: format!("metadata.labels['{INDEX}']"), api_version: None };
    let from = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    let variable = EnvVar { name: "JOB_COMPLETION_INDEX".to_owned(), value: None, value_from: Some(from) };
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        let env = container.env.get_or_insert_default();
        if !env.iter().any(|e| e.name == variable.name) {
            env.push(variable.clone());
        }
    }
    pod
}

/// How the pods of a job stand, together with what its status has counted before.
struct Tally {
    active: Vec<Arc<Pod>>,
    succeeded: i32,
    failed: i32,
    completed: BTreeSet<i32>,
    failures: Vec<Arc<Pod>>,
    terminating: i32,
    counted: Vec<Arc<Pod>>,
}

fn tally(job: &Job, owned: &[Arc<Pod>]) -> Tally {
    let old = job.status.clone().unwrap_or_default();
    let uncounted = old.uncounted_terminated_pods.unwrap_or_default();
    let mut known: BTreeSet<String> = uncounted.succeeded.into_iter().flatten().collect();
    known.extend(uncounted.failed.into_iter().flatten());
    let indexed = is_indexed(job);
    let mut t = Tally {
        active: Vec::new(),
        succeeded: old.succeeded.unwrap_or(0),
        failed: old.failed.unwrap_or(0),
        completed: parse_indexes(old.completed_indexes.as_deref().unwrap_or_default()),
        failures: owned.iter().filter(|pod| pods::phase(pod) == "Failed").cloned().collect(),
        terminating: 0,
        counted: Vec::new(),
    };
    for pod in owned {
        let tracked = pod.finalizers().iter().any(|f| f == TRACKING);
        let counts = tracked && !known.contains(&pod.uid().unwrap_or_default());
        let terminating = pod.metadata.deletion_timestamp.is_some();
        match pods::phase(pod) {
            "Succeeded" if counts => {
                // Two pods of one index count once.
                let new = !indexed || index_of(pod).is_some_and(|index| t.completed.insert(index));
                t.succeeded += i32::from(new);
                t.counted.push(Arc::clone(pod));
            }
            // A pod that is being deleted before its end has failed, in upstream's count.
            phase if counts && (phase == "Failed" || terminating && phase != "Succeeded") => {
                t.failed += 1;
                t.counted.push(Arc::clone(pod));
            }
            phase if tracked && (matches!(phase, "Succeeded" | "Failed") || terminating) => t.counted.push(Arc::clone(pod)),
            "Succeeded" | "Failed" => {}
            _ if !terminating => t.active.push(Arc::clone(pod)),
            _ => t.terminating += 1,
        }
    }
    t
}

fn is_indexed(job: &Job) -> bool {
    job.spec.as_ref().and_then(|s| s.completion_mode.as_deref()) == Some("Indexed")
}

/// Decides the next step of a job that has not ended.
pub(super) fn plan(job: &Job, owned: &[Arc<Pod>], now: Timestamp) -> Plan {
    let spec = job.spec.clone().unwrap_or_default();
    let mut tally = tally(job, owned);
    let suspended = spec.suspend == Some(true);
    let mut plan = Plan { status: status(job, &tally, now, suspended), counted: tally.counted.clone(), ..Plan::default() };
    let end = verdict(job, &tally, &plan.status, now);
    if let Some((kind, reason, message)) = end {
        let deleted = std::mem::take(&mut tally.active);
        plan.delete = deleted;
        plan.status.active = None;
        plan.status.ready = Some(0);
        end_with(&mut plan, kind, reason, message, now);
        return plan;
    }
    suspend(job, &mut plan, suspended, now);
    if suspended || job.metadata.deletion_timestamp.is_some() {
        if suspended {
            plan.delete = std::mem::take(&mut tally.active);
            plan.status.active = None;
        }
        return plan;
    }
    balance(job, &tally, &mut plan, now);
    if let (Some(limit), Some(start)) = (spec.active_deadline_seconds, &plan.status.start_time) {
        let left = limit - now.duration_since(start.0).as_secs();
        let deadline = Duration::from_secs(u64::try_from(left.max(1)).unwrap_or(1));
        plan.look_again = Some(plan.look_again.map_or(deadline, |other| other.min(deadline)));
    }
    plan
}

/// Pods that the counts include but that have their finalizer still: seen again (a late cache, a crash), they are not counted again.
fn still_tracked(counted: &[Arc<Pod>]) -> UncountedTerminatedPods {
    let (good, bad): (Vec<_>, Vec<_>) = counted.iter().partition(|pod| pods::phase(pod) == "Succeeded");
    let uids = |pods: Vec<&Arc<Pod>>| Some(pods.iter().filter_map(|pod| pod.uid()).collect::<Vec<_>>()).filter(|uids| !uids.is_empty());
    UncountedTerminatedPods { succeeded: uids(good), failed: uids(bad) }
}

fn status(job: &Job, tally: &Tally, now: Timestamp, suspended: bool) -> JobStatus {
    let positive = |n: i32| (n > 0).then_some(n);
    let old = job.status.clone().unwrap_or_default();
    let count = |pods: usize| i32::try_from(pods).unwrap_or(i32::MAX);
    let ready = tally.active.iter().filter(|pod| pods::is_ready(pod)).count();
    JobStatus {
        active: positive(count(tally.active.len())),
        ready: Some(count(ready)),
        succeeded: positive(tally.succeeded),
        failed: positive(tally.failed),
        terminating: Some(tally.terminating),
        completed_indexes: is_indexed(job).then(|| format_indexes(&tally.completed)).filter(|text| !text.is_empty()),
        start_time: old.start_time.clone().filter(|_| !suspended).or_else(|| (!suspended).then_some(Time(now))),
        uncounted_terminated_pods: Some(still_tracked(&tally.counted)),
        ..old
    }
}

/// Whether the job ends now: the condition's type, reason and message.
fn verdict(job: &Job, tally: &Tally, status: &JobStatus, now: Timestamp) -> Option<(&'static str, &'static str, String)> {
    let spec = job.spec.as_ref()?;
    if tally.failed > spec.backoff_limit.unwrap_or(6) {
        return Some(("Failed", "BackoffLimitExceeded", "Job has reached the specified backoff limit".to_owned()));
    }
    if let (Some(limit), Some(start)) = (spec.active_deadline_seconds, &status.start_time)
        && now.duration_since(start.0).as_secs() >= limit
    {
        return Some(("Failed", "DeadlineExceeded", "Job was active longer than specified deadline".to_owned()));
    }
    let complete = match spec.completions {
        // A work queue: one success says that the queue is empty, the others may finish.
        None => tally.succeeded > 0 && tally.active.is_empty(),
        Some(wanted) => tally.succeeded >= wanted,
    };
    complete.then(|| ("Complete", "CompletionsReached", "Reached expected number of succeeded pods".to_owned()))
}

fn condition(kind: &str, status: &str, reason: &str, message: String, now: Timestamp) -> JobCondition {
    JobCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_probe_time: Some(Time(now)),
        last_transition_time: Some(Time(now)),
    }
}

fn end_with(plan: &mut Plan, kind: &'static str, reason: &'static str, message: String, now: Timestamp) {
    // Upstream's order: SuccessCriteriaMet or FailureTarget first, the terminal condition with the last pod gone.
    let target = if kind == "Complete" { "SuccessCriteriaMet" } else { "FailureTarget" };
    let conditions = plan.status.conditions.get_or_insert_default();
    if !conditions.iter().any(|c| c.type_ == target) {
        conditions.push(condition(target, "True", reason, message.clone(), now));
    }
    if !plan.delete.is_empty() || !plan.counted.is_empty() {
        return;
    }
    conditions.push(condition(kind, "True", reason, message.clone(), now));
    if kind == "Complete" {
        plan.status.completion_time = Some(Time(now));
        plan.events.push((Severity::Normal, "Completed", "Job completed".to_owned()));
    } else {
        plan.events.push((Severity::Warning, reason, message));
    }
}

fn suspend(job: &Job, plan: &mut Plan, suspended: bool, now: Timestamp) {
    let was = has_condition(job, "Suspended");
    if suspended == was {
        return;
    }
    let (status, reason, message) =
        if suspended { ("True", "JobSuspended", "Job suspended") } else { ("False", "JobResumed", "Job resumed") };
    let conditions = plan.status.conditions.get_or_insert_default();
    conditions.retain(|c| c.type_ != "Suspended");
    conditions.push(condition("Suspended", status, reason, message.to_owned(), now));
    let event = if suspended { "Suspended" } else { "Resumed" };
    plan.events.push((Severity::Normal, event, message.to_owned()));
}

/// Makes or gives up pods until as many run as may.
fn balance(job: &Job, tally: &Tally, plan: &mut Plan, now: Timestamp) {
    let Some(spec) = &job.spec else { return };
    let parallelism = spec.parallelism.unwrap_or(1).max(0);
    let active = i32::try_from(tally.active.len()).unwrap_or(i32::MAX);
    let wanted = match spec.completions {
        // After the first success of a work queue no new pods start.
        None if tally.succeeded > 0 => active.min(parallelism),
        None => parallelism,
        Some(completions) => parallelism.min(completions - tally.succeeded).max(0),
    };
    if active > wanted {
        let mut surplus = tally.active.clone();
        surplus.sort_by_cached_key(|pod| pods::deletion_rank(pod, 0));
        surplus.truncate(usize::try_from(active - wanted).unwrap_or(0));
        plan.delete = surplus;
        return;
    }
    let missing = usize::try_from(wanted - active).unwrap_or(0).min(BURST);
    if missing == 0 {
        return;
    }
    if let Some(wait) = backoff(job, tally, now) {
        plan.look_again = Some(wait);
        return;
    }
    plan.create = if is_indexed(job) {
        let running: BTreeSet<i32> = tally.active.iter().filter_map(|pod| index_of(pod)).collect();
        let open = (0..spec.completions.unwrap_or(0)).filter(|index| !running.contains(index) && !tally.completed.contains(index));
        open.take(missing).map(Some).collect()
    } else {
        vec![None; missing]
    };
}

/// How long the next pod must wait after failures; the newest failure's end is where the wait begins.
fn backoff(job: &Job, tally: &Tally, now: Timestamp) -> Option<Duration> {
    let last = tally.failures.iter().filter_map(|pod| ended_at(pod)).max();
    let annotated = job.status.iter().flat_map(|s| s.conditions.iter().flatten()).any(|c| c.type_ == "SuccessCriteriaMet");
    let last = last.filter(|_| !annotated)?;
    let shift = u32::try_from(tally.failed.saturating_sub(1)).unwrap_or(0).min(10);
    let wait = (BACKOFF_FIRST_SECS << shift).min(BACKOFF_MAX_SECS);
    let passed = u64::try_from(now.duration_since(last).as_secs()).unwrap_or(0);
    (passed < wait).then(|| Duration::from_secs(wait - passed))
}

fn ended_at(pod: &Pod) -> Option<Timestamp> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    let ends: BTreeMap<Timestamp, ()> = statuses
        .iter()
        .filter_map(|c| c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref())
        .map(|t| (t.0, ()))
        .collect();
    ends.keys().next_back().copied()
}
