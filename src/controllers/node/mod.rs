//! Nodes: a pod network for each (`ipam`), and what happens when one falls silent (`lifecycle`).

mod ipam;
mod lifecycle;
mod plan;
#[cfg(test)]
mod tests;
mod ttl;

use std::time::Duration;

use ipnet::IpNet;

use crate::driver::Context;

/// Starts all controllers of nodes.
pub(crate) fn start(context: &Context, cluster_cidrs: &[IpNet], grace: Duration) {
    ipam::start(context, cluster_cidrs);
    lifecycle::start(context, grace);
    ttl::start(context);
}
