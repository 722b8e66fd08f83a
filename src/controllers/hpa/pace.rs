//! How fast an autoscaler may follow its metrics: stabilization windows and rates. Pure. Spec: upstream's
//! `normalizeDesiredReplicasWithBehaviors`.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::autoscaling::v2::{HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscaler};

/// Memory of an autoscaler of the last minutes; lost with the process, as with upstream.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Replicas that the metrics asked for.
    recommendations: Vec<(Timestamp, i32)>,
    /// Changes of the number of pods.
    changes: Vec<(Timestamp, i32)>,
}

/// The number of pods to have now, and why it is not what the metrics ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Allowed {
    pub(super) replicas: i32,
    /// Reason and message of the condition ScalingLimited; `None` if nothing limits.
    pub(super) limited: Option<Limit>,
}

type Limit = (&'static str, &'static str);

const SCALE_UP_LIMIT: Limit =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const SCALE_DOWN_LIMIT: Limit =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");
const TOO_MANY: Limit = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: Limit = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");

impl Allowed {
    fn limited(replicas: i32, limit: Limit) -> Allowed {
        Allowed { replicas, limited: Some(limit) }
    }
}

/// Whether less time has passed than the window has, as upstream counts.
fn within(at: Timestamp, secs: i32, now: Timestamp) -> bool {
    now.duration_since(at) < SignedDuration::from_secs(i64::from(secs))
}

impl Memory {
    /// The number of pods when the autoscaler is first looked at counts as asked for: after a restart, or on its
    /// first day, one low reading must wait as any other. Spec: upstream's `recordInitialRecommendation` (1.36.2).
    pub(super) fn begin(&mut self, current: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
    }

    /// Remembers that the number of pods was changed by `delta`.
    pub(super) fn changed(&mut self, delta: i32, now: Timestamp) {
        self.changes.push((now, delta));
    }

    /// Changes in one direction (`sign` 1 or -1) within a period, as a positive sum.
    fn sum(&self, sign: i32, secs: i32, now: Timestamp) -> i32 {
        let all = self.changes.iter().filter(|(at, delta)| delta.signum() == sign && within(*at, secs, now));
        all.map(|(_, delta)| delta.abs()).sum()
    }

    /// The part of `wanted` that may be done now, coming from `current`.
    pub(super) fn allow(
        &mut self,
        hpa: &HorizontalPodAutoscaler,
        current: i32,
        wanted: i32,
        down_window: Duration,
        now: Timestamp,
    ) -> Allowed {
        let behavior = hpa.spec.behavior.as_ref();
        let up = behavior.and_then(|b| b.scale_up.as_ref());
        let down = behavior.and_then(|b| b.scale_down.as_ref());
        let window = |rules: Option<&HPAScalingRules>, default: i32| {
            rules.and_then(|r| r.stabilization_window_seconds).unwrap_or(default)
        };
        let (up_window, down_window) =
            (window(up, 0), window(down, i32::try_from(down_window.as_secs()).unwrap_or(i32::MAX)));
        let longest = up_window.max(down_window).max(3600);
        self.recommendations.retain(|(at, _)| within(*at, longest, now));
        self.changes.retain(|(at, _)| within(*at, longest, now));
        let steady = self.stabilized(current, wanted, up_window, down_window, now);
        self.recommendations.push((now, wanted));
        let (min, max) = (hpa.spec.min_replicas.unwrap_or(1), hpa.spec.max_replicas);
        if steady > current {
            let limit = self.up_limit(up, current, now);
            let bound = max.min(limit);
            if steady > bound {
                return Allowed::limited(bound, if limit < max { SCALE_UP_LIMIT } else { TOO_MANY });
            }
        } else if steady < current {
            let limit = self.down_limit(down, current, now);
            let bound = min.max(limit);
            if steady < bound {
                return Allowed::limited(bound, if limit > min { SCALE_DOWN_LIMIT } else { TOO_FEW });
            }
        }
        if steady > max {
            return Allowed::limited(max, TOO_MANY);
        }
        if steady < min {
            return Allowed::limited(min, TOO_FEW);
        }
        Allowed { replicas: steady, limited: None }
    }

    /// Upwards the least, downwards the most that was asked for within the window.
    fn stabilized(&self, current: i32, wanted: i32, up_secs: i32, down_secs: i32, now: Timestamp) -> i32 {
        let recent =
            |secs: i32| self.recommendations.iter().filter(move |(at, _)| within(*at, secs, now)).map(|(_, n)| *n);
        let least = recent(up_secs).chain([wanted]).min().unwrap_or(wanted);
        let most = recent(down_secs).chain([wanted]).max().unwrap_or(wanted);
        current.max(least).min(most)
    }

    fn up_limit(&self, rules: Option<&HPAScalingRules>, current: i32, now: Timestamp) -> i32 {
        let defaults = [policy("Pods", 4, 15), policy("Percent", 100, 15)];
        self.limit(rules, &defaults, current, now, |start, policy| match policy.type_.as_str() {
            "Pods" => start.saturating_add(policy.value),
            _ => bounded((hundredths(start, 100_i64.saturating_add(policy.value.into())) + 99) / 100),
        })
    }

    fn down_limit(&self, rules: Option<&HPAScalingRules>, current: i32, now: Timestamp) -> i32 {
        // Measured downwards, so that the greatest change is the greatest number here too.
        let defaults = [policy("Percent", 100, 15)];
        let negative = self.limit(rules, &defaults, current, now, |start, policy| match policy.type_.as_str() {
            "Pods" => -(start - policy.value),
            _ => -bounded(hundredths(start, 100 - i64::from(policy.value)) / 100),
        });
        if rules.and_then(|r| r.select_policy.as_deref()) == Some("Disabled") { current } else { (-negative).max(0) }
    }

    fn limit(
        &self,
        rules: Option<&HPAScalingRules>,
        defaults: &[HPAScalingPolicy],
        current: i32,
        now: Timestamp,
        reach: impl Fn(i32, &HPAScalingPolicy) -> i32,
    ) -> i32 {
        let select = rules.and_then(|r| r.select_policy.as_deref()).unwrap_or("Max");
        if select == "Disabled" {
            return current;
        }
        let policies = rules.and_then(|r| r.policies.as_deref()).filter(|p| !p.is_empty()).unwrap_or(defaults);
        let reached = policies.iter().map(|policy| {
            let start = current - self.sum(1, policy.period_seconds, now) + self.sum(-1, policy.period_seconds, now);
            reach(start, policy)
        });
        let found = if select == "Min" { reached.min() } else { reached.max() };
        found.unwrap_or(current)
    }
}

fn policy(kind: &str, value: i32, period_seconds: i32) -> HPAScalingPolicy {
    HPAScalingPolicy { type_: kind.to_owned(), value, period_seconds }
}

fn hundredths(start: i32, percent: i64) -> i64 {
    i64::from(start).saturating_mul(percent)
}

fn bounded(n: i64) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const WINDOW: Duration = Duration::from_secs(300);

    fn hpa(behavior: Value) -> HorizontalPodAutoscaler {
        let target = json!({"kind": "Deployment", "name": "web"});
        let spec = json!({"minReplicas": 1, "maxReplicas": 50, "scaleTargetRef": target, "behavior": behavior});
        serde_json::from_value(json!({"metadata": {"name": "h"}, "spec": spec})).unwrap()
    }

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_second(secs).unwrap()
    }

    #[test]
    fn up_at_once_by_four_or_double_down_after_five_minutes() {
        let (hpa, mut memory) = (hpa(json!(null)), Memory::default());
        assert_eq!(
            memory.allow(&hpa, 2, 20, WINDOW, at(0)),
            Allowed {
                replicas: 6,
                limited: Some((
                    "ScaleUpLimit",
                    "the desired replica count is increasing faster than the maximum scale rate"
                ))
            }
        );
        assert_eq!(memory.allow(&hpa, 10, 99, WINDOW, at(1)).replicas, 20);
        assert_eq!(memory.allow(&hpa, 10, 3, WINDOW, at(200)).replicas, 10);
        assert_eq!(memory.allow(&hpa, 10, 3, WINDOW, at(600)).replicas, 3);
        assert_eq!(memory.allow(&hpa, 50, 99, WINDOW, at(700)).limited.unwrap().0, "TooManyReplicas");
    }

    // Semantics H6: after each change of leader a single low reading took pods away.
    #[test]
    fn what_is_there_at_first_holds_for_the_window() {
        let (hpa, mut memory) = (hpa(json!(null)), Memory::default());
        memory.begin(10, at(0));
        assert_eq!(memory.allow(&hpa, 10, 1, WINDOW, at(0)).replicas, 10);
        memory.begin(3, at(200));
        assert_eq!(memory.allow(&hpa, 10, 1, WINDOW, at(299)).replicas, 10);
        assert_eq!(memory.allow(&hpa, 10, 1, WINDOW, at(301)).replicas, 1);
    }

    #[test]
    fn rates_count_what_was_done_within_their_period() {
        let policies = json!([{"type": "Pods", "value": 2, "periodSeconds": 60}]);
        let down = json!({"scaleDown": {"stabilizationWindowSeconds": 0, "policies": policies}});
        let (hpa, mut memory) = (hpa(down), Memory::default());
        assert_eq!(memory.allow(&hpa, 10, 1, WINDOW, at(0)).replicas, 8);
        memory.changed(-2, at(0));
        assert_eq!(memory.allow(&hpa, 8, 1, WINDOW, at(30)).replicas, 8);
        assert_eq!(memory.allow(&hpa, 8, 1, WINDOW, at(61)).replicas, 6);
    }

    fn rule(direction: &str, select: &str, policies: &[(&str, i32)]) -> HorizontalPodAutoscaler {
        let one = |(kind, value): &(&str, i32)| json!({"type": kind, "value": value, "periodSeconds": 60});
        let policies: Vec<Value> = policies.iter().map(one).collect();
        hpa(json!({direction: {"stabilizationWindowSeconds": 0, "selectPolicy": select, "policies": policies}}))
    }

    // Upstream's tables: `TestNormalizeDesiredReplicasWithBehavior` and `TestScalingWithRules` (horizontal_test.go,
    // 1.36.2).
    #[test]
    fn policies_bound_a_step_by_pods_or_percent_and_the_selection_says_which_counts() {
        let (pods, percent) = (("Pods", 3), ("Percent", 50));
        for (direction, select, policies, current, wanted, replicas) in [
            ("scaleUp", "Max", &[pods][..], 10, 40, 13),
            ("scaleUp", "Max", &[percent], 10, 40, 15),
            ("scaleUp", "Max", &[pods, percent], 10, 40, 15),
            ("scaleUp", "Min", &[pods, percent], 10, 40, 13),
            ("scaleUp", "Disabled", &[pods], 10, 40, 10),
            // Rounded up, so that a small number grows at all.
            ("scaleUp", "Max", &[("Percent", 10)], 1, 40, 2),
            ("scaleUp", "Max", &[("Percent", 900)], 10, 99, 50),
            ("scaleDown", "Max", &[pods], 10, 1, 7),
            ("scaleDown", "Max", &[percent], 10, 1, 5),
            ("scaleDown", "Max", &[pods, percent], 10, 1, 5),
            ("scaleDown", "Min", &[pods, percent], 10, 1, 7),
            ("scaleDown", "Disabled", &[pods], 10, 1, 10),
            // Rounded down, so that a small number shrinks at all.
            ("scaleDown", "Max", &[("Percent", 10)], 5, 1, 4),
            ("scaleDown", "Max", &[("Percent", 100)], 10, 1, 1),
            ("scaleDown", "Max", &[("Pods", 50)], 10, 0, 1),
        ] {
            let allowed = Memory::default().allow(&rule(direction, select, policies), current, wanted, WINDOW, at(0));
            assert_eq!(allowed.replicas, replicas, "{direction} {select} {policies:?} from {current}");
        }
    }

    #[test]
    fn the_limit_that_holds_is_named() {
        let reason = |hpa: &HorizontalPodAutoscaler, current, wanted| {
            Memory::default().allow(hpa, current, wanted, WINDOW, at(0)).limited.map(|(reason, _)| reason)
        };
        let (up, down) = (rule("scaleUp", "Max", &[("Pods", 3)]), rule("scaleDown", "Max", &[("Pods", 3)]));
        assert_eq!(reason(&up, 10, 13), None);
        assert_eq!(reason(&up, 10, 14), Some("ScaleUpLimit"));
        assert_eq!(reason(&up, 48, 60), Some("TooManyReplicas"), "the bound is nearer than the rate");
        assert_eq!(reason(&down, 10, 7), None);
        assert_eq!(reason(&down, 10, 6), Some("ScaleDownLimit"));
        assert_eq!(reason(&down, 3, 0), Some("TooFewReplicas"), "the bound is nearer than the rate");
    }

    // Upstream's cut-off lies outside of the window (`rec.timestamp.After(cutoff)`).
    #[test]
    fn the_moment_a_window_ends_is_no_part_of_it() {
        let (hpa, mut memory) = (hpa(json!(null)), Memory::default());
        memory.begin(10, at(0));
        assert_eq!(memory.allow(&hpa, 10, 12, WINDOW, at(0)).replicas, 12, "up has no window");
        assert_eq!(memory.allow(&hpa, 10, 1, WINDOW, at(299)).replicas, 10);
        assert_eq!(memory.allow(&hpa, 10, 1, WINDOW, at(300)).replicas, 1);
    }

    #[test]
    fn a_window_upwards_waits_for_the_least_that_was_asked_within_it() {
        let hpa = hpa(json!({"scaleUp": {"stabilizationWindowSeconds": 60}}));
        let mut memory = Memory::default();
        assert_eq!(memory.allow(&hpa, 4, 5, WINDOW, at(0)).replicas, 5);
        assert_eq!(memory.allow(&hpa, 5, 8, WINDOW, at(30)).replicas, 5);
        assert_eq!(memory.allow(&hpa, 5, 8, WINDOW, at(60)).replicas, 8);
    }

    #[test]
    fn what_was_removed_in_the_period_may_come_back_at_once() {
        let (hpa, mut memory) = (rule("scaleUp", "Max", &[("Pods", 3)]), Memory::default());
        memory.changed(-4, at(0));
        assert_eq!(memory.allow(&hpa, 6, 40, WINDOW, at(30)).replicas, 13);
        assert_eq!(memory.allow(&hpa, 6, 40, WINDOW, at(60)).replicas, 9);
    }
}
