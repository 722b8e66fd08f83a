//! Topology spread that is wished, not demanded (`ScheduleAnyway`): emptier domains score higher. Spec: KEP-895.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::TopologySpreadConstraint;
use model::owners;
use model::pod::Pod;
use model::selectors::includes;

use crate::filters::{self, Candidate, spread};
use crate::snapshot::{NodeState, Snapshot};

/// 0 to 100 for each node, as upstream's PodTopologySpread; a node without one of the topology labels gets 0.
pub(super) fn scores(candidate: &Candidate<'_>, nodes: &[&NodeState], snapshot: &Snapshot) -> Vec<i64> {
    let constraints = candidate.spec.topology_spread_constraints.iter().flatten();
    let wished: Vec<&TopologySpreadConstraint> =
        constraints.filter(|c| c.when_unsatisfiable == "ScheduleAnyway").collect();
    if candidate.spec.topology_spread_constraints.iter().flatten().next().is_none() {
        return by_default(candidate, nodes, snapshot);
    }
    if wished.is_empty() {
        return vec![0; nodes.len()];
    }
    let counted: Vec<bool> =
        nodes.iter().map(|node| wished.iter().all(|c| node.label(&c.topology_key).is_some())).collect();
    let mut raw = vec![0f64; nodes.len()];
    for constraint in &wished {
        let domains = spread::domains(candidate, constraint, &wished, snapshot);
        let usable = nodes.iter().zip(&counted).filter(|(_, counted)| **counted);
        let values: BTreeSet<&str> = usable.filter_map(|(node, _)| node.label(&constraint.topology_key)).collect();
        // Few domains hold many pods each: without the weight they would drown a constraint over many.
        let weight = real(i64::try_from(values.len()).unwrap_or(i64::MAX).saturating_add(2)).ln();
        for (raw, node) in raw.iter_mut().zip(nodes) {
            let count = node.label(&constraint.topology_key).and_then(|value| domains.get(value)).copied().unwrap_or(0);
            *raw += real(count) * weight + f64::from(constraint.max_skew - 1);
        }
    }
    scaled(&raw, &counted)
}

/// The emptiest node gets 100; one that is not counted gets 0.
fn scaled(raw: &[f64], counted: &[bool]) -> Vec<i64> {
    let counts = || raw.iter().zip(counted).filter(|(_, counted)| **counted).map(|(raw, _)| raw.round());
    let (min, max) = (counts().fold(f64::MAX, f64::min), counts().fold(0f64, f64::max));
    let scaled = |raw: f64| if max == 0.0 { 100.0 } else { 100.0 * (max + min - raw.round()) / max };
    raw.iter().zip(counted).map(|(raw, counted)| if *counted { whole(scaled(*raw)) } else { 0 }).collect()
}

/// Constraints of pods that say nothing (upstream's `systemDefaultConstraints`, 1.36.2): label and maxSkew.
const BY_DEFAULT: [(&str, i64); 2] = [("kubernetes.io/hostname", 3), ("topology.kubernetes.io/zone", 5)];

/// Which pods are spread with a pod that does not say so itself.
enum Kin<'a> {
    /// Those of its controller.
    Controller(&'a str),
    /// Those that all Services of the pod select.
    Services(Vec<&'a BTreeMap<String, String>>),
}

impl Kin<'_> {
    fn has(&self, pod: &Pod) -> bool {
        match self {
            Kin::Controller(uid) => controller(pod).is_some_and(|(_, other)| other == *uid),
            Kin::Services(selectors) => selectors.iter().all(|wanted| includes(wanted, pod.metadata.labels.as_ref())),
        }
    }
}

fn controller(pod: &Pod) -> Option<(&str, &str)> {
    owners::controller_of(&pod.metadata).map(|owner| (owner.kind.as_str(), owner.uid.as_str()))
}

/// Spec: upstream's `helper.DefaultSelector`. The pods of one set have the labels of its template, and so the same
/// Services.
fn kin<'a>(candidate: &Candidate<'a>, snapshot: &'a Snapshot) -> Option<Kin<'a>> {
    if let Some((_, uid)) = controller(candidate.pod)
        .filter(|(kind, _)| matches!(*kind, "ReplicaSet" | "ReplicationController" | "StatefulSet"))
    {
        return Some(Kin::Controller(uid));
    }
    let ours =
        snapshot.services.iter().filter(|service| service.metadata.namespace == candidate.pod.metadata.namespace);
    let selectors = ours.filter_map(|service| service.spec.as_ref()?.selector.as_ref());
    let labels = candidate.pod.metadata.labels.as_ref();
    let selectors: Vec<_> = selectors.filter(|wanted| !wanted.is_empty() && includes(wanted, labels)).collect();
    (!selectors.is_empty()).then_some(Kin::Services(selectors))
}

fn by_default(candidate: &Candidate<'_>, nodes: &[&NodeState], snapshot: &Snapshot) -> Vec<i64> {
    let Some(kin) = kin(candidate, snapshot) else { return vec![0; nodes.len()] };
    let on = |node: &NodeState| {
        let counts = |pod: &Pod| {
            pod.metadata.namespace == candidate.pod.metadata.namespace
                && pod.metadata.deletion_timestamp.is_none()
                && kin.has(pod)
        };
        i64::try_from(node.pods.iter().filter(|pod| counts(pod)).count()).unwrap_or(i64::MAX)
    };
    let mut raw = vec![0f64; nodes.len()];
    for (key, max_skew) in BY_DEFAULT {
        let mut domains: BTreeMap<&str, i64> = BTreeMap::new();
        for node in snapshot.nodes.values().filter(|node| filters::is_wanted(candidate, node, snapshot)) {
            if let Some(domain) = node.label(key) {
                *domains.entry(domain).or_default() += on(node);
            }
        }
        let usable: BTreeSet<&str> = nodes.iter().filter_map(|node| node.label(key)).collect();
        let weight = real(i64::try_from(usable.len()).unwrap_or(i64::MAX).saturating_add(2)).ln();
        for (raw, node) in raw.iter_mut().zip(nodes) {
            // A node without the label is no reason to leave it out: many clusters have no zones.
            let Some(count) = node.label(key).map(|domain| domains.get(domain).copied().unwrap_or(0)) else { continue };
            *raw += real(count) * weight + real(max_skew - 1);
        }
    }
    scaled(&raw, &vec![true; nodes.len()])
}

#[expect(clippy::cast_precision_loss, reason = "counts of pods and nodes are far below 2^52")]
fn real(count: i64) -> f64 {
    count as f64
}

#[expect(clippy::cast_possible_truncation, reason = "between 0 and 100")]
fn whole(score: f64) -> i64 {
    score as i64
}
