//! The addresses and ports of one service, when it is made and when it changes. What is taken is read from the services
//! themselves ([`super::ledger`]), so nothing can leak or drift.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use model::meta;
use model::reference::{GroupKind, GroupResource, NamespacedName};
use schema::validate::error::FieldError;
use serde_json::{Value, json};

use super::addresses::{cidr_family, cluster_ips, nth_address, protocol};
use super::allocator::Allocator;
use super::ledger::Taken;
use super::{families, ranges};
use crate::keys;
use crate::status::Status;

/// Addresses below this offset are left for services that ask for one, as upstream's static band.
const STATIC_BAND_MAX: u128 = 256;

/// Sets what a service of its type needs, and takes from it what another type needed.
///
/// Errors: 422 when an address asked for is taken or outside its range, or none is left.
pub(super) fn complete(allocator: &Allocator, service: &mut Value, old: Option<&Value>) -> Result<(), Status> {
    let (namespace, name) = (meta::namespace(service).to_owned(), meta::name(service).to_owned());
    let local = keys::local(NamespacedName { namespace: &namespace, name: &name });
    let mut ledger = allocator.ledger.lock();
    ledger.refresh(&allocator.objects.cache.kind(GroupResource::core("services")));
    let taken = ledger.of_others(&local);
    let kind = service["spec"]["type"].as_str().unwrap_or("ClusterIP").to_owned();
    let mut errors = Vec::new();
    if kind == "ExternalName" {
        // What the type before needed goes; validation judges what somebody asks for.
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            let inherited = old.is_some_and(|old| {
                old["spec"]["type"] != "ExternalName" && old["spec"][field] == service["spec"][field]
            });
            if inherited || service["spec"][field] == "" {
                drop_field(&mut service["spec"], field);
            }
        }
    } else {
        keep_old_ips(service, old);
        list_of_one(service, old);
        // What may not change is judged once the families are known, too.
        let wrong = schema::validate::service_addresses(service, None);
        if !wrong.is_empty() {
            return Err(crate::status::invalid(GroupKind { group: "", kind: "Service" }, &name, wrong));
        }
        families::complete(service, old, &allocator.service_cidrs.iter().map(cidr_family).collect::<Vec<_>>())
            .map_err(|wrong| crate::status::invalid(GroupKind { group: "", kind: "Service" }, &name, wrong))?;
        give_ips(allocator, service, old, taken, &mut errors);
    }
    if matches!(kind.as_str(), "NodePort" | "LoadBalancer")
        && service["spec"]["allocateLoadBalancerNodePorts"] != json!(false)
    {
        keep_old_ports(service, old);
        give_ports(allocator, service, taken, &mut errors);
    } else if kind != "NodePort" && kind != "LoadBalancer" {
        clear_ports(service, old);
    }
    health_port(allocator, service, old, taken, &mut errors);
    if errors.is_empty() {
        Ok(())
    } else {
        Err(crate::status::invalid(GroupKind { group: "", kind: "Service" }, &name, errors))
    }
}

/// The port at which outside load balancers ask a node for endpoints: only services that prefer local ones have it.
fn health_port(
    allocator: &Allocator,
    service: &mut Value,
    old: Option<&Value>,
    taken: Taken<'_>,
    errors: &mut Vec<FieldError>,
) {
    let needs =
        |s: &Value| s["spec"]["type"] == json!("LoadBalancer") && s["spec"]["externalTrafficPolicy"] == json!("Local");
    let port =
        |s: &Value| s["spec"]["healthCheckNodePort"].as_u64().and_then(|n| u16::try_from(n).ok()).filter(|n| *n > 0);
    let had = old.filter(|old| needs(old)).and_then(port);
    if !needs(service) {
        // What the type before needed goes; validation judges what somebody asks for without need.
        if had.is_some() && port(service) == had {
            drop_field(&mut service["spec"], "healthCheckNodePort");
        }
        return;
    }
    let field = "spec.healthCheckNodePort";
    let mine: BTreeSet<u16> = service["spec"]["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|p| u16::try_from(p["nodePort"].as_u64()?).ok())
        .collect();
    let used = |n: u16| mine.contains(&n) || taken.number(n);
    let (range, asked) = (&allocator.node_ports, port(service).or(had));
    let given = match asked {
        Some(asked) if asked_is_bad(asked, had, range.contains(&asked), used(asked)) => {
            let detail = format!(
                "failed to allocate requested HealthCheck NodePort {asked}: it is taken or not in the range {}-{}",
                range.start(),
                range.end()
            );
            errors.push(FieldError::invalid(field, json!(asked), detail));
            return;
        }
        Some(asked) => Some(asked),
        None => {
            let count = u64::from(range.end() - range.start()) + 1;
            let start = allocator.objects.rng.below(count);
            (0..count)
                .filter_map(|i| u16::try_from(u64::from(*range.start()) + (start + i) % count).ok())
                .find(|n| !used(*n))
        }
    };
    match given {
        Some(number) => service["spec"]["healthCheckNodePort"] = json!(number),
        None => errors.push(FieldError::internal(field, "failed to allocate a HealthCheck NodePort: range is full")),
    }
}

/// A port that the service has already is its own.
fn asked_is_bad(asked: u16, had: Option<u16>, in_range: bool, used: bool) -> bool {
    had != Some(asked) && (!in_range || used)
}

fn drop_field(value: &mut Value, field: &str) {
    if let Value::Object(map) = value {
        map.remove(field);
    }
}

/// A client that knows one address only gives that one: the list says the same. Who takes it away gets it back.
fn list_of_one(service: &mut Value, old: Option<&Value>) {
    let single = service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    let kept = old.is_some_and(|old| old["spec"]["clusterIPs"] == service["spec"]["clusterIPs"]);
    match service["spec"]["clusterIPs"].as_array().and_then(|list| list.first()).cloned() {
        None if !single.is_empty() => service["spec"]["clusterIPs"] = json!([single]),
        Some(first) if single.is_empty() && kept => service["spec"]["clusterIP"] = first,
        _ => {}
    }
}

fn keep_old_ips(service: &mut Value, old: Option<&Value>) {
    let Some(old) = old.filter(|o| o["spec"]["type"] != json!("ExternalName")) else { return };
    // A client that knows one address only changed that one: the list follows, and validation judges.
    let single = service["spec"]["clusterIP"].as_str().unwrap_or_default().to_owned();
    let alone = service["spec"]["clusterIP"] != old["spec"]["clusterIP"]
        && service["spec"]["clusterIPs"] == old["spec"]["clusterIPs"];
    if !single.is_empty()
        && alone
        && let Some(first) = service["spec"]["clusterIPs"].get_mut(0)
    {
        *first = json!(single);
    }
    if cluster_ips(service).is_empty() {
        for field in ["clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
            if service["spec"][field].is_null() || service["spec"][field] == json!("") {
                service["spec"][field] = old["spec"][field].clone();
            }
        }
    }
}

fn give_ips(
    allocator: &Allocator,
    service: &mut Value,
    old: Option<&Value>,
    taken: Taken<'_>,
    errors: &mut Vec<FieldError>,
) {
    let asked = cluster_ips(service);
    if asked.first().is_some_and(|ip| ip == "None") {
        set_ips(service, &["None".to_owned()]);
        return;
    }
    let (mut given, had) = (Vec::new(), old.map(cluster_ips).unwrap_or_default());
    for (idx, wanted) in families::of(service).iter().enumerate() {
        // What it has it keeps, whatever became of the range.
        if let Some(kept) = asked.get(idx).filter(|ip| had.contains(ip)) {
            given.push(kept.clone());
            continue;
        }
        let ranges = ranges::of_family(allocator, wanted);
        let ip = match asked.get(idx) {
            Some(text) => match fixed_ip(text, &ranges, taken) {
                Ok(ip) => ip,
                Err(why) => {
                    let detail = format!("failed to allocate IP {text}: {why}");
                    errors.push(FieldError::invalid("spec.clusterIPs", json!(asked), detail));
                    return;
                }
            },
            None => match ranges
                .iter()
                .find_map(|range| free_ip(range, |ip| taken.ip(ip), |bound| allocator.objects.rng.below(bound)))
            {
                Some(ip) => ip,
                None => {
                    let detail = "failed to allocate a serviceIP: range is full";
                    errors.push(FieldError::internal("spec.clusterIPs", detail));
                    return;
                }
            },
        };
        given.push(ip.to_string());
    }
    set_ips(service, &given);
}

fn set_ips(service: &mut Value, ips: &[String]) {
    let spec = &mut service["spec"];
    spec["clusterIP"] = json!(ips.first());
    spec["clusterIPs"] = json!(ips);
}

/// Why a service does not get the address that it asks for.
#[derive(Debug, thiserror::Error)]
enum NotGiven {
    #[error("not a valid IP address")]
    NoAddress,
    #[error(
        "the provided IP ({ip}) is not in the valid range. The range of valid IPs is {}",
        ranges.iter().map(IpNet::to_string).collect::<Vec<_>>().join(", ")
    )]
    Outside { ip: IpAddr, ranges: Vec<IpNet> },
    #[error("provided IP is already allocated")]
    Allocated,
}

fn fixed_ip(text: &str, ranges: &[IpNet], taken: Taken<'_>) -> Result<IpAddr, NotGiven> {
    let ip: IpAddr = text.parse().map_err(|_| NotGiven::NoAddress)?;
    if !ranges.iter().any(|range| range.contains(&ip)) {
        return Err(NotGiven::Outside { ip, ranges: ranges.to_vec() });
    }
    if taken.ip(&ip) { Err(NotGiven::Allocated) } else { Ok(ip) }
}

/// A free address: a random place above the static band, then round; the static band only when the rest is full.
fn free_ip(cidr: &IpNet, taken: impl Fn(&IpAddr) -> bool, below: impl Fn(u64) -> u64) -> Option<IpAddr> {
    let host_bits = u32::from(cidr.max_prefix_len() - cidr.prefix_len()).min(20);
    let size = 1u128 << host_bits;
    // Neither the network's address nor (IPv4) the broadcast address.
    let (first, end) = (1, if cidr_family(cidr) == "IPv4" { size - 1 } else { size });
    let band = (size / 16).clamp(16, STATIC_BAND_MAX).min(end);
    let upper = end.saturating_sub(band);
    let start = u128::from(below(u64::try_from(upper).unwrap_or(1)));
    let candidates = (0..upper).map(|i| band + (start + i) % upper).chain(first..band);
    candidates.map(|place| nth_address(cidr, place)).find(|ip| !taken(ip))
}

fn keep_old_ports(service: &mut Value, old: Option<&Value>) {
    let Some(old) = old else { return };
    let mut old_ports = BTreeMap::new();
    for port in old["spec"]["ports"].as_array().into_iter().flatten() {
        old_ports.entry((port["port"].as_i64(), protocol(port))).or_insert(port);
    }
    for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
        if port["nodePort"].as_u64().unwrap_or(0) == 0
            && let Some(same) = old_ports.get(&(port["port"].as_i64(), protocol(port)))
            && same["nodePort"].as_u64().unwrap_or(0) > 0
        {
            port["nodePort"] = same["nodePort"].clone();
        }
    }
}

fn give_ports(allocator: &Allocator, service: &mut Value, taken: Taken<'_>, errors: &mut Vec<FieldError>) {
    let range = &allocator.node_ports;
    let mut mine: BTreeSet<u16> = BTreeSet::new();
    let mut is_full = false;
    let ports: Vec<&mut Value> = service["spec"]["ports"].as_array_mut().into_iter().flatten().collect();
    for (idx, port) in ports.into_iter().enumerate() {
        let protocol = protocol(port);
        let asked = port["nodePort"].as_u64().unwrap_or(0);
        let field = format!("spec.ports[{idx}].nodePort");
        if asked > 0 {
            let number = u16::try_from(asked).unwrap_or(0);
            if !range.contains(&number) {
                let detail = format!(
                    "provided port is not in the valid range. The range of valid ports is {}-{}",
                    range.start(),
                    range.end()
                );
                errors.push(FieldError::invalid(field, json!(asked), detail));
            } else if taken.port(&protocol, number) {
                errors.push(FieldError::invalid(field, json!(asked), "provided port is already allocated"));
            }
            mine.insert(number);
            continue;
        }
        let count = u64::from(range.end() - range.start()) + 1;
        let start = allocator.objects.rng.below(count);
        let free = (0..count)
            .filter_map(|i| u16::try_from(u64::from(*range.start()) + (start + i) % count).ok())
            .find(|n| !is_full && !taken.number(*n) && !mine.contains(n));
        match free {
            Some(number) => {
                port["nodePort"] = json!(number);
                mine.insert(number);
            }
            None => {
                is_full = true;
                errors.push(FieldError::internal(field, "failed to allocate a nodePort: range is full"));
            }
        }
    }
}

/// A service that needs no node ports any more loses those it did not ask for anew.
fn clear_ports(service: &mut Value, old: Option<&Value>) {
    let had = |o: &Value| matches!(o["spec"]["type"].as_str(), Some("NodePort" | "LoadBalancer"));
    if old.is_some_and(had) {
        for port in service["spec"]["ports"].as_array_mut().into_iter().flatten() {
            drop_field(port, "nodePort");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_addresses_come_from_above_the_static_band_until_only_it_is_left() {
        let cidr: IpNet = "10.43.0.0/27".parse().unwrap();
        let mut taken = BTreeSet::new();
        let mut seen = Vec::new();
        while let Some(ip) = free_ip(&cidr, |ip| taken.contains(ip), |_| 3) {
            taken.insert(ip);
            seen.push(ip.to_string());
        }
        assert_eq!(seen.len(), 30);
        assert_eq!(seen[0], "10.43.0.19");
        assert_eq!(seen[29], "10.43.0.15");
        assert!(!seen.contains(&"10.43.0.0".to_owned()) && !seen.contains(&"10.43.0.31".to_owned()));
    }
}
