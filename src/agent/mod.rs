//! The node's half: kubelet with its server, CNI, the service proxy.

pub(crate) mod addresses;
pub(crate) mod config;
pub(crate) mod host;
pub(crate) mod images;
pub(crate) mod origin;
pub(crate) mod role;

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::files::{self, FileError};
use base::layout::{Layout, is_of_kubelet};
use base::owner;
use base::task::Group;
use base::time::Stopwatch;
use client::informer::Informers;
use cni::{Conflist, conflist};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kubelet::config::{Config as KubeletConfig, RuntimeChoice};
use kubelet::runtime::Runtime;
use tokio::sync::oneshot;
use tracing::{info, warn};

use crate::agent::config::AgentConfig;
use crate::agent::images::{ImageError, SystemImages};
use crate::flags::ranges;

/// A node that could not hold pods to their addresses looks again whether it can this much later.
const GUARD_AGAIN: Duration = Duration::from_secs(60);

/// Why the node's half did not start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AgentError {
    #[error(transparent)]
    Kubelet(#[from] kubelet::error::Error),
    #[error(transparent)]
    Network(#[from] network::NetworkError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Image(#[from] ImageError),
    #[error("cannot listen on port {port} for the kubelet; is another kubelet running here?")]
    Listen { port: u16, source: io::Error },
    #[error("no pause image: {0}; name one with --pause-image")]
    NoPause(ImageError),
    #[error("the server's settings cannot be used: no {missing}")]
    Settings { missing: &'static str },
    #[error("stopped while the container runtime was starting")]
    Stopped,
}

/// Chooses the kubelet's folder, and writes it down for who cleans up. Drivers of volumes and device plugins expect it
/// at the usual place, as with k3s and upstream; a server beside others on one machine has its own, or the one that
/// `--kubelet-arg=root-dir=` names.
fn choose_kubelet_dir(layout: &Layout, wish: Option<&Path>) -> Result<PathBuf, FileError> {
    let chosen = wish.map_or_else(|| layout.kubelet(), Path::to_owned);
    files::create_private_dir(&chosen)?;
    // The kernel's table of mounts, by which is told what may be removed, knows no links.
    let chosen = std::fs::canonicalize(&chosen).map_err(FileError::at("cannot resolve", &chosen))?;
    let record = layout.agent().kubelet_record();
    let earlier = layout.kubelet_in_use() == chosen && record.exists();
    owner::mark(&chosen, |name| is_of_kubelet(&chosen, name, earlier))
        .map_err(FileError::at("cannot mark", &chosen))?;
    files::write_atomic(&record, chosen.as_os_str().as_encoded_bytes(), 0o600)?;
    Ok(chosen)
}

/// The node's half on its way: the container runtime starts, and takes in our own images, beside whatever else is being
/// started.
pub(crate) struct Beginning {
    config: AgentConfig,
    kubelet: KubeletConfig,
    runtime: oneshot::Receiver<Result<Runtime, AgentError>>,
}

impl Beginning {
    /// Versions and suites of TLS that the kubelet's server takes.
    pub(crate) fn tls(&self) -> pki::tls::Policy {
        self.kubelet.settings.tls.clone()
    }
}

/// Begins what needs no API server.
pub(crate) fn begin(mut config: AgentConfig, group: &Group) -> Result<Beginning, AgentError> {
    let kubelet = kubelet_config(&config)?;
    config.layout.mark()?;
    install_plugins(&kubelet.cni_bin_dir)?;
    std::fs::create_dir_all(&kubelet.cni_conf_dir)
        .map_err(FileError::at("cannot create directory", &kubelet.cni_conf_dir))?;
    let (tell, runtime) = oneshot::channel();
    let (images, of_task, tasks) = (config.images.take(), kubelet.clone(), group.clone());
    group.spawn_short("runtime", async move {
        // Nobody listens when the start has failed elsewhere.
        let _nobody = tell.send(start_runtime(&of_task, images, &tasks).await);
    });
    Ok(Beginning { config, kubelet, runtime })
}

async fn start_runtime(
    kubelet: &KubeletConfig,
    images: Option<SystemImages>,
    group: &Group,
) -> Result<Runtime, AgentError> {
    let runtime = kubelet::start_runtime(kubelet, group).await?;
    if let Some(images) = images {
        images.import(&runtime, &kubelet.search_path).await?;
    }
    Ok(runtime)
}

fn kubelet_config(config: &AgentConfig) -> Result<KubeletConfig, AgentError> {
    let agent = config.layout.agent();
    let runtime = match &config.runtime.endpoint {
        Some(endpoint) => RuntimeChoice::Endpoint(endpoint.clone()),
        None => RuntimeChoice::Managed {
            root: agent.containerd(),
            state: config.layout.run().containerd(),
            snapshotter: config.runtime.snapshotter.clone(),
            default_runtime: config.runtime.default_runtime.clone(),
            nonroot_devices: config.runtime.nonroot_devices,
            drop_ins: agent.containerd_drop_ins(),
            of_pods: host::folders_of_pods(&config.layout),
        },
    };
    if let RuntimeChoice::Managed { .. } = &runtime {
        origin::tell(&config.runtime_from);
    }
    let managed = matches!(runtime, RuntimeChoice::Managed { .. });
    let pause_image = match (&config.pause_image, &config.images) {
        (Some(image), _) => image.clone(),
        (None, Some(images)) => images.names().pause,
        (None, None) => return Err(AgentError::NoPause(ImageError::NotStatic)),
    };
    let manifest_dir = config.kubelet.static_pods.clone().unwrap_or_else(|| agent.manifests());
    files::create_private_dir(&manifest_dir)?;
    Ok(KubeletConfig {
        node_name: config.node_name.clone(),
        hostname: config.node_name.clone(),
        node_ips: config.node_ips.clone(),
        node_external_ips: config.node_external_ips.clone(),
        node_dns: config.node_dns.clone(),
        port: config.kubelet_port,
        root_dir: choose_kubelet_dir(&config.layout, config.kubelet.root_dir.as_deref())?,
        log_dir: config.layout.pod_logs(),
        manifest_dir: Some(manifest_dir),
        runtime,
        search_path: config.runtime_from.search_path.clone(),
        runtime_from: match &config.runtime.endpoint {
            Some(endpoint) => format!("--container-runtime-endpoint ({endpoint})"),
            None => config.runtime_from.told.clone(),
        },
        pause_image,
        cni_bin_dir: config.layout.cni_plugins(),
        cni_conf_dir: agent.cni_conf(),
        images_dir: managed.then(|| agent.images()),
        registries: managed.then(|| kubelet::registries::places::Places {
            file: config.registries.file.clone(),
            certs_dir: agent.registries(),
            default_endpoint: config.registries.default_endpoint,
        }),
        cluster_dns: config.cluster_dns.clone(),
        cluster_domain: config.cluster_domain.clone(),
        resolv_conf: config.resolv_conf.clone(),
        labels: config.labels.clone(),
        taints: config.taints.clone(),
        settings: config.kubelet.clone(),
    })
}

/// Starts everything that runs on a node. `client` acts as the node, `informers` reads Services for the proxy,
/// `serving` is for the kubelet's server: its certificate and the CAs of its clients.
pub(crate) async fn build(
    beginning: Beginning,
    serving: Arc<rustls::ServerConfig>,
    client: kube::Client,
    informers: &Informers,
    group: &Group,
) -> Result<(), AgentError> {
    let Beginning { config, kubelet, runtime } = beginning;
    let (run, agent) = (config.layout.run(), config.layout.agent());
    let gate = network::Gate { socket: run.network_socket(), claims: run.sandboxes(), walls: agent.policies() };
    let net = network::Config {
        node_name: config.node_name.clone(),
        node_ips: config.node_ips.clone(),
        cluster_cidrs: config.cluster_cidrs.clone(),
        piece_bits: config.network.piece_bits,
        service_cidrs: config.service_cidrs,
        ipv6_masquerade: config.network.ipv6_masquerade,
        backend: config.network.backend,
        interface: config.network.interface,
        external_ip: config.network.external_ip,
        own_ports: [config.kubelet_port].into_iter().chain(config.api_port).collect(),
        servers: config.servers.clone(),
        gate: config.network.policies.then_some(gate),
        services: config.network.services,
        node_port_addresses: config.network.node_port_addresses,
    };
    network::run(net.clone(), client.clone(), informers, group).await?;
    let conf = kubelet.cni_conf_dir.join("10-kedge.conflist");
    let ipam_dir = agent.cni_addresses();
    follow_pod_cidr(CniFiles { conf, ipam_dir, net }, informers, group);

    let runtime = runtime.await.map_err(|_| AgentError::Stopped)??;
    let handle = kubelet::run(kubelet, runtime, client.clone(), group).await?;
    let server = kubelet::server::Server::new(handle, client, config.node_name, group);
    let (port, addr) = (
        config.kubelet_port,
        SocketAddr::new(host::any_address(ranges::widest(&config.cluster_cidrs)), config.kubelet_port),
    );
    let listener = wire::serve::Server::bind(addr, Some(serving), server).await;
    listener.map_err(|source| AgentError::Listen { port, source })?.start(group);
    Ok(())
}

/// Links the plugins' names to this program, replacing links of an earlier one.
fn install_plugins(dir: &Path) -> Result<(), FileError> {
    std::fs::create_dir_all(dir).map_err(FileError::at("cannot create directory", dir))?;
    let program = std::env::current_exe().map_err(FileError::at("cannot find this program's file for", dir))?;
    for name in cni::PLUGINS {
        let link = dir.join(name);
        if std::fs::read_link(&link).is_ok_and(|target| target == program) {
            continue;
        }
        let fresh = dir.join(format!(".{name}.new"));
        let _leftover = std::fs::remove_file(&fresh);
        symlink(&program, &fresh)
            .and_then(|()| std::fs::rename(&fresh, &link))
            .map_err(FileError::at("cannot link", &link))?;
    }
    Ok(())
}

struct CniFiles {
    conf: PathBuf,
    ipam_dir: PathBuf,
    net: network::Config,
}

/// Writes the network configuration when the node is given its range of pod addresses, and again if that or the
/// uplink's MTU changes: pods that begin from then on have it.
fn follow_pod_cidr(files: CniFiles, informers: &Informers, group: &Group) {
    let (tasks, node_name) = (group.child("pod-cidr"), files.net.node_name.clone());
    let nodes = informers.get::<Node>();
    group.spawn("pod-cidr", async move {
        let mut changes = nodes.changes();
        let mut mtus = network::pod_mtu(&files.net, &tasks).await;
        nodes.synced().await;
        let mut guard = SourceGuard::default();
        let mut written = None;
        loop {
            guard.keep(obstacle_to_source_guard, GUARD_AGAIN).await;
            let mtu = *mtus.borrow_and_update();
            let spec = nodes.get("", &node_name).and_then(|node| node.spec.clone()).unwrap_or_default();
            let all = spec.pod_cidrs.unwrap_or_default();
            // Of a family that came later this process serves nothing yet: its pods get such addresses after its next
            // start.
            let served = |cidr: &IpNet| {
                files.net.cluster_cidrs.iter().any(|range| range.addr().is_ipv4() == cidr.addr().is_ipv4())
            };
            let cidrs: Vec<IpNet> = all.iter().filter_map(|cidr| cidr.parse().ok()).filter(served).collect();
            let wanted = PodNetwork { cidrs, mtu, source_guard: guard.is_possible };
            if !wanted.cidrs.is_empty() && written.as_ref() != Some(&wanted) {
                match write_conflist(&files, &wanted) {
                    Ok(()) => {
                        info!(node = %node_name, cidr = ?wanted.cidrs, mtu, "pod network configured");
                        written = Some(wanted);
                    }
                    Err(err) => warn!(err = %Chain(&err), "cannot write the pod network's configuration"),
                }
            }
            tokio::select! {
                _ = changes.next() => {}
                Ok(()) = mtus.changed() => {}
                () = tokio::time::sleep(GUARD_AGAIN), if !guard.is_possible => {}
            }
        }
    });
}

/// The part of the network's configuration that changes while the node runs.
#[derive(PartialEq)]
struct PodNetwork {
    cidrs: Vec<IpNet>,
    mtu: Option<u32>,
    source_guard: bool,
}

/// The reason for which pods of this node cannot be held to their addresses, if there is one.
fn obstacle_to_source_guard() -> Option<String> {
    cni::source_guard_is_possible().err().map(|err| err.to_string())
}

/// Whether pods of this node can be held to their addresses. Once they can, they are: nft's troubles of later are for
/// the pods that begin.
#[derive(Default)]
struct SourceGuard {
    is_possible: bool,
    /// Since it was found impossible.
    looked: Option<Stopwatch>,
}

impl SourceGuard {
    /// Looks each `again` whether what was not possible is: nft refuses for want of memory, too, and a kernel's module
    /// may come later.
    async fn keep(&mut self, obstacle: fn() -> Option<String>, again: Duration) {
        if self.is_possible || self.looked.as_ref().is_some_and(|looked| looked.elapsed() < again) {
            return;
        }
        let obstacle = Group::blocking(obstacle).await.unwrap_or_else(|err| Some(err.to_string()));
        let is_first = self.looked.replace(Stopwatch::start()).is_none();
        match obstacle {
            None => {
                self.is_possible = true;
                if !is_first {
                    info!("pods of this node that begin from now on are held to their addresses");
                }
            }
            // That it is not possible is said once.
            Some(why) if is_first => warn!(
                why,
                "pods of this node can send under addresses of others, and so pass network policies: nftables has no \
                 family bridge here"
            ),
            Some(_) => {}
        }
    }
}

fn write_conflist(cni: &CniFiles, wanted: &PodNetwork) -> Result<(), FileError> {
    let text = conflist(&Conflist {
        pod_cidrs: wanted.cidrs.clone(),
        mtu: wanted.mtu,
        ipam_dir: cni.ipam_dir.display().to_string(),
        bridge: base::traces::BRIDGE.to_owned(),
        policy_socket: cni.net.gate.as_ref().map(|gate| gate.socket.display().to_string()),
        source_guard: wanted.source_guard,
        own_ports: cni.net.own_ports.clone(),
    });
    if files::read_if_exists(&cni.conf)?.is_some_and(|old| old == text.as_bytes()) {
        return Ok(());
    }
    files::write_atomic(&cni.conf, text.as_bytes(), 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    // nft was asked once, when the node started: until the next start every pod could send under any address.
    #[tokio::test]
    async fn a_node_that_could_not_hold_pods_to_their_addresses_does_so_as_soon_as_it_can() {
        let mut guard = SourceGuard::default();
        for (obstacle, again, is_possible) in [
            ((|| Some("no memory".to_owned())) as fn() -> Option<String>, Duration::ZERO, false),
            (|| None, GUARD_AGAIN, false),
            (|| None, Duration::ZERO, true),
            (|| Some("no memory".to_owned()), Duration::ZERO, true),
        ] {
            guard.keep(obstacle, again).await;
            assert_eq!(guard.is_possible, is_possible);
        }
    }
}
