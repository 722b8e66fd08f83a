//! The API server of this process, its ways to nodes, and the parts' clients.

use std::net::IpAddr;
use std::sync::Arc;

use apiserver::ApiServer;
use apiserver::guards::{Parts, SettingsError};
use base::chain::Chain;
use base::task::Group;
use client::informer::Informers;
use client::transport::Clients;
use cluster::relay::Relay;
use cluster::tunnel::Tunnels;
use pki::leaf::{Ca, Leaf, SUPERVISOR};
use tokio::sync::watch;

use crate::process::version;
use crate::server::connector::Direct;
use crate::server::error::ServerError;
use crate::server::foundation::{Base, Groups, peer_tls};
use crate::server::plan::Plan;
use crate::server::{certificates, encryption, users};

/// Ways to nodes that cannot be dialled, and to the servers.
pub(super) struct Ways {
    pub(super) tunnels: Arc<Tunnels>,
    /// Addresses of all servers, `host:port`.
    pub(super) servers: watch::Receiver<Vec<String>>,
    pub(super) tell_servers: watch::Sender<Vec<String>>,
    /// The address of this server that others are told.
    pub(super) advertised: watch::Receiver<IpAddr>,
}

impl Ways {
    /// With no server and no tunnel known yet.
    pub(super) fn new(advertised: watch::Receiver<IpAddr>) -> Ways {
        let (tell_servers, servers) = watch::channel(Vec::new());
        Ways { tunnels: Arc::new(Tunnels::default()), servers, tell_servers, advertised }
    }
}

/// The API server, and how the other parts call it.
pub(super) struct Api {
    pub(super) server: Arc<ApiServer>,
    pub(super) clients: Clients,
    /// The client of the supervisor, who may do everything.
    pub(super) supervisor: kube::Client,
    pub(super) informers: Informers,
}

impl Api {
    pub(super) async fn build(plan: &Plan, base: &Base, ways: &Ways, groups: &Groups) -> Result<Api, ServerError> {
        let server = api_server(plan, base, ways, &groups.serving).await?;
        let clients = users::clients(&server);
        let informers = Informers::new(clients.for_user("system:kube-controller-manager"), &groups.workers);
        Ok(Api { server, supervisor: clients.for_user(SUPERVISOR), clients, informers })
    }
}

async fn api_server(plan: &Plan, base: &Base, ways: &Ways, group: &Group) -> Result<Arc<ApiServer>, ServerError> {
    let (pki, clock, rng) = (&base.pki, &base.clock, &base.rng);
    let url = format!("https://{}", plan.address());
    let wanted = encryption::Wanted::of(&plan.args, &plan.apiserver);
    let (encryption, store) =
        encryption::sealed(&plan.args.common.state.layout.server(), &wanted, Arc::clone(&base.storage), rng, group)
            .await?;
    // Join tokens are for the supervisor alone: nobody calls the API with one.
    let parts = Parts::new(pki, &url, Vec::new(), clock.clone(), rng.clone())?;
    let argument = |err: SettingsError| ServerError::Argument(format!("--kube-apiserver-arg: {}", Chain(&err)));
    let parts = parts.configured(&plan.apiserver, encryption).map_err(argument)?;
    let kubelets = pki::tls::client_config(&pki.server_bundle()?, Some(Arc::clone(pki.leaf(Leaf::ClientApiserver))))?;
    let relay = Relay::new(peer_tls(pki, Leaf::ClientSupervisor)?, ways.servers.clone(), group);
    let connector = Arc::new(Direct::new(
        kubelets,
        pki::tls::unverified_client_config()?,
        Arc::clone(&ways.tunnels),
        relay,
        &plan.node_name,
        group,
    ));
    let (first, last) = plan.args.service_node_port_range;
    let config = apiserver::Config {
        advertise_address: ways.advertised.clone(),
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
