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
use crate::settings::masks::NodeMasks;

/// Starts all controllers of nodes.
pub(crate) fn start(context: &Context, cluster_cidrs: &[IpNet], masks: NodeMasks, settings: &Settings) {
    ipam::start(context, cluster_cidrs, masks);
    lifecycle::start(context, settings);
    ttl::start(context);
}
