//! The server as a whole: what it is built from, and its two doors (the network's and the one for this process).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use admission::run::Admission;
use async_trait::async_trait;
use base::task::Group;
use model::reference::GroupResource;
use registry::cache::Cache;
use registry::catalogs::Catalogs;
use registry::connect::Connector;
use registry::conversion::Converter;
use registry::lookup::{Lookup, PRELOADED};
use registry::metrics::Metrics;
use registry::objects::Objects;
use registry::registrar::Registrar;
use registry::services;
use registry::services::allocator::Allocator;
use registry::user::UserInfo;
use registry::webhook::client::Webhooks;
use store::Storage;

use crate::access::Access;
use crate::aggregate::aggregation::Aggregation;
use crate::aggregate::availability::Watchdog;
use crate::aggregate::caller::Caller;
use crate::bootstrap::{self, BuildError};
use crate::capabilities::Capabilities;
use crate::config::Config;
use crate::crypt::sealed::EncryptionKeys;
use crate::endpoints::{self, Endpoint};
use crate::flow::controller::Flow;
use crate::guards::Guards;
use crate::health::{Health, Step};
use crate::usage::meter::Meter;
use crate::{compaction, custom, flow, pipeline, usage};

/// The API server.
pub struct ApiServer(Capabilities);

/// Names this server among the endpoints of the API, with a lease of its own.
///
/// Errors: the store fails.
async fn publish(
    config: &Config,
    registrar: &Arc<Registrar>,
    encryption_keys: Option<Arc<EncryptionKeys>>,
) -> Result<(Arc<Endpoint>, u64), BuildError> {
    let endpoint = Arc::new(Endpoint {
        registrar: Arc::clone(registrar),
        address: config.advertise_address.clone(),
        port: config.advertise_port,
        encryption_keys,
    });
    let unnoted = |status: registry::status::Status| BuildError::Bootstrap {
        what: "the endpoints of this server".to_owned(),
        why: status.message.clone(),
    };
    let lease = endpoints::begin(&endpoint).await.map_err(unnoted)?;
    Ok((endpoint, lease))
}

impl ApiServer {
    /// Builds the server on a store and starts its tasks in `group`; `connector` is its way to nodes, pods and
    /// services.
    /// `guards` gets the objects that authorizers and admission plugins decide by, the resources in [`PRELOADED`]
    /// filled, and the way to servers outside of this one.
    ///
    /// Errors: the store fails.
    pub async fn build(
        config: Config,
        storage: Arc<dyn Storage>,
        connector: Arc<dyn Connector>,
        group: &Group,
        guards: impl FnOnce(&Arc<Objects>, &Arc<Webhooks>) -> Guards,
    ) -> Result<Arc<ApiServer>, BuildError> {
        let catalogs = Arc::<Catalogs>::default();
        let cache = Cache::start(Arc::clone(&storage), Arc::clone(&catalogs), group);
        cache.wait_for(1).await;
        for (api_group, resource) in PRELOADED {
            cache.ready(GroupResource { group: api_group, resource }).await?;
        }
        let lookup = Arc::clone(&cache) as Arc<dyn Lookup>;
        let webhooks = Arc::new(Webhooks::new(Arc::clone(&lookup), Arc::clone(&connector), group));
        let (clock, rng) = (config.clock.clone(), config.rng.clone());
        let converter = Arc::new(Converter::new(Arc::clone(&webhooks), rng.clone()));
        let objects = Arc::new(Objects { cache, catalogs, converter, clock, rng });
        let guards = guards(&objects, &webhooks);
        let encryption_keys = guards.encryption.as_ref().map(|encryption| Arc::clone(&encryption.keys));
        let health = Arc::new(Health::new(storage, encryption_keys.clone(), group));
        let metrics = Arc::<Metrics>::default();
        let (ranges, ports) = (config.service_cidrs.clone(), config.node_ports.clone());
        let allocator = Arc::new(Allocator::new(Arc::clone(&objects), ranges, ports));
        let registrar = Arc::new(Registrar { objects: Arc::clone(&objects), allocator: Arc::clone(&allocator) });
        let served = if config.serve_usage { vec![(usage::GROUP, usage::VERSION)] } else { Vec::new() };
        let caller = Arc::new(Caller::new(webhooks, guards.front_proxy));
        let aggregation = Arc::new(Aggregation::new(Arc::clone(&lookup), served, caller));
        custom::keeper::serve(&objects, &metrics);
        health.done(Step::Caches);
        bootstrap::run(&registrar, &config).await?;
        health.done(Step::Objects);
        let (endpoint, lease) = publish(&config, &registrar, encryption_keys).await?;
        health.done(Step::Endpoints);
        let watchdog = Watchdog {
            registrar: Arc::clone(&registrar),
            aggregation: Arc::clone(&aggregation),
            serve_usage: config.serve_usage,
        };
        crate::aggregate::availability::keep(watchdog, group);
        services::upgrade::start(&allocator, group);
        authn::legacy::keep(&registrar, &guards.legacy_uses, group);
        bootstrap::keep(&registrar, config.arguments.event_ttl, group);
        endpoints::keep(&endpoint, lease, group);
        compaction::keep(Arc::clone(&objects.cache), group);
        custom::keeper::keep(&objects, &metrics, group);
        admission::policies::typing::keep(&objects, group);
        flow::status::keep(&objects, group);
        health.done(Step::Tasks);
        let (authenticator, authorizer) = (guards.authenticator, guards.authorizer);
        let (anonymous, counted) = (guards.anonymous, Arc::clone(&metrics));
        let seats = config.arguments.inflight.0 + config.arguments.inflight.1;
        Ok(Arc::new(ApiServer(Capabilities {
            access: Access { authenticator, authorizer, anonymous, metrics: counted },
            admission: Admission::new(guards.plugins),
            flow: Flow::new(lookup, seats),
            held: Arc::default(),
            pages: Arc::default(),
            usage: Meter::new(Arc::clone(&objects), Arc::clone(&connector)),
            config,
            objects,
            allocator,
            metrics,
            aggregation,
            health,
            issuer: guards.issuer,
            virtuals: guards.virtuals,
            connector,
            auditor: guards.auditor,
            encryption: guards.encryption,
            group: group.clone(),
        })))
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
        pipeline::answer(&self.0, req, conn).await
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
        Box::pin(async move { Ok(pipeline::answer(&server.0, req, conn).await) })
    }
}
