//! The ground floor of a server: data folder, certificates, store, port.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use base::chain::Chain;
use base::files;
use base::rng::Rng;
use base::secret::Secret;
use base::task::Group;
use base::time::Clock;
use cluster::credentials::Passwords;
use pki::leaf::{Ca, Leaf};
use pki::server::Pki;
use store::member::{MutualTls, Network};
use store::store::Store;
use tracing::{Instrument as _, info, info_span};
use wire::serve::Protocol;

use crate::process::http1::h1;
use crate::server::datastore::DatastoreError;
use crate::server::error::ServerError;
use crate::server::listener::Front;
use crate::server::plan::Plan;
use crate::server::{authorities, datastore, listener};

/// The tasks of the server, stopped in this order: nobody works for a store that is closed, and members talk to the
/// last.
pub(super) struct Groups {
    pub(super) workers: Group,
    pub(super) serving: Group,
    pub(super) storage: Group,
    pub(super) port: Group,
}

/// The foundation of all other parts: certificates, the port, the store.
pub(super) struct Base {
    pub(super) pki: Arc<Pki>,
    pub(super) passwords: Passwords,
    /// The servers' password before this start.
    pub(super) known: Option<Secret<String>>,
    pub(super) front: Arc<Front>,
    pub(super) storage: Arc<dyn store::Storage>,
    pub(super) embedded: Option<Arc<Store>>,
    pub(super) clock: Clock,
    pub(super) rng: Rng,
}

impl Base {
    /// The port is outside of the spans: what it serves belongs to all parts.
    pub(super) async fn build(plan: &Plan, groups: &Groups) -> Result<Base, ServerError> {
        let (clock, rng) = (groups.storage.clock(), groups.storage.rng());
        let folder = plan.args.common.state.layout.server();
        let db = folder.db();
        files::create_private_dir(folder.path())?;
        files::create_private_dir(&db)?;
        plan.args.common.state.layout.mark()?;
        // A server that runs here already keeps its certificates as they are.
        let lock = store::backup::lock(&db).map_err(|source| DatastoreError::Open { path: db.clone(), source })?;
        let joining = plan.joining();
        let join_state = joining.fetch(clock, rng, &groups.port).await?;
        authorities::take_next(&folder)?;
        let pki = Arc::new(info_span!("certificates").in_scope(|| open_pki(plan, &folder.tls(), clock))?);
        let (passwords, known) = listener::passwords_of(&plan.args, &pki, &folder, rng)?;
        let (peers, dial) = between_peers(&pki)?;
        let network = Network { name: plan.node_name.clone(), address: plan.address(), dial };
        drop(lock);
        let opening = plan.args.store.open(&db, join_state.bootstrap(), network, rng, &groups.storage);
        let datastore = opening.instrument(info_span!("store")).await?;
        let front = Front::new(pki.authority(Ca::Server).bundle().to_owned());
        let addr = SocketAddr::new(plan.bind, plan.args.https_listen_port);
        let clients = pki.client_bundle()?.and(&plan.apiserver.client_ca_pem)?;
        let tls = pki::tls::server_config_by(
            &plan.apiserver.tls,
            Arc::clone(pki.leaf(Leaf::ServingApiserver)),
            Some(&clients),
        )?;
        let listener = wire::serve::Server::bind(addr, Some(tls), Arc::clone(&front) as Arc<dyn wire::Handler>).await;
        let mut listener = listener.map_err(|source| ServerError::Listen { addr, source })?;
        if let Some(store) = &datastore.embedded {
            let group = groups.port.child("peers");
            listener = listener.beside(Protocol {
                alpn: pki::tls::ALPN_PEER,
                tls: peers,
                handler: store.peer_handler(),
                group,
            });
        }
        listener.start_in(&groups.port, &groups.serving);
        info!(addr = %addr, "port is open");
        if let Some(store) = &datastore.embedded {
            joining.settle(join_state, store, &pki, rng, &groups.port).await?;
            datastore::serve_etcd(store, &pki, &folder, rng, &groups.serving).await?;
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

fn open_pki(plan: &Plan, dir: &Path, clock: &Clock) -> Result<Pki, ServerError> {
    let options = pki::server::Options {
        clock: clock.clone(),
        leaf_life: plan.args.certificate_life.map_or(pki::authority::LEAF_LIFE, std::time::Duration::from_secs),
        node_name: plan.node_name.clone(),
        node_ips: plan.node_ips.clone(),
        service_ips: plan.ranges.service.iter().map(|range| registry::services::nth_address(range, 1)).collect(),
        cluster_domain: plan.args.cluster_domain.clone(),
        tls_sans: plan.args.tls_san.iter().cloned().chain([plan.advertise.to_string()]).collect(),
    };
    let mut pki = Pki::load_or_create(dir, options)?;
    let (signing, verifying) =
        plan.apiserver.accounts.read_keys().map_err(|err| ServerError::Argument(Chain(&err).to_string()))?;
    let unusable = |err: pki::error::PkiError| {
        ServerError::Argument(format!("--kube-apiserver-arg=service-account-*-key-file: {err}"))
    };
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
pub(super) fn peer_tls(pki: &Pki, leaf: Leaf) -> Result<Arc<rustls::ClientConfig>, ServerError> {
    Ok(h1(&*pki::tls::client_config(&pki.server_bundle()?, Some(Arc::clone(pki.leaf(leaf))))?))
}
