//! How many pods the usage of some pods asks for. Pure. Spec: upstream's `ReplicaCalculator`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt as _;
use model::phase;
use model::pod::Pod;
use model::quantity::Quantity;

use super::error::CountError;
use crate::settings::Autoscaler;

/// One pod's reading, in thousandths.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) milli: i64,
    pub(super) at: Timestamp,
    pub(super) window: SignedDuration,
}

/// Target that the metric is held against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// Percent of what the pods request.
    Utilization(i32),
    /// Thousandths for each pod.
    Average(i64),
}

/// The result: pods to have, and what the metric shows: percent in use (for a utilization), thousandths for each pod,
/// thousandths in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count {
    pub(super) replicas: i32,
    pub(super) percent: Option<i32>,
    pub(super) average_milli: Option<i64>,
    pub(super) value_milli: Option<i64>,
}

struct Groups {
    measured: BTreeMap<String, f64>,
    unready: Vec<String>,
    missing: Vec<String>,
}

fn group(q: &Question<'_>) -> Groups {
    let mut groups = Groups { measured: BTreeMap::new(), unready: Vec::new(), missing: Vec::new() };
    for pod in q.covered {
        let name = pod.name_any();
        if pod.metadata.deletion_timestamp.is_some() || phase::phase(pod) == "Failed" {
            continue;
        }
        if phase::phase(pod) == "Pending" {
            groups.unready.push(name);
            continue;
        }
        let Some(reading) = q.readings.get(&name) else {
            groups.missing.push(name);
            continue;
        };
        if q.measured.resource == "cpu" && tells_of_start(pod, reading, q) {
            groups.unready.push(name);
        } else {
            groups.measured.insert(name, reading.milli as f64);
        }
    }
    groups
}

fn tells_of_start(pod: &Pod, reading: &Reading, q: &Question<'_>) -> bool {
    let status = pod.status.as_ref();
    let ready = status.and_then(|s| s.conditions.as_ref()).and_then(|all| all.iter().find(|c| c.type_ == "Ready"));
    let (Some(ready), Some(started)) = (ready, status.and_then(|s| s.start_time.as_ref())) else { return true };
    let since = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |t| t.0);
    let after = |at: Timestamp, by: SignedDuration| at.checked_add(by).unwrap_or(Timestamp::MAX);
    let of = |by: Duration| SignedDuration::try_from(by).unwrap_or(SignedDuration::MAX);
    if after(started.0, of(q.tuning.cpu_start)) > q.now {
        return ready.status == "False" || reading.at < after(since, reading.window);
    }
    ready.status == "False" && after(started.0, of(q.tuning.first_ready)) > since
}

/// Requests of the pod's containers, or of the one of this name, in thousandths.
fn request(pod: &Pod, measured: Measured<'_>) -> Result<f64, CountError> {
    let Measured { resource, container } = measured;
    let spec = pod.spec.clone().unwrap_or_default();
    let sidecars = spec.init_containers.into_iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
    let mut sum = 0;
    for found in spec.containers.into_iter().chain(sidecars).filter(|c| container.is_none_or(|name| name == c.name)) {
        let asked = found
            .resources
            .and_then(|r| r.requests)
            .and_then(|r| r.get(resource).and_then(|q| q.0.parse::<Quantity>().ok()));
        let asked = asked.ok_or_else(|| CountError::NoRequest {
            resource: resource.to_owned(),
            container: found.name,
            pod: pod.name_any(),
        })?;
        sum += asked.milli_value();
    }
    Ok(sum as f64)
}

/// The resource whose usage counts; empty for a metric that is none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured<'a> {
    pub(super) resource: &'a str,
    /// One container of each pod, or all of them.
    pub(super) container: Option<&'a str>,
}

/// The question about a metric.
pub(super) struct Question<'a> {
    pub(super) current: i32,
    pub(super) covered: &'a [Arc<Pod>],
    pub(super) readings: &'a BTreeMap<String, Reading>,
    pub(super) measured: Measured<'a>,
    pub(super) target: Target,
    pub(super) tuning: Autoscaler,
    /// Differences smaller than these are none: downwards and upwards.
    pub(super) tolerances: (f64, f64),
    pub(super) now: Timestamp,
}

impl Question<'_> {
    fn tolerates(&self, ratio: f64) -> bool {
        (1.0 - self.tolerances.0..=1.0 + self.tolerances.1).contains(&ratio)
    }
}

/// Answers.
pub(super) fn count(q: &Question<'_>) -> Result<Count, CountError> {
    if q.covered.is_empty() {
        return Err(CountError::NoPods);
    }
    let groups = group(q);
    if groups.measured.is_empty() {
        return Err(CountError::NoReadings);
    }
    let mut requests = BTreeMap::new();
    if let Target::Utilization(_) = q.target {
        for pod in q.covered {
            requests.insert(pod.name_any(), request(pod, q.measured)?);
        }
    }
    let ratio = |usage: &BTreeMap<String, f64>| ratio(usage, &requests, q.target);
    let (first, percent) = ratio(&groups.measured)?;
    let n_measured = groups.measured.len();
    let average_milli = Some((groups.measured.values().sum::<f64>() / n_measured as f64) as i64);
    let answer = |replicas: i32| Ok(Count { replicas, percent, average_milli, value_milli: None });
    let up_with_unready = !groups.unready.is_empty() && first > 1.0;
    if !up_with_unready && groups.missing.is_empty() {
        if q.tolerates(first) {
            return answer(q.current);
        }
        return answer((first * n_measured as f64).ceil() as i32);
    }
    // Pods that nothing is known of stand against the change: as full when it goes down, as idle when it goes up.
    let mut usage = groups.measured;
    for name in &groups.missing {
        let full = match q.target {
            Target::Utilization(percent) => {
                requests.get(name).copied().unwrap_or(0.0) * f64::from(percent.max(100)) / 100.0
            }
            Target::Average(milli) => milli as f64,
        };
        if first < 1.0 {
            usage.insert(name.clone(), full);
        } else if first > 1.0 {
            usage.insert(name.clone(), 0.0);
        }
    }
    if up_with_unready {
        usage.extend(groups.unready.iter().map(|name| (name.clone(), 0.0)));
    }
    let (second, _) = ratio(&usage)?;
    let turned = (first < 1.0 && second > 1.0) || (first > 1.0 && second < 1.0);
    let replicas = (second * usage.len() as f64).ceil() as i32;
    let backwards = (second < 1.0 && replicas > q.current) || (second > 1.0 && replicas < q.current);
    answer(if q.tolerates(second) || turned || backwards { q.current } else { replicas })
}

/// One value for all pods together: how many there are by the spec, by the status, and how many of them are ready.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole {
    pub(super) wanted: i32,
    pub(super) present: i32,
    pub(super) ready: usize,
}

/// The answer to a metric that is not of pods. Spec: upstream's `getUsageRatioReplicaCount` and
/// `GetExternalPerPodMetricReplicas` (1.36.2).
pub(super) fn count_whole(whole: Whole, used_milli: i64, target: WholeTarget, tolerances: (f64, f64)) -> Count {
    let tolerates = |ratio: f64| (1.0 - tolerances.0..=1.0 + tolerances.1).contains(&ratio);
    let used = used_milli as f64;
    match target {
        WholeTarget::Value(milli) => {
            let ratio = used / milli.max(1) as f64;
            let replicas = match whole.wanted {
                0 => ratio.ceil() as i32,
                wanted if tolerates(ratio) => wanted,
                _ => (ratio * whole.ready as f64).ceil() as i32,
            };
            Count { replicas, percent: None, average_milli: None, value_milli: Some(used_milli) }
        }
        WholeTarget::Average(milli) => {
            let (target, present) = (milli.max(1) as f64, f64::from(whole.present));
            let replicas =
                if tolerates(used / (target * present)) { whole.present } else { (used / target).ceil() as i32 };
            let average = (used / present.max(1.0)).ceil() as i64;
            Count { replicas, percent: None, average_milli: Some(average), value_milli: None }
        }
    }
}

/// Target of a value for all pods together, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WholeTarget {
    /// As it is.
    Value(i64),
    /// Shared by the pods.
    Average(i64),
}

/// Usage over target; and the percentage in use, of a utilization.
fn ratio(
    usage: &BTreeMap<String, f64>,
    requests: &BTreeMap<String, f64>,
    target: Target,
) -> Result<(f64, Option<i32>), CountError> {
    let used: f64 = usage.values().sum();
    match target {
        Target::Average(milli) => Ok((used / usage.len().max(1) as f64 / (milli.max(1) as f64), None)),
        Target::Utilization(wanted) => {
            let asked: f64 = usage.keys().filter_map(|name| requests.get(name)).sum();
            if asked <= 0.0 {
                return Err(CountError::Unmatched);
            }
            let percent = (used * 100.0 / asked) as i32;
            Ok((f64::from(percent) / f64::from(wanted.max(1)), Some(percent)))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, phase: &str) -> Arc<Pod> {
        let status = json!({"phase": phase, "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:05Z"}]});
        let spec = json!({"containers": [{"name": "c", "resources": {"requests": {"cpu": "100m"}}}]});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec, "status": status})).unwrap())
    }

    fn of(milli: &[(&str, i64)], pods: &[Arc<Pod>], target: Target) -> Result<(i32, Option<i32>), CountError> {
        let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
        let reading = |milli: i64| Reading { milli, at: now, window: SignedDuration::from_secs(30) };
        let readings = milli.iter().map(|(name, milli)| ((*name).to_owned(), reading(*milli))).collect();
        let current = i32::try_from(pods.len()).unwrap();
        let question = Question {
            current,
            covered: pods,
            readings: &readings,
            measured: Measured { resource: "cpu", container: None },
            target,
            tuning: Autoscaler::default(),
            tolerances: (0.1, 0.1),
            now,
        };
        count(&question).map(|count| (count.replicas, count.percent))
    }

    #[test]
    fn usage_over_target_is_the_factor_and_small_differences_are_none() {
        let two = [pod("a", "Running"), pod("b", "Running")];
        assert_eq!(of(&[("a", 100), ("b", 100)], &two, Target::Utilization(50)), Ok((4, Some(100))));
        assert_eq!(of(&[("a", 52), ("b", 52)], &two, Target::Utilization(50)), Ok((2, Some(52))));
        assert_eq!(of(&[("a", 10), ("b", 10)], &two, Target::Utilization(50)), Ok((1, Some(10))));
        assert_eq!(of(&[("a", 300), ("b", 100)], &two, Target::Average(100)), Ok((4, None)));
    }

    #[test]
    fn pods_without_readings_hold_the_change_back() {
        let three = [pod("a", "Running"), pod("b", "Running"), pod("c", "Pending")];
        assert_eq!(of(&[("a", 100), ("b", 100)], &three, Target::Utilization(50)), Ok((4, Some(100))));
        let silent = [pod("a", "Running"), pod("b", "Running")];
        assert_eq!(of(&[("a", 10)], &silent, Target::Utilization(50)).unwrap().0, 2);
        assert_eq!(of(&[], &silent, Target::Utilization(50)), Err(CountError::NoReadings));
    }

    // Semantics H6: Object and External metrics.
    #[test]
    fn one_value_for_all_pods_is_held_against_a_value_or_shared_by_them() {
        let of = |used, target, ready| {
            let count = count_whole(Whole { wanted: 4, present: 4, ready }, used, target, (0.1, 0.1));
            (count.replicas, count.average_milli, count.value_milli)
        };
        assert_eq!(of(20_000, WholeTarget::Value(10_000), 4), (8, None, Some(20_000)));
        assert_eq!(of(20_000, WholeTarget::Value(10_000), 3), (6, None, Some(20_000)));
        assert_eq!(of(10_500, WholeTarget::Value(10_000), 3), (4, None, Some(10_500)));
        assert_eq!(of(90_000, WholeTarget::Average(10_000), 4), (9, Some(22_500), None));
        assert_eq!(of(41_000, WholeTarget::Average(10_000), 4), (4, Some(10_250), None));
        assert_eq!(of(0, WholeTarget::Average(10_000), 4).0, 0);
    }

    // Upstream's table: `TestReplicaCalc*` (replica_calculator_test.go, 1.36.2).
    #[test]
    fn what_cannot_be_counted_says_why() {
        let utilization = Target::Utilization(50);
        assert_eq!(of(&[], &[], utilization), Err(CountError::NoPods));
        assert_eq!(of(&[("other", 100)], &[pod("a", "Running")], utilization), Err(CountError::NoReadings));
        assert_eq!(of(&[("a", 100)], &[pod("a", "Failed")], utilization), Err(CountError::NoReadings));
        assert_eq!(of(&[("a", 100)], &[pod("a", "Pending")], utilization), Err(CountError::NoReadings));
        let mut silent = (*pod("a", "Running")).clone();
        silent.spec.as_mut().unwrap().containers[0].resources = None;
        let missing =
            CountError::NoRequest { resource: "cpu".to_owned(), container: "c".to_owned(), pod: "a".to_owned() };
        assert_eq!(of(&[("a", 100)], &[Arc::new(silent.clone())], utilization), Err(missing));
        assert_eq!(of(&[("a", 100)], &[Arc::new(silent)], Target::Average(50)), Ok((2, None)), "no request is needed");
    }

    #[test]
    fn a_difference_within_the_tolerance_changes_nothing() {
        let two = [pod("a", "Running"), pod("b", "Running")];
        for (milli, replicas) in [(55, 2), (56, 3), (45, 2), (44, 2), (24, 1)] {
            let (found, percent) = of(&[("a", milli), ("b", milli)], &two, Target::Utilization(50)).unwrap();
            assert_eq!((found, percent), (replicas, Some(i32::try_from(milli).unwrap())));
        }
    }
}
