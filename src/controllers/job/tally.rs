//! How the pods of a job stand, together with what its status has counted before. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use model::phase;
use model::pod::Pod;

use super::backoff::ended_at;
use super::indexes::{self, FAILURES, index_of};
use super::plan::TRACKING;
use super::policy::{self, Meaning};

/// Ended pods that a status names at once: each takes some 40 bytes of an object of bounded size (upstream's
/// `MaxUncountedPods`).
const UNCOUNTED_MAX: usize = 500;

/// The sums.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) active: Vec<Arc<Pod>>,
    pub(super) succeeded: i32,
    pub(super) failed: i32,
    pub(super) completed: BTreeSet<i32>,
    pub(super) failed_indexes: BTreeSet<i32>,
    /// All failed pods that are still there.
    pub(super) failures: Vec<Arc<Pod>>,
    /// All succeeded ones.
    pub(super) successes: Vec<Arc<Pod>>,
    /// Of both, those that no status has counted before, whether they count for the job or not.
    pub(super) new_failures: Vec<Arc<Pod>>,
    pub(super) new_successes: Vec<Arc<Pod>>,
    /// More pods have ended than a status can name: some are in no sum yet.
    pub(super) postponed: bool,
    pub(super) terminating: i32,
    /// Ended pods that the sums include and that have their finalizer still.
    pub(super) counted: Vec<Arc<Pod>>,
    /// Of these, those that must stay until their index has a new pod: they know how often it has failed.
    pub(super) held: BTreeSet<String>,
    /// A rule says that the job has failed.
    pub(super) job_failed: Option<String>,
}

impl Tally {
    /// Pods whose end is counted, and that nobody has to ask any more.
    pub(super) fn to_release(&self) -> Vec<Arc<Pod>> {
        self.counted.iter().filter(|pod| !self.held.contains(&pod.uid().unwrap_or_default())).cloned().collect()
    }
}

pub(super) fn is_indexed(job: &Job) -> bool {
    job.spec.as_ref().and_then(|s| s.completion_mode.as_deref()) == Some("Indexed")
}

/// The number of completions, where indexes end.
pub(super) fn completions(job: &Job) -> i32 {
    job.spec.as_ref().and_then(|s| s.completions).unwrap_or(0)
}

pub(super) fn limit_per_index(job: &Job) -> Option<i32> {
    job.spec.as_ref().and_then(|s| s.backoff_limit_per_index)
}

/// Whether a pod is replaced only when it has ended, and not when it begins to end.
pub(super) fn only_replaces_failed(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    spec.is_some_and(|s| s.pod_replacement_policy.as_deref() == Some("Failed") || s.pod_failure_policy.is_some())
}

/// Whether a pod is counted as failed. Spec: upstream's `isPodFailed`.
fn is_failed(job: &Job, pod: &Pod) -> bool {
    let phase = phase::phase(pod);
    let leaving = pod.metadata.deletion_timestamp.is_some() && phase != "Succeeded";
    phase == "Failed" || leaving && !only_replaces_failed(job)
}

fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|f| f == TRACKING)
}

pub(super) fn tally(job: &Job, owned: &[Arc<Pod>]) -> Tally {
    let old = job.status.clone().unwrap_or_default();
    let uncounted = old.uncounted_terminated_pods.unwrap_or_default();
    let mut known: BTreeSet<String> = uncounted.succeeded.into_iter().flatten().collect();
    known.extend(uncounted.failed.into_iter().flatten());
    let (indexed, end) = (is_indexed(job), completions(job));
    let listed = |text: Option<String>| indexes::parse_indexes(&text.unwrap_or_default(), end);
    let mut t = Tally {
        succeeded: old.succeeded.unwrap_or(0),
        failed: old.failed.unwrap_or(0),
        completed: listed(old.completed_indexes),
        failed_indexes: listed(old.failed_indexes),
        // Without its finalizer a pod on its way out is one that we gave up ourselves.
        failures: owned
            .iter()
            .filter(|pod| phase::phase(pod) == "Failed" || is_tracked(pod) && is_failed(job, pod))
            .cloned()
            .collect(),
        successes: owned.iter().filter(|pod| phase::phase(pod) == "Succeeded").cloned().collect(),
        ..Tally::default()
    };
    // Those that were counted and still have their finalizer: without it they leave the status.
    let n_known = owned.iter().filter(|pod| known.contains(&pod.uid().unwrap_or_default()) && is_tracked(pod)).count();
    let mut room = if limit_per_index(job).is_some() { UNCOUNTED_MAX } else { UNCOUNTED_MAX.saturating_sub(n_known) };
    for pod in owned {
        let tracked = is_tracked(pod);
        let new = tracked && !known.contains(&pod.uid().unwrap_or_default());
        let terminating = pod.metadata.deletion_timestamp.is_some();
        let counts_for_job = !indexed || index_of(pod).is_some_and(|index| index < end);
        let ended = phase::has_ended(pod);
        let succeeded = phase::phase(pod) == "Succeeded";
        if new && (succeeded || is_failed(job, pod)) {
            if room == 0 {
                t.postponed = true;
                continue;
            }
            room -= 1;
            if succeeded { &mut t.new_successes } else { &mut t.new_failures }.push(Arc::clone(pod));
        }
        if tracked && succeeded {
            if new && counts_for_job {
                // Two pods of one index count once.
                t.succeeded += i32::from(!indexed || index_of(pod).is_some_and(|index| t.completed.insert(index)));
            }
            t.counted.push(Arc::clone(pod));
        } else if tracked && is_failed(job, pod) {
            let meaning = policy::meaning(job, pod);
            t.failed += i32::from(new && counts_for_job && meaning != Meaning::Ignored);
            judge_failure(job, pod, &meaning, &mut t);
            t.counted.push(Arc::clone(pod));
        }
        match (ended, terminating) {
            (true, _) => {}
            (false, true) => t.terminating += 1,
            (false, false) => t.active.push(Arc::clone(pod)),
        }
    }
    if indexed {
        t.succeeded = i32::try_from(t.completed.len()).unwrap_or(i32::MAX);
        t.failed_indexes.retain(|index| !t.completed.contains(index));
    }
    hold(job, &mut t);
    t
}

/// Takes in what a failure means beyond its number: the end of the job, or of its index.
fn judge_failure(job: &Job, pod: &Pod, meaning: &Meaning, t: &mut Tally) {
    match meaning {
        Meaning::FailsJob(why) => t.job_failed = t.job_failed.take().or_else(|| Some(why.clone())),
        Meaning::Ignored => return,
        Meaning::Counts | Meaning::FailsIndex => {}
    }
    if let (Some(limit), Some(index)) = (limit_per_index(job), index_of(pod))
        && (*meaning == Meaning::FailsIndex || indexes::count_of(pod, FAILURES) >= limit)
        && index < completions(job)
    {
        t.failed_indexes.insert(index);
    }
}

/// The newest failed pod of each index of `counted`; the failures of an index stand on its pods.
pub(super) fn last_failures(failures: &[Arc<Pod>]) -> BTreeMap<i32, Arc<Pod>> {
    let mut last: BTreeMap<i32, Arc<Pod>> = BTreeMap::new();
    let rank = |pod: &Pod| (indexes::count_of(pod, FAILURES) + indexes::count_of(pod, indexes::IGNORED), ended_at(pod));
    for pod in failures {
        let Some(index) = index_of(pod) else { continue };
        if last.get(&index).is_none_or(|other| rank(other) < rank(pod)) {
            last.insert(index, Arc::clone(pod));
        }
    }
    last
}

fn hold(job: &Job, t: &mut Tally) {
    if limit_per_index(job).is_none() {
        return;
    }
    let running: BTreeSet<i32> = t.active.iter().filter_map(|pod| index_of(pod)).collect();
    let failed: Vec<Arc<Pod>> = t.counted.iter().filter(|pod| phase::phase(pod) != "Succeeded").cloned().collect();
    for (index, pod) in last_failures(&failed) {
        if !running.contains(&index) && !t.completed.contains(&index) && !t.failed_indexes.contains(&index) {
            t.held.insert(pod.uid().unwrap_or_default());
        }
    }
}
