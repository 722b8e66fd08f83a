//! The arithmetic of a rollout: how many pods more or fewer at a time.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// Bounds of a rolling update in pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Pods above the wanted number.
    pub(super) surge: i32,
    /// Pods that may be missing.
    pub(super) unavailable: i32,
}

/// Resolves percentages: surge rounds up, unavailable down; both zero would never move, so one may be missing then.
pub(super) fn bounds(deployment: &Deployment) -> Bounds {
    let replicas = replicas(deployment);
    let Some(spec) = &deployment.spec else { return Bounds { surge: 0, unavailable: 0 } };
    if spec.strategy.as_ref().and_then(|s| s.type_.as_deref()) == Some("Recreate") || replicas == 0 {
        return Bounds { surge: 0, unavailable: 0 };
    }
    let rolling = spec.strategy.as_ref().and_then(|s| s.rolling_update.clone()).unwrap_or_default();
    let quarter = || IntOrString::String("25%".to_owned());
    let surge = resolve(&rolling.max_surge.unwrap_or_else(quarter), replicas, Round::Up);
    let mut unavailable = resolve(&rolling.max_unavailable.unwrap_or_else(quarter), replicas, Round::Down);
    if surge == 0 && unavailable == 0 {
        unavailable = 1;
    }
    Bounds { surge, unavailable: unavailable.min(replicas) }
}

enum Round {
    Up,
    Down,
}

fn resolve(value: &IntOrString, of: i32, round: Round) -> i32 {
    match value {
        IntOrString::Int(number) => *number,
        IntOrString::String(text) => {
            let percent: i64 = text.trim_end_matches('%').parse().unwrap_or(0);
            let product = percent * i64::from(of);
            let whole = match round {
                Round::Up => (product + 99) / 100,
                Round::Down => product / 100,
            };
            i32::try_from(whole).unwrap_or(i32::MAX)
        }
    }
}

/// Pods that the Deployment wants.
pub(super) fn replicas(deployment: &Deployment) -> i32 {
    deployment.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

/// Pods that a set wants.
pub(super) fn wanted(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().and_then(|s| s.replicas).unwrap_or(1)
}

/// Pods that a set has.
pub(super) fn actual(set: &ReplicaSet) -> i32 {
    set.status.as_ref().map_or(0, |s| s.replicas)
}

/// Pods of a set that have been ready long enough.
pub(super) fn available(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|s| s.available_replicas).unwrap_or(0)
}

/// Pods of a set that are ready.
pub(super) fn ready(set: &ReplicaSet) -> i32 {
    set.status.as_ref().and_then(|s| s.ready_replicas).unwrap_or(0)
}

/// Shares `change` pods among sets of these sizes in proportion, largest first; what rounding leaves goes to the first.
///
/// `total_before` is the size that the sets were made for (their `max-replicas` annotation), `total_after` the size
/// wanted now. Spec: upstream's `GetReplicaSetProportion`.
pub(super) fn proportions(sizes: &[i32], total_before: i32, total_after: i32) -> Vec<i32> {
    let change = total_after - sizes.iter().sum::<i32>();
    let mut given = 0;
    let mut shares: Vec<i32> = sizes
        .iter()
        .map(|size| {
            let exact = f64::from(*size) * f64::from(total_after) / f64::from(total_before.max(1));
            #[allow(clippy::cast_possible_truncation, reason = "counts of pods are far below 2^31")]
            let share = (exact.round() as i32) - size;
            let left = change - given;
            let share = if change > 0 { share.clamp(0, left.max(0)) } else { share.clamp(left.min(0), 0) };
            given += share;
            share
        })
        .collect();
    if let Some(first) = shares.first_mut() {
        *first = (*first + change - given).max(-sizes[0]);
    }
    shares.iter().zip(sizes).map(|(share, size)| size + share).collect()
}
