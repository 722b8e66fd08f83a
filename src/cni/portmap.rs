//! The `portmap` plugin: host ports of a container by destination NAT, in nftables maps of our own.
//!
//! One table a family, two maps: one for mappings with a host address, one for those without. A packet costs two
//! lookups however many mappings there are. Elements carry the container's id as comment, so that DEL takes away its
//! own alone.

use std::fs;
use std::net::IpAddr;

use netfilter::conntrack;
use serde::Deserialize;

use crate::error::{CniError, Code};
use crate::nft::{self, MapKey, Table};
use crate::request::Request;
use crate::result::NetResult;

/// Bit of the packet mark that asks our postrouting chain for masquerade.
const MASQUERADE_BIT: u32 = 0x2000;

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Config {
    runtime_config: RuntimeConfig,
    /// The node's own, as `10250/tcp`: whoever had one would answer in the kubelet's or the API server's place.
    own_ports: Vec<String>,
    snat: Option<bool>,
    mark_masq_bit: Option<u32>,
    external_set_mark_chain: Option<String>,
    #[serde(rename = "conditionsV4")]
    conditions_v4: Option<Vec<String>>,
    #[serde(rename = "conditionsV6")]
    conditions_v6: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RuntimeConfig {
    port_mappings: Vec<PortMapping>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PortMapping {
    // containerd's library writes its Go names, and Go reads any case.
    #[serde(alias = "HostPort")]
    host_port: i64,
    #[serde(alias = "ContainerPort")]
    container_port: i64,
    #[serde(alias = "Protocol", default)]
    protocol: String,
    #[serde(rename = "hostIP", alias = "HostIP", default)]
    host_ip: String,
}

/// Loopback addresses are the machine's own, also while packets to them may be routed.
const LOOPBACK_GUARD: &str = "add chain ip kedge-hostport loopback { type filter hook prerouting priority -300; }\n\
    flush chain ip kedge-hostport loopback\n\
    add rule ip kedge-hostport loopback iif != \"lo\" ip daddr 127.0.0.0/8 drop\n\
    add rule ip kedge-hostport loopback iif != \"lo\" ip saddr 127.0.0.0/8 drop\n";

/// A checked mapping.
#[derive(Clone, Debug, PartialEq)]
struct Mapping {
    protocol: &'static str,
    host_ip: Option<IpAddr>,
    /// The one family that it is for, if the host address tells.
    v4: Option<bool>,
    host_port: u16,
    container_port: u16,
}

impl Config {
    fn read(request: &Request) -> Result<(Config, Vec<Mapping>), CniError> {
        let config: Config = request.parse()?;
        let unsupported = [
            ("conditionsV4", config.conditions_v4.as_ref().is_some_and(|c| !c.is_empty())),
            ("conditionsV6", config.conditions_v6.as_ref().is_some_and(|c| !c.is_empty())),
            ("markMasqBit", config.mark_masq_bit.is_some()),
            ("externalSetMarkChain", config.external_set_mark_chain.is_some()),
        ];
        if let Some((field, _)) = unsupported.iter().find(|(_, used)| *used) {
            return Err(CniError::new(Code::UnsupportedField, format!("portmap: the field {field} is not supported")));
        }
        let mappings = config
            .runtime_config
            .port_mappings
            .iter()
            .filter(|m| m.host_port != 0)
            .map(Mapping::new)
            .collect::<Result<_, _>>()?;
        Ok((config, mappings))
    }
}

impl Mapping {
    fn new(given: &PortMapping) -> Result<Mapping, CniError> {
        let port = |n: i64, name: &str| {
            u16::try_from(n)
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| CniError::config(format!("Invalid {name} port number: {n}")))
        };
        let protocol = match given.protocol.to_ascii_lowercase().as_str() {
            "" | "tcp" => "tcp",
            "udp" => "udp",
            "sctp" => "sctp",
            other => return Err(CniError::config(format!("unknown port mapping protocol {other:?}"))),
        };
        let host_ip = match given.host_ip.as_str() {
            "" => None,
            text => Some(text.parse::<IpAddr>().map_err(|_| CniError::config(format!("invalid hostIP {text:?}")))?),
        };
        Ok(Mapping {
            protocol,
            v4: host_ip.map(|ip| ip.is_ipv4()),
            host_ip: host_ip.filter(|ip| !ip.is_unspecified()),
            host_port: port(given.host_port, "host")?,
            container_port: port(given.container_port, "container")?,
        })
    }

    /// Whether it is about this family: a host address, also an unspecified one, is about its own.
    fn is_for(&self, family: &Family) -> bool {
        self.v4.is_none_or(|own| own == family.is_v4())
    }

    /// The mapping's place in the maps.
    fn key(&self) -> MapKey {
        match self.host_ip {
            Some(ip) => MapKey { map: "by-address", key: format!("{ip} . {} . {}", self.protocol, self.host_port) },
            None => MapKey { map: "any-address", key: format!("{} . {}", self.protocol, self.host_port) },
        }
    }
}

pub(crate) fn add(request: &Request) -> Result<NetResult, CniError> {
    let prev = request.prev_result()?.ok_or_else(|| CniError::config("must be called as chained plugin"))?;
    let (config, mappings) = Config::read(request)?;
    if mappings.is_empty() {
        return Ok(prev);
    }
    let named = |mapping: &Mapping| format!("{}/{}", mapping.host_port, mapping.protocol);
    if let Some(port) = mappings.iter().map(named).find(|port| config.own_ports.contains(port)) {
        return Err(CniError::config(format!("host port {port} is the node's own: choose another one")));
    }
    let mut script = String::new();
    for family in FAMILIES {
        let Some(ip) = prev.container_ips().find(|ip| family.holds(ip.address.addr())) else { continue };
        let wanted: Vec<&Mapping> = mappings.iter().filter(|m| m.is_for(&family)).collect();
        script += &family.frame();
        for mapping in &wanted {
            // What another container left under this key is stale: the scheduler gave the port to this one.
            if family.holder(mapping)?.is_some() {
                script += &family.delete(mapping);
            }
        }
        let local = if config.snat.unwrap_or(true) { Some(ip.address.trunc().to_string()) } else { None };
        script += &family.add(&wanted, ip.address.addr(), &request.container_id, local.as_deref());
    }
    nft::apply(&script)?;
    allow_localhost(&prev);
    forget_udp(&mappings);
    Ok(prev)
}

pub(crate) fn del(request: &Request) -> Result<(), CniError> {
    // The runtime repeats the mappings of ADD here. Without any there is nothing to look for, and most pods have none.
    let (_, mappings) = Config::read(request)?;
    if mappings.is_empty() {
        return Ok(());
    }
    let mut script = String::new();
    for family in FAMILIES {
        for mapping in mappings.iter().filter(|m| m.is_for(&family)) {
            if family.holder(mapping)?.as_ref() == Some(&request.container_id) {
                script += &family.delete(mapping);
            }
        }
    }
    if !script.is_empty() {
        nft::apply(&script)?;
    }
    forget_udp(&mappings);
    Ok(())
}

pub(crate) fn check(request: &Request) -> Result<(), CniError> {
    let prev = request.prev_result()?.ok_or_else(|| CniError::config("Required prevResult missing"))?;
    let (_, mappings) = Config::read(request)?;
    for family in FAMILIES {
        if !prev.container_ips().any(|ip| family.holds(ip.address.addr())) {
            continue;
        }
        for mapping in mappings.iter().filter(|m| m.is_for(&family)) {
            if family.holder(mapping)?.as_ref() != Some(&request.container_id) {
                return Err(CniError::internal(format!(
                    "host port {}/{} is not mapped to container {}",
                    mapping.host_port, mapping.protocol, request.container_id
                )));
            }
        }
    }
    Ok(())
}

/// `ip` or `ip6`, with the words nft has for it.
struct Family {
    name: &'static str,
    addr_type: &'static str,
    loopback: &'static str,
}

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

impl Family {
    const V4: Family = Family { name: "ip", addr_type: "ipv4_addr", loopback: "127.0.0.0/8" };
    const V6: Family = Family { name: "ip6", addr_type: "ipv6_addr", loopback: "::1" };

    fn holds(&self, ip: IpAddr) -> bool {
        ip.is_ipv4() == self.is_v4()
    }

    /// Table, maps and rules; adding what is there changes nothing, and rules are written anew.
    ///
    /// A mapped packet from this node's own pods or its loopback is masqueraded, or the answer would not come back
    /// through us.
    fn frame(&self) -> String {
        let Family { name: f, addr_type, loopback } = self;
        let keep = !MASQUERADE_BIT;
        // What makes the node's loopback addresses reachable for itself must not make them reachable for pods and
        // neighbours.
        let guard = if *f == "ip" { LOOPBACK_GUARD } else { "" };
        format!(
            "add table {f} kedge-hostport\n\
             add map {f} kedge-hostport by-address {{ type {addr_type} . inet_proto . inet_service : {addr_type} . \
             inet_service; }}\n\
             add map {f} kedge-hostport any-address {{ type inet_proto . inet_service : {addr_type} . inet_service; \
             }}\n\
             add set {f} kedge-hostport local {{ type {addr_type}; flags interval; auto-merge; }}\n\
             add element {f} kedge-hostport local {{ {loopback} }}\n\
             add chain {f} kedge-hostport hostports\n\
             add chain {f} kedge-hostport prerouting {{ type nat hook prerouting priority dstnat; }}\n\
             add chain {f} kedge-hostport output {{ type nat hook output priority -100; }}\n\
             add chain {f} kedge-hostport postrouting {{ type nat hook postrouting priority srcnat; }}\n\
             flush chain {f} kedge-hostport hostports\n\
             flush chain {f} kedge-hostport prerouting\n\
             flush chain {f} kedge-hostport output\n\
             flush chain {f} kedge-hostport postrouting\n\
             add rule {f} kedge-hostport prerouting fib daddr type local jump hostports\n\
             add rule {f} kedge-hostport output fib daddr type local jump hostports\n\
             add rule {f} kedge-hostport hostports {f} saddr @local meta mark set meta mark or {MASQUERADE_BIT:#x}\n\
             add rule {f} kedge-hostport hostports dnat to {f} daddr . meta l4proto . th dport map @by-address\n\
             add rule {f} kedge-hostport hostports dnat to meta l4proto . th dport map @any-address\n\
             add rule {f} kedge-hostport hostports meta mark set meta mark and {keep:#x}\n\
             add rule {f} kedge-hostport postrouting meta mark and {MASQUERADE_BIT:#x} == {MASQUERADE_BIT:#x} ct \
             status dnat masquerade\n\
             {guard}",
        )
    }

    fn add(&self, mappings: &[&Mapping], ip: IpAddr, container: &str, local: Option<&str>) -> String {
        let mut script = String::new();
        if let Some(local) = local {
            script += &format!("add element {} kedge-hostport local {{ {local} }}\n", self.name);
        }
        for mapping in mappings {
            let MapKey { map, key } = mapping.key();
            script += &format!(
                "add element {} kedge-hostport {map} {{ {key} comment \"{container}\" : {ip} . {} }}\n",
                self.name, mapping.container_port
            );
        }
        script
    }

    fn is_v4(&self) -> bool {
        self.name == "ip"
    }

    fn delete(&self, mapping: &Mapping) -> String {
        let MapKey { map, key } = mapping.key();
        format!("delete element {} kedge-hostport {map} {{ {key} }}\n", self.name)
    }

    /// The container that has the mapping's host port. One element is asked for, whatever else the maps hold.
    fn holder(&self, mapping: &Mapping) -> Result<Option<String>, CniError> {
        nft::comment_of(Table { family: self.name, name: "kedge-hostport" }, &mapping.key())
    }
}

/// `127.0.0.1:HOSTPORT` works only when the kernel may route loopback addresses out of the bridge.
fn allow_localhost(prev: &NetResult) {
    // A name is one part of a path.
    let plain = |name: &str| !name.contains('/') && name != "." && name != "..";
    for interface in prev.interfaces.iter().filter(|interface| interface.sandbox.is_empty() && plain(&interface.name)) {
        // Only localhost access depends on it, and only IPv4's; a read-only /proc/sys must not fail the pod.
        let _optional = fs::write(format!("/proc/sys/net/ipv4/conf/{}/route_localnet", interface.name), "1");
    }
}

/// A UDP sender that was there before would go on to the old place for minutes.
fn forget_udp(mappings: &[Mapping]) {
    let ports: Vec<u16> =
        mappings.iter().filter(|mapping| mapping.protocol == "udp").map(|mapping| mapping.host_port).collect();
    if ports.is_empty() {
        return;
    }
    for family in [conntrack::Family::V4, conntrack::Family::V6] {
        // The mapping is in force already, and without this its flows time out by themselves.
        let _optional = conntrack::forget_udp(family, |flow| ports.contains(&flow.to.port()));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::request::{Command, for_test};
    use serde_json::{Value, json};

    /// Elements hold addresses, numbers and our own words alone, whatever the request says.
    pub(crate) fn script_is_plain(request: &Request) {
        let Ok((_, mappings)) = Config::read(request) else { return };
        let wanted: Vec<&Mapping> = mappings.iter().collect();
        let script = Family::V4.add(&wanted, "10.42.0.5".parse().unwrap(), &request.container_id, None);
        assert!(script.chars().all(|c| c.is_ascii_alphanumeric() || " .:-{}\"\n".contains(c)), "{script}");
        assert_eq!(script.lines().count(), mappings.len(), "{script}");
    }

    fn mapping(value: Value) -> Result<Mapping, CniError> {
        Mapping::new(&serde_json::from_value(value).unwrap())
    }

    #[test]
    fn an_unspecified_host_address_means_any() {
        let any = mapping(json!({ "hostPort": 80, "containerPort": 8080, "hostIP": "0.0.0.0" })).unwrap();
        assert_eq!(any.key(), MapKey { map: "any-address", key: "tcp . 80".to_owned() });
        assert!(any.is_for(&Family::V4) && !any.is_for(&Family::V6));
        assert!(mapping(json!({ "hostPort": 80, "containerPort": 8080 })).unwrap().is_for(&Family::V6));
        let one =
            mapping(json!({ "hostPort": 53, "containerPort": 53, "hostIP": "10.0.0.1", "protocol": "UDP" })).unwrap();
        assert_eq!(one.key(), MapKey { map: "by-address", key: "10.0.0.1 . udp . 53".to_owned() });
    }

    #[test]
    fn containerds_own_names_are_read() {
        let theirs =
            mapping(json!({ "HostPort": 53, "ContainerPort": 5353, "Protocol": "udp", "HostIP": "10.0.0.1" })).unwrap();
        assert_eq!((theirs.key().key.as_str(), theirs.container_port), ("10.0.0.1 . udp . 53", 5353));
    }

    #[test]
    fn loopback_addresses_are_guarded_before_they_are_routed() {
        let text = Family::V4.frame();
        assert!(
            text.contains("loopback iif != \"lo\" ip daddr 127.0.0.0/8 drop\n")
                && !Family::V6.frame().contains("loopback iif"),
            "{text}"
        );
    }

    #[test]
    fn the_kernel_holds_what_nft_makes_of_a_mapping() {
        let mappings = [
            mapping(json!({ "hostPort": 80, "containerPort": 8080 })).unwrap(),
            mapping(json!({ "hostPort": 53, "containerPort": 53, "protocol": "UDP" })).unwrap(),
        ];
        let one = |ip: &str| {
            mapping(json!({ "hostPort": 81, "containerPort": 81, "hostIP": ip, "protocol": "SCTP" })).unwrap()
        };
        for (family, ip, host, local) in
            [(Family::V4, "10.42.0.5", "10.0.0.1", "10.42.0.0/24"), (Family::V6, "fd42::5", "fd00::1", "fd42::/64")]
        {
            let by_address = one(host);
            let wanted: Vec<&Mapping> = mappings.iter().chain([&by_address]).collect();
            let script = family.frame() + &family.add(&wanted, ip.parse().unwrap(), "c1", Some(local));
            let scripts = [script.clone(), script, family.delete(&by_address) + &family.delete(&mappings[0])];
            crate::oracle::compare(&scripts, |script| nft::apply(script).unwrap());
        }
    }

    #[test]
    fn a_nodes_own_ports_are_refused_before_anything_is_changed() {
        let request = |port: u16, protocol: &str| {
            for_test(
                Command::Add,
                "c1",
                json!({ "cniVersion": "1.0.0", "name": "n", "ownPorts": ["10250/tcp", "8472/udp"],
                    "prevResult": { "cniVersion": "1.0.0" },
                    "runtimeConfig": { "portMappings": [{ "hostPort": port, "containerPort": 80,
                    "protocol": protocol }] } }),
            )
        };
        for (port, protocol, text) in
            [(10_250, "TCP", "10250/tcp"), (8472, "udp", "8472/udp"), (10_250, "", "10250/tcp")]
        {
            let refused = add(&request(port, protocol)).unwrap_err();
            assert_eq!(refused.msg, format!("host port {text} is the node's own: choose another one"));
        }
        assert!(Config::read(&request(8472, "tcp")).is_ok(), "the other protocol's is another port");
    }

    #[test]
    fn ports_out_of_range_are_refused() {
        assert_eq!(mapping(json!({ "hostPort": 70000, "containerPort": 80 })).unwrap_err().code, 7);
    }
}
