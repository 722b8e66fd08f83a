//! How long a job's next pod waits: 10 s after the first failure since the last success, then doubled. Pure.
//!
//! Spec: upstream's `pkg/controller/job/backoff_utils.go` (1.36.2). Failures that a policy ignores wait as all others
//! do: they are not held against the job, and would else come again as fast as pods can be made.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use model::pod::{ContainerStatus, Pod};

/// After a failure the next pod waits 10 s, 20 s, 40 s, … up to ten minutes.
const FIRST_SECS: u64 = 10;
const MAX_SECS: u64 = 600;

/// Record by which a job backs off.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Since the last success.
    failures: i32,
    last_failure: Option<Timestamp>,
}

impl Record {
    /// With pods that have ended since: a success makes good all failures before it.
    pub(super) fn after(&self, succeeded: &[Arc<Pod>], failed: &[Arc<Pod>]) -> Record {
        let last_success = succeeded.iter().map(|pod| ended_at(pod)).max();
        let mut record = if last_success.is_some() { Record::default() } else { self.clone() };
        let counts =
            failed.iter().map(|pod| ended_at(pod)).filter(|ended| last_success.is_none_or(|success| *ended > success));
        for ended in counts {
            record.failures = record.failures.saturating_add(1);
            record.last_failure = record.last_failure.max(Some(ended));
        }
        record
    }

    /// The rest of the wait; `None` if it is over.
    pub(super) fn left(&self, now: Timestamp) -> Option<Duration> {
        wait_after(self.last_failure?, self.failures, now)
    }
}

/// The rest of the wait after the `failures`-th failure.
pub(super) fn wait_after(last: Timestamp, failures: i32, now: Timestamp) -> Option<Duration> {
    let shift = u32::try_from(failures.checked_sub(1).filter(|n| *n >= 0)?).unwrap_or(0).min(10);
    let wait = (FIRST_SECS << shift).min(MAX_SECS);
    let passed = u64::try_from(now.duration_since(last).as_secs()).unwrap_or(0);
    (passed < wait).then(|| Duration::from_secs(wait - passed))
}

/// When a pod ended: its last container, or when it stopped being ready, or when it was told to go, or else when it was
/// made.
pub(super) fn ended_at(pod: &Pod) -> Timestamp {
    let deleted = || {
        let grace = SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        pod.metadata.deletion_timestamp.as_ref().map(|at| at.0.saturating_sub(grace).unwrap_or(at.0))
    };
    let made = || pod.metadata.creation_timestamp.as_ref().map(|at| at.0);
    containers_ended_at(pod).or_else(|| unready_at(pod)).or_else(deleted).or_else(made).unwrap_or(Timestamp::UNIX_EPOCH)
}

/// The end of the last container; sidecars end after the others. `None` while one runs.
fn containers_ended_at(pod: &Pod) -> Option<Timestamp> {
    let status = pod.status.as_ref()?;
    let inits = pod.spec.iter().flat_map(|spec| spec.init_containers.iter().flatten());
    let sidecars: Vec<&str> =
        inits.filter(|c| c.restart_policy.as_deref() == Some("Always")).map(|c| c.name.as_str()).collect();
    let beside = status.init_container_statuses.iter().flatten().filter(|c| sidecars.contains(&c.name.as_str()));
    let end = |c: &ContainerStatus| Some(c.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref()?.0);
    let ends: Option<Vec<Timestamp>> = status.container_statuses.iter().flatten().chain(beside).map(end).collect();
    ends?.into_iter().max()
}

fn unready_at(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready" && c.status == "False")?;
    ready.last_transition_time.as_ref().map(|at| at.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ended(at: i64) -> Arc<Pod> {
        let at = Timestamp::from_second(at).unwrap();
        let state = json!({"terminated": {"exitCode": 1, "finishedAt": at}});
        let status = json!({"containerStatuses": [{"name": "c", "restartCount": 0, "state": state}]});
        Arc::new(serde_json::from_value(json!({"metadata": {}, "status": status})).unwrap())
    }

    fn left(record: &Record, now: i64) -> Option<u64> {
        record.left(Timestamp::from_second(now).unwrap()).map(|left| left.as_secs())
    }

    // Semantics H4: the exponent was the number of failures of the whole job, and stayed when pods succeeded.
    #[test]
    fn failures_since_the_last_success_count_and_a_success_makes_them_good() {
        let failures = Record::default().after(&[], &[ended(10), ended(12), ended(11)]);
        assert_eq!((left(&failures, 13), left(&failures, 52)), (Some(39), None));
        assert_eq!(failures.after(&[ended(20)], &[]), Record::default());
        let since = failures.after(&[ended(20)], &[ended(19), ended(25)]);
        assert_eq!(left(&since, 26), Some(9));
        assert_eq!(left(&since.after(&[], &[ended(40)]), 40), Some(20));
        let long = (0..40).fold(Record::default(), |record, n| record.after(&[], &[ended(n)]));
        assert_eq!(left(&long, 39), Some(MAX_SECS));
    }

    #[test]
    fn a_pod_that_ended_unseen_ended_when_it_was_told_to_go() {
        let gone = json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:05Z",
            "deletionTimestamp": "1970-01-01T00:01:40Z",
            "deletionGracePeriodSeconds": 30}});
        let mut gone: Pod = serde_json::from_value(gone).unwrap();
        assert_eq!(ended_at(&gone).as_second(), 70);
        gone.metadata.deletion_timestamp = None;
        assert_eq!(ended_at(&gone).as_second(), 5);
    }
}
