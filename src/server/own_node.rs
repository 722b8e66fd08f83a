//! The agent of a server's own node.

use std::net::IpAddr;

use tokio::sync::watch;

use crate::agent::AgentError;
use crate::agent::config::{AgentConfig, NetworkChoice, RegistryChoice, RuntimeFlags};
use crate::agent::host;
use crate::agent::images::{ImageError, SystemImages};
use crate::flags::environment::search_path;
use crate::server::error::ServerError;
use crate::server::plan::Plan;

/// By a server's flags and the images that its program carries.
pub(super) fn agent_config(
    plan: &Plan,
    images: Result<SystemImages, ImageError>,
    node_ips: watch::Receiver<Vec<IpAddr>>,
) -> Result<AgentConfig, ServerError> {
    let images = match images {
        Ok(images) => Some(images),
        Err(err) if plan.args.node.pause_image.is_none() => return Err(AgentError::NoPause(err).into()),
        Err(_) => None,
    };
    Ok(AgentConfig {
        layout: plan.args.common.state.layout.clone(),
        node_name: plan.node_name.clone(),
        node_ips,
        node_external_ips: plan.args.node.node_external_ip.clone(),
        node_dns: host::node_dns(&plan.args.node)?,
        kubelet_port: plan.args.node.kubelet_port,
        api_port: Some(plan.args.https_listen_port),
        servers: Vec::new(),
        cluster_cidrs: plan.ranges.cluster.clone(),
        service_cidrs: plan.ranges.service.clone(),
        cluster_dns: plan.ranges.dns.clone(),
        cluster_domain: plan.args.cluster_domain.clone(),
        resolv_conf: plan.args.node.resolv_conf.clone().or_else(host::resolv_conf),
        runtime: RuntimeFlags::of(&plan.args.node),
        pause_image: plan.args.node.pause_image.clone(),
        labels: host::labels(&plan.args.node)?,
        taints: plan.taints.clone(),
        registries: RegistryChoice::of(&plan.args.node),
        network: NetworkChoice::of(&plan.settings().options, plan.args.node.flannel_iface.clone()),
        kubelet: plan.kubelet.clone(),
        search_path: search_path(),
        images,
    })
}
