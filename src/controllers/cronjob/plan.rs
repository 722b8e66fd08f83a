//! Which job a CronJob starts now, and which of its jobs it forgets. Pure.

use std::sync::Arc;
use std::time::Duration;

use base::cron::Schedule;
use client::events::Severity;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use model::owners;

use crate::job;

/// More missed starts than this are worth a warning.
const MISSED_MAX: i64 = 100;
/// The next look is this much after the next start, so that rounding never makes it too early.
const AFTER_START: Duration = Duration::from_millis(100);
const SCHEDULED_AT: &str = "batch.kubernetes.io/cronjob-scheduled-timestamp";

/// An event about a CronJob.
pub(super) type Told = (Severity, &'static str, String);

/// The next steps.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) status: CronJobStatus,
    pub(super) events: Vec<Told>,
    /// Running jobs that give way to the new one.
    pub(super) replace: Vec<Arc<Job>>,
    /// Ended jobs beyond the limits.
    pub(super) forget: Vec<Arc<Job>>,
    /// The start whose job is to be made.
    pub(super) start: Option<Timestamp>,
    pub(super) look_again: Option<Duration>,
}

fn told(severity: Severity, reason: &'static str, text: impl Into<String>) -> Told {
    (severity, reason, text.into())
}

/// Decides. `jobs` are the CronJob's own; `local` counts where the spec names no zone.
pub(super) fn plan(cron: &CronJob, jobs: &[Arc<Job>], local: &TimeZone, now: Timestamp) -> Plan {
    let mut plan = Plan { status: cron.status.clone().unwrap_or_default(), ..Plan::default() };
    take_stock(jobs, &mut plan);
    plan.forget = beyond_limits(cron, jobs);
    let spec = &cron.spec;
    if spec.suspend == Some(true) || cron.metadata.deletion_timestamp.is_some() {
        return plan;
    }
    let zone = match spec.time_zone.as_deref().map_or(Ok(local.clone()), TimeZone::get) {
        Ok(zone) => zone,
        Err(err) => {
            let name = spec.time_zone.as_deref().unwrap_or_default();
            plan.events.push(told(Severity::Warning, "UnknownTimeZone", format!("invalid timeZone: {name:?}: {err}")));
            return plan;
        }
    };
    let schedule = match Schedule::parse(&spec.schedule) {
        Ok(schedule) => schedule,
        Err(why) => {
            let text = format!("unparseable schedule: {:?} : {why}", spec.schedule);
            plan.events.push(told(Severity::Warning, "UnparseableSchedule", text));
            return plan;
        }
    };
    let Some(due) = most_recent(earliest(cron, now), &schedule, &zone, now) else {
        let text = format!("invalid schedule: {} : it never comes", spec.schedule);
        plan.events.push(told(Severity::Warning, "InvalidSchedule", text));
        return plan;
    };
    plan.look_again =
        next_start(cron, &schedule, &zone, now).map(|next| next.duration_since(now).unsigned_abs() + AFTER_START);
    if due.missed > MISSED_MAX {
        let text = "too many missed start times. Set or decrease .spec.startingDeadlineSeconds or check clock skew";
        plan.events.push(told(Severity::Warning, "TooManyMissedTimes", text));
    }
    if let Some(at) = due.at {
        begin(cron, jobs, at, now, &mut plan);
    }
    plan
}

/// Whether the start at `at` makes a job.
fn begin(cron: &CronJob, jobs: &[Arc<Job>], at: Timestamp, now: Timestamp, plan: &mut Plan) {
    let spec = &cron.spec;
    let name = job_name(cron, at);
    let started = plan.status.active.iter().flatten().any(|job| job.name.as_deref() == Some(&name));
    if started || plan.status.last_schedule_time.as_ref().is_some_and(|last| last.0 == at) {
        return;
    }
    let deadline = spec.starting_deadline_seconds.and_then(|secs| at.checked_add(SignedDuration::from_secs(secs)).ok());
    if deadline.is_some_and(|deadline| deadline < now) {
        let text = format!("Missed scheduled time to start a job: {}", at.strftime("%a, %d %b %Y %H:%M:%S +0000"));
        plan.events.push(told(Severity::Warning, "MissSchedule", text));
        return;
    }
    let active = plan.status.active.iter().flatten().count();
    match spec.concurrency_policy.as_deref() {
        Some("Forbid") if active > 0 => {
            let text = "Not starting job because prior execution is running and concurrency policy is Forbid";
            plan.events.push(told(Severity::Normal, "JobAlreadyActive", text));
            return;
        }
        Some("Replace") => {
            let is_active = |job: &Arc<Job>| plan.status.active.iter().flatten().any(|r| r.uid == job.uid());
            plan.replace = jobs.iter().filter(|job| is_active(job)).cloned().collect();
            plan.status.active = None;
        }
        _ => {}
    }
    plan.start = Some(at);
}

/// Compares the list of active jobs with the jobs that are.
fn take_stock(jobs: &[Arc<Job>], plan: &mut Plan) {
    let mut active = plan.status.active.take().unwrap_or_default();
    for job in jobs {
        let listed = active.iter().any(|r| r.uid == job.uid());
        let end = job::finished_condition(job);
        match (listed, end) {
            (false, None) => {
                let text = format!("Saw a job that the controller did not create or forgot: {}", job.name_any());
                plan.events.push(told(Severity::Warning, "UnexpectedJob", text));
            }
            (true, Some(condition)) => {
                active.retain(|r| r.uid != job.uid());
                let text = format!("Saw completed job: {}, condition: {condition}", job.name_any());
                plan.events.push(told(Severity::Normal, "SawCompletedJob", text));
            }
            _ => {}
        }
        let completed = job.status.as_ref().and_then(|s| s.completion_time.clone()).filter(|_| end == Some("Complete"));
        if completed.as_ref().map(|t| t.0) > plan.status.last_successful_time.as_ref().map(|t| t.0) {
            plan.status.last_successful_time = completed;
        }
    }
    let gone: Vec<_> = active.iter().filter(|r| !jobs.iter().any(|job| job.uid() == r.uid)).cloned().collect();
    for reference in gone {
        let text = format!("Active job went missing: {}", reference.name.clone().unwrap_or_default());
        plan.events.push(told(Severity::Normal, "MissingJob", text));
        active.retain(|r| r.uid != reference.uid);
    }
    plan.status.active = Some(active).filter(|active| !active.is_empty());
}

fn beyond_limits(cron: &CronJob, jobs: &[Arc<Job>]) -> Vec<Arc<Job>> {
    let spec = &cron.spec;
    let oldest = |end: &str, limit: Option<i32>| -> Vec<Arc<Job>> {
        let Some(limit) = limit.and_then(|n| usize::try_from(n).ok()) else { return Vec::new() };
        let ended = jobs
            .iter()
            .filter(|job| job::finished_condition(job) == Some(end) && job.metadata.deletion_timestamp.is_none());
        let mut ended: Vec<Arc<Job>> = ended.cloned().collect();
        ended.sort_by_key(|job| (job.status.as_ref().and_then(|s| s.start_time.clone()).map(|t| t.0), job.name_any()));
        let n = ended.len().saturating_sub(limit);
        ended.truncate(n);
        ended
    };
    let mut all = oldest("Complete", spec.successful_jobs_history_limit);
    all.extend(oldest("Failed", spec.failed_jobs_history_limit));
    all
}

/// The last start that should have been, and how many were missed about.
struct Due {
    at: Option<Timestamp>,
    missed: i64,
}

/// The last start, or else when the CronJob was made.
fn begun(cron: &CronJob, now: Timestamp) -> Timestamp {
    let last = cron.status.as_ref().and_then(|s| s.last_schedule_time.as_ref()).map(|t| t.0);
    last.unwrap_or_else(|| cron.metadata.creation_timestamp.as_ref().map_or(now, |t| t.0))
}

/// Starts before this are not made up for.
fn earliest(cron: &CronJob, now: Timestamp) -> Timestamp {
    let deadline = cron.spec.starting_deadline_seconds.map(SignedDuration::from_secs);
    let deadline = deadline.map_or(Timestamp::MIN, |deadline| now.checked_sub(deadline).unwrap_or(Timestamp::MIN));
    begun(cron, now).max(deadline)
}

/// The start after `now`, counted from the last one: `@every 1h` comes an hour after that, however often this process
/// begins anew. Spec: upstream's `nextScheduleTimeDuration` (1.36.2).
fn next_start(cron: &CronJob, schedule: &Schedule, zone: &TimeZone, now: Timestamp) -> Option<Timestamp> {
    let begun = begun(cron, now);
    let last = most_recent(begun, schedule, zone, now)?.at.unwrap_or(begun);
    schedule.next(last, zone).filter(|next| *next > now).or_else(|| schedule.next(now, zone))
}

/// Spec: upstream's `mostRecentScheduleTime`. `None`: the schedule never comes.
fn most_recent(earliest: Timestamp, schedule: &Schedule, zone: &TimeZone, now: Timestamp) -> Option<Due> {
    let first = schedule.next(earliest, zone)?;
    let second = schedule.next(first, zone)?;
    if now < first {
        return Some(Due { at: None, missed: 0 });
    }
    if now < second {
        return Some(Due { at: Some(first), missed: 0 });
    }
    let between = second.duration_since(first).as_secs().max(1);
    let missed = now.duration_since(first).as_secs() / between + 1;
    // Not one by one from the first: after a year of sleep that would be many. Irregular schedules need the step back.
    let from = first.checked_add(SignedDuration::from_secs((missed - 2) * between)).ok()?;
    let (mut at, mut next) = (None, schedule.next(from, zone));
    while let Some(time) = next.filter(|time| *time <= now) {
        at = Some(time);
        next = schedule.next(time, zone);
    }
    Some(Due { at, missed })
}

/// The name says which start a job belongs to, so that no start makes two.
pub(super) fn job_name(cron: &CronJob, at: Timestamp) -> String {
    format!("{}-{}", cron.name_any(), at.as_second() / 60)
}

/// The job of a start.
pub(super) fn job(cron: &CronJob, local: &TimeZone, at: Timestamp) -> Job {
    let spec = cron.spec.clone();
    let zone = spec.time_zone.as_deref().and_then(|name| TimeZone::get(name).ok()).unwrap_or_else(|| local.clone());
    let here = at.to_zoned(zone);
    let text = if here.offset().is_zero() {
        base::time::rfc3339_secs(at)
    } else {
        here.strftime("%Y-%m-%dT%H:%M:%S%:z").to_string()
    };
    let from = spec.job_template.metadata.unwrap_or_default();
    let mut job = Job { spec: spec.job_template.spec, ..Job::default() };
    job.metadata.name = Some(job_name(cron, at));
    job.metadata.namespace = cron.namespace();
    job.metadata.labels = from.labels;
    job.metadata.annotations = from.annotations;
    job.metadata.annotations.get_or_insert_default().insert(SCHEDULED_AT.to_owned(), text);
    job.metadata.owner_references = Some(vec![owners::reference_to(cron)]);
    job
}

/// The status after the job of `at` was made.
pub(super) fn started(status: &mut CronJobStatus, job: &Job, at: Timestamp) {
    use kube::Resource as _;
    let mut reference = job.object_ref(&());
    reference.resource_version = job.resource_version();
    let active = status.active.get_or_insert_default();
    if !active.iter().any(|r| r.uid == reference.uid) {
        active.push(reference);
    }
    status.last_schedule_time = Some(Time(at));
}
