//! Settings of this room: the node's addresses, the cluster's networks, how pods of other nodes are reached.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use tokio::sync::watch;

use crate::family::Family;

/// Configuration of this room: its node and its cluster.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this node, to tell its own endpoints from others.
    pub node_name: String,
    /// Addresses of this node as they are now, IPv4 first.
    pub node_ips: watch::Receiver<Vec<IpAddr>>,
    /// Pod networks of the cluster; their families are the ones served.
    pub cluster_cidrs: Vec<IpNet>,
    /// How large a node's part of each is.
    pub piece_bits: PieceBits,
    /// Service networks of the cluster.
    pub service_cidrs: Vec<IpNet>,
    /// Whether IPv6 pods that leave the cluster get the node's address (k3s: `flannel-ipv6-masq`). IPv4 pods always do.
    pub ipv6_masquerade: bool,
    /// How pods of other nodes are reached.
    pub backend: Backend,
    /// Interface for the overlay (k3s: `flannel-iface`); else the one with the node's address.
    pub interface: Option<String>,
    /// Whether other nodes reach this one under its external address (k3s: `flannel-external-ip`).
    pub external_ip: bool,
    /// Where new sandboxes are announced; `None` switches network policies off.
    pub gate: Option<Gate>,
    /// TCP ports of nodes that are the system's beside the usual ones: the kubelet's, and on a server the API's.
    pub own_ports: Vec<u16>,
    /// API servers that this machine was told of; those that the cluster tells of come to these.
    pub servers: Vec<SocketAddr>,
    /// Whether services are served; else something else does it (k3s: `disable-kube-proxy`).
    pub services: bool,
    /// Ranges of the machine's addresses under which node ports answer; none are all (`nodeport-addresses`).
    pub node_port_addresses: Vec<IpNet>,
}

impl Config {
    pub(crate) fn families(&self) -> BTreeSet<Family> {
        self.cluster_cidrs.iter().map(|cidr| Family::of(&cidr.addr())).collect()
    }
}

/// Lengths of the prefixes of nodes' ranges, which are pieces of the cluster's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceBits {
    /// Of IPv4.
    pub v4: u8,
    /// Of IPv6.
    pub v6: u8,
}

impl Default for PieceBits {
    fn default() -> PieceBits {
        PieceBits { v4: 24, v6: 64 }
    }
}

impl PieceBits {
    /// Whether a range is one of the pieces that `whole` is cut into, or the whole of one that is smaller.
    pub(crate) fn is_piece(self, range: &IpNet, whole: &IpNet) -> bool {
        let bits = if whole.addr().is_ipv4() { self.v4 } else { self.v6 };
        whole.contains(range) && range.prefix_len() == whole.prefix_len().max(bits)
    }
}

/// How pods of other nodes are reached; the names are k3s's `--flannel-backend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// A tunnel over UDP 8472 with network identifier 1.
    #[default]
    Vxlan,
    /// Plain routes: all nodes are on one network segment.
    HostGw,
    /// Somebody else does it.
    None,
}

impl Backend {
    /// The annotation's word.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Backend::Vxlan => "vxlan",
            Backend::HostGw => "host-gw",
            Backend::None => "none",
        }
    }
}

/// Where the CNI plugin calls, and where addresses of sandboxes are remembered.
#[derive(Clone, Debug)]
pub struct Gate {
    /// The unix socket.
    pub socket: PathBuf,
    /// The file of claims; it must not outlive a boot.
    pub claims: PathBuf,
    /// The file of namespaces with policies; it must outlive a boot.
    pub walls: PathBuf,
}
