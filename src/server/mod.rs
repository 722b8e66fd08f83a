//! `kedge server`: one build per room, in order, dependencies as arguments; then it waits, and stops in the reverse order.

pub(crate) mod away;
pub(crate) mod charts;
pub(crate) mod connector;
pub(crate) mod datastore;
pub(crate) mod encryption;
pub(crate) mod joining;
pub(crate) mod leader;
pub(crate) mod listener;
pub(crate) mod membership;
pub(crate) mod packaged;
pub(crate) mod rotation;
pub(crate) mod signing;
pub(crate) mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use apiserver::ApiServer;
use apiserver::arguments::Arguments;
use apiserver::guards::Parts;
use base::chain::Chain;
use base::files::{self, FileError};
use base::rng::Rng;
use base::secret::Secret;
use base::task::Group;
use base::time::Clock;
use client::informer::Informers;
use client::transport::Clients;
use cluster::credentials::{Credentials, Passwords};
use cluster::identity::Identities;
use cluster::names::ServerNames;
use cluster::protocol::Settings;
use cluster::relay::Relay;
use cluster::tunnel::Tunnels;
use controllers::registry::LocalPath;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Taint;
use pki::leaf::{Ca, Leaf};
use pki::server::Pki;
use store::member::{MutualTls, Network};
use store::store::Store;
use tokio::sync::watch;
use tracing::{error, info, warn};
use wire::serve::Protocol;

use crate::agent::host::{self, HostError};
use crate::agent::images::{ImageError, Names, SystemImages};
use crate::agent::role::NodeReach;
use crate::agent::{self, AgentConfig, AgentError, NetworkChoice, RuntimeFlags};
use crate::commands::certificate::{Keeper, Kubeconfig};
use crate::commands::{self, certificate, rotate_ca, snapshot};
use crate::flags::claims;
use crate::flags::ranges::{self, BadRange, Ranges};
use crate::flags::roles::ServerArgs;
use crate::process::life::{self, LifeError};
use crate::process::logging::{self, LogError};
use crate::server::connector::Direct;
use crate::server::datastore::DatastoreError;
use crate::server::joining::JoinError;
use crate::server::listener::{Front, FrontError};
use crate::server::packaged::Variables;
use crate::server::signing::Keys;

/// Why the server did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServerError {
    #[error("kedge server must run as root to start containers: run it with sudo, or with --disable-agent for an API server alone")]
    NotRoot,
    #[error("--{flag}: {reason}")]
    Flag { flag: &'static str, reason: String },
    #[error("{0}")]
    Argument(String),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error(transparent)]
    Host(#[from] HostError),
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Store(#[from] DatastoreError),
    #[error("certificates")]
    Pki(#[from] pki::error::PkiError),
    #[error("the API server cannot start")]
    Api(#[from] apiserver::serve::BuildError),
    #[error("cannot listen on {addr}; is another server running here? Choose another port with --https-listen-port")]
    Listen { addr: SocketAddr, source: io::Error },
    #[error(transparent)]
    Agent(#[from] AgentError),
    #[error(transparent)]
    Front(#[from] FrontError),
    #[error(transparent)]
    Join(#[from] JoinError),
    #[error(transparent)]
    Life(#[from] LifeError),
}

/// Runs the server until SIGTERM or SIGINT. Pods keep running.
pub(crate) fn main(args: ServerArgs) -> Result<(), ServerError> {
    logging::start(&args.common)?;
    if args.store.cluster_reset {
        let given = listener::Given { flag: "token", text: args.token.as_deref(), file: args.token_file.as_deref(), own: false };
        println!("{}", args.store.reset(&args.common.state.data_dir, &args.common.config, given.seal()?.as_ref())?);
        return Ok(());
    }
    let plan = Plan::of(args)?;
    life::block_on(run(plan))
}

/// The flags after checking: addresses parsed, defaults derived.
struct Plan {
    args: ServerArgs,
    node_name: String,
    node_ips: Vec<IpAddr>,
    advertise: IpAddr,
    bind: IpAddr,
    ranges: Ranges,
    taints: Vec<Taint>,
    kubeconfig_group: Option<u32>,
    kubelet: kubelet::settings::Settings,
    apiserver: Arguments,
    controllers: controllers::settings::Settings,
}

impl Plan {
    fn of(args: ServerArgs) -> Result<Plan, ServerError> {
        if !args.disable_agent && !nix::unistd::geteuid().is_root() {
            return Err(ServerError::NotRoot);
        }
        let node_name = host::full_node_name(&args.node, &args.common.state.data_dir, &Rng::from_os())?;
        let bad_range = |bad: BadRange| ServerError::Flag { flag: bad.flag, reason: bad.reason };
        let ranges = Ranges::of(&args.cluster_cidr.join(","), &args.service_cidr.join(","), &args.cluster_dns).map_err(bad_range)?;
        let node_ips = host::node_ips(&args.node, &ranges::families(&ranges.cluster))?;
        let no_group = |reason| ServerError::Flag { flag: "write-kubeconfig-group", reason };
        let kubeconfig_group = args.write_kubeconfig_group.as_deref().map(host::group_id).transpose().map_err(no_group)?;
        scheduler::settings::check(&args.kube_scheduler_arg).map_err(ServerError::Argument)?;
        args.store.check()?;
        claims::check(&args).map_err(|(flag, reason)| ServerError::Flag { flag, reason })?;
        packaged::check_disabled(&args.disable, &args.common.state.data_dir.join("server/manifests"))
            .map_err(|reason| ServerError::Flag { flag: "disable", reason })?;
        // Everybody who may list processes sees it.
        if let Some(flag) = commands::secret_on_command_line() {
            warn!(flag, "a secret stands on the command line, which every user sees: put it into the configuration file");
        }
        Ok(Plan {
            kubelet: host::kubelet_settings(&args.node).map_err(|reason| ServerError::Flag { flag: "kubelet-arg", reason })?,
            node_name,
            advertise: args
                .advertise_address
                .or(args.node.node_external_ip.first().copied())
                .or(node_ips.first().copied())
                .ok_or(HostError::NoAddress)?,
            node_ips,
            bind: args.bind_address.unwrap_or_else(|| host::any_address(ranges.v6())),
            ranges,
            taints: host::taints(&args.node)?,
            kubeconfig_group,
            apiserver: Arguments::parse(&args.kube_apiserver_arg).map_err(ServerError::Argument)?,
            controllers: controllers::settings::Settings::parse(&args.kube_controller_manager_arg).map_err(ServerError::Argument)?,
            args,
        })
    }

    /// This machine's addresses, and the one that others reach it by, from now on: those that no flag names follow the machine.
    fn follow_ips(&self, group: &Group) -> (watch::Receiver<Vec<IpAddr>>, watch::Receiver<IpAddr>) {
        let (tell, advertised) = watch::channel(self.advertise);
        if !self.args.node.node_ip.is_empty() {
            return (agent::addresses::fixed(self.node_ips.clone(), group), advertised);
        }
        let node_ips = agent::addresses::follow(self.node_ips.clone(), host::ip_of_default_route, group);
        if self.node_ips.first() == Some(&self.advertise) {
            let mut changes = node_ips.clone();
            group.spawn("advertised-address", async move {
                while changes.changed().await.is_ok() {
                    let now = changes.borrow_and_update().first().copied();
                    now.map(|now| tell.send_replace(now));
                }
                std::future::pending::<()>().await;
            });
        }
        (node_ips, advertised)
    }

    /// `host:port` where other servers and nodes reach this one.
    fn address(&self) -> String {
        SocketAddr::new(self.advertise, self.advertise_port()).to_string()
    }

    fn advertise_port(&self) -> u16 {
        self.args.advertise_port.unwrap_or(self.args.https_listen_port)
    }

    fn joining(&self) -> joining::Plan<'_> {
        joining::Plan {
            url: self.args.server.as_deref(),
            token: listener::Given { flag: "token", text: self.args.token.as_deref(), file: self.args.token_file.as_deref(), own: false },
            data_dir: &self.args.common.state.data_dir,
            node_name: &self.node_name,
            node_ips: &self.node_ips,
            address: self.address(),
            external: !self.args.store.datastore_endpoint.is_empty(),
            flags: cluster_flags(self),
        }
    }

    /// Whether a packaged component is wanted.
    fn deploys(&self, component: &str) -> bool {
        !self.args.disable.iter().any(|name| name == component)
    }
}

/// The tasks of the server, stopped in this order: nobody works for a store that is closed, and members talk to the last.
struct Groups {
    workers: Group,
    serving: Group,
    storage: Group,
    port: Group,
}

async fn run(plan: Plan) -> Result<(), ServerError> {
    let (root, fatal) = Group::root("kedge");
    let groups =
        Groups { workers: root.child("workers"), serving: root.child("api"), storage: root.child("store"), port: root.child("port") };
    let order = [groups.workers.clone(), groups.serving.clone(), groups.storage.clone(), groups.port.clone(), root];
    Box::pin(life::live("kedge", build(&plan, &groups), order, fatal)).await
}

/// Builds every room in the order of the road, each on what was built before.
async fn build(plan: &Plan, groups: &Groups) -> Result<(), ServerError> {
    let (clock, rng) = (Clock::system(), Rng::from_os());
    // Reading some 30 MB goes on beside the start of the store.
    let images = Group::blocking(SystemImages::of_this_program);
    let base = Base::build(plan, groups, &clock, &rng).await?;
    let (node_ips, advertised) = plan.follow_ips(&groups.port);
    let (pki, workers) = (&base.pki, &groups.workers);
    let images = images.await.map_err(LifeError::from)?;
    let names = images.as_ref().ok().map(SystemImages::names);
    // Not sooner: the store's lock keeps a second server away from the first one's containerd.
    let node_half =
        if plan.args.disable_agent { None } else { Some(agent::begin(agent_config(plan, images, node_ips.clone())?, workers)?) };
    let (tell_servers, servers) = watch::channel(Vec::new());
    let tunnels = Arc::new(Tunnels::default());
    let relay = Relay::new(peer_tls(pki, Leaf::ClientSupervisor)?, servers.clone(), &groups.serving);
    let ways = Ways { tunnels: Arc::clone(&tunnels), relay, advertised: advertised.clone() };
    let server = api_server(plan, pki, ways, Arc::clone(&base.storage), &clock, &rng, &groups.serving).await?;
    let clients = users::clients(&server);
    let supervisor = clients.for_user(users::SUPERVISOR);
    let credentials = Credentials::new(base.passwords.clone(), supervisor.clone());
    let server_dir = plan.args.common.state.data_dir.join("server");
    let using = rotate_ca::in_use(&server_dir)?;
    let identities = Identities::new(Arc::clone(&base.storage), supervisor.clone());
    let parts = listener::Parts {
        pki,
        credentials: credentials.clone(),
        client: supervisor.clone(),
        identities: identities.clone(),
        names: ServerNames::new(Arc::clone(&base.storage)),
        settings: settings(plan),
        flags: cluster_flags(plan),
        authorities: using.clone(),
        clock: clock.clone(),
        server_dir: server_dir.clone(),
        store: base.embedded.clone(),
    };
    parts.names.publish(&plan.node_name, Leaf::ServingApiserver.spec(pki.options()).sans, workers);
    base.front.open(Arc::clone(&server), listener::supervisor(parts, tunnels, &groups.serving));
    info!("API server is up");
    kubeconfig(plan).write(pki)?;

    let informers = Informers::new(clients.for_user("system:kube-controller-manager"), workers);
    let uses = BTreeMap::from([(rotate_ca::IN_USE.to_owned(), using.clone())]);
    rotate_ca::follow(server_dir, using, &informers, workers);
    rotation::follow(follower(plan, &base, credentials, supervisor.clone()), &informers, workers)?;
    let (port, own) = (plan.advertise_port(), advertised.clone());
    membership::follow_servers(tell_servers, move || SocketAddr::new(*own.borrow(), port).to_string(), &informers, workers);
    if let Some(store) = &base.embedded {
        membership::follow_address(Arc::clone(store), advertised, port, &groups.port);
        membership::follow_nodes(Arc::clone(store), plan.node_name.clone(), &informers, workers);
        membership::end_when_removed(Arc::clone(store), plan.args.common.state.data_dir.join("server/db"), workers);
        let store = &plan.args.store;
        let places = store.places(&plan.args.common.state.data_dir, &plan.args.common.config);
        snapshot::keep_by(store, places, &plan.node_name, supervisor.clone(), &clock, workers)?;
    }
    lead(plan, &base, names.as_ref(), &clients, &informers, workers);
    if let Some(node_half) = node_half {
        listener::own_identity(&plan.node_name, &plan.args.common.state.data_dir, &identities).await?;
        let (name, ips, port) = (plan.node_name.clone(), node_ips.clone(), plan.args.node.kubelet_port);
        let reach = NodeReach { name, ips, port, nodes: informers.get(), pods: informers.get() };
        membership::keep_tunnels(peer_tls(pki, Leaf::ClientKubelet)?, Arc::new(reach), servers, rng, &groups.port);
        packaged::mark_control_plane(supervisor, plan.node_name.clone(), uses, &informers, workers);
        let node = clients.for_user(&format!("system:node:{}", plan.node_name));
        let serving = pki::tls::server_config(Arc::clone(pki.leaf(Leaf::ServingKubelet)), Some(&pki.user_bundle()?))?;
        agent::build(node_half, serving, node, &informers, workers).await?;
    }
    keeper(plan, pki, clients.for_user(users::SUPERVISOR), clock, node_ips).start(workers);
    Ok(())
}

/// What renews this server's certificates.
fn keeper(plan: &Plan, pki: &Arc<Pki>, client: kube::Client, clock: Clock, node_ips: watch::Receiver<Vec<IpAddr>>) -> Keeper {
    Keeper {
        dir: plan.args.common.state.data_dir.join("server/tls"),
        kubeconfig: kubeconfig(plan),
        node_name: plan.node_name.clone(),
        client,
        clock,
        pki: Arc::clone(pki),
        node_ips,
        told: BTreeMap::new(),
    }
}

/// What takes join tokens over that are rotated.
fn follower(plan: &Plan, base: &Base, credentials: Credentials, client: kube::Client) -> rotation::Follower {
    rotation::Follower {
        credentials,
        server_dir: plan.args.common.state.data_dir.join("server"),
        ca: base.pki.authority(Ca::Server).bundle().to_owned(),
        known: base.known.clone(),
        client,
        rng: base.rng.clone(),
        now_ms: base.clock.now().as_millisecond(),
    }
}

/// What everything else stands on: certificates, the port, the store.
struct Base {
    pki: Arc<Pki>,
    passwords: Passwords,
    /// The servers' password before this start.
    known: Option<Secret<String>>,
    front: Arc<Front>,
    storage: Arc<dyn store::Storage>,
    embedded: Option<Arc<Store>>,
    clock: Clock,
    rng: Rng,
}

impl Base {
    async fn build(plan: &Plan, groups: &Groups, clock: &Clock, rng: &Rng) -> Result<Base, ServerError> {
        let server_dir = plan.args.common.state.data_dir.join("server");
        let db = server_dir.join("db");
        files::create_private_dir(&server_dir)?;
        files::create_private_dir(&db)?;
        agent::mark_data_dir(&plan.args.common.state.data_dir)?;
        // A server that runs here already keeps its certificates as they are.
        let lock = store::backup::lock(&db).map_err(|source| DatastoreError::Open { path: db.clone(), source })?;
        let joining = plan.joining();
        let place = joining.fetch(clock, rng, &groups.port).await?;
        rotate_ca::take_next(&server_dir)?;
        let pki = Arc::new(open_pki(plan, &server_dir, clock)?);
        let (passwords, known) = listener::passwords_of(&plan.args, &pki, &server_dir, rng)?;
        let (peers, dial) = between_peers(&pki)?;
        let network = Network { name: plan.node_name.clone(), address: plan.address(), dial };
        drop(lock);
        let datastore = plan.args.store.open(&db, place.birth(), network, rng, &groups.storage).await?;
        let front = Front::new(pki.authority(Ca::Server).bundle().to_owned());
        let addr = SocketAddr::new(plan.bind, plan.args.https_listen_port);
        let clients = pki.client_bundle()?.and(&plan.apiserver.client_ca_pem)?;
        let tls = pki::tls::server_config_by(&plan.apiserver.tls, Arc::clone(pki.leaf(Leaf::ServingApiserver)), Some(&clients))?;
        let listener = wire::serve::Server::bind(addr, Some(tls), Arc::clone(&front) as Arc<dyn wire::Handler>).await;
        let mut listener = listener.map_err(|source| ServerError::Listen { addr, source })?;
        if let Some(store) = &datastore.embedded {
            let group = groups.port.child("peers");
            listener = listener.beside(Protocol { alpn: pki::tls::ALPN_PEER, tls: peers, handler: store.peer_handler(), group });
        }
        listener.start_in(&groups.port, &groups.serving);
        info!(addr = %addr, "port is open");
        if let Some(store) = &datastore.embedded {
            joining.settle(place, store, &pki, rng, &groups.port).await?;
            datastore::serve_etcd(store, &pki, &db, rng, &groups.serving).await?;
        }
        Ok(Base {
            pki,
            passwords,
            known,
            front,
            storage: datastore.storage,
            embedded: datastore.embedded,
            clock: clock.clone(),
            rng: rng.clone(),
        })
    }
}

fn open_pki(plan: &Plan, server_dir: &Path, clock: &Clock) -> Result<Pki, ServerError> {
    let options = pki::server::Options {
        clock: clock.clone(),
        leaf_life: plan.args.certificate_life.map_or(pki::authority::LEAF_LIFE, std::time::Duration::from_secs),
        node_name: plan.node_name.clone(),
        node_ips: plan.node_ips.clone(),
        service_ips: plan.ranges.service.iter().map(|range| apiserver::services::nth_address(range, 1)).collect(),
        cluster_domain: plan.args.cluster_domain.clone(),
        tls_sans: plan.args.tls_san.iter().cloned().chain([plan.advertise.to_string()]).collect(),
    };
    let mut pki = Pki::load_or_create(&server_dir.join("tls"), options)?;
    let (signing, verifying) = plan.apiserver.accounts.read_keys().map_err(ServerError::Argument)?;
    let unusable = |err: pki::error::PkiError| ServerError::Argument(format!("--kube-apiserver-arg=service-account-*-key-file: {err}"));
    pki.set_service_keys(signing, verifying).map_err(unusable)?;
    Ok(pki)
}

/// TLS between members of the store: what answers, and what dials.
fn between_peers(pki: &Pki) -> Result<(Arc<rustls::ServerConfig>, Arc<MutualTls>), ServerError> {
    let ca = pki::bundle::Bundle::from_pem(pki.authority(Ca::EtcdPeer).bundle())?;
    let (server, tls) = pki::tls::between_peers(&ca, pki.leaf(Leaf::EtcdPeer))?;
    Ok((server, Arc::new(MutualTls { tls, server_name: pki::leaf::PEER_NAME.to_owned() })))
}

/// For calling the port of another server over HTTP/1.1.
fn peer_tls(pki: &Pki, leaf: Leaf) -> Result<Arc<rustls::ClientConfig>, ServerError> {
    Ok(joining::h1(&*pki::tls::client_config(&pki.server_bundle()?, Some(Arc::clone(pki.leaf(leaf))))?))
}

/// Has controllers, scheduler and add-ons run here while this server leads.
fn lead(plan: &Plan, base: &Base, images: Option<&Names>, clients: &Clients, informers: &Informers, workers: &Group) {
    let storage_dir = plan.args.default_local_storage_path.clone().unwrap_or_else(|| plan.args.common.state.data_dir.join("storage"));
    let local_path = images.filter(|_| plan.deploys("local-storage"));
    let config = controllers::registry::Config {
        local_path: local_path.map(|images| LocalPath { dir: storage_dir.display().to_string(), image: images.dns.clone() }),
        cluster_cidrs: plan.ranges.cluster.clone(),
        service_cidrs: plan.ranges.service.clone(),
        settings: plan.controllers.clone(),
        root_ca_pem: base.pki.authority(Ca::Server).bundle().to_owned(),
        balancer_reserved_ports: (!plan.args.disable.iter().any(|name| name == "servicelb"))
            .then(|| vec![plan.args.https_listen_port, plan.args.node.kubelet_port]),
        signer: Arc::new(Keys { pki: Arc::clone(&base.pki), clock: base.clock.clone() }),
    };
    let (clients, informers, store) = (clients.clone(), informers.clone(), base.embedded.clone());
    let (domain, clock) = (plan.args.cluster_domain.clone(), base.clock.clone());
    let identities = Identities::new(Arc::clone(&base.storage), clients.for_user(users::SUPERVISOR));
    let helm = charts::config(&plan.args, &base.pki, &base.clock, &base.rng, kubeconfig(plan).url);
    let schedules = !plan.args.disable_scheduler;
    let leadership = leader::leadership(base.embedded.as_ref(), &base.storage, &plan.node_name, &base.rng, workers);
    let kept =
        cluster::addons::keep(addon_config(plan, &storage_dir, images), clients.for_user(users::SUPERVISOR), leadership.clone(), workers);
    if let Err(err) = kept {
        error!(err = %Chain(&err), "the folder of manifests cannot be used: no add-on is applied");
    }
    leader::while_leading(leadership, workers, move |leading| {
        controllers::registry::run(&config, clients.clone(), informers.clone(), leading);
        if schedules {
            scheduler::run::run(clients.for_user("system:kube-scheduler"), &informers, leading);
        }
        let supervisor = clients.for_user(users::SUPERVISOR);
        if let Some(helm) = helm.clone() {
            cluster::helm::run(helm, supervisor.clone(), &informers, leading);
        }
        cluster::identity::tie_to_nodes(identities.clone(), clock.clone(), &informers, leading);
        packaged::keep_node_hosts(supervisor, &domain, &informers, leading);
        if let Some(store) = store.clone() {
            leading.spawn_short("two-servers", async move { membership::warn_of_two(&store).await });
        }
    });
}

/// The ways to nodes that cannot be dialled, and to this server.
struct Ways {
    tunnels: Arc<Tunnels>,
    relay: Relay,
    advertised: watch::Receiver<IpAddr>,
}

async fn api_server(
    plan: &Plan,
    pki: &Arc<Pki>,
    ways: Ways,
    store: Arc<dyn store::Storage>,
    clock: &Clock,
    rng: &Rng,
    group: &Group,
) -> Result<Arc<ApiServer>, ServerError> {
    let url = format!("https://{}", plan.address());
    let wanted = encryption::Wanted::of(&plan.args, &plan.apiserver);
    let (encryption, store) = encryption::sealed(&plan.args.common.state.data_dir, &wanted, store, rng, group).await?;
    // Join tokens are for the supervisor alone: nobody calls the API with one.
    let parts = Parts::new(pki, &url, Vec::new(), clock.clone(), rng.clone())?;
    let argument = |why: String| ServerError::Argument(format!("--kube-apiserver-arg: {why}"));
    let parts = parts.configured(&plan.apiserver, encryption).map_err(argument)?;
    let kubelets = pki::tls::client_config(&pki.server_bundle()?, Some(Arc::clone(pki.leaf(Leaf::ClientApiserver))))?;
    let connector =
        Arc::new(Direct::new(kubelets, pki::tls::unverified_client_config()?, ways.tunnels, ways.relay, &plan.node_name, group));
    let (first, last) = plan.args.service_node_port_range;
    let config = apiserver::Config {
        advertise_address: ways.advertised,
        advertise_port: plan.advertise_port(),
        service_cidrs: plan.ranges.service.clone(),
        node_ports: first..=last,
        serve_usage: plan.deploys("metrics-server"),
        build: commands::build(),
        more_metrics: {
            let (pki, clock) = (Arc::clone(pki), clock.clone());
            apiserver::serve::MoreMetrics(Arc::new(move || certificate::metrics(&pki, &clock)))
        },
        client_ca_pem: format!("{}{}", pki.authority(Ca::Client).bundle(), plan.apiserver.client_ca_pem),
        request_header_ca_pem: pki.authority(Ca::RequestHeader).bundle().to_owned(),
        arguments: plan.apiserver.clone(),
        clock: clock.clone(),
        rng: rng.clone(),
    };
    Ok(ApiServer::build(config, store, group, |lookup| parts.guards(lookup, connector, group)).await?)
}

/// What nodes that join are told of the cluster.
fn settings(plan: &Plan) -> Settings {
    Settings {
        cluster_cidrs: plan.ranges.cluster.iter().map(IpNet::to_string).collect(),
        service_cidrs: plan.ranges.service.iter().map(IpNet::to_string).collect(),
        cluster_dns: plan.ranges.dns.clone(),
        cluster_domain: plan.args.cluster_domain.clone(),
        options: [
            ("flannel-backend", plan.args.flannel_backend.clone()),
            ("flannel-external-ip", plan.args.flannel_external_ip.to_string()),
            ("flannel-ipv6-masq", plan.args.flannel_ipv6_masq.to_string()),
            ("disable-network-policy", plan.args.disable_network_policy.to_string()),
            ("disable-kube-proxy", plan.args.disable_kube_proxy.to_string()),
        ]
        .map(|(flag, value)| (flag.to_owned(), value))
        .into(),
    }
}

/// Flags that must be the same on all servers, with their values.
fn cluster_flags(plan: &Plan) -> BTreeMap<String, String> {
    let args = &plan.args;
    let mut disabled = args.disable.clone();
    disabled.sort();
    disabled.dedup();
    let (first, last) = args.service_node_port_range;
    let mut flags = settings(plan).options;
    flags.extend(
        [
            ("cluster-cidr", ranges::joined(&plan.ranges.cluster)),
            ("service-cidr", ranges::joined(&plan.ranges.service)),
            ("cluster-dns", ranges::joined(&plan.ranges.dns)),
            ("cluster-domain", args.cluster_domain.clone()),
            ("service-node-port-range", format!("{first}-{last}")),
            ("https-listen-port", args.https_listen_port.to_string()),
            ("disable", disabled.join(",")),
            ("disable-scheduler", args.disable_scheduler.to_string()),
            ("datastore-endpoint", args.store.endpoints()),
        ]
        .map(|(flag, value)| (flag.to_owned(), value)),
    );
    flags
}

fn kubeconfig(plan: &Plan) -> Kubeconfig {
    let host = if plan.bind.is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { plan.bind };
    let url = format!("https://{}", SocketAddr::new(host, plan.args.https_listen_port));
    Kubeconfig { path: plan.args.write_kubeconfig.clone(), mode: plan.args.write_kubeconfig_mode, group: plan.kubeconfig_group, url }
}

/// The folder of manifests, which is applied while this server leads; what comes with this program is written there first.
fn addon_config(plan: &Plan, storage_dir: &Path, images: Option<&Names>) -> cluster::addons::Config {
    let variables = Variables {
        cluster_dns: plan.ranges.dns.clone(),
        cluster_domain: plan.args.cluster_domain.clone(),
        storage_dir: storage_dir.display().to_string(),
        dns_image: images.map(|images| images.dns.clone()),
    };
    let disabled: BTreeSet<String> = plan.args.disable.iter().cloned().collect();
    cluster::addons::Config {
        dir: plan.args.common.state.data_dir.join("server/manifests"),
        server: plan.node_name.clone(),
        packaged: variables.packaged(&disabled),
        disabled,
    }
}

fn agent_config(
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
        data_dir: plan.args.common.state.data_dir.clone(),
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
        registries: agent::RegistryChoice::of(&plan.args.node),
        network: NetworkChoice::of(&settings(plan).options, plan.args.node.flannel_iface.clone()),
        kubelet: plan.kubelet.clone(),
        search_path: commands::search_path(),
        images,
    })
}
