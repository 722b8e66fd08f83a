//! This room makes Services reachable: it turns Services and EndpointSlices into nftables maps on this node, and lets pods out.
//!
//! In: Services and EndpointSlices from `client`'s informers. Out: the tables `ip kedge-proxy` and `ip6 kedge-proxy`, changed by
//! one transaction per update, and conntrack entries that had to go. It never knows what a kubelet or a CNI plugin is.

mod host;
mod service;

use std::io;
use std::net::IpAddr;

use ipnet::IpNet;

pub use crate::service::{cleanup, run};

/// What the proxy must know of its node and cluster.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this node, to tell its own endpoints from others.
    pub node_name: String,
    /// Addresses of this node, IPv4 first.
    pub node_ips: Vec<IpAddr>,
    /// Pod networks of the cluster; their families are the ones served.
    pub cluster_cidrs: Vec<IpNet>,
    /// Service networks of the cluster.
    pub service_cidrs: Vec<IpNet>,
    /// Whether IPv6 pods that leave the cluster get the node's address (k3s: `flannel-ipv6-masq`). IPv4 pods always do.
    pub ipv6_masquerade: bool,
}

/// Why the proxy cannot work.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The program is not installed.
    #[error("the program nft was not found: install the package nftables")]
    NoNft,
    /// It did not end in time.
    #[error("the program nft did not answer within a minute")]
    NftHangs,
    /// The kernel or nft refused a script.
    #[error("nft refused the rules: {text}")]
    NftRefused {
        /// nft's own words.
        text: String,
    },
    /// Pods could reach nothing.
    #[error("cannot switch on packet forwarding in {path}")]
    Forwarding {
        /// The kernel parameter's file.
        path: &'static str,
        /// Why not.
        source: io::Error,
    },
    /// The service network's route.
    #[error("cannot add a route for {cidr}: {text}")]
    Route {
        /// The network.
        cidr: IpNet,
        /// The kernel's words.
        text: String,
    },
    /// A file, socket or process.
    #[error("{doing}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Why not.
        source: io::Error,
    },
}
