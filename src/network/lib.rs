//! This room connects pods: it makes Services reachable, keeps network policies, and joins the nodes' pod networks.
//!
//! In: Services, EndpointSlices, NetworkPolicies, Pods, Namespaces and Nodes from `client`'s informers, and the
//! addresses of new sandboxes over a unix socket. Out: the tables `ip kedge-proxy`, `ip6 kedge-proxy` and `inet
//! kedge-policy`, changed by one transaction per update, and written anew when somebody else touches them, as the
//! plugins' tables are; conntrack entries that had to go; the device `kedge.1` and routes of protocol 107. It never
//! knows what a kubelet is.

pub mod addresses;
mod config;
mod error;
mod family;
mod forward;
mod host;
mod keep;
pub mod leftovers;
mod monitor;
mod nft;
mod overlay;
mod policy;
mod service;
pub mod settings;
mod table;

use base::task::Group;
use client::informer::Informers;

use crate::monitor::Monitor;

pub use crate::config::{Backend, Config, Gate, PieceBits};
pub use crate::error::NetworkError;
pub use crate::overlay::pod_mtu;

/// Starts everything of this room; it lives as long as the group. `node_client` may change this node's own Node.
///
/// Errors: what an administrator must mend first (no nftables, no forwarding). Later failures are logged and tried
/// again.
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

/// Every table that a test of this room renders is held against what the program nft makes of it.
#[cfg(test)]
#[path = "../netfilter/oracle.rs"]
mod oracle;
