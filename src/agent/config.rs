//! Settings of an agent: node, network, runtime, registries.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use base::layout::Layout;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Taint;
use kubelet::config::NodeDns;
use network::Backend;
use tokio::sync::watch;

use crate::agent::images::SystemImages;
use crate::flags::roles::NodeArgs;

/// Settings of the node's half.
pub(crate) struct AgentConfig {
    pub(crate) layout: Layout,
    pub(crate) node_name: String,
    pub(crate) node_ips: watch::Receiver<Vec<IpAddr>>,
    pub(crate) node_external_ips: Vec<IpAddr>,
    pub(crate) kubelet_port: u16,
    /// Port of the API, on a server.
    pub(crate) api_port: Option<u16>,
    /// API servers that this machine was told of.
    pub(crate) servers: Vec<SocketAddr>,
    /// One range, or one of each family.
    pub(crate) cluster_cidrs: Vec<IpNet>,
    pub(crate) service_cidrs: Vec<IpNet>,
    pub(crate) cluster_dns: Vec<IpAddr>,
    pub(crate) cluster_domain: String,
    pub(crate) resolv_conf: Option<PathBuf>,
    /// DNS names inside and outside of the cluster's network.
    pub(crate) node_dns: NodeDns,
    pub(crate) runtime: RuntimeFlags,
    pub(crate) pause_image: Option<String>,
    pub(crate) labels: std::collections::BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) network: NetworkChoice,
    pub(crate) registries: RegistryChoice,
    pub(crate) kubelet: kubelet::settings::Settings,
    pub(crate) search_path: OsString,
    /// Images of our own, unless this program cannot be one.
    pub(crate) images: Option<SystemImages>,
}

/// Choices about the pod network.
#[derive(Clone, Debug)]
pub(crate) struct NetworkChoice {
    pub(crate) backend: network::Backend,
    pub(crate) interface: Option<String>,
    pub(crate) external_ip: bool,
    pub(crate) ipv6_masquerade: bool,
    pub(crate) policies: bool,
    pub(crate) services: bool,
}

/// Choices about the container runtime.
#[derive(Clone, Debug)]
pub(crate) struct RuntimeFlags {
    /// One that runs already.
    pub(crate) endpoint: Option<String>,
    pub(crate) snapshotter: Option<String>,
    pub(crate) default_runtime: String,
    pub(crate) nonroot_devices: bool,
}

impl RuntimeFlags {
    pub(crate) fn of(args: &NodeArgs) -> RuntimeFlags {
        RuntimeFlags {
            endpoint: args.container_runtime_endpoint.clone(),
            snapshotter: args.snapshotter.clone(),
            default_runtime: args.default_runtime.clone(),
            nonroot_devices: args.nonroot_devices,
        }
    }
}

/// Choices about registries.
#[derive(Clone, Debug)]
pub(crate) struct RegistryChoice {
    pub(crate) file: PathBuf,
    /// Whether a registry itself is tried after its mirrors.
    pub(crate) default_endpoint: bool,
}

impl RegistryChoice {
    pub(crate) fn of(args: &NodeArgs) -> RegistryChoice {
        RegistryChoice {
            file: args.private_registry.clone(),
            default_endpoint: !args.disable_default_registry_endpoint,
        }
    }
}

impl NetworkChoice {
    /// The cluster's settings, and the interface that this machine was told.
    pub(crate) fn of(options: &std::collections::BTreeMap<String, String>, interface: Option<String>) -> NetworkChoice {
        let is_on = |flag: &str| options.get(flag).is_some_and(|value| value == "true");
        NetworkChoice {
            backend: match options.get("flannel-backend").map(String::as_str) {
                Some("host-gw") => Backend::HostGw,
                Some("none") => Backend::None,
                _ => Backend::Vxlan,
            },
            interface,
            external_ip: is_on("flannel-external-ip"),
            ipv6_masquerade: is_on("flannel-ipv6-masq"),
            policies: !is_on("disable-network-policy"),
            services: !is_on("disable-kube-proxy"),
        }
    }
}
