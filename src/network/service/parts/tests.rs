//! Claims about changes of few Services among many.

use base::rng::Rng;

use super::*;
use crate::family::Family;
use crate::service::frame::frame;
use crate::service::listeners::Listeners;
use crate::service::reserved::Reserved;
use crate::service::rules::{Answering, Site, UdpTarget, table};
use crate::table;

fn element(set: &'static str, key: &str, value: &str) -> Element {
    Element { set, key: key.to_owned(), value: value.to_owned() }
}

fn key(n: u64) -> Key {
    Key::new("default", &format!("svc-{n}"))
}

/// Makes the parts the ones given, and the same change to a table that follows the deltas only, as the kernel does.
fn follow(table: &mut Ruleset, parts: &mut Parts, fresh: BTreeMap<Key, Option<Part>>) {
    let Delta { before, after } = parts.change(fresh);
    for name in before.content.chains.keys() {
        assert!(table.chains.contains_key(name), "a chain that is not there is changed: {name}");
        table.chains.remove(name);
    }
    table.chains.extend(after.content.chains);
    for (set, elements) in &before.content.elements {
        for (element, value) in elements {
            let held = table.elements.get_mut(set).and_then(|elements| elements.remove(element));
            assert_eq!(held.as_ref(), Some(value), "{set} {element}");
        }
    }
    for (set, elements) in after.content.elements {
        table.elements.entry(set).or_default().extend(elements);
    }
}

#[test]
fn deltas_lead_where_the_whole_table_is() {
    for seed in 0..50 {
        let rng = Rng::from_seed(seed);
        let (listeners, reserved) = (Listeners::default(), Reserved::default());
        let site = Site {
            family: Family::V4,
            cluster_cidrs: vec![],
            node_port_addresses: None,
            masquerade_pods: true,
            listeners,
            reserved,
        };
        let (mut parts, mut table) = (Parts::default(), frame(&site));
        for step in 0..60 {
            let mut fresh = BTreeMap::new();
            for _ in 0..=rng.below(3) {
                let n = rng.below(6);
                let part = (rng.below(4) > 0).then(|| Part {
                    chains: vec![(format!("svc-{n}"), vec![format!("to {}", rng.below(3))])],
                    // Few keys, so that Services claim the same ones.
                    elements: (0..2)
                        .map(|m| element("service-ips", &format!("{m}{}", rng.below(3)), &format!("goto svc-{n}")))
                        .collect(),
                    ..Part::default()
                });
                fresh.insert(key(n), part);
            }
            follow(&mut table, &mut parts, fresh);
            assert_eq!(table, parts.whole(frame(&site)).content, "seed {seed}, step {step}");
        }
    }
}

#[test]
fn what_does_not_change_is_not_spoken_of() {
    let part = |to: &str| Part {
        chains: vec![("svc-1".to_owned(), vec![format!("to {to}")])],
        elements: vec![
            element("service-ips", "10.43.0.1 . tcp . 80", "goto svc-1"),
            element("cluster-ips", "10.43.0.1", ""),
        ],
        udp: vec![(Answering::default().into(), vec![UdpTarget::NodePort(30_000)])],
        ..Part::default()
    };
    let mut parts = Parts::default();
    parts.change([(key(1), Some(part("a")))].into());
    let delta = parts.change([(key(1), Some(part("a"))), (key(2), None)].into());
    assert_eq!((&delta.before, &delta.after), (&ServiceRules::default(), &ServiceRules::default()));
    let delta = parts.change([(key(1), Some(part("b")))].into());
    let script = table::update(table(Family::V4), &delta.before.content, &delta.after.content);
    assert_eq!(script.change, "flush chain ip kedge-proxy svc-1\nadd rule ip kedge-proxy svc-1 to b\n");
    assert_eq!(script.sweep, "");
}

#[test]
fn the_last_element_of_a_set_goes_and_the_set_stays() {
    let part = Part { elements: vec![element("cluster-ips", "10.43.0.1", "")], ..Part::default() };
    let mut parts = Parts::default();
    parts.change([(key(1), Some(part))].into());
    let delta = parts.change([(key(1), None)].into());
    let script = table::update(table(Family::V4), &delta.before.content, &delta.after.content);
    assert_eq!(script.change, "delete element ip kedge-proxy cluster-ips { 10.43.0.1 }\n");
}
