//! Topology-aware routing (`service.kubernetes.io/topology-mode: Auto`): each zone's clients get endpoints in
//! proportion to the zone's CPUs, from their own zone as far as those go. Pure; nothing is remembered, so the same
//! nodes and endpoints give the same hints.
//!
//! Spec: upstream's `topologycache` (1.36.2, staging/src/k8s.io/endpointslice).

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointHints, ForZone};
use kube::ResourceExt as _;
use model::quantity::Quantity;

/// How much more than its share one endpoint may get.
const OVERLOAD: f64 = 0.2;
const MODE: &str = "service.kubernetes.io/topology-mode";
const OLD_MODE: &str = "service.kubernetes.io/topology-aware-hints";
/// Nodes with these labels run no pods of users.
const EXCLUDED: [&str; 2] = ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"];

/// Whether the Service asks for hints by zone.
pub(super) fn is_auto(service: &Service) -> bool {
    let notes = service.annotations();
    notes.get(OLD_MODE).or_else(|| notes.get(MODE)).is_some_and(|mode| mode == "Auto" || mode == "auto")
}

/// The node's zone.
pub(super) fn zone_of(node: &Node) -> Option<&str> {
    node.metadata
        .labels
        .as_ref()?
        .get("topology.kubernetes.io/zone")
        .map(String::as_str)
        .filter(|zone| !zone.is_empty())
}

/// Thousandths of the CPUs that a node gives to the shares of its zone; `None` for one that is not ready, or that runs
/// nothing.
pub(super) fn counted_cpu(node: &Node) -> Option<i64> {
    let excluded = EXCLUDED.iter().any(|label| node.labels().contains_key(*label));
    let conditions = node.status.iter().flat_map(|s| s.conditions.iter().flatten());
    let ready = conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True");
    let cpu = || node.status.as_ref()?.allocatable.as_ref()?.get("cpu")?.0.parse::<Quantity>().ok();
    (ready && !excluded).then(|| cpu().map_or(0, |cpu| cpu.milli_value()))
}

/// The share of each zone in all CPUs; empty where it cannot be told, or there is one zone only.
fn shares(nodes: &BTreeMap<String, Arc<Node>>) -> BTreeMap<String, f64> {
    let mut by_zone: BTreeMap<String, i64> = BTreeMap::new();
    for node in nodes.values() {
        let Some(cpu) = counted_cpu(node) else { continue };
        match zone_of(node).filter(|_| cpu > 0) {
            Some(zone) => *by_zone.entry(zone.to_owned()).or_default() += cpu,
            None => return BTreeMap::new(),
        }
    }
    let all: i64 = by_zone.values().sum();
    if by_zone.len() < 2 {
        return BTreeMap::new();
    }
    by_zone.into_iter().map(|(zone, cpu)| (zone, real(cpu) / real(all))).collect()
}

#[expect(clippy::cast_precision_loss, reason = "numbers of CPUs and endpoints are far below 2^52")]
fn real(n: i64) -> f64 {
    n as f64
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|c| c.ready) == Some(true)
}

/// Gives hints to the endpoints of one family, or takes all hints away where they would overload somebody.
pub(super) fn hint(endpoints: &mut [&mut Endpoint], nodes: &BTreeMap<String, Arc<Node>>) {
    endpoints.iter_mut().for_each(|endpoint| endpoint.hints = None);
    let shares = shares(nodes);
    let ready: Vec<usize> = (0..endpoints.len()).filter(|idx| is_ready(endpoints[*idx])).collect();
    let Some(wanted) = wanted(&shares, ready.len()) else { return };
    let mut homes: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for idx in &ready {
        let Some(zone) = endpoints[*idx].zone.clone().filter(|zone| !zone.is_empty()) else { return };
        homes.entry(zone).or_default().push(*idx);
    }
    let mut zones: BTreeMap<usize, String> = BTreeMap::new();
    for (zone, idxs) in &homes {
        zones.extend(idxs.iter().map(|idx| (*idx, zone.clone())));
    }
    for (giving, receiving) in moves(&wanted, &homes) {
        // The first of the zone that was not given away yet.
        let given = homes.get_mut(&giving).filter(|idxs| !idxs.is_empty()).map(|idxs| idxs.remove(0));
        zones.extend(given.map(|idx| (idx, receiving)));
    }
    for (idx, zone) in zones {
        endpoints[idx].hints = Some(EndpointHints { for_zones: Some(vec![ForZone { name: zone }]), for_nodes: None });
    }
}

/// How many endpoints each zone should have; `None` if that cannot be without an overload.
fn wanted(shares: &BTreeMap<String, f64>, n_ready: usize) -> Option<BTreeMap<String, f64>> {
    let all = real(i64::try_from(n_ready).unwrap_or(i64::MAX));
    let least = |share: &f64| (share * all / (1.0 + OVERLOAD)).ceil();
    let possible = shares.len() >= 2 && shares.len() <= n_ready && shares.values().map(least).sum::<f64>() <= all;
    possible.then(|| shares.iter().map(|(zone, share)| (zone.clone(), (share * all).max(least(share)))).collect())
}

/// From which zone to which one endpoint each is given. Spec: upstream's `getGivingAndReceivingZones`.
fn moves(wanted: &BTreeMap<String, f64>, homes: &BTreeMap<String, Vec<usize>>) -> Vec<(String, String)> {
    let there = |zone: &String| real(homes.get(zone).map_or(0, |idxs| i64::try_from(idxs.len()).unwrap_or(i64::MAX)));
    let over = |zone: &String| there(zone) - wanted.get(zone).copied().unwrap_or(0.0);
    let zones = || wanted.keys().chain(homes.keys().filter(|zone| !wanted.contains_key(*zone)));
    let mut giving: BTreeMap<String, f64> =
        zones().filter(|zone| over(zone) > 0.0).map(|zone| (zone.clone(), over(zone))).collect();
    let mut receiving: BTreeMap<String, f64> =
        zones().filter(|zone| over(zone) < 0.0).map(|zone| (zone.clone(), -over(zone))).collect();
    let most = |zones: &BTreeMap<String, f64>| {
        zones.iter().max_by(|a, b| a.1.total_cmp(b.1)).map(|(zone, n)| (zone.clone(), *n))
    };
    let mut moves = Vec::new();
    while let (Some((from, gives)), Some((to, takes))) = (most(&giving), most(&receiving)) {
        if gives < 1.0 && takes < 1.0 || gives < 0.5 || takes < 0.5 {
            break;
        }
        giving.entry(from.clone()).and_modify(|n| *n -= 1.0);
        receiving.entry(to.clone()).and_modify(|n| *n -= 1.0);
        moves.push((from, to));
    }
    moves
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nodes(cpus: &[(&str, &str)]) -> BTreeMap<String, Arc<Node>> {
        let node = |(zone, cpu): &(&str, &str)| {
            let node = json!({"metadata": {"name": zone, "labels": {"topology.kubernetes.io/zone": zone}},
                "status": {"allocatable": {"cpu": cpu}, "conditions": [{"type": "Ready", "status": "True"}]}});
            ((*zone).to_owned(), Arc::new(serde_json::from_value(node).unwrap()))
        };
        cpus.iter().map(node).collect()
    }

    fn hinted(zones: &[Option<&str>], nodes: &BTreeMap<String, Arc<Node>>) -> Vec<String> {
        let of = |zone: &Option<&str>| -> Endpoint {
            serde_json::from_value(json!({"addresses": ["10.0.0.1"], "zone": zone, "conditions": {"ready": true}}))
                .unwrap()
        };
        let mut endpoints: Vec<Endpoint> = zones.iter().map(of).collect();
        hint(&mut endpoints.iter_mut().collect::<Vec<_>>(), nodes);
        endpoints
            .into_iter()
            .map(|e| e.hints.map_or("-".to_owned(), |h| h.for_zones.unwrap()[0].name.clone()))
            .collect()
    }

    #[test]
    fn endpoints_serve_their_zone_and_a_zone_that_has_too_few_gets_some() {
        let even = nodes(&[("a", "4"), ("b", "4")]);
        assert_eq!(hinted(&[Some("a"), Some("b"), Some("a"), Some("b")], &even), ["a", "b", "a", "b"]);
        assert_eq!(hinted(&[Some("a"), Some("a"), Some("a"), Some("a")], &even), ["b", "b", "a", "a"]);
        let uneven = nodes(&[("a", "6"), ("b", "2")]);
        assert_eq!(hinted(&[Some("a"), Some("b"), Some("b"), Some("b")], &uneven), ["a", "a", "a", "b"]);
    }

    #[test]
    fn where_shares_cannot_be_told_or_kept_there_are_no_hints() {
        let even = nodes(&[("a", "4"), ("b", "4")]);
        assert_eq!(hinted(&[Some("a")], &even), ["-"]);
        assert_eq!(hinted(&[Some("a"), None], &even), ["-", "-"]);
        assert_eq!(hinted(&[Some("a"), Some("a")], &nodes(&[("a", "4")])), ["-", "-"]);
        let mut unlabelled = nodes(&[("a", "4"), ("b", "4"), ("c", "4")]);
        let mut bare = (*unlabelled["c"]).clone();
        bare.metadata.labels = None;
        unlabelled.insert("c".to_owned(), Arc::new(bare));
        assert_eq!(hinted(&[Some("a"), Some("b"), Some("a")], &unlabelled), ["-", "-", "-"]);
    }

    #[test]
    fn the_annotation_is_read_in_both_its_forms() {
        let with = |key: &str, mode: &str| -> Service {
            serde_json::from_value(json!({"metadata": {"annotations": {key: mode}}})).unwrap()
        };
        assert!(is_auto(&with(MODE, "Auto")) && is_auto(&with(OLD_MODE, "auto")));
        assert!(!is_auto(&with(MODE, "Disabled")) && !is_auto(&Service::default()));
    }
}
