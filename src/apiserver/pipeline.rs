//! The road of a request from the socket to its verb: stages in order, the same for every request.
//!
//! A panic anywhere in it is answered with 500 and ends nothing but the request.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base::time::Stopwatch;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use schema::catalog::Catalog;
use http::header::{CACHE_CONTROL, HeaderValue, RETRY_AFTER, WARNING};
use http::{HeaderName, Request, Response};
use tracing::{debug, error};
use wire::{Body, ConnInfo};

use crate::attributes::Attributes;
use crate::authz::Decision;
use crate::metrics::Series;
use crate::query::Query;
use crate::serve::ApiServer;
use crate::status::Status;
use crate::user::UserInfo;
use crate::{impersonate, info, paths, respond, verbs};

/// Upstream's `--request-timeout`.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// One request on its way.
pub struct Exchange<'a> {
    /// The server.
    pub server: &'a ApiServer,
    /// Every resource as it was served when the request came in.
    pub catalog: Arc<Catalog>,
    /// Method, URL and headers.
    pub parts: http::request::Parts,
    /// The body, until a verb takes it. (The lock is never held: it makes the exchange shareable between threads.)
    pub body: Mutex<Option<Body>>,
    /// Where it came in.
    pub conn: Arc<ConnInfo>,
    /// The URL's query.
    pub query: Query,
    /// What is asked; the user is filled in by authentication.
    pub attributes: Attributes,
    /// Texts for `Warning` headers.
    pub warnings: Vec<String>,
}

impl Exchange<'_> {
    /// Takes the body; a second time there is none.
    pub fn take_body(&mut self) -> Option<Body> {
        self.body.get_mut().unwrap_or_else(PoisonError::into_inner).take()
    }
}

type Stage = for<'x, 'a> fn(&'x mut Exchange<'a>) -> BoxFuture<'x, Result<(), Status>>;

/// What every request passes, in this order. (Audit and flow control will stand in front of authentication and impersonation.)
const STAGES: &[(&str, Stage)] = &[
    ("authentication", |x| authenticate(x).boxed()),
    ("impersonation", |x| impersonate::stage(x).boxed()),
    ("authorization", |x| authorize(x).boxed()),
];

/// Answers one request, whatever happens.
pub async fn answer(server: &ApiServer, req: Request<Body>, conn: Arc<ConnInfo>) -> Response<Body> {
    let watch = Stopwatch::start();
    let _inflight = server.metrics.request();
    let (parts, body) = req.into_parts();
    let audit_id = match parts.headers.get(AUDIT_ID) {
        Some(id) if id.len() <= 64 => id.clone(),
        _ => HeaderValue::from_str(&server.config.rng.uuid()).unwrap_or(HeaderValue::from_static("-")),
    };
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let attributes = info::parse(&parts.method, parts.uri.path(), &query);
    let catalog = server.catalogs.now();
    let mut exchange = Exchange { server, catalog, parts, body: Mutex::new(Some(body)), conn, query, attributes, warnings: Vec::new() };
    let outcome = AssertUnwindSafe(run(&mut exchange)).catch_unwind().await;
    let mut response = match outcome {
        Ok(Ok(response)) => response,
        Ok(Err(status)) => respond::status(&status, &exchange.parts.headers),
        Err(panic) => {
            let why = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            error!(verb = %exchange.attributes.verb, path = %exchange.attributes.path, audit_id = ?audit_id, why, "handler panicked");
            server.metrics.panicked();
            let text = "This request caused apiserver to panic. Look in the logs for details.";
            respond::status(&Status::internal(text), &exchange.parts.headers)
        }
    };
    finish(&exchange, &mut response, audit_id, &watch);
    response
}

async fn run(exchange: &mut Exchange<'_>) -> Result<Response<Body>, Status> {
    for (_, stage) in STAGES {
        stage(exchange).await?;
    }
    if is_long_running(&exchange.attributes, &exchange.query) {
        return dispatch(exchange).await;
    }
    let wanted = exchange.query.get("timeout").and_then(parse_seconds).map_or(REQUEST_TIMEOUT, |s| s.min(REQUEST_TIMEOUT));
    match tokio::time::timeout(wanted, dispatch(exchange)).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::timeout("request did not complete within the allotted timeout")),
    }
}

async fn dispatch(exchange: &mut Exchange<'_>) -> Result<Response<Body>, Status> {
    // Boxed: the compiler proves them Send here, and the futures of all verbs together would be large.
    if exchange.attributes.is_resource { verbs::serve(exchange).boxed().await } else { paths::serve(exchange).boxed().await }
}

/// Go's duration in its simple forms: `30s`, `2m`, `1h`, or bare seconds.
fn parse_seconds(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return None,
    };
    digits.parse::<u64>().ok().filter(|n| *n > 0).map(|n| Duration::from_secs(n * factor))
}

fn is_long_running(a: &Attributes, query: &Query) -> bool {
    a.verb == "watch"
        || matches!(a.subresource.as_str(), "proxy" | "exec" | "attach" | "portforward")
        || (a.subresource == "log" && query.flag("follow"))
}

async fn authenticate(x: &mut Exchange<'_>) -> Result<(), Status> {
    if let Some(user) = x.conn.identity.clone().and_then(|identity| identity.downcast::<UserInfo>().ok()) {
        x.attributes.user = user;
        return Ok(());
    }
    match x.server.guards.authenticator.authenticate(&x.parts, &x.conn).await {
        Ok(Some(user)) => x.attributes.user = Arc::new(user),
        Ok(None) => x.attributes.user = Arc::new(UserInfo::anonymous()),
        Err(err) => {
            debug!(peer = %x.conn.peer, err = %err, "credentials refused");
            return Err(Status::unauthorized());
        }
    }
    // The credentials have served: nothing behind this point may see or log them.
    x.parts.headers.remove(http::header::AUTHORIZATION);
    if x.attributes.user.name == crate::user::ANONYMOUS && !paths::open_to_anonymous(&x.attributes.path) {
        return Err(Status::unauthorized());
    }
    Ok(())
}

async fn authorize(x: &mut Exchange<'_>) -> Result<(), Status> {
    if x.attributes.user.name == crate::user::ANONYMOUS && paths::open_to_anonymous(&x.attributes.path) {
        return Ok(());
    }
    require(x.server, &x.attributes).await
}

/// Asks the authorizer.
///
/// Errors: 403 unless it allows.
pub async fn require(server: &ApiServer, attributes: &Attributes) -> Result<(), Status> {
    match server.guards.authorizer.authorize(attributes).await {
        Decision::Allow { .. } => Ok(()),
        Decision::Deny { reason } | Decision::NoOpinion { reason } => Err(Status::access_denied(attributes, &reason)),
    }
}

fn finish(x: &Exchange<'_>, response: &mut Response<Body>, audit_id: HeaderValue, watch: &Stopwatch) {
    let code = response.status().as_u16();
    let headers = response.headers_mut();
    headers.insert(AUDIT_ID, audit_id);
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    for text in x.warnings.iter().cloned().chain(x.attributes.trail.take_warnings()) {
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            headers.append(WARNING, value);
        }
    }
    if code == 429 && !headers.contains_key(RETRY_AFTER) {
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    let a = &x.attributes;
    let took = watch.elapsed();
    debug!(verb = %a.verb, path = %a.path, user = %a.user.name, code, took_ms = took.as_millis(), "request");
    let scope = match (a.is_resource, a.name.is_empty(), a.namespace.is_empty()) {
        (false, ..) => "",
        (_, false, _) => "resource",
        (_, _, false) => "namespace",
        _ => "cluster",
    };
    let mut series = Series { verb: a.verb.to_ascii_uppercase(), group: String::new(), version: String::new(), resource: String::new(), subresource: String::new(), scope };
    // Names a client makes up must not become series: only what was found is counted by name.
    if a.is_resource && code != 404 && code != 403 {
        series.group.clone_from(&a.group);
        series.version.clone_from(&a.version);
        series.resource.clone_from(&a.resource);
        series.subresource.clone_from(&a.subresource);
    }
    x.server.metrics.answered(series, code, took);
}
