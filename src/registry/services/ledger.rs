//! Which service holds which address and port: read from the services themselves, so nothing can leak or drift, and
//! kept up to date from their changes, as reading ten thousand of them for each new one takes long.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use serde_json::Value;

use super::addresses::{cluster_ips, protocol};
use crate::cache::Kind;
use crate::cache::entry::Entry;

/// A service's local key.
type Key = Box<str>;

/// Addresses and ports of all services, as of one state of their cache.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Up to this revision, if anything was read yet.
    at: Option<u64>,
    services: HashMap<Key, Holding>,
    ips: HashMap<IpAddr, Key>,
    ports: BTreeMap<(u16, String), Key>,
}

#[derive(Debug, Default)]
struct Holding {
    ips: Vec<IpAddr>,
    ports: Vec<(u16, String)>,
}

impl Holding {
    fn of(service: &Value) -> Holding {
        let number = |value: &Value| value.as_u64().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
        let ports = service["spec"]["ports"].as_array().into_iter().flatten();
        let node_ports = ports.filter_map(|port| Some((number(&port["nodePort"])?, protocol(port))));
        let health = number(&service["spec"]["healthCheckNodePort"]).map(|n| (n, "TCP".to_owned()));
        Holding {
            ips: cluster_ips(service).iter().filter_map(|ip| ip.parse().ok()).collect(),
            ports: node_ports.chain(health).collect(),
        }
    }
}

impl Ledger {
    /// Brings it up to the state of the cache.
    pub fn refresh(&mut self, services: &Kind) {
        if let Some((changes, newest)) = self.at.and_then(|at| services.changes_after(at)) {
            for change in changes {
                match (&change.after, &change.before) {
                    (Some(after), _) => self.note(after),
                    (None, Some(before)) => self.forget(&before.key),
                    (None, None) => {}
                }
            }
            self.at = Some(newest);
            return;
        }
        let all = services.snapshot(None);
        *self = Ledger { at: Some(all.newest), ..Ledger::default() };
        for entry in &all.items {
            self.note(entry);
        }
    }

    fn note(&mut self, entry: &Entry) {
        self.forget(&entry.key);
        let holding = Holding::of(&entry.value());
        for ip in &holding.ips {
            self.ips.insert(*ip, entry.key.clone());
        }
        for port in &holding.ports {
            self.ports.insert(port.clone(), entry.key.clone());
        }
        self.services.insert(entry.key.clone(), holding);
    }

    fn forget(&mut self, key: &str) {
        let Some(holding) = self.services.remove(key) else { return };
        for ip in &holding.ips {
            if self.ips.get(ip).is_some_and(|owner| **owner == *key) {
                self.ips.remove(ip);
            }
        }
        for port in &holding.ports {
            if self.ports.get(port).is_some_and(|owner| **owner == *key) {
                self.ports.remove(port);
            }
        }
    }

    /// Everything that services hold but the one of this local key.
    pub fn of_others<'l>(&'l self, but: &'l str) -> Taken<'l> {
        Taken { ledger: self, but }
    }
}

/// Addresses and ports of all services but one.
#[derive(Clone, Copy, Debug)]
pub struct Taken<'l> {
    ledger: &'l Ledger,
    but: &'l str,
}

impl Taken<'_> {
    /// Whether an address is taken.
    pub fn ip(&self, ip: &IpAddr) -> bool {
        self.ledger.ips.get(ip).is_some_and(|owner| **owner != *self.but)
    }

    /// Whether a node port is taken in one protocol.
    pub fn port(&self, protocol: &str, number: u16) -> bool {
        self.ledger.ports.get(&(number, protocol.to_owned())).is_some_and(|owner| **owner != *self.but)
    }

    /// Whether a node port is taken in any protocol.
    pub fn number(&self, number: u16) -> bool {
        let of_number = self.ledger.ports.range((number, String::new())..).take_while(|((n, _), _)| *n == number);
        of_number.into_iter().any(|(_, owner)| **owner != *self.but)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use store::{Event, EventKind, KeyValue, Revision};

    use super::*;

    fn kv(name: &str, rv: u64, service: &Value) -> KeyValue {
        let key = format!("/registry/core/services/n/{name}").into();
        KeyValue { key, value: service.to_string().into(), mod_revision: Revision(rv), ..KeyValue::default() }
    }

    fn put(name: &str, rv: u64, ip: &str, port: u16) -> Event {
        let service = json!({ "metadata": { "name": name, "namespace": "n" },
            "spec": { "clusterIP": ip, "clusterIPs": [ip], "ports": [{ "protocol": "UDP", "nodePort": port }] } });
        Event { kind: EventKind::Put, kv: kv(name, rv, &service), prev: None }
    }

    fn gone(name: &str, rv: u64) -> Event {
        Event {
            kind: EventKind::Delete,
            kv: KeyValue { value: Default::default(), ..kv(name, rv, &Value::Null) },
            prev: None,
        }
    }

    fn filled(events: &[Event]) -> Kind {
        let kind = Kind::new("/registry/core/services/".into(), Default::default());
        kind.begin_filling();
        kind.finish_filling(events.iter().map(|event| event.kv.clone()).collect(), 10);
        kind
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn what_a_service_held_is_free_when_it_changes_or_goes() {
        let services = filled(&[put("a", 9, "10.43.0.9", 30_001), put("b", 10, "10.43.0.10", 30_002)]);
        let mut ledger = Ledger::default();
        ledger.refresh(&services);
        let taken = ledger.of_others("n/new");
        assert!(taken.ip(&ip("10.43.0.9")) && taken.port("UDP", 30_002) && taken.number(30_002));
        assert!(!taken.port("TCP", 30_002) && !taken.number(30_003));
        assert!(!ledger.of_others("n/a").ip(&ip("10.43.0.9")), "a service's own address is not taken from it");

        services.apply(&[&put("a", 11, "10.43.0.11", 30_001)]);
        services.apply(&[&gone("b", 12)]);
        ledger.refresh(&services);
        let taken = ledger.of_others("n/new");
        assert!(!taken.ip(&ip("10.43.0.9")) && taken.ip(&ip("10.43.0.11")) && taken.number(30_001));
        assert!(!taken.ip(&ip("10.43.0.10")) && !taken.number(30_002));
    }

    #[test]
    fn a_cache_that_began_anew_is_read_anew() {
        let services = filled(&[put("a", 9, "10.43.0.9", 30_001)]);
        let mut ledger = Ledger::default();
        ledger.refresh(&services);
        services.reset();
        services.begin_filling();
        services.finish_filling(vec![put("b", 20, "10.43.0.20", 30_020).kv], 20);
        ledger.refresh(&services);
        let taken = ledger.of_others("n/new");
        assert!(!taken.ip(&ip("10.43.0.9")) && taken.ip(&ip("10.43.0.20")));
    }
}
