//! `kedge server`: one build per room, in order, dependencies as arguments; then it waits, and stops in the reverse order.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use apiserver::ApiServer;
use apiserver::arguments::Arguments;
use apiserver::guards::Parts;
use base::files::{self, FileError};
use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use client::informer::Informers;
use cluster::credentials::Passwords;
use cluster::protocol::Settings;
use cluster::tunnel::Tunnels;
use controllers::registry::LocalPath;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Taint;
use pki::leaf::{Ca, Leaf};
use pki::server::Pki;
use tracing::info;

use crate::addons::{self, Variables};
use crate::agent::{self, AgentConfig, AgentError, NetworkChoice};
use crate::certificates::{Keeper, Kubeconfig};
use crate::cli::ServerArgs;
use crate::connector::Direct;
use crate::datastore::{self, DatastoreError};
use crate::front::{self, Front, FrontError};
use crate::host::{self, HostError};
use crate::images::{ImageError, SystemImages};
use crate::life::{self, LifeError};
use crate::logging::{self, LogError};
use crate::signing::Keys;
use crate::{certificates, cli, encryption, identity, snapshots};

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
    Join(#[from] FrontError),
    #[error(transparent)]
    Life(#[from] LifeError),
}

/// Runs the server until SIGTERM or SIGINT. Pods keep running.
pub(crate) fn main(args: ServerArgs) -> Result<(), ServerError> {
    logging::start(args.debug, args.log.as_deref())?;
    if args.store.cluster_reset {
        println!("{}", args.store.reset(&args.data_dir, &args.config)?);
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
    cluster_cidr: IpNet,
    service_cidr: IpNet,
    cluster_dns: IpAddr,
    taints: Vec<Taint>,
    kubelet: kubelet::settings::Settings,
    apiserver: Arguments,
}

fn parse_cidr(flag: &'static str, text: &str) -> Result<IpNet, ServerError> {
    let bad = |reason: String| ServerError::Flag { flag, reason };
    let cidr: IpNet = text.parse().map_err(|_| bad(format!("'{text}' is not an address range such as 10.42.0.0/16")))?;
    match cidr {
        IpNet::V4(v4) if v4.prefix_len() <= 24 => Ok(IpNet::V4(v4.trunc())),
        IpNet::V4(_) => Err(bad(format!("'{text}' is too small: want /24 or larger"))),
        IpNet::V6(_) => Err(bad(format!("'{text}': IPv6 ranges are not supported yet; give an IPv4 range"))),
    }
}

impl Plan {
    fn of(args: ServerArgs) -> Result<Plan, ServerError> {
        if !args.disable_agent && !nix::unistd::geteuid().is_root() {
            return Err(ServerError::NotRoot);
        }
        let node_name = host::full_node_name(&args.node, &args.data_dir, &Rng::from_os())?;
        let node_ips = if args.node.node_ip.is_empty() { vec![host::node_ip()?] } else { args.node.node_ip.clone() };
        let service_cidr = parse_cidr("service-cidr", &args.service_cidr)?;
        let cluster_cidr = parse_cidr("cluster-cidr", &args.cluster_cidr)?;
        if service_cidr.contains(&cluster_cidr) || cluster_cidr.contains(&service_cidr) {
            return Err(ServerError::Flag { flag: "service-cidr", reason: "overlaps --cluster-cidr".to_owned() });
        }
        let tenth = service_cidr.hosts().nth(9);
        let cluster_dns = args.cluster_dns.or(tenth).filter(|ip| service_cidr.contains(ip));
        let outside = || ServerError::Flag { flag: "cluster-dns", reason: format!("must be an address of --service-cidr {service_cidr}") };
        let taints = host::taints(&args.node)?;
        let kubelet = kubelet::settings::Settings::parse(args.node.kubelet_arg.iter().map(String::as_str));
        Ok(Plan {
            kubelet: kubelet.map_err(|reason| ServerError::Flag { flag: "kubelet-arg", reason })?,
            node_name,
            advertise: args
                .advertise_address
                .or(args.node.node_external_ip.first().copied())
                .or(node_ips.first().copied())
                .ok_or(HostError::NoAddress)?,
            node_ips,
            cluster_cidr,
            cluster_dns: cluster_dns.ok_or_else(outside)?,
            service_cidr,
            taints,
            apiserver: Arguments::parse(&args.kube_apiserver_arg).map_err(ServerError::Argument)?,
            args,
        })
    }

    /// Whether a packaged component is wanted.
    fn deploys(&self, component: &str) -> bool {
        !self.args.disable.iter().any(|name| name == component)
    }
}

async fn run(plan: Plan) -> Result<(), ServerError> {
    let (root, fatal) = Group::root("kedge");
    // Stopped in this order: nobody works for a store that is closed.
    let (workers, serving, storage) = (root.child("workers"), root.child("api"), root.child("store"));
    let groups = [workers.clone(), serving.clone(), storage.clone(), root];
    Box::pin(life::live("kedge", build(&plan, &workers, &serving, &storage), groups, fatal)).await
}

/// Builds every room in the order of the road, each on what was built before.
async fn build(plan: &Plan, workers: &Group, serving: &Group, storage: &Group) -> Result<(), ServerError> {
    let (clock, rng) = (Clock::system(), Rng::from_os());
    // Hashing some 25 MB goes on beside the start of the store and the API.
    let images = Group::blocking(SystemImages::of_this_program);
    let data_dir = &plan.args.data_dir;
    let server_dir = data_dir.join("server");
    files::create_private_dir(&server_dir)?;
    let db = server_dir.join("db");
    let datastore = plan.args.store.open(&db, &rng, storage).await?;
    let pki = Arc::new(Pki::load_or_create(
        &server_dir.join("tls"),
        pki::server::Options {
            clock: clock.clone(),
            leaf_life: plan.args.certificate_life.map_or(pki::authority::LEAF_LIFE, std::time::Duration::from_secs),
            node_name: plan.node_name.clone(),
            node_ips: plan.node_ips.clone(),
            service_ips: plan.service_cidr.hosts().take(1).collect(),
            cluster_domain: plan.args.cluster_domain.clone(),
            tls_sans: plan.args.tls_san.iter().cloned().chain([plan.advertise.to_string()]).collect(),
        },
    )?);
    let passwords = join_passwords(plan, &pki, &server_dir, &rng)?;
    if let Some(store) = &datastore.embedded {
        datastore::serve_etcd(store, &pki, &db, &rng, serving).await?;
        keep_snapshots(plan, &clock, workers)?;
    }
    let tunnels = Arc::new(Tunnels::default());
    let server = api_server(plan, &pki, Arc::clone(&tunnels), datastore.storage, &clock, &rng, serving).await?;
    let clients = identity::clients(&server);
    let supervisor = clients.for_user(identity::SUPERVISOR);
    let parts = front::Parts {
        pki: &pki,
        passwords,
        client: supervisor.clone(),
        settings: settings(plan),
        flags: std::collections::BTreeMap::new(),
        clock: clock.clone(),
    };
    let front = Front::new(Arc::clone(&server), front::supervisor(parts, tunnels, serving));
    let addr = SocketAddr::new(plan.args.bind_address, plan.args.https_listen_port);
    let tls = pki::tls::server_config(Arc::clone(pki.leaf(Leaf::ServingApiserver)), Some(&pki.client_bundle()?))?;
    let listener = wire::serve::Server::bind(addr, Some(tls), front as Arc<dyn wire::Handler>).await;
    listener.map_err(|source| ServerError::Listen { addr, source })?.start(serving);
    info!(addr = %addr, "API server is up");
    kubeconfig(plan).write(&pki)?;

    let informers = Informers::new(clients.for_user("system:kube-controller-manager"), workers);
    let images = images.await.map_err(LifeError::from)?;
    let supervisor = clients.for_user(identity::SUPERVISOR);
    let storage_dir = plan.args.default_local_storage_path.clone().unwrap_or_else(|| data_dir.join("storage"));
    let local_path = images.as_ref().ok().filter(|_| plan.deploys("local-storage"));
    let config = controllers::registry::Config {
        local_path: local_path.map(|images| LocalPath { dir: storage_dir.display().to_string(), image: images.dns.clone() }),
        cluster_cidr: plan.cluster_cidr,
        root_ca_pem: pki.authority(Ca::Server).bundle().to_owned(),
        balancer_reserved_ports: (!plan.args.disable.iter().any(|name| name == "servicelb"))
            .then(|| vec![plan.args.https_listen_port, plan.args.node.kubelet_port]),
        signer: Arc::new(Keys { pki: Arc::clone(&pki), clock: clock.clone() }),
    };
    controllers::registry::run(&config, clients.clone(), informers.clone(), workers);
    scheduler::run::run(clients.for_user("system:kube-scheduler"), &informers, workers);
    front::tie_identities(supervisor.clone(), &informers, workers);
    keep_addons(plan, storage_dir, images.as_ref().ok(), &supervisor, workers)?;
    addons::keep_node_hosts(supervisor.clone(), &informers, workers);
    if !plan.args.disable_agent {
        front::own_identity(&plan.node_name, data_dir, &supervisor).await?;
        let config = agent_config(plan, &pki, images)?;
        addons::mark_control_plane(supervisor, plan.node_name.clone(), &informers, workers);
        let node = clients.for_user(&format!("system:node:{}", plan.node_name));
        agent::build(config, node, &informers, workers).await?;
    }
    let dir = server_dir.join("tls");
    let keeper = Keeper {
        dir,
        kubeconfig: kubeconfig(plan),
        node_name: plan.node_name.clone(),
        client: clients.for_user(identity::SUPERVISOR),
        clock,
        pki,
    };
    keeper.start(workers);
    Ok(())
}

fn keep_snapshots(plan: &Plan, clock: &Clock, group: &Group) -> Result<(), ServerError> {
    let flags = &plan.args.store;
    if flags.etcd_disable_snapshots {
        return Ok(());
    }
    let bad = |reason| ServerError::Flag { flag: "etcd-snapshot-schedule-cron", reason };
    let plan = snapshots::Plan {
        schedule: base::cron::Schedule::parse(&flags.etcd_snapshot_schedule_cron).map_err(bad)?,
        places: flags.places(&plan.args.data_dir, &plan.args.config),
        prefix: flags.etcd_snapshot_name.clone(),
        node: plan.node_name.clone(),
        keep: flags.etcd_snapshot_retention,
    };
    snapshots::keep(plan, clock.clone(), group);
    Ok(())
}

async fn api_server(
    plan: &Plan,
    pki: &Arc<Pki>,
    tunnels: Arc<Tunnels>,
    store: Arc<dyn store::Storage>,
    clock: &Clock,
    rng: &Rng,
    group: &Group,
) -> Result<Arc<ApiServer>, ServerError> {
    let url = format!("https://{}", SocketAddr::new(plan.advertise, plan.args.https_listen_port));
    let (encryption, store) = encryption::sealed(&plan.args.data_dir, &plan.apiserver, store, rng).await?;
    // Join tokens are for the supervisor alone: nobody calls the API with one.
    let parts = Parts::new(pki, &url, Vec::new(), clock.clone(), rng.clone())?;
    let argument = |why: String| ServerError::Argument(format!("--kube-apiserver-arg: {why}"));
    let parts = parts.configured(&plan.apiserver, encryption).map_err(argument)?;
    let kubelets = pki::tls::client_config(&pki.server_bundle()?, Some(Arc::clone(pki.leaf(Leaf::ClientApiserver))))?;
    let connector = Arc::new(Direct::new(kubelets, pki::tls::unverified_client_config()?, tunnels, group));
    let (first, last) = plan.args.service_node_port_range;
    let config = apiserver::Config {
        advertise_address: plan.advertise,
        advertise_port: plan.args.https_listen_port,
        service_cidrs: vec![plan.service_cidr],
        node_ports: first..=last,
        serve_usage: plan.deploys("metrics-server"),
        more_metrics: {
            let (pki, clock) = (Arc::clone(pki), clock.clone());
            apiserver::serve::MoreMetrics(Arc::new(move || certificates::metrics(&pki, &clock)))
        },
        client_ca_pem: pki.authority(Ca::Client).bundle().to_owned(),
        request_header_ca_pem: pki.authority(Ca::RequestHeader).bundle().to_owned(),
        arguments: plan.apiserver.clone(),
        clock: clock.clone(),
        rng: rng.clone(),
    };
    Ok(ApiServer::build(config, store, group, |lookup| parts.guards(lookup, connector, group)).await?)
}

fn join_passwords(plan: &Plan, pki: &Pki, server_dir: &Path, rng: &Rng) -> Result<Passwords, ServerError> {
    let args = &plan.args;
    let server = front::Given { flag: "token", text: args.token.as_deref(), file: args.token_file.as_deref() };
    let agent = front::Given { flag: "agent-token", text: args.agent_token.as_deref(), file: args.agent_token_file.as_deref() };
    Ok(front::passwords(&server, &agent, pki, server_dir, rng)?)
}

/// What nodes that join are told of the cluster.
fn settings(plan: &Plan) -> Settings {
    Settings {
        cluster_cidrs: vec![plan.cluster_cidr.to_string()],
        service_cidrs: vec![plan.service_cidr.to_string()],
        cluster_dns: vec![plan.cluster_dns],
        cluster_domain: plan.args.cluster_domain.clone(),
        options: [
            ("flannel-backend", plan.args.flannel_backend.clone()),
            ("flannel-external-ip", plan.args.flannel_external_ip.to_string()),
            ("flannel-ipv6-masq", plan.args.flannel_ipv6_masq.to_string()),
            ("disable-network-policy", plan.args.disable_network_policy.to_string()),
        ]
        .map(|(flag, value)| (flag.to_owned(), value))
        .into(),
    }
}

fn kubeconfig(plan: &Plan) -> Kubeconfig {
    let host = if plan.args.bind_address.is_unspecified() { IpAddr::from([127, 0, 0, 1]) } else { plan.args.bind_address };
    let url = format!("https://{}", SocketAddr::new(host, plan.args.https_listen_port));
    Kubeconfig { path: plan.args.write_kubeconfig.clone(), mode: plan.args.write_kubeconfig_mode, url }
}

/// Applies what is in the folder of manifests, and writes what comes with this program there first.
fn keep_addons(
    plan: &Plan,
    storage_dir: PathBuf,
    images: Option<&SystemImages>,
    client: &kube::Client,
    group: &Group,
) -> Result<(), ServerError> {
    let variables = Variables {
        cluster_dns: plan.cluster_dns,
        cluster_domain: plan.args.cluster_domain.clone(),
        storage_dir: storage_dir.display().to_string(),
        dns_image: images.map(|images| images.dns.clone()),
    };
    let disabled: BTreeSet<String> = plan.args.disable.iter().cloned().collect();
    let config = cluster::addons::Config {
        dir: plan.args.data_dir.join("server/manifests"),
        server: plan.node_name.clone(),
        packaged: variables.packaged(&disabled),
        disabled,
    };
    Ok(cluster::addons::keep(config, client.clone(), group)?)
}

fn agent_config(plan: &Plan, pki: &Pki, images: Result<SystemImages, ImageError>) -> Result<AgentConfig, ServerError> {
    let images = match images {
        Ok(images) => Some(images),
        Err(err) if plan.args.node.pause_image.is_none() => return Err(AgentError::NoPause(err).into()),
        Err(_) => None,
    };
    let serving = pki::tls::server_config(Arc::clone(pki.leaf(Leaf::ServingKubelet)), Some(&pki.client_bundle()?))?;
    Ok(AgentConfig {
        data_dir: plan.args.data_dir.clone(),
        node_name: plan.node_name.clone(),
        node_ips: plan.node_ips.clone(),
        node_external_ips: plan.args.node.node_external_ip.clone(),
        kubelet_port: plan.args.node.kubelet_port,
        cluster_cidr: plan.cluster_cidr,
        service_cidr: plan.service_cidr,
        cluster_dns: plan.cluster_dns,
        cluster_domain: plan.args.cluster_domain.clone(),
        resolv_conf: plan.args.node.resolv_conf.clone().or_else(host::resolv_conf),
        runtime_endpoint: plan.args.node.container_runtime_endpoint.clone(),
        pause_image: plan.args.node.pause_image.clone(),
        labels: host::labels(&plan.args.node)?,
        taints: plan.taints.clone(),
        registries: agent::RegistryChoice::of(&plan.args.node),
        network: NetworkChoice::of(&settings(plan).options, plan.args.node.flannel_iface.clone()),
        kubelet: plan.kubelet.clone(),
        search_path: cli::search_path(),
        serving,
        images,
    })
}
