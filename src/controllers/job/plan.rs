//! The next step of a job: pods to make, pods to give up, and the status that its pods amount to. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use client::events::Severity;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus, UncountedTerminatedPods};
use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector, Pod as WholePod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use model::pod::Pod;
use model::{owners, phase};

use super::backoff::{Record, ended_at, wait_after};
use super::indexes::{FAILURES, IGNORED, INDEX, count_of, format_indexes, index_of};
use super::policy::{self, Meaning};
use super::tally::{self, Tally, is_indexed};

pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
pub(super) const MANAGED_BY_US: &str = "kubernetes.io/job-controller";
const BURST: usize = 500;
/// When more pods have ended than a status can name, the next ones are counted after this, or at the next event.
const COUNT_ON: Duration = Duration::from_secs(1);

/// A pod to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Fresh {
    /// Its completion index if the job is indexed.
    pub(super) index: Option<i32>,
    /// Failures of its index so far, and ignored ones, if they are counted by index.
    pub(super) failures: Option<(i32, i32)>,
}

/// The next step of a job.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) create: Vec<Fresh>,
    pub(super) delete: Vec<Arc<Pod>>,
    pub(super) status: JobStatus,
    /// Ended pods that `status` counts: they lose their finalizer once it is stored.
    pub(super) release: Vec<Arc<Pod>>,
    pub(super) events: Vec<(Severity, &'static str, String)>,
    pub(super) look_again: Option<Duration>,
    /// The back-off from now on, once `status` is stored.
    pub(super) record: Record,
}

fn has_condition(job: &Job, kind: &str) -> bool {
    job.status.iter().flat_map(|s| s.conditions.iter().flatten()).any(|c| c.type_ == kind && c.status == "True")
}

/// How the job has ended, if it has: `Complete` or `Failed`.
pub(super) fn end_of(job: &Job) -> Option<&'static str> {
    ["Complete", "Failed"].into_iter().find(|kind| has_condition(job, kind))
}

/// Whether the job has come to its end, well or not.
pub(super) fn is_finished(job: &Job) -> bool {
    end_of(job).is_some()
}

/// When it did.
pub(super) fn finished_at(job: &Job) -> Option<Timestamp> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let end = conditions.iter().find(|c| matches!(c.type_.as_str(), "Complete" | "Failed") && c.status == "True")?;
    end.last_transition_time.as_ref().map(|t| t.0)
}

/// A pod of the job, for one index if the job is indexed.
pub(super) fn pod(job: &Job, fresh: &Fresh) -> WholePod {
    let index = fresh.index;
    let template = job.spec.as_ref().map(|s| s.template.clone()).unwrap_or_default();
    let name = job.name_any();
    let prefix = index.map_or_else(|| name.clone(), |index| format!("{name}-{index}"));
    let mut pod =
        phase::from_template(&template, &prefix, &job.namespace().unwrap_or_default(), owners::reference_to(job));
    pod.metadata.finalizers.get_or_insert_default().push(TRACKING.to_owned());
    let Some(index) = index else { return pod };
    pod.metadata.annotations.get_or_insert_default().insert(INDEX.to_owned(), index.to_string());
    pod.metadata.labels.get_or_insert_default().insert(INDEX.to_owned(), index.to_string());
    if let Some((failures, ignored)) = fresh.failures {
        let notes = pod.metadata.annotations.get_or_insert_default();
        notes.insert(FAILURES.to_owned(), failures.to_string());
        if ignored > 0 {
            notes.insert(IGNORED.to_owned(), ignored.to_string());
        }
    }
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

/// Decides the next step of a job that has not ended. `known` is the back-off of the step before; after a restart it is
/// read off the pods that are there.
pub(super) fn plan(job: &Job, owned: &[Arc<Pod>], known: Option<&Record>, now: Timestamp) -> Plan {
    let spec = job.spec.clone().unwrap_or_default();
    let mut tally = tally::tally(job, owned);
    let suspended = is_suspended(job);
    let record = match known {
        Some(record) => record.after(&tally.new_successes, &tally.new_failures),
        None => Record::default().after(&tally.successes, &tally.failures),
    };
    let mut plan = Plan { status: status(job, &tally, now), record, ..Plan::default() };
    if tally.postponed {
        // The sums are not whole yet: count first, decide then.
        plan.release = tally.to_release();
        plan.look_again = Some(COUNT_ON);
        return plan;
    }
    let end = verdict(job, &tally, &plan.status, now);
    if let Some(end) = end {
        finish(job, &end, &mut tally, &mut plan, now);
        return plan;
    }
    plan.release = tally.to_release();
    suspend(job, &mut plan, now);
    if suspended || job.metadata.deletion_timestamp.is_some() {
        if suspended {
            plan.status.terminating = Some(plan.status.terminating.unwrap_or(0) + count(tally.active.len()));
            plan.delete = std::mem::take(&mut tally.active);
            (plan.status.active, plan.status.ready) = (None, Some(0));
        }
        return plan;
    }
    balance(job, &tally, &mut plan, now);
    if let (Some(limit), Some(start)) = (spec.active_deadline_seconds, &plan.status.start_time) {
        let left = limit - now.duration_since(start.0).as_secs();
        look_again(&mut plan, Duration::from_secs(u64::try_from(left.max(1)).unwrap_or(1)));
    }
    plan
}

fn count(n: usize) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

fn positive(n: i32) -> Option<i32> {
    (n > 0).then_some(n)
}

fn look_again(plan: &mut Plan, after: Duration) {
    plan.look_again = Some(plan.look_again.map_or(after, |other| other.min(after)));
}

/// Pods that the counts include but that have their finalizer still: seen again (a late cache, a crash), they are not
/// counted again.
fn still_tracked(counted: &[Arc<Pod>]) -> UncountedTerminatedPods {
    let (good, bad): (Vec<_>, Vec<_>) = counted.iter().partition(|pod| phase::phase(pod) == "Succeeded");
    let uids = |pods: Vec<&Arc<Pod>>| {
        Some(pods.iter().filter_map(|pod| pod.uid()).collect::<Vec<_>>()).filter(|uids| !uids.is_empty())
    };
    UncountedTerminatedPods { succeeded: uids(good), failed: uids(bad) }
}

fn is_suspended(job: &Job) -> bool {
    job.spec.as_ref().and_then(|s| s.suspend) == Some(true)
}

fn status(job: &Job, tally: &Tally, now: Timestamp) -> JobStatus {
    let suspended = is_suspended(job);
    let old = job.status.clone().unwrap_or_default();
    let ready = tally.active.iter().filter(|pod| phase::is_ready(pod)).count();
    let listed = |indexes: &BTreeSet<i32>| Some(format_indexes(indexes)).filter(|text| !text.is_empty());
    JobStatus {
        active: positive(count(tally.active.len())),
        ready: Some(count(ready)),
        succeeded: positive(tally.succeeded),
        failed: positive(tally.failed),
        terminating: Some(tally.terminating),
        completed_indexes: is_indexed(job).then(|| listed(&tally.completed)).flatten(),
        failed_indexes: tally::limit_per_index(job).and_then(|_| listed(&tally.failed_indexes)),
        start_time: old.start_time.clone().filter(|_| !suspended).or_else(|| (!suspended).then_some(Time(now))),
        uncounted_terminated_pods: Some(still_tracked(&tally.counted)),
        ..old
    }
}

/// Outcome of a job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Complete,
    Failed,
}

impl Outcome {
    /// The condition of a job that has come to its end.
    fn terminal(self) -> &'static str {
        match self {
            Outcome::Complete => "Complete",
            Outcome::Failed => "Failed",
        }
    }

    /// The condition of a job whose last pods are still ending.
    fn interim(self) -> &'static str {
        match self {
            Outcome::Complete => "SuccessCriteriaMet",
            Outcome::Failed => "FailureTarget",
        }
    }

    fn because(self, reason: &str, message: impl Into<String>) -> Option<End> {
        Some(End { outcome: self, reason: reason.to_owned(), message: message.into() })
    }
}

/// How a job ends.
struct End {
    outcome: Outcome,
    reason: String,
    message: String,
}

impl End {
    fn condition(&self, kind: &str, now: Timestamp) -> JobCondition {
        JobCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: Some(self.reason.clone()),
            message: Some(self.message.clone()),
            ..condition_at(now)
        }
    }
}

/// Whether the job ends now, or was found to end before. Spec: upstream's `syncJob`.
fn verdict(job: &Job, tally: &Tally, status: &JobStatus, now: Timestamp) -> Option<End> {
    let spec = job.spec.as_ref()?;
    for outcome in [Outcome::Failed, Outcome::Complete] {
        let mut conditions = job.status.iter().flat_map(|s| s.conditions.iter().flatten());
        if let Some(known) = conditions.find(|c| c.type_ == outcome.interim() && c.status == "True") {
            let reason = known.reason.as_deref().unwrap_or_default();
            return outcome.because(reason, known.message.clone().unwrap_or_default());
        }
    }
    if let Some(why) = &tally.job_failed {
        return Outcome::Failed.because("PodFailurePolicy", why.clone());
    }
    if tally.failed > spec.backoff_limit.unwrap_or(6) || restarts_exceed(job, tally) {
        return Outcome::Failed.because("BackoffLimitExceeded", "Job has reached the specified backoff limit");
    }
    if let (Some(limit), Some(start)) = (spec.active_deadline_seconds, &status.start_time)
        && now.duration_since(start.0).as_secs() >= limit
    {
        return Outcome::Failed.because("DeadlineExceeded", "Job was active longer than specified deadline");
    }
    if tally::limit_per_index(job).is_some() {
        let failed = count(tally.failed_indexes.len());
        if spec.max_failed_indexes.is_some_and(|max| failed > max) {
            let text = "Job has exceeded the specified maximal number of failed indexes";
            return Outcome::Failed.because("MaxFailedIndexesExceeded", text);
        }
        if failed > 0 && failed + tally.succeeded >= tally::completions(job) {
            return Outcome::Failed.because("FailedIndexes", "Job has failed indexes");
        }
    }
    if let Some(rule) = policy::success_rule(job, &tally.completed).filter(|_| is_indexed(job)) {
        return Outcome::Complete.because("SuccessPolicy", format!("Matched rules at index {rule}"));
    }
    let complete = match spec.completions {
        // A work queue: one success says that the queue is empty, the others may finish.
        None => tally.succeeded > 0 && tally.active.is_empty() && tally.terminating == 0,
        Some(wanted) => tally.succeeded >= wanted && tally.active.is_empty(),
    };
    let text = "Reached expected number of succeeded pods";
    complete.then(|| Outcome::Complete.because("CompletionsReached", text)).flatten()
}

/// Containers that restart in place count against the limit too.
fn restarts_exceed(job: &Job, tally: &Tally) -> bool {
    let Some(spec) = &job.spec else { return false };
    if spec.template.spec.as_ref().and_then(|s| s.restart_policy.as_deref()) != Some("OnFailure") {
        return false;
    }
    let of = |pod: &Arc<Pod>| -> i32 {
        let status = pod.status.iter();
        let all = status
            .flat_map(|s| s.container_statuses.iter().flatten().chain(s.init_container_statuses.iter().flatten()));
        all.map(|c| c.restart_count).sum()
    };
    let restarts: i32 = tally.active.iter().map(of).sum();
    match spec.backoff_limit.unwrap_or(6) {
        0 => restarts > 0,
        limit => restarts >= limit,
    }
}

fn condition_at(now: Timestamp) -> JobCondition {
    JobCondition { last_probe_time: Some(Time(now)), last_transition_time: Some(Time(now)), ..JobCondition::default() }
}

/// First `SuccessCriteriaMet` or `FailureTarget`; the terminal condition comes with the end of the last pod.
fn finish(job: &Job, end: &End, tally: &mut Tally, plan: &mut Plan, now: Timestamp) {
    plan.release.clone_from(&tally.counted);
    plan.delete = std::mem::take(&mut tally.active);
    if end.outcome == Outcome::Failed {
        // What a failed job stops has failed with it.
        plan.status.failed = positive(tally.failed + count(plan.delete.len()));
    }
    (plan.status.active, plan.status.ready) = (None, Some(0));
    plan.status.terminating = Some(tally.terminating + count(plan.delete.len()));
    let target = end.outcome.interim();
    let conditions = plan.status.conditions.get_or_insert_default();
    if !conditions.iter().any(|c| c.type_ == target && c.status == "True") {
        conditions.retain(|c| c.type_ != target);
        conditions.push(end.condition(target, now));
    }
    if !plan.delete.is_empty() || !plan.release.is_empty() || tally.terminating > 0 || end_of(job).is_some() {
        return;
    }
    conditions.push(end.condition(end.outcome.terminal(), now));
    if end.outcome == Outcome::Complete {
        plan.status.completion_time = Some(Time(now));
        plan.events.push((Severity::Normal, "Completed", "Job completed".to_owned()));
    } else {
        plan.events.push((Severity::Warning, known_reason(&end.reason), end.message.clone()));
    }
}

fn known_reason(reason: &str) -> &'static str {
    const ALL: [&str; 5] =
        ["PodFailurePolicy", "BackoffLimitExceeded", "DeadlineExceeded", "MaxFailedIndexesExceeded", "FailedIndexes"];
    ALL.into_iter().find(|known| *known == reason).unwrap_or("Failed")
}

fn suspend(job: &Job, plan: &mut Plan, now: Timestamp) {
    let suspended = is_suspended(job);
    let was = has_condition(job, "Suspended");
    if suspended == was {
        return;
    }
    let (status, reason, message) =
        if suspended { ("True", "JobSuspended", "Job suspended") } else { ("False", "JobResumed", "Job resumed") };
    let conditions = plan.status.conditions.get_or_insert_default();
    conditions.retain(|c| c.type_ != "Suspended");
    conditions.push(JobCondition {
        type_: "Suspended".to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        ..condition_at(now)
    });
    let event = if suspended { "Suspended" } else { "Resumed" };
    plan.events.push((Severity::Normal, event, message.to_owned()));
}

/// Makes or gives up pods until as many run as may.
fn balance(job: &Job, tally: &Tally, plan: &mut Plan, now: Timestamp) {
    let Some(spec) = &job.spec else { return };
    let parallelism = spec.parallelism.unwrap_or(1).max(0);
    let active = count(tally.active.len());
    let open = count(tally.failed_indexes.len());
    let wanted = match spec.completions {
        // After the first success of a work queue no new pods start.
        None if tally.succeeded > 0 => active.min(parallelism),
        None => parallelism,
        Some(completions) => parallelism.min(completions - tally.succeeded - open).max(0),
    };
    let surplus = surplus(job, tally, wanted);
    if !surplus.is_empty() {
        plan.delete = surplus;
        return;
    }
    let replaced_later = if tally::only_replaces_failed(job) { tally.terminating } else { 0 };
    let missing = usize::try_from(wanted - active - replaced_later).unwrap_or(0).min(BURST);
    if missing == 0 {
        return;
    }
    if tally::limit_per_index(job).is_some() {
        return by_index(job, tally, missing, plan, now);
    }
    if let Some(wait) = plan.record.left(now) {
        return look_again(plan, wait);
    }
    plan.create = if is_indexed(job) {
        let index = |index| Fresh { index: Some(index), failures: None };
        open_indexes(job, tally).take(missing).map(index).collect()
    } else {
        vec![Fresh::default(); missing]
    };
}

fn open_indexes<'a>(job: &Job, tally: &'a Tally) -> impl Iterator<Item = i32> + 'a {
    let running: BTreeSet<i32> = tally.active.iter().filter_map(|pod| index_of(pod)).collect();
    let closed = move |index: &i32| {
        running.contains(index) || tally.completed.contains(index) || tally.failed_indexes.contains(index)
    };
    (0..tally::completions(job)).filter(move |index| !closed(index))
}

/// Every index waits for itself after its failures.
fn by_index(job: &Job, tally: &Tally, missing: usize, plan: &mut Plan, now: Timestamp) {
    let last = tally::last_failures(&tally.failures);
    for index in open_indexes(job, tally) {
        if plan.create.len() == missing {
            break;
        }
        let Some(pod) = last.get(&index) else {
            plan.create.push(Fresh { index: Some(index), failures: Some((0, 0)) });
            continue;
        };
        let (mut failures, mut ignored) = (count_of(pod, FAILURES), count_of(pod, IGNORED));
        match policy::meaning(job, pod) {
            Meaning::Ignored => ignored += 1,
            _ => failures += 1,
        }
        match wait_after(ended_at(pod), failures.saturating_add(ignored), now) {
            Some(wait) => look_again(plan, wait),
            None => plan.create.push(Fresh { index: Some(index), failures: Some((failures, ignored)) }),
        }
    }
}

/// Pods too many: of an index that needs none, two of one index, and more than `wanted`.
fn surplus(job: &Job, tally: &Tally, wanted: i32) -> Vec<Arc<Pod>> {
    let (mut gone, mut rest): (Vec<Arc<Pod>>, Vec<Arc<Pod>>) = (Vec::new(), tally.active.clone());
    if is_indexed(job) {
        rest.sort_by_cached_key(|pod| std::cmp::Reverse(phase::is_ready(pod)));
        let (mut seen, end) = (BTreeSet::new(), tally::completions(job));
        let needed =
            |index: i32| index < end && !tally.completed.contains(&index) && !tally.failed_indexes.contains(&index);
        (rest, gone) =
            rest.into_iter().partition(|pod| index_of(pod).is_some_and(|index| needed(index) && seen.insert(index)));
    }
    let more = rest.len().saturating_sub(usize::try_from(wanted).unwrap_or(0));
    // In an indexed job the highest indexes go.
    let index_last_first = |pod: &Pod| std::cmp::Reverse(if is_indexed(job) { index_of(pod) } else { None });
    rest.sort_by_cached_key(|pod| (index_last_first(pod), phase::deletion_rank(pod, 0, phase::Ages::Exact)));
    gone.extend(rest.into_iter().take(more));
    gone
}
