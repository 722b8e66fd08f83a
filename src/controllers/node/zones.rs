//! How fast nodes that fell silent lose their pods: the fewer nodes of a zone still answer, the likelier it is the
//! network that failed and not they. Pure; time is passed in.
//!
//! Spec: upstream's `handleDisruption` (1.36.2, pkg/controller/nodelifecycle): so many nodes a second and zone lose
//! their pods; in a zone of which most are silent fewer, or none if it is small; where no node of the cluster answers
//! none, and those that were about to lose theirs keep them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use tokio::time::Instant;

use super::plan;
use crate::settings::Evictions;

/// Fewer silent nodes than these are never a failure of the whole zone.
const SILENT_FEW: usize = 2;
/// A node with this label says nothing about its zone.
const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";
/// When a node that may not be emptied now is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// How a zone fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Normal,
    /// Most of its nodes are silent.
    Partial,
    /// All are.
    Full,
}

/// Fate of the pods of a node that is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// They may be driven away from now on.
    Evict,
    /// A taint that is there stays, a new one has to wait this long at least.
    Hold(Duration),
    /// No node answers: a taint that is there goes.
    TakeBack,
}

/// The taint that drives pods away from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taint {
    /// The node has it.
    There,
    /// The node would get it now.
    Fresh,
}

#[derive(Clone, Debug, Default)]
struct Zone {
    ready: usize,
    silent: usize,
}

impl Zone {
    fn state(&self, limits: &Evictions) -> State {
        #[expect(clippy::cast_precision_loss, reason = "numbers of nodes are far below 2^52")]
        let share = self.silent as f64 / (self.silent + self.ready).max(1) as f64;
        match self.ready {
            0 if self.silent > 0 => State::Full,
            _ if self.silent > SILENT_FEW && share >= limits.unhealthy_share => State::Partial,
            _ => State::Normal,
        }
    }

    /// Nodes a second.
    fn rate(&self, limits: &Evictions) -> f64 {
        match self.state(limits) {
            State::Normal | State::Full => limits.rate,
            State::Partial if self.silent + self.ready > limits.large_zone => limits.rate_when_unhealthy,
            State::Partial => 0.0,
        }
    }
}

/// Region and zone of a node, as one name.
fn zone_of(node: &Node) -> (String, String) {
    let label = |names: [&str; 2]| {
        let labels = node.metadata.labels.as_ref();
        names.iter().find_map(|name| labels?.get(*name)).cloned().unwrap_or_default()
    };
    (
        label(["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"]),
        label(["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"]),
    )
}

fn is_ready(node: &Node) -> bool {
    plan::condition(node, "Ready").is_some_and(|c| c.status == "True")
}

fn zones(nodes: &[Arc<Node>]) -> BTreeMap<(String, String), Zone> {
    let mut zones: BTreeMap<_, Zone> = BTreeMap::new();
    let counts = |node: &&Arc<Node>| node.metadata.labels.as_ref().is_none_or(|labels| !labels.contains_key(EXCLUDED));
    for node in nodes.iter().filter(counts) {
        let zone = zones.entry(zone_of(node)).or_default();
        if is_ready(node) {
            zone.ready += 1;
        } else {
            zone.silent += 1;
        }
    }
    zones
}

/// When the next node of each zone may be emptied, and whether no node answered.
#[derive(Debug, Default)]
pub(super) struct Pace {
    turns: BTreeMap<(String, String), Instant>,
    none_answered: bool,
}

/// Whether no node of the cluster answers.
fn is_silent(zones: &BTreeMap<(String, String), Zone>, limits: &Evictions) -> bool {
    !zones.is_empty() && zones.values().all(|zone| zone.state(limits) == State::Full)
}

impl Pace {
    /// Whether nodes answer again after none did; told once. It was the network that failed then, or we: each node's
    /// patience begins anew.
    pub(super) fn has_recovered(&mut self, nodes: impl FnOnce() -> Vec<Arc<Node>>, limits: &Evictions) -> bool {
        if !self.none_answered || is_silent(&zones(&nodes()), limits) {
            return false;
        }
        *self = Pace::default();
        true
    }

    /// Fate of the pods of `node`, one of `nodes`. A taint that it would get only now takes the zone's turn.
    pub(super) fn judge(
        &mut self,
        node: &Node,
        taint: Taint,
        nodes: &[Arc<Node>],
        limits: &Evictions,
        now: Instant,
    ) -> Verdict {
        let zones = zones(nodes);
        if is_silent(&zones, limits) {
            self.none_answered = true;
            return Verdict::TakeBack;
        }
        if taint == Taint::There {
            return Verdict::Evict;
        }
        let key = zone_of(node);
        let rate = zones.get(&key).map_or(limits.rate, |zone| zone.rate(limits));
        if rate <= 0.0 {
            return Verdict::Hold(LOOK_AGAIN);
        }
        if let Some(next) = self.turns.get(&key).filter(|next| **next > now) {
            return Verdict::Hold(next.duration_since(now).min(LOOK_AGAIN));
        }
        self.turns.insert(key, now + Duration::from_secs_f64((1.0 / rate).min(LONGEST_SECS)));
        Verdict::Evict
    }
}

/// A rate so low that a node's turn would come after a year is one of a node a year.
const LONGEST_SECS: f64 = 365.0 * 86400.0;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster(zones: &[(&str, usize, usize)]) -> Vec<Arc<Node>> {
        let node = |zone: &str, ready: bool, n: usize| {
            let status = if ready { "True" } else { "Unknown" };
            let node = json!({"metadata": {"name": format!("{zone}{n}"),
                "labels": {"topology.kubernetes.io/zone": zone}},
                "status": {"conditions": [{"type": "Ready", "status": status}]}});
            Arc::new(serde_json::from_value(node).unwrap())
        };
        let of = |(zone, ready, silent): &(&str, usize, usize)| -> Vec<Arc<Node>> {
            (0..ready + silent).map(|n| node(zone, n < *ready, n)).collect()
        };
        zones.iter().flat_map(of).collect()
    }

    fn judged(zones: &[(&str, usize, usize)], taint: Taint) -> Verdict {
        let nodes = cluster(zones);
        let silent = nodes.iter().find(|node| !is_ready(node)).unwrap();
        Pace::default().judge(silent, taint, &nodes, &Evictions::default(), Instant::now())
    }

    // Semantics H1: a switch that fails must not cost the pods of all nodes behind it.
    #[test]
    fn most_of_a_small_zone_falls_silent_and_keeps_its_pods() {
        assert_eq!(judged(&[("a", 1, 3)], Taint::Fresh), Verdict::Hold(LOOK_AGAIN));
        // Who has lost them already does not get them back.
        assert_eq!(judged(&[("a", 1, 3)], Taint::There), Verdict::Evict);
        assert_eq!(judged(&[("a", 2, 2)], Taint::Fresh), Verdict::Evict);
        assert_eq!(judged(&[("a", 3, 3)], Taint::Fresh), Verdict::Evict);
        assert_eq!(judged(&[("a", 20, 40)], Taint::Fresh), Verdict::Evict);
    }

    #[test]
    fn a_cluster_in_which_no_node_answers_evicts_nothing_and_takes_back() {
        assert_eq!(judged(&[("a", 0, 1)], Taint::Fresh), Verdict::TakeBack);
        assert_eq!(judged(&[("a", 0, 4), ("b", 0, 1)], Taint::There), Verdict::TakeBack);
        // One whole zone of several is one that failed.
        assert_eq!(judged(&[("a", 0, 4), ("b", 1, 0)], Taint::Fresh), Verdict::Evict);
    }

    #[test]
    fn a_zone_loses_one_node_in_ten_seconds_and_a_large_unhealthy_one_in_a_hundred() {
        for (zone, secs) in [(("a", 9, 2), 10), (("a", 20, 40), 100)] {
            let (nodes, limits, start) = (cluster(&[zone]), Evictions::default(), Instant::now());
            let silent: Vec<_> = nodes.iter().filter(|node| !is_ready(node)).collect();
            let mut pace = Pace::default();
            let at = |pace: &mut Pace, n: usize, secs: u64| {
                pace.judge(silent[n], Taint::Fresh, &nodes, &limits, start + Duration::from_secs(secs))
            };
            assert_eq!(at(&mut pace, 0, 0), Verdict::Evict);
            assert!(matches!(at(&mut pace, 1, secs - 1), Verdict::Hold(_)));
            assert_eq!(at(&mut pace, 1, secs), Verdict::Evict);
        }
    }

    #[test]
    fn the_end_of_a_silence_of_all_is_told_once() {
        let (silent, again, limits) = (cluster(&[("a", 0, 3)]), cluster(&[("a", 1, 2)]), Evictions::default());
        let mut pace = Pace::default();
        assert!(!pace.has_recovered(|| again.clone(), &limits), "nothing was the matter");
        assert_eq!(pace.judge(&silent[0], Taint::Fresh, &silent, &limits, Instant::now()), Verdict::TakeBack);
        assert!(!pace.has_recovered(|| silent.clone(), &limits));
        assert!(pace.has_recovered(|| again.clone(), &limits));
        assert!(!pace.has_recovered(|| again.clone(), &limits));
    }

    #[test]
    fn a_rate_of_zero_evicts_nothing() {
        let (nodes, limits) = (cluster(&[("a", 5, 1)]), Evictions { rate: 0.0, ..Evictions::default() });
        let verdict = Pace::default().judge(&nodes[5], Taint::Fresh, &nodes, &limits, Instant::now());
        assert_eq!(verdict, Verdict::Hold(LOOK_AGAIN));
    }
}
