//! The phase of a pod, as several controllers ask for it.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod as WholePod, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

use crate::pod::Pod;

/// The phase, empty if none was written yet.
pub fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|s| s.phase.as_deref()).unwrap_or_default()
}

/// Whether a pod in this phase has come to its end: none of its containers will start again.
pub fn is_terminal(phase: &str) -> bool {
    matches!(phase, "Succeeded" | "Failed")
}

/// Whether the pod has come to its end.
pub fn has_ended(pod: &Pod) -> bool {
    is_terminal(phase(pod))
}

/// Neither ended nor being deleted.
pub fn is_active(pod: &Pod) -> bool {
    !has_ended(pod) && pod.metadata.deletion_timestamp.is_none()
}

/// Since when the pod is ready; `None` if it is not.
pub fn ready_since(pod: &Pod) -> Option<Timestamp> {
    let conditions = pod.status.as_ref()?.conditions.as_deref()?;
    let ready = conditions.iter().find(|c| c.type_ == "Ready" && c.status == "True")?;
    Some(ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0))
}

/// Whether the pod is ready.
pub fn is_ready(pod: &Pod) -> bool {
    ready_since(pod).is_some()
}

/// Whether the pod has been ready for `min_ready_secs`.
pub fn is_available(pod: &Pod, min_ready_secs: i32, now: Timestamp) -> bool {
    let Some(since) = ready_since(pod) else { return false };
    min_ready_secs == 0 || now.duration_since(since).as_secs() >= i64::from(min_ready_secs)
}

/// A pod made from a template: its name is generated from `prefix`, its controller is `owner`.
pub fn from_template(template: &PodTemplateSpec, prefix: &str, namespace: &str, owner: OwnerReference) -> WholePod {
    let from = template.metadata.clone().unwrap_or_default();
    let mut pod = WholePod { spec: template.spec.clone(), ..WholePod::default() };
    pod.metadata.generate_name = Some(generate_prefix(prefix));
    pod.metadata.namespace = Some(namespace.to_owned());
    pod.metadata.labels = from.labels;
    pod.metadata.annotations = from.annotations;
    pod.metadata.finalizers = from.finalizers;
    pod.metadata.owner_references = Some(vec![owner]);
    pod
}

/// `name-`, or `name` where the dash would make it an invalid prefix of a pod's name (upstream's rule: 253 characters).
fn generate_prefix(name: &str) -> String {
    if name.len() < 253 { format!("{name}-") } else { name.to_owned() }
}

/// The order in which pods are given up: those that lose least come first. Spec: upstream's `ActivePodsWithRanks`.
///
/// `crowd` counts related pods on the same node: from a fuller node first.
pub fn deletion_rank(pod: &Pod, crowd: usize, ages: Ages) -> impl Ord + use<> {
    let unassigned = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or_default().is_empty();
    let phase = match phase(pod) {
        "Pending" => 0,
        "Running" => 2,
        _ => 1,
    };
    let cost = pod.metadata.annotations.as_ref().and_then(|a| a.get("controller.kubernetes.io/pod-deletion-cost"));
    let cost: i32 = cost.and_then(|c| c.parse().ok()).unwrap_or(0);
    let restarts = pod
        .status
        .iter()
        .flat_map(|s| s.container_statuses.iter().flatten())
        .map(|c| c.restart_count)
        .max()
        .unwrap_or(0);
    let newest_first = |t: Option<Timestamp>| match ages {
        Ages::Exact => std::cmp::Reverse(t.map_or(i64::MAX, Timestamp::as_second)),
        Ages::Doubling(now) => std::cmp::Reverse(t.map_or(i64::MAX, |t| -doublings(t, now))),
    };
    let created = pod.metadata.creation_timestamp.as_ref().map(|t| t.0);
    (
        !unassigned,
        phase,
        is_ready(pod),
        cost,
        std::cmp::Reverse(crowd),
        newest_first(ready_since(pod)),
        std::cmp::Reverse(restarts),
        newest_first(created),
        // Among pods of about the same age the uid is as good as chance, and the same at each look.
        matches!(ages, Ages::Doubling(_)).then(|| pod.metadata.uid.clone()),
    )
}

/// How ages are compared when pods are given up.
#[derive(Clone, Copy, Debug)]
pub enum Ages {
    /// To the second.
    Exact,
    /// By how often they have doubled until this moment (upstream's LogarithmicScaleDown): else the pods of one moment,
    /// often those of one zone, always go together.
    Doubling(Timestamp),
}

fn doublings(since: Timestamp, now: Timestamp) -> i64 {
    let age = now.duration_since(since).as_nanos();
    u128::try_from(age).ok().and_then(u128::checked_ilog2).map_or(-1, i64::from)
}
