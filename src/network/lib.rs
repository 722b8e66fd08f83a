//! This room connects pods: it makes Services reachable, keeps network policies, and joins the nodes' pod networks.
//!
//! In: Services, EndpointSlices, NetworkPolicies, Pods, Namespaces and Nodes from `client`'s informers, and the
//! addresses of new sandboxes over a unix socket. Out: the tables `ip kedge-proxy`, `ip6 kedge-proxy` and `inet
//! kedge-policy`, changed by one transaction per update, and written anew when somebody else touches them, as the
//! plugins' tables are; conntrack entries that had to go; the device `kedge.1` and routes of protocol 107. It never
//! knows what a kubelet is.

pub mod addresses;
mod forward;
mod host;
mod keep;
mod monitor;
mod netlink;
mod nft;
pub mod overlay;
pub mod policy;
mod service;
mod table;

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};

use base::task::Group;
use client::informer::Informers;
use ipnet::IpNet;
use tokio::sync::watch;

use crate::monitor::Monitor;
use crate::service::rules::Family;

/// What this room must know of its node and cluster.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of this node, to tell its own endpoints from others.
    pub node_name: String,
    /// Addresses of this node as they are now, IPv4 first.
    pub node_ips: watch::Receiver<Vec<IpAddr>>,
    /// Pod networks of the cluster; their families are the ones served.
    pub cluster_cidrs: Vec<IpNet>,
    /// Service networks of the cluster.
    pub service_cidrs: Vec<IpNet>,
    /// Whether IPv6 pods that leave the cluster get the node's address (k3s: `flannel-ipv6-masq`). IPv4 pods always do.
    pub ipv6_masquerade: bool,
    /// How pods of other nodes are reached.
    pub backend: overlay::Backend,
    /// Interface for the overlay (k3s: `flannel-iface`); else the one with the node's address.
    pub interface: Option<String>,
    /// Whether other nodes reach this one under its external address (k3s: `flannel-external-ip`).
    pub external_ip: bool,
    /// Where new sandboxes are announced; `None` switches network policies off.
    pub gate: Option<policy::Gate>,
    /// TCP ports of nodes that are the system's beside the usual ones: the kubelet's, and on a server the API's.
    pub own_ports: Vec<u16>,
    /// API servers that this machine was told of; those that the cluster tells of come to these.
    pub servers: Vec<SocketAddr>,
    /// Whether services are served; else something else does it (k3s: `disable-kube-proxy`).
    pub services: bool,
}

impl Config {
    fn families(&self) -> BTreeSet<Family> {
        self.cluster_cidrs.iter().map(|cidr| Family::of(&cidr.addr())).collect()
    }
}

/// Starts everything of this room; it lives as long as the group. `node_client` may change this node's own Node.
///
/// Errors: what an administrator must mend first (no nft, no forwarding). Later failures are logged and tried again.
/// Rules, routes and devices stay when the group stops, so that pods keep their network while kedge restarts;
/// [`cleanup`] and `kedge killall` remove them.
pub async fn run(
    config: Config,
    node_client: kube::Client,
    informers: &Informers,
    group: &Group,
) -> Result<(), NetworkError> {
    nft::check().await?;
    host::load_bridge_filter().await;
    host::prepare(&config.families())?;
    if config.services {
        host::route_services(&config.service_cidrs, config.node_ips.clone(), group).await?;
    }
    let mut monitor = Monitor::default();
    match &config.gate {
        Some(gate) => policy::run(&config, gate, monitor.watch([policy::table()]), informers, group).await?,
        None => nft::apply(&policy::removal()).await?,
    }
    overlay::run(&config, node_client, informers, group)?;
    forward::run(config.cluster_cidrs.clone(), monitor.watch(forward::tables()), group);
    keep::run(monitor.watch(keep::tables()), group);
    let families = config.families();
    let proxy_tables = service::tables().filter(|table| families.iter().any(|family| family.name() == table.family));
    let proxy = monitor.watch(proxy_tables);
    if config.services {
        service::run(config, proxy, informers, group).await;
    } else {
        service::only_masquerade(config, proxy, group).await?;
    }
    monitor.start(group);
    Ok(())
}

/// Removes the tables of this room and of the CNI plugins, and our rules in the machine's firewall, and nothing else.
/// What is not there is no error.
pub async fn cleanup() -> Result<(), NetworkError> {
    forward::cleanup().await?;
    let there = nft::tables().await?;
    for table in service::tables().chain(keep::tables()).chain([policy::table()]).filter(|table| there.contains(table))
    {
        nft::apply(&table::remove(table)).await?;
    }
    Ok(())
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
    /// The overlay's own interface.
    #[error(
        "no interface has the node's address {ip}: name another one with --node-ip, or the interface with --flannel-iface"
    )]
    NoUplink {
        /// The address.
        ip: IpAddr,
    },
    /// A name that no interface has.
    #[error("--flannel-iface: this machine has no interface {name}")]
    NoInterface {
        /// The name.
        name: String,
    },
    /// The kernel made no tunnel.
    #[error(
        "cannot make the tunnel device kedge.1: {text}; if the kernel module vxlan is missing, install it (Raspberry Pi OS, Ubuntu: linux-modules-extra) or use --flannel-backend=host-gw"
    )]
    Tunnel {
        /// The kernel's words.
        text: String,
    },
    /// Other nodes would not find this one.
    #[error("cannot write this node's overlay address to its Node")]
    Annotate {
        /// Why not.
        source: Box<kube::Error>,
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
