//! Nodes: a pod network for each (`ipam`), and what happens when one falls silent (`lifecycle`).

mod ipam;
mod lifecycle;
mod plan;
#[cfg(test)]
mod tests;
mod ttl;
mod zones;

use ipnet::IpNet;

use crate::driver::Context;
use crate::settings::Settings;

/// Starts all controllers of nodes.
pub(crate) fn start(context: &Context, cluster_cidrs: &[IpNet], settings: &Settings) {
    ipam::start(context, cluster_cidrs);
    lifecycle::start(context, settings);
    ttl::start(context);
}
