//! The server as a whole: what it is built from, and its two doors (the network's and the one for this process).

use base::sync::RwLock;
use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use base::rng::Rng;
use base::task::Group;
use base::time::Clock;
use ipnet::IpNet;
use store::Storage;
use tokio::sync::watch;

use crate::admission::timing::Times;
use crate::admission::{Plugin, Virtual};
use crate::aggregate::merge::Documents;
use crate::aggregate::registry::Registry;
use crate::arguments::Arguments;
use crate::audit::auditor::Auditor;
use crate::authn::configuration::Anonymous;
use crate::authn::legacy::Uses;
use crate::authn::{Authenticator, TokenIssuer};
use crate::authz::Authorizer;
use crate::cache::Cache;
use crate::connect::Connector;
use crate::crypt::rotate::Encryption;
use crate::custom::catalogs::Catalogs;
use crate::custom::conversion::Converter;
use crate::flow::controller::Flow;
use crate::health::{Step, Tally};
use crate::lookup::{Lookup, PRELOADED};
use crate::metrics::Metrics;
use crate::pages::Pages;
use crate::services::ledger::Ledger;
use crate::usage::history::Histories;
use crate::user::UserInfo;
use crate::webhook::client::{Identity, Webhooks};
use crate::{pipeline, usage};

/// What a person or the role decides.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where clients reach this server now: the address of the `kubernetes` service's endpoint.
    pub advertise_address: watch::Receiver<IpAddr>,
    /// Its port.
    pub advertise_port: u16,
    /// Ranges of cluster IPs, the primary family first.
    pub service_cidrs: Vec<IpNet>,
    /// Ports for services of type NodePort and LoadBalancer.
    pub node_ports: RangeInclusive<u16>,
    /// For the `extension-apiserver-authentication` ConfigMap: the CA of client certificates, PEM.
    pub client_ca_pem: String,
    /// The same for the front proxy's certificates, PEM.
    pub request_header_ca_pem: String,
    /// Whether this server answers for `metrics.k8s.io` where no APIService gives the group to another.
    pub serve_usage: bool,
    /// Where the program comes from, for `/version`.
    pub build: crate::paths::Build,
    /// What else stands on the page of metrics.
    pub more_metrics: MoreMetrics,
    /// Upstream's flags.
    pub arguments: Arguments,
    /// Wall time.
    pub clock: Clock,
    /// Names and ids.
    pub rng: Rng,
}

/// Writes a part of the page of metrics that this room knows nothing of.
#[derive(Clone)]
pub struct MoreMetrics(pub Arc<dyn Fn() -> String + Send + Sync>);

impl std::fmt::Debug for MoreMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MoreMetrics")
    }
}

/// Who guards the server; made by the role from `authn`, `authz` and `admission`.
pub struct Guards {
    /// Who asks?
    pub authenticator: Arc<dyn Authenticator>,
    /// May they?
    pub authorizer: Arc<dyn Authorizer>,
    /// In the order they run.
    pub plugins: Vec<Arc<dyn Plugin>>,
    /// Service-account tokens.
    pub issuer: Arc<dyn TokenIssuer>,
    /// Resources that compute an answer: group, resource, and who answers.
    pub virtuals: Vec<(&'static str, &'static str, Arc<dyn Virtual>)>,
    /// Streams to nodes, pods and services.
    pub connector: Arc<dyn Connector>,
    /// Calls to servers outside of this one.
    pub webhooks: Arc<Webhooks>,
    /// Writes the audit log, if one is wanted.
    pub auditor: Option<Arc<Auditor>>,
    /// Encryption at rest, where it is configured.
    pub encryption: Option<Encryption>,
    /// What may be asked without credentials.
    pub anonymous: Anonymous,
    /// Old tokens of service accounts that were used.
    pub legacy_uses: Arc<Uses>,
    /// Who this server is to those whose APIs it aggregates.
    pub front_proxy: Identity,
}

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The store cannot be read or written.
    #[error("cannot use the store")]
    Store(#[from] store::error::Error),
    /// An object every cluster has cannot be made.
    #[error("cannot create {what}: {why}")]
    Bootstrap {
        /// Which.
        what: String,
        /// Why not.
        why: String,
    },
}

/// The API server.
pub struct ApiServer {
    pub(crate) config: Config,
    /// Every resource that is served, built in and custom.
    pub(crate) catalogs: Arc<Catalogs>,
    pub(crate) cache: Arc<Cache>,
    pub(crate) guards: Guards,
    pub(crate) metrics: Arc<Metrics>,
    /// Who answers which group.
    pub(crate) aggregation: Registry,
    /// Priority and fairness.
    pub(crate) flow: Flow,
    /// Answers that nobody has taken yet.
    pub(crate) held: Arc<wire::held::Accounts>,
    /// What others say about themselves.
    pub(crate) documents: Documents,
    /// What this server says about all of them.
    pub(crate) pages: Arc<Pages>,
    /// What nodes and pods used, as kubelets said when they were asked last.
    pub(crate) usage: Histories,
    /// How long plugins took.
    pub(crate) admission_times: Times,
    /// Steps of the start that are not done: `/readyz` says no until none is left.
    pub(crate) pending: RwLock<BTreeSet<Step>>,
    /// How often the checks of health were run.
    pub(crate) health: Tally,
    /// Its tasks; told to stop when the server is.
    pub(crate) group: Group,
    /// Only one service is given addresses at a time.
    pub(crate) allocating: tokio::sync::Mutex<()>,
    /// Which service holds which address and port.
    pub(crate) ledger: base::sync::Mutex<Ledger>,
}

impl ApiServer {
    /// Builds the server on a store and starts its tasks in `group`. `guards` gets the view of the objects that
    /// authorizers and admission plugins decide by; the resources in [`PRELOADED`] are filled by then.
    ///
    /// Errors: the store fails.
    pub async fn build(
        config: Config,
        storage: Arc<dyn Storage>,
        group: &Group,
        guards: impl FnOnce(Arc<dyn Lookup>) -> Guards,
    ) -> Result<Arc<ApiServer>, BuildError> {
        let catalogs = Arc::<Catalogs>::default();
        let cache = Cache::start(storage, Arc::clone(&catalogs), group);
        cache.wait_for(1).await;
        for (api_group, resource) in PRELOADED {
            cache.ready(api_group, resource).await?;
        }
        let lookup = Arc::clone(&cache) as Arc<dyn Lookup>;
        let guards = guards(Arc::clone(&lookup));
        cache.convert_by(Converter::new(Arc::clone(&guards.webhooks), config.rng.clone()));
        let seats = config.arguments.inflight.0 + config.arguments.inflight.1;
        let served = if config.serve_usage { vec![(usage::GROUP, usage::VERSION)] } else { Vec::new() };
        let admission_times = Times::of(guards.plugins.iter().map(|plugin| plugin.name()));
        let server = Arc::new(ApiServer {
            config,
            admission_times,
            catalogs,
            cache,
            guards,
            metrics: Arc::default(),
            aggregation: Registry::new(Arc::clone(&lookup), served),
            flow: Flow::new(Arc::clone(&lookup), seats),
            held: Arc::default(),
            documents: Documents::default(),
            pages: Arc::default(),
            usage: Histories::default(),
            pending: RwLock::new(Step::all()),
            health: Tally::default(),
            group: group.clone(),
            allocating: tokio::sync::Mutex::default(),
            ledger: base::sync::Mutex::default(),
        });
        for plugin in &server.guards.plugins {
            plugin.serves(&server);
        }
        crate::custom::keeper::serve(&server);
        server.done(Step::Caches);
        crate::bootstrap::run(&server).await?;
        server.done(Step::Objects);
        let endpoints = |status: crate::status::Status| BuildError::Bootstrap {
            what: "the endpoints of this server".to_owned(),
            why: status.message.clone(),
        };
        let lease = crate::endpoints::begin(&server).await.map_err(endpoints)?;
        server.done(Step::Endpoints);
        crate::bootstrap::keep(&server, group);
        crate::endpoints::keep(&server, lease, group);
        crate::compaction::keep(Arc::clone(&server.cache), group);
        crate::custom::keeper::keep(&server, group);
        crate::admission::policies::typing::keep(&server, group);
        crate::flow::status::keep(&server, group);
        server.done(Step::Tasks);
        Ok(server)
    }

    /// A step of the start is done: the checks of health that stand for it hold from now on.
    fn done(&self, step: Step) {
        self.pending.write().remove(&step);
    }

    /// What admission and authorization see of the objects.
    pub fn lookup(&self) -> Arc<dyn Lookup> {
        Arc::clone(&self.cache) as Arc<dyn Lookup>
    }

    /// A door for a caller in this process: the same pipeline, without TCP and TLS, as `user`.
    pub fn in_process(self: &Arc<Self>, user: UserInfo) -> InProcess {
        let conn = Arc::new(wire::ConnInfo::in_process(Arc::new(user)));
        InProcess { server: Arc::clone(self), conn }
    }
}

#[async_trait]
impl wire::Handler for ApiServer {
    async fn handle(&self, req: http::Request<wire::Body>, conn: Arc<wire::ConnInfo>) -> http::Response<wire::Body> {
        pipeline::answer(self, req, conn).await
    }
}

/// A tower service that is one user of the server.
#[derive(Clone)]
pub struct InProcess {
    server: Arc<ApiServer>,
    conn: Arc<wire::ConnInfo>,
}

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<wire::Body>, std::convert::Infallible>> + Send>>;

impl tower::Service<http::Request<wire::Body>> for InProcess {
    type Response = http::Response<wire::Body>;
    type Error = std::convert::Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: http::Request<wire::Body>) -> Answer {
        let (server, conn) = (Arc::clone(&self.server), Arc::clone(&self.conn));
        Box::pin(async move { Ok(pipeline::answer(&server, req, conn).await) })
    }
}
