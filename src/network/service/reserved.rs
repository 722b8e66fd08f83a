//! Addresses and ports of a cluster's machines that no Service takes, whatever it names: the system's ports of every
//! node's address, and the API servers. Who cuts agents off from their server, or answers in its place, has the
//! cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base::ports;
use client::informer::Key;
use client::services::Services;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::config::Config;
use crate::family::Family;

/// Elements of sets, by the sets' names.
pub(crate) type Elements = BTreeMap<String, BTreeMap<String, String>>;

/// Ports and addresses that are nobody's but the system's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reserved {
    /// Protocols and ports, of every node's address and of all addresses of this machine.
    ports: BTreeSet<(&'static str, u16)>,
    /// Addresses of nodes.
    nodes: BTreeSet<IpAddr>,
    /// API servers, which need be no nodes.
    servers: BTreeSet<SocketAddr>,
}

impl Reserved {
    /// Reserved addresses and ports of `config`, and of the objects now.
    pub(crate) fn of(config: &Config, nodes: &[Arc<Node>], services: &Services) -> Reserved {
        let slices = services.slices(&Key::new("default", "kubernetes"));
        Reserved {
            ports: ports::RESERVED.into_iter().chain(config.own_ports.iter().map(|port| ("tcp", *port))).collect(),
            nodes: nodes
                .iter()
                .flat_map(|node| addresses(node))
                .filter(|ip| is_outside(*ip, &[&config.service_cidrs, &config.cluster_cidrs]))
                .collect(),
            servers: config.servers.iter().copied().chain(slices.iter().flat_map(|slice| servers(slice))).collect(),
        }
    }

    /// Elements of the sets of the [`frame`](super::frame::frame).
    pub(crate) fn elements(&self, family: Family) -> Elements {
        let set = |all: Vec<String>| all.into_iter().map(|key| (key, String::new())).collect();
        let of_family = |ip: &IpAddr| Family::of(ip) == family;
        let ports = self.ports.iter().map(|(protocol, port)| format!("{protocol} . {port}")).collect();
        let nodes = self.nodes.iter().filter(|ip| of_family(ip)).map(ToString::to_string).collect();
        let servers = self.servers.iter().filter(|addr| of_family(&addr.ip()));
        let servers = servers.map(|addr| format!("{} . tcp . {}", addr.ip(), addr.port())).collect();
        [("system-ports", ports), ("node-ips", nodes), ("server-ips", servers)]
            .map(|(name, all)| (name.to_owned(), set(all)))
            .into()
    }
}

/// The addresses that a node says it has.
pub(crate) fn addresses(node: &Node) -> BTreeSet<IpAddr> {
    ["InternalIP", "ExternalIP"]
        .into_iter()
        .flat_map(|kind| model::node::addresses(node, kind).collect::<Vec<_>>())
        .collect()
}

/// A node that claims a Service's or a pod's address would take ports from it.
fn is_outside(ip: IpAddr, ranges: &[&[IpNet]]) -> bool {
    !ranges.iter().flat_map(|range| range.iter()).any(|range| range.contains(&ip))
}

fn servers(slice: &EndpointSlice) -> Vec<SocketAddr> {
    let ports: Vec<u16> = slice.ports.iter().flatten().filter_map(|port| u16::try_from(port.port?).ok()).collect();
    let ips = slice
        .endpoints
        .iter()
        .flatten()
        .flat_map(|endpoint| &endpoint.addresses)
        .filter_map(|ip| ip.parse::<IpAddr>().ok());
    ips.flat_map(|ip| ports.iter().map(move |port| SocketAddr::new(ip, *port))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_takes_no_ports_of_a_service_by_claiming_its_address() {
        let ranges: [IpNet; 2] = ["10.43.0.0/16".parse().unwrap(), "fd00:43::/112".parse().unwrap()];
        let is_believed = |ip: &str| is_outside(ip.parse().unwrap(), &[&ranges, &[]]);
        assert!(
            is_believed("10.0.0.2")
                && is_believed("fd00::2")
                && !is_believed("10.43.0.1")
                && !is_believed("fd00:43::1")
        );
    }

    #[test]
    fn a_nodes_addresses_and_the_api_servers_are_reserved() {
        let node: Node = serde_json::from_value(serde_json::json!({ "status": { "addresses": [
            { "type": "InternalIP", "address": "10.0.0.2" }, { "type": "Hostname", "address": "10.0.0.9" },
            { "type": "ExternalIP", "address": "fd00::2" },
            { "type": "InternalIP", "address": "n2" }] } }))
        .unwrap();
        let slice: EndpointSlice =
            serde_json::from_value(serde_json::json!({ "addressType": "IPv4", "ports": [{ "port": 7443 }],
            "endpoints": [{ "addresses": ["10.0.0.1"] }, { "addresses": ["10.0.0.3"] }] }))
            .unwrap();
        let reserved = Reserved {
            ports: [("tcp", 6443)].into(),
            nodes: addresses(&node),
            servers: servers(&slice).into_iter().collect(),
        };
        let keys = |family: Family, set: &str| reserved.elements(family)[set].keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(Family::V4, "node-ips"), ["10.0.0.2"]);
        assert_eq!(keys(Family::V6, "node-ips"), ["fd00::2"]);
        assert_eq!(keys(Family::V4, "server-ips"), ["10.0.0.1 . tcp . 7443", "10.0.0.3 . tcp . 7443"]);
        assert!(keys(Family::V6, "server-ips").is_empty());
        assert_eq!(keys(Family::V6, "system-ports"), ["tcp . 6443"]);
    }
}
