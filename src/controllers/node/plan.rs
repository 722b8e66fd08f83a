//! Pure decisions about nodes: ranges of addresses, taints that mirror conditions, and which pods a taint drives away.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition, Taint, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use model::pod::Pod;
use model::taints::tolerates;

use super::zones::Verdict;
use crate::settings::masks::NodeMasks;

/// A node that claims more holds no other node's piece back: it takes none.
const CLAIM_PIECES_MAX: u128 = 16;

/// A cluster range that is cut into one piece per node.
#[derive(Clone, Debug)]
pub(super) struct Range {
    v6: bool,
    first: u128,
    piece_bits: u32,
    pieces: u128,
}

impl Range {
    /// Cut into pieces of the family's size.
    pub(super) fn new(cidr: &IpNet, masks: NodeMasks) -> Range {
        let (v6, wanted_bits, number) = match cidr.network() {
            IpAddr::V4(v4) => (false, masks.v4, u128::from(u32::from(v4))),
            IpAddr::V6(v6) => (true, masks.v6, u128::from(v6)),
        };
        let piece_bits = u32::from(cidr.prefix_len().max(wanted_bits));
        // More than 65536 nodes have other problems than this bound.
        Range { v6, first: number, piece_bits, pieces: 1 << (piece_bits - u32::from(cidr.prefix_len())).min(16) }
    }

    /// Whether its pieces are of the same family as a node's range.
    pub(super) fn is_like(&self, cidr: &str) -> bool {
        self.v6 == cidr.contains(':')
    }

    /// Whether a node's range is one of the pieces.
    pub(super) fn has_piece(&self, cidr: &str) -> bool {
        let Ok(cidr) = cidr.parse::<IpNet>() else { return false };
        let (v6, number) = match cidr.network() {
            IpAddr::V4(v4) => (false, u128::from(u32::from(v4))),
            IpAddr::V6(v6) => (true, u128::from(v6)),
        };
        let rest = if self.v6 { 128 } else { 32 } - self.piece_bits;
        let exact = cidr.trunc() == cidr && u32::from(cidr.prefix_len()) == self.piece_bits;
        v6 == self.v6 && exact && number.checked_sub(self.first).is_some_and(|offset| offset >> rest < self.pieces)
    }

    /// The pieces that a node's range is or touches. One of another size is from before `--node-cidr-mask-size`
    /// changed; one that is larger than [`CLAIM_PIECES_MAX`] pieces is none that this cluster gave.
    pub(super) fn pieces_of(&self, cidr: &str) -> Vec<String> {
        if self.has_piece(cidr) {
            return vec![cidr.to_owned()];
        }
        let Ok(cidr) = cidr.parse::<IpNet>() else { return Vec::new() };
        let (v6, number) = match cidr.network() {
            IpAddr::V4(v4) => (false, u128::from(u32::from(v4))),
            IpAddr::V6(v6) => (true, u128::from(v6)),
        };
        let rest = if self.v6 { 128 } else { 32 } - self.piece_bits;
        let n_pieces = 1_u128 << self.piece_bits.saturating_sub(u32::from(cidr.prefix_len()));
        let Some(first) = number.checked_sub(self.first).map(|offset| offset >> rest) else { return Vec::new() };
        if v6 != self.v6 || n_pieces > CLAIM_PIECES_MAX || first + n_pieces > self.pieces {
            return Vec::new();
        }
        (first..first + n_pieces).map(|n| self.piece(n)).collect()
    }

    /// The lowest piece that is not taken.
    pub(super) fn first_free(&self, taken: impl Fn(&str) -> bool) -> Option<String> {
        (0..self.pieces).map(|n| self.piece(n)).find(|cidr| !taken(cidr))
    }

    fn piece(&self, n: u128) -> String {
        let width = if self.v6 { 128 } else { 32 };
        let number = self.first + (n << (width - self.piece_bits));
        let address = if self.v6 { IpAddr::V6(number.into()) } else { IpAddr::V4((number as u32).into()) };
        format!("{address}/{}", self.piece_bits)
    }
}

/// The fault of a node's ranges: the other nodes make no routes for those that are no pieces of the cluster's,
/// and none for one that an older node has. `older` are the ranges of older nodes.
pub(super) fn trouble(have: &[String], ranges: &[Range], older: &BTreeSet<String>) -> Option<String> {
    have.iter().find_map(|cidr| match () {
        () if !ranges.iter().any(|range| range.has_piece(cidr)) => Some(format!(
            "the pod range {cidr} is no piece of the cluster's: its pods cannot be reached from other nodes"
        )),
        () if older.contains(cidr) => {
            Some(format!("the pod range {cidr} is an older node's: its pods cannot be reached from other nodes"))
        }
        () => None,
    })
}

/// The ranges that a node with `have` should have, or `None` where it has all. What it has stays, as its pods'
/// addresses are in it.
///
/// Errors: a range is used up.
pub(super) fn ranges_of_node(
    have: &[String],
    ranges: &[Range],
    taken: impl Fn(&str) -> bool,
) -> Option<Result<Vec<String>, ()>> {
    let missing: Vec<&Range> = ranges.iter().filter(|range| !have.iter().any(|cidr| range.is_like(cidr))).collect();
    if missing.is_empty() {
        return None;
    }
    let fresh: Option<Vec<String>> = missing.into_iter().map(|range| range.first_free(&taken)).collect();
    Some(fresh.map(|fresh| have.iter().cloned().chain(fresh).collect()).ok_or(()))
}

/// The condition of this type: its status, empty if there is none.
pub(super) fn condition<'a>(node: &'a Node, kind: &str) -> Option<&'a NodeCondition> {
    node.status.as_ref()?.conditions.as_ref()?.iter().find(|c| c.type_ == kind)
}

/// Effects of the taints that follow from conditions.
#[derive(Clone, Copy)]
enum Effect {
    NoSchedule,
    NoExecute,
}

fn taint(key: &str, effect: Effect, now: Option<Timestamp>) -> Taint {
    let effect = match effect {
        Effect::NoSchedule => "NoSchedule",
        Effect::NoExecute => "NoExecute",
    };
    Taint { key: key.to_owned(), effect: effect.to_owned(), time_added: now.map(Time), value: None }
}

pub(super) const NOT_READY: &str = "node.kubernetes.io/not-ready";
pub(super) const UNREACHABLE: &str = "node.kubernetes.io/unreachable";

/// The keys of taints that follow from conditions; others are the users'.
const MANAGED_NO_SCHEDULE: [&str; 7] = [
    NOT_READY,
    UNREACHABLE,
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
];

/// Whether the node has one of our taints that drives pods away.
pub(super) fn is_driven_away(node: &Node) -> bool {
    node.spec.iter().flat_map(|s| s.taints.iter().flatten()).any(drives_away)
}

fn drives_away(taint: &Taint) -> bool {
    taint.effect == "NoExecute" && (taint.key == NOT_READY || taint.key == UNREACHABLE)
}

/// The taints a node should have, or `None` if it has them: users' taints stay, ours mirror the conditions. Whether a
/// node that is not ready is one to drive pods away from is `verdict`'s to say: it knows the others.
pub(super) fn taints(node: &Node, verdict: Verdict, now: Timestamp) -> Option<Vec<Taint>> {
    let spec = node.spec.clone().unwrap_or_default();
    let status = |kind: &str| condition(node, kind).map_or("", |c| c.status.as_str());
    let ready_key = match status("Ready") {
        "True" => None,
        "Unknown" => Some(UNREACHABLE),
        _ => Some(NOT_READY),
    };
    let mut wanted: Vec<Taint> = Vec::new();
    if let Some(key) = ready_key {
        // A node that never reported gets no NoExecute: there is nothing on it to drive away.
        wanted.push(taint(key, Effect::NoSchedule, None));
        let execute = match verdict {
            Verdict::Evict => true,
            // The taint follows the condition from one key to the other, and does not come anew.
            Verdict::Hold(_) => is_driven_away(node),
            Verdict::TakeBack => false,
        };
        if execute && !status("Ready").is_empty() {
            wanted.push(taint(key, Effect::NoExecute, Some(now)));
        }
    }
    for (kind, key) in [
        ("MemoryPressure", "node.kubernetes.io/memory-pressure"),
        ("DiskPressure", "node.kubernetes.io/disk-pressure"),
        ("PIDPressure", "node.kubernetes.io/pid-pressure"),
        ("NetworkUnavailable", "node.kubernetes.io/network-unavailable"),
    ] {
        if status(kind) == "True" {
            wanted.push(taint(key, Effect::NoSchedule, None));
        }
    }
    if spec.unschedulable == Some(true) {
        wanted.push(taint("node.kubernetes.io/unschedulable", Effect::NoSchedule, Some(now)));
    }
    let have = spec.taints.unwrap_or_default();
    let same = |a: &Taint, b: &Taint| a.key == b.key && a.effect == b.effect;
    let ours = |t: &Taint| match t.effect.as_str() {
        "NoSchedule" => MANAGED_NO_SCHEDULE.contains(&t.key.as_str()),
        "NoExecute" => drives_away(t),
        _ => false,
    };
    let mut result: Vec<Taint> =
        have.iter().filter(|t| !ours(t) || wanted.iter().any(|w| same(w, t))).cloned().collect();
    let missing: Vec<Taint> = wanted.into_iter().filter(|w| !have.iter().any(|t| same(w, t))).collect();
    let changed = result.len() != have.len() || !missing.is_empty();
    result.extend(missing);
    changed.then_some(result)
}

/// When a pod must leave a node because of its NoExecute taints; `None` if it tolerates them for ever.
pub(super) fn leave_at(pod: &Pod, node_taints: &[Taint], now: Timestamp) -> Option<Timestamp> {
    let tolerations = pod.spec.as_ref().and_then(|s| s.tolerations.as_deref()).unwrap_or_default();
    let mut leave: Option<Timestamp> = None;
    for taint in node_taints.iter().filter(|t| t.effect == "NoExecute") {
        let matching: Vec<&Toleration> = tolerations.iter().filter(|t| tolerates(t, taint)).collect();
        if matching.is_empty() {
            return Some(now);
        }
        let since = taint.time_added.as_ref().map_or(now, |t| t.0);
        let seconds = matching.iter().filter_map(|t| t.toleration_seconds).min();
        let until = seconds
            .map(|secs| since.checked_add(jiff::SignedDuration::from_secs(secs.max(0))).unwrap_or(Timestamp::MAX));
        leave = match (leave, until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
    leave
}
