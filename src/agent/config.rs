//! Settings of an agent: node, network, runtime, registries.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use base::layout::{self, Layout};
use cluster::protocol::Settings;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Taint;
use kubelet::config::NodeDns;
use network::{Backend, PieceBits};
use tokio::sync::watch;
use tracing::{info, warn};

use crate::agent::AgentError;
use crate::agent::host::{self, HostError};
use crate::agent::images::{ImageError, SystemImages};
use crate::agent::origin::{self, Chosen, Places};
use crate::flags::environment::search_path;
use crate::flags::roles::NodeArgs;
use crate::flags::runtime::Origin;

/// A node's flags after they were judged: nothing was asked or written for that.
pub(crate) struct NodeFlags {
    labels: BTreeMap<String, String>,
    taints: Vec<Taint>,
    kubelet: kubelet::settings::Settings,
    proxy: network::settings::Settings,
    dns: NodeDns,
    runtime_from: Chosen,
}

impl NodeFlags {
    /// Judges the flags that both roles have.
    ///
    /// Errors: the flag that cannot be used, and why.
    pub(crate) fn of(args: &NodeArgs, layout: &Layout) -> Result<NodeFlags, HostError> {
        let proxy = network::settings::Settings::parse(&args.kube_proxy_arg)?;
        for (flag, why) in &proxy.moot {
            warn!(flag, why, "a flag of kube-proxy's has nothing to tune");
        }
        let kubelet = host::kubelet_settings(args, layout)?;
        let (mut labels, mut taints) = (kubelet.labels.clone(), kubelet.taints.clone());
        labels.extend(host::labels(args)?);
        taints.extend(host::taints(args)?);
        let runtime_from = runtime_from(args, layout)?;
        Ok(NodeFlags { labels, taints, kubelet, proxy, dns: host::node_dns(args)?, runtime_from })
    }
}

/// The place of the runtime. One that runs already needs none.
fn runtime_from(args: &NodeArgs, layout: &Layout) -> Result<Chosen, HostError> {
    let (bundle, search_path) = (layout.bundle_bin(), search_path());
    let order: &[Origin] = match args.container_runtime_endpoint {
        Some(_) => &[Origin::Path],
        None => args.runtime_from.as_slice(),
    };
    Ok(origin::choose(order, Places { bundle: &bundle, search_path: &search_path })?)
}

/// This machine as a node, by its own flags.
pub(crate) struct OwnNode<'a> {
    pub(crate) layout: &'a Layout,
    pub(crate) name: &'a str,
    /// Its addresses from now on.
    pub(crate) ips: watch::Receiver<Vec<IpAddr>>,
    pub(crate) args: &'a NodeArgs,
    pub(crate) flags: &'a NodeFlags,
    /// Images that the program carries.
    pub(crate) images: Result<SystemImages, ImageError>,
}

/// API servers that a node knows when it starts.
pub(crate) enum ApiServers {
    /// Its own, at this port.
    Own(u16),
    /// Others.
    Others(Vec<SocketAddr>),
}

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
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) taints: Vec<Taint>,
    pub(crate) network: NetworkChoice,
    pub(crate) registries: RegistryChoice,
    pub(crate) kubelet: kubelet::settings::Settings,
    pub(crate) runtime_from: Chosen,
    /// Images of our own, unless this program cannot be one.
    pub(crate) images: Option<SystemImages>,
}

impl AgentConfig {
    /// Settings of the node's half, of either role: by the machine's own flags and by what the cluster says.
    ///
    /// Errors: no pause image; settings of the cluster without a range or an address of DNS.
    pub(crate) fn of(node: OwnNode<'_>, cluster: &Settings, api: ApiServers) -> Result<AgentConfig, AgentError> {
        let args = node.args;
        let images = match node.images {
            Ok(images) => Some(images),
            Err(err) if args.pause_image.is_none() => return Err(AgentError::NoPause(err)),
            Err(_) => None,
        };
        if cluster.cluster_dns.is_empty() {
            return Err(AgentError::Settings { missing: "address of DNS" });
        }
        let (api_port, servers) = match api {
            ApiServers::Own(port) => (Some(port), Vec::new()),
            ApiServers::Others(servers) => (None, servers),
        };
        Ok(AgentConfig {
            layout: node.layout.clone(),
            node_name: node.name.to_owned(),
            node_ips: node.ips,
            node_external_ips: args.node_external_ip.clone(),
            node_dns: node.flags.dns.clone(),
            kubelet_port: args.kubelet_port,
            api_port,
            servers,
            cluster_cidrs: some("range of pods", &cluster.cluster_cidrs)?.to_vec(),
            service_cidrs: some("range of services", &cluster.service_cidrs)?.to_vec(),
            cluster_dns: match node.flags.kubelet.cluster_dns.as_slice() {
                [] => cluster.cluster_dns.clone(),
                chosen => chosen.to_vec(),
            },
            cluster_domain: node.flags.kubelet.cluster_domain.as_ref().unwrap_or(&cluster.cluster_domain).clone(),
            resolv_conf: args
                .resolv_conf
                .clone()
                .or_else(|| node.flags.kubelet.resolv_conf.clone())
                .or_else(host::resolv_conf),
            runtime: RuntimeFlags::of(args),
            pause_image: args.pause_image.clone(),
            labels: node.flags.labels.clone(),
            taints: node.flags.taints.clone(),
            registries: RegistryChoice::of(args),
            network: NetworkChoice {
                node_port_addresses: node.flags.proxy.node_port_addresses.clone(),
                ..NetworkChoice::of(&cluster.options, args.flannel_iface.clone())
            },
            kubelet: node.flags.kubelet.clone(),
            runtime_from: node.flags.runtime_from.clone(),
            images,
        })
    }
}

/// The ranges that the cluster's settings name: at least one.
///
/// Errors: there is none.
pub(crate) fn some<'a>(missing: &'static str, all: &'a [IpNet]) -> Result<&'a [IpNet], AgentError> {
    if all.is_empty() { Err(AgentError::Settings { missing }) } else { Ok(all) }
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
    pub(crate) piece_bits: PieceBits,
    /// Where node ports answer; none are all of the machine's addresses.
    pub(crate) node_port_addresses: Vec<IpNet>,
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
            file: registries_of(
                &args.private_registry,
                [Path::new(layout::REGISTRIES), Path::new(layout::K3S_REGISTRIES)],
            ),
            default_endpoint: !args.disable_default_registry_endpoint,
        }
    }
}

/// The file of registries: that of k3s where the usual one is absent. `usual`: ours and that of k3s.
fn registries_of(file: &Path, usual: [&Path; 2]) -> PathBuf {
    let [ours, of_k3s] = usual;
    if file != ours || ours.exists() || !of_k3s.exists() {
        return file.to_owned();
    }
    info!(file = %of_k3s.display(), absent = %ours.display(), "registries are read from the file of k3s");
    of_k3s.to_owned()
}

impl NetworkChoice {
    /// The cluster's settings, and the interface that this machine was told.
    pub(crate) fn of(options: &BTreeMap<String, String>, interface: Option<String>) -> NetworkChoice {
        let is_on = |flag: &str| options.get(flag).is_some_and(|value| value == "true");
        let bits =
            |family: &str| options.get(&format!("node-cidr-mask-size-{family}")).and_then(|bits| bits.parse().ok());
        let usual = PieceBits::default();
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
            piece_bits: PieceBits { v4: bits("ipv4").unwrap_or(usual.v4), v6: bits("ipv6").unwrap_or(usual.v6) },
            node_port_addresses: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_of_k3s_are_read_where_there_is_no_file_of_ours_and_none_was_named() {
        let dir = tempfile::tempdir().unwrap();
        let [ours, of_k3s, named] = ["ours", "k3s", "named"].map(|name| dir.path().join(name));
        let usual = [ours.as_path(), of_k3s.as_path()];
        assert_eq!(registries_of(&ours, usual), ours);
        std::fs::write(&of_k3s, "").unwrap();
        assert_eq!(registries_of(&ours, usual), of_k3s);
        assert_eq!(registries_of(&named, usual), named);
        std::fs::write(&ours, "").unwrap();
        assert_eq!(registries_of(&ours, usual), ours);
    }

    #[test]
    fn the_network_is_as_the_cluster_says_and_what_it_does_not_say_is_usual() {
        let of = |options: &[(&str, &str)]| {
            let options = options.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            NetworkChoice::of(&options, Some("eth1".to_owned()))
        };
        let usual = of(&[]);
        assert_eq!(usual.backend, Backend::Vxlan);
        assert!(usual.policies && usual.services && !usual.external_ip && !usual.ipv6_masquerade);
        assert_eq!(usual.interface.as_deref(), Some("eth1"));
        for (name, backend) in [("host-gw", Backend::HostGw), ("none", Backend::None), ("vxlan", Backend::Vxlan)] {
            assert_eq!(of(&[("flannel-backend", name)]).backend, backend);
        }
        let other = of(&[
            ("flannel-external-ip", "true"),
            ("flannel-ipv6-masq", "true"),
            ("disable-network-policy", "true"),
            ("disable-kube-proxy", "true"),
        ]);
        assert!(!other.policies && !other.services && other.external_ip && other.ipv6_masquerade);
        let not = of(&[("disable-kube-proxy", "false"), ("disable-network-policy", "")]);
        assert!(not.services && not.policies);
    }

    #[test]
    fn a_cluster_without_a_range_is_refused() {
        let err = some("range of pods", &[]).unwrap_err();
        assert_eq!(err.to_string(), "the server's settings cannot be used: no range of pods");
        let range = ["10.42.0.0/16".parse().unwrap()];
        assert_eq!(some("range of pods", &range).unwrap(), range);
    }
}
