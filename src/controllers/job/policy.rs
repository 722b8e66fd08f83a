//! Verdicts of `podFailurePolicy` on a failed pod, and of `successPolicy` on the indexes that have succeeded. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::batch::v1::{
    Job, PodFailurePolicyOnExitCodesRequirement, PodFailurePolicyOnPodConditionsPattern,
};
use kube::ResourceExt as _;
use model::pod::{ContainerStatus, Pod};

use super::indexes;

/// Meaning of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// It counts against the limits.
    Counts,
    /// It counts for nothing: the pod comes again.
    Ignored,
    /// Its index has failed for good.
    FailsIndex,
    /// The job has failed, with this message.
    FailsJob(String),
}

/// The meaning of a failed pod by the first rule that matches. Spec: upstream's `matchPodFailurePolicy`.
pub(super) fn meaning(job: &Job, pod: &Pod) -> Meaning {
    let Some(policy) = job.spec.as_ref().and_then(|s| s.pod_failure_policy.as_ref()) else { return Meaning::Counts };
    let key = || format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    for (n, rule) in policy.rules.iter().enumerate() {
        let by_exit = rule.on_exit_codes.as_ref().and_then(|wanted| exit(pod, wanted));
        let by_condition = rule.on_pod_conditions.as_ref().and_then(|wanted| condition(pod, wanted));
        let why = match (by_exit, by_condition) {
            (Some((container, code)), _) => {
                format!(
                    "Container {container} for pod {} failed with exit code {code} matching {} rule at index {n}",
                    key(),
                    rule.action
                )
            }
            (None, Some(kind)) => {
                format!("Pod {} has condition {kind} matching {} rule at index {n}", key(), rule.action)
            }
            (None, None) => continue,
        };
        match rule.action.as_str() {
            "Ignore" => return Meaning::Ignored,
            "FailIndex" => return Meaning::FailsIndex,
            "FailJob" => return Meaning::FailsJob(why),
            "Count" => return Meaning::Counts,
            // A word of a later release: as if the rule were not there.
            _ => {}
        }
    }
    Meaning::Counts
}

fn exit(pod: &Pod, wanted: &PodFailurePolicyOnExitCodesRequirement) -> Option<(String, i32)> {
    let status = pod.status.as_ref()?;
    let matches = |container: &ContainerStatus| {
        let code = container.state.as_ref()?.terminated.as_ref().map(|t| t.exit_code).filter(|code| *code != 0)?;
        let listed = wanted.values.contains(&code);
        let named = wanted.container_name.as_ref().is_none_or(|name| *name == container.name);
        (named && listed == (wanted.operator == "In")).then(|| (container.name.clone(), code))
    };
    let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    all.filter_map(matches).next()
}

fn condition(pod: &Pod, wanted: &[PodFailurePolicyOnPodConditionsPattern]) -> Option<String> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let meets = |w: &&PodFailurePolicyOnPodConditionsPattern| {
        conditions.iter().any(|c| c.type_ == w.type_ && c.status == w.status.as_deref().unwrap_or("True"))
    };
    wanted.iter().find(meets).map(|w| w.type_.clone())
}

/// The number of the first rule of `successPolicy` that `completed` meets.
pub(super) fn success_rule(job: &Job, completed: &BTreeSet<i32>) -> Option<usize> {
    let spec = job.spec.as_ref()?;
    let count = |indexes: usize| i32::try_from(indexes).unwrap_or(i32::MAX);
    spec.success_policy.as_ref()?.rules.iter().position(|rule| match (&rule.succeeded_indexes, rule.succeeded_count) {
        (Some(text), wanted) => {
            let required = indexes::parse_indexes(text, spec.completions.unwrap_or(0));
            let met = count(required.intersection(completed).count());
            met >= wanted.unwrap_or_else(|| count(required.len()))
        }
        (None, Some(wanted)) => count(completed.len()) >= wanted,
        (None, None) => false,
    })
}
