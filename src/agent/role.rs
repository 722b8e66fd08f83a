//! `kedge agent`: joins a cluster, then runs the node's half with credentials of its own, over a balancer that knows
//! all servers.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::clock_set::ClockSet;
use base::files::{self, FileError};
use base::layout::AgentFolder;
use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Informer, Informers};
use client::transport::{self, Clients, Credential};
use cluster::balancer::Balancer;
use cluster::join::{self, BadAddress, Joiner, Purpose};
use cluster::node_files::NodeFiles;
use cluster::protocol::{Role, Welcome};
use cluster::refusal::Refusal;
use cluster::supervisor::addresses_of;
use cluster::tunnel::{Keeper, Reach, split};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use model::phase::has_ended;
use model::pod::Pod;
use pki::error::PkiError;
use pki::node_key::NodeKey;
use pki::token::JoinToken;
use tokio::sync::watch;
use tracing::{info, warn};

use super::{AgentError, addresses};
use crate::agent::config::{AgentConfig, ApiServers, NodeFlags, OwnNode, some};
use crate::agent::host::{self, HostError};
use crate::agent::images::SystemImages;
use crate::flags::profile;
use crate::flags::ranges::{self, Family};
use crate::flags::roles::AgentArgs;
use crate::flags::token::Given;
use crate::process::http1::h1;
use crate::process::life::{self, LifeError};
use crate::process::logging::{self, LogError};

/// Between looks at the certificates' remaining life.
const RENEW_LOOK: Duration = Duration::from_secs(6 * 3600);
/// For the name server to know the addresses of servers.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(5);
/// A third of a certificate's life, in seconds: with less left it is renewed.
const RENEW_LEFT_SECS: i64 = 365 * 24 * 3600 / 3;

/// Why the agent did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RoleError {
    #[error("kedge agent must run as root to start containers: run it with sudo")]
    NotRoot,
    #[error("--server: {0}")]
    Server(BadAddress),
    #[error("--token: {0}")]
    Token(PkiError),
    #[error("cannot join: {0}")]
    Refused(Refusal),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("certificates")]
    Pki(#[from] PkiError),
    #[error("{path} cannot be read back", path = path.display())]
    Unreadable { path: PathBuf },
    #[error("the server's settings cannot be used: {0}")]
    Settings(String),
    #[error("cannot listen on {addr}; is another agent running here? Choose another port with --lb-server-port")]
    Listen { addr: SocketAddr, source: io::Error },
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Life(#[from] LifeError),
}

/// Runs the agent until SIGTERM or SIGINT, or only asks whether it could.
pub(crate) fn main(mut args: AgentArgs) -> Result<(), RoleError> {
    if !nix::unistd::geteuid().is_root() {
        return Err(RoleError::NotRoot);
    }
    logging::start(&args.common)?;
    profile::expand_agent(&mut args);
    life::block_on(run(args))
}

/// The flags after checking.
struct Plan {
    args: AgentArgs,
    /// `host:port` of the server that was named.
    given: String,
    node_name: String,
    node_ips: Vec<IpAddr>,
    folder: AgentFolder,
    flags: NodeFlags,
    clock: Clock,
    rng: Rng,
}

impl Plan {
    fn of(args: AgentArgs, group: &Group) -> Result<Plan, RoleError> {
        let (clock, rng) = (group.clock().clone(), group.rng().clone());
        let given = join::address_of(&args.server).map_err(RoleError::Server)?;
        let node_name = host::full_node_name(&args.node, &args.common.state.layout, &rng)?;
        // The address that leads to the server is the one that others see: not that of some default route.
        let towards = || split(&given).and_then(|to| to.to_socket_addrs().ok()?.next()).and_then(host::ip_towards);
        let node_ips = match args.node.node_ip.as_slice() {
            [] => vec![towards().map_or_else(|| host::node_ip([0, 0, 0, 0].into()), Ok)?],
            // Which of two is the first the cluster says.
            given => ranges::node_ips(given, &[]).map_err(HostError::from)?,
        };
        // Judged before anything is asked or written.
        let flags = NodeFlags::of(&args.node, &args.common.state.layout)?;
        Ok(Plan { folder: args.common.state.layout.agent(), flags, args, given, node_name, node_ips, clock, rng })
    }

    /// The node's addresses from now on in a cluster of these families: the one that leads to a server and one of the
    /// other family, unless others were given.
    fn follow_ips(
        &self,
        balancer: &Arc<Balancer>,
        families: &[Family],
        group: &Group,
    ) -> Result<watch::Receiver<Vec<IpAddr>>, HostError> {
        if !self.args.node.node_ip.is_empty() {
            return Ok(addresses::fixed(host::node_ips(&self.args.node, families)?, group));
        }
        let mut ips = self.node_ips.clone();
        ips.extend(ips.first().and_then(|first| host::second_ip(*first, families)));
        ips.sort_by_key(|ip| families.first().is_some_and(|first| Family::of(ip) != *first));
        let (balancer, leads) = (Arc::clone(balancer), self.node_ips.first().is_none_or(IpAddr::is_ipv4));
        let find = move |last: IpAddr| {
            let towards = |server: &String| split(server)?.to_socket_addrs().ok()?.find_map(host::ip_towards);
            let like = |ip: &IpAddr| ip.is_ipv4() == last.is_ipv4();
            let found = balancer.candidates().iter().filter_map(towards).find(like);
            // No server is reached over the other family: there it is the way to the world that counts.
            found.or_else(|| if last.is_ipv4() == leads { None } else { host::ip_of_default_route(last) })
        };
        Ok(addresses::follow(ips, find, group))
    }

    fn joiner(&self, group: &Group) -> Result<Joiner, RoleError> {
        let given = Given {
            flag: "token",
            text: self.args.token.as_deref(),
            file: self.args.token_file.as_deref(),
            own: false,
        };
        let token = given.read()?.map(|text| JoinToken::parse(&text)).transpose().map_err(RoleError::Token)?;
        let machine_id = host::machine_id();
        let key = NodeKey::load_or_create(&self.args.common.state.layout.node_key(), &machine_id)?;
        Ok(Joiner {
            role: Role::Agent,
            token,
            key,
            node_name: self.node_name.clone(),
            node_ips: self.node_ips.clone(),
            machine_id,
            version: crate::process::version::VERSION.to_owned(),
            flags: std::collections::BTreeMap::new(),
            dir: self.folder.path().to_owned(),
            clock: self.clock.clone(),
            group: group.child("join"),
        })
    }
}

async fn run(args: AgentArgs) -> Result<(), RoleError> {
    let (root, fatal) = Group::root("kedge");
    let plan = Plan::of(args, &root)?;
    if plan.args.check {
        return check(&plan, &root).await;
    }
    // Stopped in this order: the node's parts use the balancer to the last.
    let (workers, paths) = (root.child("workers"), root.child("paths"));
    let groups = [workers.clone(), paths.clone(), root];
    Box::pin(life::live("kedge agent", build(&plan, &workers, &paths), groups, fatal)).await
}

/// `--check`: the server's answer, in words.
async fn check(plan: &Plan, group: &Group) -> Result<(), RoleError> {
    let welcome = plan
        .joiner(group)?
        .join(std::slice::from_ref(&plan.given), Purpose::Check)
        .await
        .map_err(RoleError::Refused)?;
    println!("this machine may join https://{} as node {}", plan.given, plan.node_name);
    println!("server version: {}", welcome.version);
    println!("servers: {}", welcome.servers.join(", "));
    let listed = |ranges: &[IpNet]| ranges.iter().map(IpNet::to_string).collect::<Vec<_>>().join(",");
    println!(
        "pods: {}, services: {}",
        listed(&welcome.settings.cluster_cidrs),
        listed(&welcome.settings.service_cidrs)
    );
    Ok(())
}

/// Joins, waiting for what may pass. With credentials from an earlier time an unreachable server is no reason to wait,
/// nor is a clock that is wrong since the machine started: `None`.
async fn join_or_go_on(plan: &Plan, joiner: &Joiner, balancer: &Balancer) -> Result<Option<Welcome>, RoleError> {
    let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(5));
    let mut told = None;
    loop {
        match joiner.join(&balancer.candidates(), Purpose::Join).await {
            Ok(welcome) => return Ok(Some(welcome)),
            Err(refusal) if !refusal.may_pass() => return Err(RoleError::Refused(refusal)),
            Err(refusal) => {
                if matches!(refusal, Refusal::Unreachable { .. } | Refusal::ClockSkew { .. }) && usable(plan) {
                    warn!(why = %refusal, "starting with the credentials of last time");
                    return Ok(None);
                }
                if told.as_ref() != Some(&refusal) {
                    warn!(why = %refusal, "cannot join yet, trying again");
                    life::notify(&format!("STATUS=cannot join yet: {refusal}"));
                    told = Some(refusal);
                }
                tokio::time::sleep(backoff.next(&plan.rng)).await;
            }
        }
    }
}

/// Whether what is on the disk makes this machine the node it should be.
fn usable(plan: &Plan) -> bool {
    NodeFiles::load(&plan.folder).is_some_and(|files| {
        files.membership.node_name == plan.node_name && plan.clock.now() < files.kubelet.current().not_after
    })
}

async fn build(plan: &Plan, workers: &Group, paths: &Group) -> Result<(), RoleError> {
    files::create_private_dir(plan.folder.path())?;
    let balancer = Balancer::open(plan.folder.servers(), &plan.given)?;
    let joiner = plan.joiner(paths)?;
    let welcome = join_or_go_on(plan, &joiner, &balancer).await?;
    if let Some(welcome) = &welcome {
        balancer.set_servers(welcome.servers.clone())?;
        info!(node = %plan.node_name, version = %welcome.version, "joined");
    }
    let unreadable = || RoleError::Unreadable { path: plan.folder.membership() };
    let node = NodeFiles::load(&plan.folder).ok_or_else(unreadable)?;
    let families = ranges::families(some("range of pods", &node.membership.settings.cluster_cidrs)?);
    let node_ips = plan.follow_ips(&balancer, &families, paths)?;
    let addr = SocketAddr::from(([127, 0, 0, 1], plan.args.lb_server_port));
    balancer.start(addr, paths).await.map_err(|source| RoleError::Listen { addr, source })?;
    let (kubelet, proxy) = (client_of(plan, &node, &node.kubelet)?, client_of(plan, &node, &node.proxy)?);
    let informers = Informers::new(proxy, workers);
    let own = OwnNode {
        layout: &plan.args.common.state.layout,
        name: &plan.node_name,
        ips: node_ips.clone(),
        args: &plan.args.node,
        flags: &plan.flags,
        images: Group::blocking(SystemImages::of_this_program).await.map_err(LifeError::from)?,
    };
    let servers = ApiServers::Others(places(balancer.candidates()).await?);
    let config = AgentConfig::of(own, &node.membership.settings, servers)?;
    let (renewed, renewals) = watch::channel(0);
    let (tell_opened, opened) = watch::channel(0);
    let tls = h1(pki::tls::client_config(&node.servers, Some(Arc::clone(&node.kubelet)))?.as_ref());
    let (name, ips) = (plan.node_name.clone(), node_ips.clone());
    let reach = NodeReach { name, ips, port: config.kubelet_port, nodes: informers.get(), pods: informers.get() };
    let node_half = super::begin(config, workers)?;
    let keeper = Keeper {
        tls,
        reach: Arc::new(reach),
        balancer: Some(Arc::clone(&balancer)),
        opened: tell_opened,
        rng: plan.rng.clone(),
    };
    keeper.start(follow_servers(&balancer, &informers, paths), renewals, paths);
    let tls = node_half.tls();
    let serving = pki::tls::server_config_by(&tls, Arc::clone(&node.serving), Some(&node.clients))?;
    let recorder = Recorder::new(kubelet.clone(), "kedge-certificates", &plan.node_name, paths);
    super::build(node_half, serving, kubelet, &informers, workers).await?;
    keep_membership(
        Renewal {
            recorder,
            joiner,
            balancer,
            node,
            clock: plan.clock.clone(),
            rng: plan.rng.clone(),
            renewed,
            opened,
            node_ips,
        },
        if welcome.is_none() { First::AtOnce } else { First::WhenDue },
        paths,
    );
    Ok(())
}

fn client_of(plan: &Plan, node: &NodeFiles, cert: &Arc<pki::certstore::CertStore>) -> Result<kube::Client, RoleError> {
    let tls = rustls::ClientConfig::clone(&*pki::tls::client_config(&node.servers, Some(Arc::clone(cert)))?);
    let authority: http::uri::Authority = format!("127.0.0.1:{}", plan.args.lb_server_port)
        .parse()
        .map_err(|_| RoleError::Settings("no authority".to_owned()))?;
    Ok(Clients::new(move |_| transport::tls(authority.clone(), tls.clone(), Credential::Certificate)).for_user(""))
}

/// Addresses that servers may reach here: the kubelet, and pods, those on the host's network at the ports that they
/// name.
pub(crate) struct NodeReach {
    pub(crate) name: String,
    pub(crate) ips: watch::Receiver<Vec<IpAddr>>,
    pub(crate) port: u16,
    pub(crate) nodes: Informer<Node>,
    pub(crate) pods: Informer<Pod>,
}

impl Reach for NodeReach {
    fn allows(&self, host: IpAddr, port: u16) -> bool {
        if host.is_loopback() {
            return port == self.port;
        }
        if self.ips.borrow().contains(&host) {
            return port == self.port || self.pods.list().iter().any(|pod| serves(pod, &self.name, port));
        }
        let node = self.nodes.get("", &self.name);
        let cidrs = node.as_ref().and_then(|node| node.spec.as_ref()?.pod_cidrs.as_ref());
        cidrs.into_iter().flatten().filter_map(|cidr| cidr.parse::<IpNet>().ok()).any(|cidr| cidr.contains(&host))
    }
}

/// Whether a pod on the host's network of `node` says that it listens on `port`. Else a server could not reach a
/// webhook, an aggregated API or a page that such a pod serves.
fn serves(pod: &Pod, node: &str, port: u16) -> bool {
    let Some(spec) = &pod.spec else { return false };
    let mut ports =
        spec.containers.iter().chain(spec.init_containers.iter().flatten()).filter_map(|c| c.ports.as_ref()).flatten();
    spec.host_network == Some(true)
        && spec.node_name.as_deref() == Some(node)
        && !has_ended(pod)
        && ports.any(|named| named.container_port == i32::from(port))
}

/// The servers as the cluster tells them, told to the balancer, and to the keeper of tunnels by what this returns.
fn follow_servers(balancer: &Arc<Balancer>, informers: &Informers, group: &Group) -> watch::Receiver<Vec<String>> {
    let slices = informers.get::<EndpointSlice>();
    let (tell, told) = watch::channel(balancer.candidates());
    let balancer = Arc::clone(balancer);
    group.spawn("servers", async move {
        let mut changes = slices.changes();
        slices.synced().await;
        loop {
            if let Some(slice) = slices.get("default", "kubernetes") {
                if let Err(err) = balancer.set_servers(addresses_of(&slice)) {
                    warn!(err = %Chain(&err), "cannot save the list of servers");
                }
                let servers = balancer.candidates();
                tell.send_if_modified(|now| {
                    let changed = *now != servers;
                    now.clone_from(&servers);
                    changed
                });
            }
            changes.next().await;
            changes.drain();
        }
    });
    told
}

/// Where these servers are now. A name that nobody knows just now has no place.
async fn places(servers: Vec<String>) -> Result<Vec<SocketAddr>, RoleError> {
    let look = move || servers.iter().filter_map(|server| split(server)?.to_socket_addrs().ok()).flatten().collect();
    // A machine without its name server starts all the same.
    match tokio::time::timeout(LOOK_UP_LIMIT, Group::blocking(look)).await {
        Ok(found) => Ok(found.map_err(LifeError::from)?),
        Err(_) => Ok(Vec::new()),
    }
}

/// Why a node has its certificates no longer renewed. An event on the Node shows it.
#[derive(Debug, thiserror::Error)]
enum RenewError {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Files(#[from] PkiError),
}

/// Parts that keep the membership.
struct Renewal {
    joiner: Joiner,
    balancer: Arc<Balancer>,
    node: NodeFiles,
    clock: Clock,
    rng: Rng,
    renewed: watch::Sender<u64>,
    /// For events of this node.
    recorder: Recorder,
    /// Tunnels that were opened: the server at the other end may be another than before.
    opened: watch::Receiver<u64>,
    node_ips: watch::Receiver<Vec<IpAddr>>,
}

impl Renewal {
    /// Seconds until two thirds of the certificates' life are over; none or fewer: they are due. So they are when a
    /// file is missing.
    fn left_secs(&self) -> i64 {
        let stores = [&self.node.kubelet, &self.node.serving, &self.node.proxy];
        let ends = stores.iter().map(|store| store.current().not_after.as_second()).min().unwrap_or(0);
        let Some(written) = self.node.written_secs() else { return 0 };
        // Certificates are valid from 1970 on; when they were written tells how long they were to last. A clock that
        // was behind then makes that too long, which a year bounds.
        ends - self.clock.now().as_second() - ((ends - written) / 3).clamp(0, RENEW_LEFT_SECS)
    }

    /// The machine has another address: connections from the old one lead nowhere, and the serving certificate names
    /// it.
    fn moved(&mut self) {
        self.joiner.node_ips.clone_from(&self.node_ips.borrow_and_update());
        self.balancer.cut_all();
        self.renewed.send_modify(|n| *n += 1);
    }

    /// Says on the Node that renewing fails, and how long the certificates last.
    fn tell(&self, why: &str) {
        let name = Some(self.joiner.node_name.clone());
        let about =
            ObjectReference { kind: Some("Node".to_owned()), uid: name.clone(), name, ..ObjectReference::default() };
        let end = self.node.kubelet.current().not_after;
        let text = format!("Cannot renew this node's certificates, which end at {end}: {why}");
        self.recorder.report_ref(about, Severity::Warning, "CertificateRenewalFailed", text);
    }

    /// Whether servers use other authorities than this node was told of when it was told last.
    async fn has_other_authorities(&mut self) -> bool {
        self.opened.mark_unchanged();
        let Some(found) = self.joiner.authorities(&self.balancer.candidates()).await else { return false };
        let known = NodeFiles::load(self.node.folder()).map(|files| files.membership.authorities);
        let other = known.is_some_and(|known| known != found);
        if other {
            info!("the cluster has other authorities: fetching certificates of theirs");
        }
        other
    }

    async fn renew(&self) -> Result<(), RenewError> {
        let welcome = self.joiner.join(&self.balancer.candidates(), Purpose::Join).await?;
        self.node.swap()?;
        // Connections keep the certificate they began with: they are made anew, long before it ends.
        self.balancer.cut_all();
        self.renewed.send_modify(|n| *n += 1);
        if welcome.settings != self.node.membership.settings {
            warn!("the cluster's settings changed: restart kedge agent to use them");
        }
        info!("node certificates renewed");
        Ok(())
    }
}

/// The first renewal of certificates.
#[derive(Clone, Copy, PartialEq, Eq)]
enum First {
    AtOnce,
    WhenDue,
}

/// Renews certificates at two thirds of their life, and at once after a start without a server or with another address.
fn keep_membership(mut renewal: Renewal, first: First, group: &Group) {
    group.spawn("membership", async move {
        let watch = base::folder::FolderWatch::flat(renewal.node.folder().path());
        if let Err(err) = &watch {
            warn!(err = %err, "cannot watch certificates: rotating them takes a restart");
        }
        let clock = ClockSet::listen();
        if let Err(err) = &clock {
            warn!(err = %err, "cannot hear of changes of the clock");
        }
        let mut due = first == First::AtOnce;
        loop {
            let mut backoff = Backoff::new(Duration::from_secs(2), Duration::from_secs(60));
            while due {
                match renewal.renew().await {
                    Ok(()) => due = false,
                    Err(err) => {
                        let why = Chain(&err).to_string();
                        warn!(why, "cannot renew the node's certificates, trying again");
                        renewal.tell(&why);
                        tokio::select! {
                            () = tokio::time::sleep(backoff.next(&renewal.rng)) => {}
                            Ok(()) = renewal.node_ips.changed() => renewal.moved(),
                        }
                    }
                }
            }
            let left = Duration::from_secs(u64::try_from(renewal.left_secs()).unwrap_or(0).max(1));
            let changed = base::folder::FolderWatch::changed_if(&watch);
            // Cancel safe: everything is looked at anew.
            let (moved, met) = tokio::select! {
                () = changed => (false, false),
                // A machine that began in 1970 finds its certificates ended when it learns the time.
                () = ClockSet::next_if(&clock) => (false, false),
                () = tokio::time::sleep(left.min(RENEW_LOOK)) => (false, false),
                Ok(()) = renewal.opened.changed() => (false, true),
                Ok(()) = renewal.node_ips.changed() => (true, false),
            };
            if moved {
                renewal.moved();
            }
            due = moved || renewal.left_secs() <= 0 || met && renewal.has_other_authorities().await;
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_reaches_what_pods_on_the_hosts_network_name() {
        let pod = |host: bool, node: &str, phase: &str| -> Pod {
            serde_json::from_value(serde_json::json!({
                "metadata": {"name": "p", "namespace": "n"},
                "spec": {"hostNetwork": host, "nodeName": node, "containers": [{"name": "c",
                    "ports": [{"containerPort": 80}]}]},
                "status": {"phase": phase}
            }))
            .unwrap()
        };
        assert!(serves(&pod(true, "a", "Running"), "a", 80));
        assert!(!serves(&pod(true, "a", "Running"), "a", 22), "the node's own");
        assert!(!serves(&pod(true, "b", "Running"), "a", 80), "another node's");
        assert!(!serves(&pod(false, "a", "Running"), "a", 80), "a port of an address of its own");
        assert!(!serves(&pod(true, "a", "Succeeded"), "a", 80));
    }
}
