//! The kinds of batch.

use crate::behaviour::Object;
use crate::defaults::{at, each, put_zero};

pub(crate) mod cron_job;
pub(crate) mod job;

/// A condition of a pod is meant to be true.
pub(super) fn failure_policy(job: &mut Object) {
    if let Some(policy) = at(job, "podFailurePolicy") {
        for rule in each(policy, "rules") {
            each(rule, "onPodConditions").for_each(|c| put_zero(c, "status", "True"));
        }
    }
}
