//! What of the machines of a cluster no Service takes, whatever addresses and ports it names: the system's ports of every node's address, and
//! the API servers. Who cuts agents off from their server, or answers in its place, has the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base::ports;
use client::informer::Key;
use client::services::Services;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::Config;
use crate::service::rules::Family;

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
    /// What `config` says, and what the objects say now.
    pub(crate) fn of(config: &Config, nodes: &[Arc<Node>], services: &Services) -> Reserved {
        let slices = services.slices(&Key::new("default", "kubernetes"));
        Reserved {
            ports: ports::RESERVED.into_iter().chain(config.own_ports.iter().map(|port| ("tcp", *port))).collect(),
            nodes: nodes.iter().flat_map(|node| addresses(node)).collect(),
            servers: config.servers.iter().copied().chain(slices.iter().flat_map(|slice| servers(slice))).collect(),
        }
    }

    /// What the sets of the [`frame`](super::frame::frame) hold.
    pub(crate) fn elements(&self, family: Family) -> Elements {
        let set = |all: Vec<String>| all.into_iter().map(|key| (key, String::new())).collect();
        let of_family = |ip: &IpAddr| Family::of(ip) == family;
        let ports = self.ports.iter().map(|(protocol, port)| format!("{protocol} . {port}")).collect();
        let nodes = self.nodes.iter().filter(|ip| of_family(ip)).map(ToString::to_string).collect();
        let servers = self.servers.iter().filter(|addr| of_family(&addr.ip()));
        let servers = servers.map(|addr| format!("{} . tcp . {}", addr.ip(), addr.port())).collect();
        [("system-ports", ports), ("node-ips", nodes), ("server-ips", servers)].map(|(name, all)| (name.to_owned(), set(all))).into()
    }
}

/// The addresses that a node says it has.
pub(crate) fn addresses(node: &Node) -> BTreeSet<IpAddr> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    addresses.filter(|address| matches!(&*address.type_, "InternalIP" | "ExternalIP")).filter_map(|a| a.address.parse().ok()).collect()
}

fn servers(slice: &EndpointSlice) -> Vec<SocketAddr> {
    let ports: Vec<u16> = slice.ports.iter().flatten().filter_map(|port| u16::try_from(port.port?).ok()).collect();
    let ips = slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses).filter_map(|ip| ip.parse::<IpAddr>().ok());
    ips.flat_map(|ip| ports.iter().map(move |port| SocketAddr::new(ip, *port))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_addresses_and_the_api_servers_are_reserved() {
        let node: Node = serde_json::from_value(serde_json::json!({ "status": { "addresses": [
            { "type": "InternalIP", "address": "10.0.0.2" }, { "type": "Hostname", "address": "10.0.0.9" }, { "type": "ExternalIP", "address": "fd00::2" },
            { "type": "InternalIP", "address": "n2" }] } }))
        .unwrap();
        let slice: EndpointSlice = serde_json::from_value(serde_json::json!({ "addressType": "IPv4", "ports": [{ "port": 7443 }],
            "endpoints": [{ "addresses": ["10.0.0.1"] }, { "addresses": ["10.0.0.3"] }] }))
        .unwrap();
        let reserved = Reserved { ports: [("tcp", 6443)].into(), nodes: addresses(&node), servers: servers(&slice).into_iter().collect() };
        let keys = |family: Family, set: &str| reserved.elements(family)[set].keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(Family::V4, "node-ips"), ["10.0.0.2"]);
        assert_eq!(keys(Family::V6, "node-ips"), ["fd00::2"]);
        assert_eq!(keys(Family::V4, "server-ips"), ["10.0.0.1 . tcp . 7443", "10.0.0.3 . tcp . 7443"]);
        assert!(keys(Family::V6, "server-ips").is_empty());
        assert_eq!(keys(Family::V6, "system-ports"), ["tcp . 6443"]);
    }
}
