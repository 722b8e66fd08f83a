//! The status of a Deployment and its conditions, with upstream's reasons and texts. Pure.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus, ReplicaSet};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::numbers;
use super::plan::{self, Sets};

/// The status that the sets amount to.
pub(super) fn status(deployment: &Deployment, sets: &Sets, now: Timestamp) -> DeploymentStatus {
    let sum = |of: &dyn Fn(&ReplicaSet) -> i32| sets.all().map(|set: &Arc<ReplicaSet>| of(set)).sum::<i32>();
    let (replicas, available) = (sum(&numbers::actual), sum(&numbers::available));
    let wanted = sum(&numbers::wanted);
    let some = |n: i32| (n != 0).then_some(n);
    let terminating = sum(&|set| set.status.as_ref().and_then(|s| s.terminating_replicas).unwrap_or(0));
    let old = deployment.status.clone().unwrap_or_default();
    let mut status = DeploymentStatus {
        observed_generation: deployment.metadata.generation,
        replicas: some(replicas),
        updated_replicas: some(sets.new.as_ref().map_or(0, |set| numbers::actual(set))),
        ready_replicas: some(sum(&numbers::ready)),
        available_replicas: some(available),
        unavailable_replicas: some((wanted - available).max(0)),
        terminating_replicas: Some(terminating),
        collision_count: old.collision_count,
        conditions: None,
    };
    let mut conditions = old.conditions.clone().unwrap_or_default();
    set(&mut conditions, available_condition(deployment, available), now);
    progress(deployment, sets, &old, &status, &mut conditions, now);
    replica_failure(sets, &mut conditions, now);
    status.conditions = Some(conditions);
    status
}

/// The reason of a rollout that has ended well.
const AVAILABLE: &str = "NewReplicaSetAvailable";

type Told = (&'static str, &'static str, &'static str, String);

/// Writes a condition; its transition time moves with its status only, its update time with any change.
fn set(conditions: &mut Vec<DeploymentCondition>, (type_, status, reason, message): Told, now: Timestamp) {
    let old = conditions.iter().find(|c| c.type_ == type_).cloned();
    let same = |old: &DeploymentCondition| {
        old.status == status && old.reason.as_deref() == Some(reason) && old.message.as_deref() == Some(&message)
    };
    if old.as_ref().is_some_and(same) {
        return;
    }
    let since = old.filter(|old| old.status == status).and_then(|old| old.last_transition_time);
    conditions.retain(|c| c.type_ != type_);
    conditions.push(DeploymentCondition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message),
        last_transition_time: since.or(Some(Time(now))),
        last_update_time: Some(Time(now)),
    });
}

fn available_condition(deployment: &Deployment, available: i32) -> Told {
    let minimum = numbers::replicas(deployment) - numbers::bounds(deployment).unavailable;
    if available >= minimum {
        ("Available", "True", "MinimumReplicasAvailable", "Deployment has minimum availability.".to_owned())
    } else {
        (
            "Available",
            "False",
            "MinimumReplicasUnavailable",
            "Deployment does not have minimum availability.".to_owned(),
        )
    }
}

fn progress(
    deployment: &Deployment,
    sets: &Sets,
    old: &DeploymentStatus,
    new: &DeploymentStatus,
    conditions: &mut Vec<DeploymentCondition>,
    now: Timestamp,
) {
    let spec = deployment.spec.clone().unwrap_or_default();
    let before = conditions.iter().find(|c| c.type_ == "Progressing").cloned();
    if spec.paused.unwrap_or(false) {
        let paused = ("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused".to_owned());
        return set(conditions, paused, now);
    }
    if spec.progress_deadline_seconds.is_none_or(|secs| secs == i32::MAX) {
        return conditions.retain(|c| c.type_ != "Progressing");
    }
    if before.as_ref().is_some_and(|c| c.reason.as_deref() == Some("DeploymentPaused")) {
        let resumed = ("Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed".to_owned());
        return set(conditions, resumed, now);
    }
    let subject = sets.new.as_ref().map_or_else(
        || format!("Deployment {:?}", deployment.name_any()),
        |set| format!("ReplicaSet {:?}", set.name_any()),
    );
    let reason = before.as_ref().and_then(|c| c.reason.as_deref());
    let done = format!("{subject} has successfully progressed.");
    let finished = before.as_ref().filter(|_| reason == Some(AVAILABLE));
    let same_rollout = finished.is_some_and(|c| c.message.as_deref() == Some(&done));
    // A rollout that has ended is not judged again: pods that come back, or more of them, are no rollout.
    if same_rollout && new.replicas == new.updated_replicas {
        return;
    }
    if plan::is_complete(deployment, sets) {
        return set(conditions, ("Progressing", "True", AVAILABLE, done), now);
    }
    if let (Some(finished), Some(new)) = (finished.filter(|_| !same_rollout), &sets.new) {
        return set(conditions, begun(finished, new), now);
    }
    if moved(old, new) || before.is_none() {
        let moving = ("Progressing", "True", "ReplicaSetUpdated", format!("{subject} is progressing."));
        // Progress restarts the clock of the deadline even if nothing else in the condition changes.
        conditions.retain(|c| c.type_ != "Progressing");
        set(conditions, moving, now);
        if let Some(since) = before.filter(|c| c.status == "True").and_then(|c| c.last_transition_time) {
            conditions
                .iter_mut()
                .filter(|c| c.type_ == "Progressing")
                .for_each(|c| c.last_transition_time = Some(since.clone()));
        }
        return;
    }
    let since = before.as_ref().and_then(|c| c.last_update_time.as_ref()).map_or(now, |t| t.0);
    let late = plan::deadline(deployment, since).is_some_and(|deadline| deadline <= now);
    if late && !matches!(reason, Some(AVAILABLE | "ProgressDeadlineExceeded")) {
        let stuck =
            ("Progressing", "False", "ProgressDeadlineExceeded", format!("{subject} has timed out progressing."));
        set(conditions, stuck, now);
    }
}

/// A rollout to another set than that of the last one: the clock of the deadline starts, whether the set gets a pod or
/// not.
fn begun(finished: &DeploymentCondition, new: &ReplicaSet) -> Told {
    let told = finished.last_update_time.as_ref().map(|t| t.0);
    let made = new.metadata.creation_timestamp.as_ref().map(|t| t.0);
    if made.map(Timestamp::as_second) >= told.map(Timestamp::as_second) {
        ("Progressing", "True", "NewReplicaSetCreated", format!("Created new replica set {:?}", new.name_any()))
    } else {
        ("Progressing", "True", "FoundNewReplicaSet", format!("Found new replica set {:?}", new.name_any()))
    }
}

/// The status after the API refused to make a set, with the event's text.
pub(super) fn create_failed(deployment: &Deployment, text: String, now: Timestamp) -> DeploymentStatus {
    let mut status = deployment.status.clone().unwrap_or_default();
    if deployment.spec.as_ref().and_then(|s| s.progress_deadline_seconds).is_some_and(|secs| secs != i32::MAX) {
        set(status.conditions.get_or_insert_default(), ("Progressing", "False", "ReplicaSetCreateError", text), now);
    }
    status
}

/// Whether the rollout came closer to its end. Spec: upstream's `DeploymentProgressing`.
fn moved(old: &DeploymentStatus, new: &DeploymentStatus) -> bool {
    let count = |n: Option<i32>| n.unwrap_or(0);
    let old_pods = |s: &DeploymentStatus| count(s.replicas) - count(s.updated_replicas);
    count(new.updated_replicas) > count(old.updated_replicas)
        || old_pods(new) < old_pods(old)
        || count(new.ready_replicas) > count(old.ready_replicas)
        || count(new.available_replicas) > count(old.available_replicas)
}

fn replica_failure(sets: &Sets, conditions: &mut Vec<DeploymentCondition>, now: Timestamp) {
    let failure = sets
        .all()
        .flat_map(|set| set.status.iter().flat_map(|s| s.conditions.iter().flatten()))
        .find(|c| c.type_ == "ReplicaFailure");
    match failure {
        Some(failure) => {
            let reason =
                if failure.reason.as_deref() == Some("FailedDelete") { "FailedDelete" } else { "FailedCreate" };
            set(conditions, ("ReplicaFailure", "True", reason, failure.message.clone().unwrap_or_default()), now);
        }
        None => conditions.retain(|c| c.type_ != "ReplicaFailure"),
    }
}
