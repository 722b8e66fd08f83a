//! The parts of a server in the order in which they rest on each other. Each takes its configuration and the parts
//! below it, and has a span in the log while it is built.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use base::task::Group;
use cluster::credentials::Credentials;
use cluster::identity::Identities;
use cluster::names::ServerNames;
use pki::leaf::{Ca, Leaf};
use tokio::sync::watch;
use tracing::{Instrument as _, info, info_span};

use crate::agent;
use crate::agent::config::{AgentConfig, ApiServers, OwnNode};
use crate::agent::images::{ImageError, SystemImages};
use crate::agent::role::NodeReach;
use crate::process::life::LifeError;
use crate::server::api::{Api, Ways};
use crate::server::certificates::Keeper;
use crate::server::error::ServerError;
use crate::server::foundation::{Base, Groups, peer_tls};
use crate::server::plan::Plan;
use crate::server::{authorities, duties, listener, membership, packaged, rotation, snapshots};

/// Builds every part; their tasks run in `groups`.
///
/// Errors: the part's own, with the flag or file that it is about.
pub(super) async fn build(plan: &Plan, groups: &Groups) -> Result<(), ServerError> {
    let workers = &groups.workers;
    // Reading some 30 MB goes on beside the start of the store.
    let images = Group::blocking(SystemImages::of_this_program);
    let base = Base::build(plan, groups).await?;
    let (node_ips, advertised) = plan.follow_ips(&groups.port);
    let images = images.await.map_err(LifeError::from)?;
    let names = images.as_ref().ok().map(SystemImages::names);
    // Not sooner: the store's lock keeps a second server away from the first one's containerd.
    let node_half = info_span!("runtime").in_scope(|| begin_node(plan, images, node_ips.clone(), workers))?;
    let ways = Ways::new(advertised);
    let api = Api::build(plan, &base, &ways, groups).instrument(info_span!("apiserver")).await?;
    let trust = info_span!("supervisor").in_scope(|| Trust::build(plan, &base, &api, &ways, groups))?;
    info!("API server is up");
    plan.kubeconfig().write(&base.pki)?;
    info_span!("membership").in_scope(|| keep_members(plan, &base, &api, &ways, groups))?;
    info_span!("duties").in_scope(|| duties::build(plan, &base, &api, &trust.identities, names.as_ref(), workers));
    if let Some(half) = node_half {
        let node = Node { half, ips: node_ips.clone() };
        node.build(plan, &base, &api, ways, trust, groups).instrument(info_span!("node")).await?;
    }
    keeper(plan, &base, &api, node_ips).start(workers);
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

/// Identities of nodes, and the authorities in use.
struct Trust {
    identities: Identities,
    /// The fingerprint of the authorities that this server uses.
    using: String,
}

impl Trust {
    /// Opens the port for machines that join, and for everybody else.
    fn build(plan: &Plan, base: &Base, api: &Api, ways: &Ways, groups: &Groups) -> Result<Trust, ServerError> {
        let (pki, workers) = (&base.pki, &groups.workers);
        let credentials = Credentials::new(base.passwords.clone(), api.supervisor.clone());
        let folder = plan.args.common.state.layout.server();
        let using = authorities::in_use(&folder)?;
        let identities = Identities::new(Arc::clone(&base.storage), api.supervisor.clone());
        let parts = listener::Parts {
            pki,
            credentials: credentials.clone(),
            client: api.supervisor.clone(),
            identities: identities.clone(),
            names: ServerNames::new(Arc::clone(&base.storage)),
            settings: plan.settings(),
            flags: plan.cluster_flags(),
            authorities: using.clone(),
            clock: base.clock.clone(),
            server_folder: folder.clone(),
            store: base.embedded.clone(),
        };
        parts.names.publish(&plan.node_name, Leaf::ServingApiserver.spec(pki.options()).sans, workers);
        let supervisor = listener::supervisor(parts, Arc::clone(&ways.tunnels), &groups.serving);
        base.front.open(Arc::clone(&api.server), supervisor);
        authorities::follow(folder, using.clone(), &api.informers, workers);
        rotation::follow(follower(plan, base, credentials, api.supervisor.clone()), &api.informers, workers)?;
        Ok(Trust { identities, using })
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

/// Keeps the lists of servers in step, and this one's member of the store, if it has one.
fn keep_members(plan: &Plan, base: &Base, api: &Api, ways: &Ways, groups: &Groups) -> Result<(), ServerError> {
    let (port, own) = (plan.advertise_port(), ways.advertised.clone());
    let address = move || SocketAddr::new(*own.borrow(), port).to_string();
    membership::follow_servers(ways.tell_servers.clone(), address, &api.informers, &groups.workers);
    let Some(store) = &base.embedded else { return Ok(()) };
    membership::follow_address(Arc::clone(store), ways.advertised.clone(), port, &groups.port);
    keep_store(plan, store, base, api, &groups.workers)
}

/// Keeps this server's member of the store in step with its Node, and takes snapshots.
fn keep_store(
    plan: &Plan,
    store: &Arc<store::store::Store>,
    base: &Base,
    api: &Api,
    workers: &Group,
) -> Result<(), ServerError> {
    membership::follow_nodes(Arc::clone(store), plan.node_name.clone(), &api.informers, workers);
    membership::end_when_removed(Arc::clone(store), plan.args.common.state.layout.server().db(), workers);
    let flags = &plan.args.store;
    let places = flags.places(&plan.args.common.state.layout, &plan.args.common.config);
    Ok(snapshots::keep_by(flags, places, &plan.node_name, api.supervisor.clone(), &base.clock, workers)?)
}

/// This machine as a node.
struct Node {
    half: agent::Beginning,
    ips: watch::Receiver<Vec<IpAddr>>,
}

impl Node {
    async fn build(
        self,
        plan: &Plan,
        base: &Base,
        api: &Api,
        ways: Ways,
        trust: Trust,
        groups: &Groups,
    ) -> Result<(), ServerError> {
        let (pki, workers) = (&base.pki, &groups.workers);
        listener::own_identity(&plan.node_name, &plan.args.common.state.layout, &trust.identities).await?;
        let reach = NodeReach {
            name: plan.node_name.clone(),
            ips: self.ips,
            port: plan.args.node.kubelet_port,
            nodes: api.informers.get(),
            pods: api.informers.get(),
        };
        let (reach, rng) = (Arc::new(reach), base.rng.clone());
        membership::keep_tunnels(peer_tls(pki, Leaf::ClientKubelet)?, reach, ways.servers, rng, &groups.port);
        let uses = BTreeMap::from([(authorities::IN_USE.to_owned(), trust.using)]);
        packaged::mark_control_plane(api.supervisor.clone(), plan.node_name.clone(), uses, &api.informers, workers);
        let client = api.clients.for_user(&format!("system:node:{}", plan.node_name));
        let (tls, users) = (self.half.tls(), pki.user_bundle()?);
        let serving = pki::tls::server_config_by(&tls, Arc::clone(pki.leaf(Leaf::ServingKubelet)), Some(&users))?;
        Ok(agent::build(self.half, serving, client, &api.informers, workers).await?)
    }
}

/// The task that renews this server's certificates.
fn keeper(plan: &Plan, base: &Base, api: &Api, node_ips: watch::Receiver<Vec<IpAddr>>) -> Keeper {
    Keeper {
        dir: plan.args.common.state.layout.server().tls(),
        kubeconfig: plan.kubeconfig(),
        node_name: plan.node_name.clone(),
        client: api.supervisor.clone(),
        clock: base.clock.clone(),
        pki: Arc::clone(&base.pki),
        node_ips,
        told: BTreeMap::new(),
    }
}
