//! `kedge server`: one build per room, in order, dependencies as arguments; then it waits, and stops in the reverse
//! order.

pub(crate) mod authorities;
pub(crate) mod away;
pub(crate) mod certificates;
pub(crate) mod charts;
pub(crate) mod connector;
pub(crate) mod datastore;
pub(crate) mod encryption;
pub(crate) mod error;
mod foundation;
pub(crate) mod joining;
pub(crate) mod leader;
pub(crate) mod listener;
pub(crate) mod membership;
pub(crate) mod packaged;
mod plan;
pub(crate) mod rotation;
pub(crate) mod signing;
pub(crate) mod snapshots;
pub(crate) mod users;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use apiserver::ApiServer;
use apiserver::guards::Parts;
use base::chain::Chain;
use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use client::informer::Informers;
use client::transport::Clients;
use cluster::credentials::Credentials;
use cluster::identity::Identities;
use cluster::names::ServerNames;
use cluster::relay::Relay;
use cluster::tunnel::Tunnels;
use controllers::settings::LocalPath;
use pki::leaf::{Ca, Leaf, SUPERVISOR};
use pki::server::Pki;
use tokio::sync::watch;
use tracing::{error, info};

use crate::agent;
use crate::agent::config::{AgentConfig, ApiServers, OwnNode};
use crate::agent::images::{ImageError, Names, SystemImages};
use crate::agent::role::NodeReach;
use crate::flags::roles::ServerArgs;
use crate::flags::token::Given;
use crate::process::life::{self, LifeError};
use crate::process::{logging, version};
use crate::server::certificates::Keeper;
use crate::server::connector::Direct;
use crate::server::error::ServerError;
use crate::server::foundation::{Base, Groups, peer_tls};
use crate::server::packaged::Variables;
use crate::server::plan::Plan;
use crate::server::signing::Keys;

/// Runs the server until SIGTERM or SIGINT. Pods keep running.
pub(crate) fn main(args: ServerArgs) -> Result<(), ServerError> {
    logging::start(&args.common)?;
    if args.store.cluster_reset {
        let given = Given { flag: "token", text: args.token.as_deref(), file: args.token_file.as_deref(), own: false };
        println!("{}", args.store.reset(&args.common.state.layout, &args.common.config, given.seal()?.as_ref())?);
        return Ok(());
    }
    let plan = Plan::of(args)?;
    life::block_on(run(plan))
}

async fn run(plan: Plan) -> Result<(), ServerError> {
    let (root, fatal) = Group::root("kedge");
    let groups = Groups {
        workers: root.child("workers"),
        serving: root.child("api"),
        storage: root.child("store"),
        port: root.child("port"),
    };
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
    let node_half = begin_node(plan, images, node_ips.clone(), workers)?;
    let (tell_servers, servers) = watch::channel(Vec::new());
    let tunnels = Arc::new(Tunnels::default());
    let relay = Relay::new(peer_tls(pki, Leaf::ClientSupervisor)?, servers.clone(), &groups.serving);
    let ways = Ways { tunnels: Arc::clone(&tunnels), relay, advertised: advertised.clone() };
    let server = api_server(plan, pki, ways, Arc::clone(&base.storage), &clock, &rng, &groups.serving).await?;
    let clients = users::clients(&server);
    let supervisor = clients.for_user(SUPERVISOR);
    let credentials = Credentials::new(base.passwords.clone(), supervisor.clone());
    let folder = plan.args.common.state.layout.server();
    let using = authorities::in_use(&folder)?;
    let identities = Identities::new(Arc::clone(&base.storage), supervisor.clone());
    let parts = listener::Parts {
        pki,
        credentials: credentials.clone(),
        client: supervisor.clone(),
        identities: identities.clone(),
        names: ServerNames::new(Arc::clone(&base.storage)),
        settings: plan.settings(),
        flags: plan.cluster_flags(),
        authorities: using.clone(),
        clock: clock.clone(),
        server_folder: folder.clone(),
        store: base.embedded.clone(),
    };
    parts.names.publish(&plan.node_name, Leaf::ServingApiserver.spec(pki.options()).sans, workers);
    base.front.open(Arc::clone(&server), listener::supervisor(parts, tunnels, &groups.serving));
    info!("API server is up");
    plan.kubeconfig().write(pki)?;

    let informers = Informers::new(clients.for_user("system:kube-controller-manager"), workers);
    let uses = BTreeMap::from([(authorities::IN_USE.to_owned(), using.clone())]);
    authorities::follow(folder, using, &informers, workers);
    rotation::follow(follower(plan, &base, credentials, supervisor.clone()), &informers, workers)?;
    let (port, own) = (plan.advertise_port(), advertised.clone());
    membership::follow_servers(
        tell_servers,
        move || SocketAddr::new(*own.borrow(), port).to_string(),
        &informers,
        workers,
    );
    if let Some(store) = &base.embedded {
        membership::follow_address(Arc::clone(store), advertised, port, &groups.port);
        keep_store(plan, store, supervisor.clone(), &clock, &informers, workers)?;
    }
    lead(plan, &base, names.as_ref(), &clients, &informers, workers);
    if let Some(node_half) = node_half {
        listener::own_identity(&plan.node_name, &plan.args.common.state.layout, &identities).await?;
        let (name, ips, port) = (plan.node_name.clone(), node_ips.clone(), plan.args.node.kubelet_port);
        let reach = NodeReach { name, ips, port, nodes: informers.get(), pods: informers.get() };
        membership::keep_tunnels(peer_tls(pki, Leaf::ClientKubelet)?, Arc::new(reach), servers, rng, &groups.port);
        packaged::mark_control_plane(supervisor, plan.node_name.clone(), uses, &informers, workers);
        let node = clients.for_user(&format!("system:node:{}", plan.node_name));
        let serving = pki::tls::server_config(Arc::clone(pki.leaf(Leaf::ServingKubelet)), Some(&pki.user_bundle()?))?;
        agent::build(node_half, serving, node, &informers, workers).await?;
    }
    keeper(plan, pki, clients.for_user(SUPERVISOR), clock, node_ips).start(workers);
    Ok(())
}

/// Begins the half of this machine as a node; `None` where it is none.
fn begin_node(
    plan: &Plan,
    images: Result<SystemImages, ImageError>,
    ips: watch::Receiver<Vec<IpAddr>>,
    workers: &Group,
) -> Result<Option<agent::Beginning>, ServerError> {
    if plan.args.disable_agent {
        return Ok(None);
    }
    let own = OwnNode {
        layout: &plan.args.common.state.layout,
        name: &plan.node_name,
        ips,
        args: &plan.args.node,
        flags: &plan.node_flags,
        images,
    };
    let config = AgentConfig::of(own, &plan.settings(), ApiServers::Own(plan.args.https_listen_port))?;
    Ok(Some(agent::begin(config, workers)?))
}

/// Keeps this server's member of the store in step with its Node, and takes snapshots.
fn keep_store(
    plan: &Plan,
    store: &Arc<store::store::Store>,
    client: kube::Client,
    clock: &Clock,
    informers: &Informers,
    workers: &Group,
) -> Result<(), ServerError> {
    membership::follow_nodes(Arc::clone(store), plan.node_name.clone(), informers, workers);
    membership::end_when_removed(Arc::clone(store), plan.args.common.state.layout.server().db(), workers);
    let flags = &plan.args.store;
    let places = flags.places(&plan.args.common.state.layout, &plan.args.common.config);
    Ok(snapshots::keep_by(flags, places, &plan.node_name, client, clock, workers)?)
}

/// The task that renews this server's certificates.
fn keeper(
    plan: &Plan,
    pki: &Arc<Pki>,
    client: kube::Client,
    clock: Clock,
    node_ips: watch::Receiver<Vec<IpAddr>>,
) -> Keeper {
    Keeper {
        dir: plan.args.common.state.layout.server().tls(),
        kubeconfig: plan.kubeconfig(),
        node_name: plan.node_name.clone(),
        client,
        clock,
        pki: Arc::clone(pki),
        node_ips,
        told: BTreeMap::new(),
    }
}

/// The task that takes over join tokens when they are rotated.
fn follower(plan: &Plan, base: &Base, credentials: Credentials, client: kube::Client) -> rotation::Follower {
    rotation::Follower {
        credentials,
        server_folder: plan.args.common.state.layout.server(),
        ca: base.pki.authority(Ca::Server).bundle().to_owned(),
        known: base.known.clone(),
        client,
        rng: base.rng.clone(),
        now_ms: base.clock.now().as_millisecond(),
    }
}

/// Has controllers, scheduler and add-ons run here while this server leads.
fn lead(plan: &Plan, base: &Base, images: Option<&Names>, clients: &Clients, informers: &Informers, workers: &Group) {
    let storage_dir =
        plan.args.default_local_storage_path.clone().unwrap_or_else(|| plan.args.common.state.layout.volumes());
    let local_path = images.filter(|_| plan.deploys("local-storage"));
    let config = controllers::registry::Config {
        local_path: local_path
            .map(|images| LocalPath { dir: storage_dir.display().to_string(), image: images.dns.clone() }),
        cluster_cidrs: plan.ranges.cluster.clone(),
        service_cidrs: plan.ranges.service.clone(),
        settings: plan.controllers.clone(),
        clock: base.clock.clone(),
        root_ca_pem: base.pki.authority(Ca::Server).bundle().to_owned(),
        balancer_reserved_ports: (!plan.args.disable.iter().any(|name| name == "servicelb"))
            .then(|| vec![plan.args.https_listen_port, plan.args.node.kubelet_port]),
        signer: Arc::new(Keys { pki: Arc::clone(&base.pki), clock: base.clock.clone() }),
    };
    let (clients, informers, store) = (clients.clone(), informers.clone(), base.embedded.clone());
    let (domain, clock, rng) = (plan.args.cluster_domain.clone(), base.clock.clone(), base.rng.clone());
    let identities = Identities::new(Arc::clone(&base.storage), clients.for_user(SUPERVISOR));
    let helm = charts::config(&plan.args, &base.pki, &base.clock, &base.rng, plan.kubeconfig().url);
    let schedules = !plan.args.disable_scheduler;
    let leadership = leader::leadership(base.embedded.as_ref(), &base.storage, &plan.node_name, &base.rng, workers);
    let kept = cluster::addons::keep(
        addon_config(plan, &storage_dir, images),
        clients.for_user(SUPERVISOR),
        leadership.clone(),
        workers,
    );
    if let Err(err) = kept {
        error!(err = %Chain(&err), "the folder of manifests cannot be used: no add-on is applied");
    }
    leader::while_leading(leadership, workers, move |leading| {
        controllers::registry::run(&config, clients.clone(), informers.clone(), leading);
        if schedules {
            let deps = scheduler::run::Deps {
                client: clients.for_user("system:kube-scheduler"),
                informers: informers.clone(),
                clock: clock.clone(),
                rng: rng.clone(),
            };
            scheduler::run::run(deps, leading);
        }
        let supervisor = clients.for_user(SUPERVISOR);
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
    let (encryption, store) =
        encryption::sealed(&plan.args.common.state.layout.server(), &wanted, store, rng, group).await?;
    // Join tokens are for the supervisor alone: nobody calls the API with one.
    let parts = Parts::new(pki, &url, Vec::new(), clock.clone(), rng.clone())?;
    let argument = |why: String| ServerError::Argument(format!("--kube-apiserver-arg: {why}"));
    let parts = parts.configured(&plan.apiserver, encryption).map_err(argument)?;
    let kubelets = pki::tls::client_config(&pki.server_bundle()?, Some(Arc::clone(pki.leaf(Leaf::ClientApiserver))))?;
    let connector = Arc::new(Direct::new(
        kubelets,
        pki::tls::unverified_client_config()?,
        ways.tunnels,
        ways.relay,
        &plan.node_name,
        group,
    ));
    let (first, last) = plan.args.service_node_port_range;
    let config = apiserver::Config {
        advertise_address: ways.advertised,
        advertise_port: plan.advertise_port(),
        service_cidrs: plan.ranges.service.clone(),
        node_ports: first..=last,
        serve_usage: plan.deploys("metrics-server"),
        build: version::build(),
        more_metrics: {
            let (pki, clock) = (Arc::clone(pki), clock.clone());
            apiserver::config::MoreMetrics(Arc::new(move || certificates::metrics(&pki, &clock)))
        },
        client_ca_pem: format!("{}{}", pki.authority(Ca::Client).bundle(), plan.apiserver.client_ca_pem),
        request_header_ca_pem: pki.authority(Ca::RequestHeader).bundle().to_owned(),
        arguments: plan.apiserver.clone(),
        clock: clock.clone(),
        rng: rng.clone(),
    };
    let guards = |objects: &_, webhooks: &_| parts.guards(objects, webhooks, group);
    Ok(ApiServer::build(config, store, connector, group, guards).await?)
}

/// The folder of manifests, which is applied while this server leads; what comes with this program is written there
/// first.
fn addon_config(plan: &Plan, storage_dir: &Path, images: Option<&Names>) -> cluster::addons::Config {
    let variables = Variables {
        cluster_dns: plan.ranges.dns.clone(),
        cluster_domain: plan.args.cluster_domain.clone(),
        storage_dir: storage_dir.display().to_string(),
        dns_image: images.map(|images| images.dns.clone()),
    };
    let disabled: BTreeSet<String> = plan.args.disable.iter().cloned().collect();
    cluster::addons::Config {
        dir: plan.args.common.state.layout.server().manifests(),
        server: plan.node_name.clone(),
        packaged: variables.packaged(&disabled),
        disabled,
    }
}
