//! The road of a request from the socket to its verb: stages in order, the same for every request.
//!
//! A panic anywhere in it is answered with 500 and ends nothing but the request.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use authn::configuration::Anonymous;
use base::sync::Mutex;
use base::time::Stopwatch;
use base::url::Query;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::header::{CACHE_CONTROL, HeaderValue, WARNING};
use http::{HeaderName, Request, Response};
use http_body_util::BodyExt as _;
use registry::attributes::Attributes;
use registry::metrics::Verdict;
use registry::status::Status;
use registry::user::UserInfo;
use schema::table::GroupVersion;
use tracing::{debug, error};
use wire::{Body, ConnInfo};

use crate::audit::auditor::Record;
use crate::audit::policy::Stage as AuditStage;
use crate::capabilities::Capabilities;
use crate::exchange::{Exchange, is_foreign};
use crate::heavy::{Beside, Weight};
use crate::{aggregate, dispatch, held, impersonate, info, paths, respond, warnings};

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// As Go's server.
const DRAIN_BYTES_MAX: usize = 256 * 1024;
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// A refusal of our own on a road that others answer on; what is longer is not read for the audit log.
const FOREIGN_BYTES_MAX: u64 = 64 * 1024;
/// More than any answer of our own, which is in memory already.
const AUDITED_BYTES_MAX: usize = 1 << 30;

type Stage = for<'x, 'a> fn(&'x mut Exchange<'a>) -> BoxFuture<'x, Result<(), Status>>;

/// Stages of every request, in this order.
const STAGES: &[(&str, Stage)] = &[
    ("authentication", |x| authenticate(x).boxed()),
    ("audit", |x| begin_audit(x).boxed()),
    ("impersonation", |x| impersonate::stage(x).boxed()),
    ("flow control", |x| take_seat(x).boxed()),
    ("authorization", |x| authorize(x).boxed()),
];

/// Answers one request, whatever happens.
pub async fn answer(server: &Capabilities, req: Request<Body>, conn: Arc<ConnInfo>) -> Response<Body> {
    let watch = Stopwatch::start();
    let (parts, body) = req.into_parts();
    let audit_id = match parts.headers.get(AUDIT_ID) {
        Some(id) if id.len() <= 64 => id.clone(),
        _ => HeaderValue::from_str(&server.objects.rng.uuid()).unwrap_or(HeaderValue::from_static("-")),
    };
    let query = Query::parse(parts.uri.query().unwrap_or_default());
    let attributes = info::parse(&parts.method, parts.uri.path(), &query);
    let catalog = server.objects.catalogs.now();
    let mut exchange = Exchange {
        server,
        catalog,
        parts,
        body: Mutex::new(Some(body)),
        conn,
        query,
        attributes,
        warnings: Vec::new(),
        audit_id,
        received: server.objects.clock.now(),
        record: None,
        seat: None,
        held: None,
        weight: Weight::default(),
        decoded: None,
        admitted: None,
    };
    let outcome = AssertUnwindSafe(run(&mut exchange)).catch_unwind().await;
    let panicked = outcome.is_err();
    drain(exchange.take_body()).await;
    let mut response = match outcome {
        Ok(Ok(response)) => response,
        Ok(Err(status)) => respond::status(&status, &exchange.parts.headers),
        Err(panic) => {
            let why = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or(panic.downcast_ref::<&str>().copied())
                .unwrap_or("no text");
            error!(verb = %exchange.attributes.verb, path = %exchange.attributes.path, audit_id = ?exchange.audit_id,
                why, "handler panicked");
            server.metrics.panicked();
            let text = "This request caused apiserver to panic. Look in the logs for details.";
            respond::status(&Status::internal(text), &exchange.parts.headers)
        }
    };
    response = held::attach(&mut exchange, response);
    finish(&exchange, &mut response, &watch);
    end_audit(&mut exchange, response, panicked).await
}

/// Reads what a client sent and nobody wanted, within bounds: a connection with an unread body cannot be used again.
async fn drain(body: Option<Body>) {
    let Some(mut body) = body else { return };
    let mut left = DRAIN_BYTES_MAX;
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            left = left.saturating_sub(frame.data_ref().map_or(0, |data| data.len()));
            if left == 0 {
                return;
            }
        }
    };
    // Whoever takes longer loses the connection.
    let _done = tokio::time::timeout(DRAIN_TIME, read).await;
}

async fn run(exchange: &mut Exchange<'_>) -> Result<Response<Body>, Status> {
    for (_, stage) in STAGES {
        stage(exchange).await?;
    }
    if is_long_running(&exchange.attributes, &exchange.query) {
        return dispatch(exchange).await;
    }
    let most = exchange.server.config.arguments.request_timeout;
    let wanted = wanted_timeout(exchange.query.text("timeout"))?.map_or(most, |wanted| wanted.min(most));
    match tokio::time::timeout(wanted, dispatch(exchange)).await {
        Ok(answer) => answer,
        Err(_) => Err(Status::timeout("request did not complete within the allotted timeout")),
    }
}

async fn dispatch(exchange: &mut Exchange<'_>) -> Result<Response<Body>, Status> {
    if let Some(service) = exchange.server.aggregation.registry.backend(&exchange.attributes.path) {
        return aggregate::proxy::run(exchange, &service).boxed().await;
    }
    // Boxed: the compiler proves them Send here, and the futures of all verbs together would be large.
    if !exchange.attributes.is_resource {
        return paths::serve(exchange).boxed().await;
    }
    let weight = exchange.weight.clone();
    Beside::new(dispatch::serve(exchange).boxed(), weight).await
}

/// The time that the client gives its request, if it says so.
fn wanted_timeout(text: &str) -> Result<Option<Duration>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    let wanted = base::cron::duration(text);
    let bad = || {
        Status::bad_request(format!("invalid timeout specified in the request URL - time: invalid duration {text:?}"))
    };
    Ok(Duration::try_from(wanted.ok_or_else(bad)?).ok().filter(|wanted| !wanted.is_zero()))
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
    match x.server.access.authenticator.authenticate(&x.parts, &x.conn).await {
        Ok(Some(user)) => {
            x.server.metrics.judged(Verdict::KnownUser);
            x.conn.vouch();
            x.attributes.user = Arc::new(user);
        }
        Ok(None) => x.attributes.user = Arc::new(UserInfo::anonymous()),
        Err(err) => {
            debug!(peer = %x.conn.peer, err = %err, "credentials refused");
            x.attributes.trail.note("authentication.kedge.io/refused", err.to_string());
            x.server.metrics.judged(Verdict::UnknownUser);
            return Err(Status::unauthorized());
        }
    }
    // The credentials have served: nothing behind this point may see or log them.
    x.parts.headers.remove(http::header::AUTHORIZATION);
    if x.attributes.user.name == registry::user::ANONYMOUS {
        let path = &x.attributes.path;
        let welcome = match &x.server.access.anonymous {
            Anonymous::Health => paths::open_to_anonymous(path),
            Anonymous::Any => true,
            Anonymous::Nothing => false,
            Anonymous::Paths(paths) => paths.contains(path),
        };
        if !welcome {
            return Err(Status::unauthorized());
        }
    }
    Ok(())
}

async fn begin_audit(x: &mut Exchange<'_>) -> Result<(), Status> {
    record(x);
    if x.record.as_ref().is_some_and(Record::wants_sent) {
        x.attributes.trail.want_sent();
    }
    Ok(())
}

fn record(x: &mut Exchange<'_>) {
    let Some(auditor) = &x.server.auditor else { return };
    let id = x.audit_id.to_str().unwrap_or_default();
    x.record = auditor.begin(&x.attributes, &x.parts, &x.conn, id, x.received);
}

/// Writes the last event; of a long answer when it ends.
async fn end_audit(x: &mut Exchange<'_>, response: Response<Body>, panicked: bool) -> Response<Body> {
    let Some(auditor) = x.server.auditor.clone() else { return response };
    if x.record.is_none() && response.status() == http::StatusCode::UNAUTHORIZED {
        record(x);
    }
    let Some(record) = x.record.take() else { return response };
    let (code, a) = (Some(response.status().as_u16()), x.attributes.clone());
    if panicked {
        auditor.write(&record, &a, AuditStage::Panic, code, None);
        return response;
    }
    if is_long_running(&a, &x.query) && response.status().as_u16() < 300 {
        auditor.write(&record, &a, AuditStage::ResponseStarted, code, None);
        let end = OnEnd(Some(Box::new(move || auditor.write(&record, &a, AuditStage::ResponseComplete, code, None))));
        return response.map(|body| {
            wire::body::from_http(body.map_frame(move |frame| {
                let _alive_as_long_as_the_body = &end;
                frame
            }))
        });
    }
    if !record.wants_answer() && response.status().is_success() {
        auditor.write(&record, &a, AuditStage::ResponseComplete, code, None);
        return response;
    }
    // What others answer has no end that we know of, and it is no object of ours: it passes as it comes.
    if !is_read(is_foreign(x), wire::body::len(response.body())) {
        auditor.write(&record, &a, AuditStage::ResponseComplete, code, None);
        return response;
    }
    let (parts, body) = response.into_parts();
    let Ok(bytes) = wire::body::collect(body, AUDITED_BYTES_MAX).await else {
        auditor.write(&record, &a, AuditStage::ResponseComplete, code, None);
        return Response::from_parts(parts, wire::body::empty());
    };
    auditor.write(&record, &a, AuditStage::ResponseComplete, code, object_of(&bytes));
    Response::from_parts(parts, wire::body::full(bytes))
}

/// Whether the audit log reads an answer of this length, if that is known.
fn is_read(is_foreign: bool, bytes: Option<u64>) -> bool {
    !is_foreign || bytes.is_some_and(|bytes| bytes <= FOREIGN_BYTES_MAX)
}

/// The object that an answer holds, in whichever form the client asked for it.
fn object_of(bytes: &[u8]) -> Option<serde_json::Value> {
    serde_json::from_slice(bytes).ok().or_else(|| {
        let envelope = schema::protobuf::open(bytes).ok()?;
        let of = schema::protobuf::type_of(GroupVersion::parse(&envelope.api_version), &envelope.kind)?;
        schema::protobuf::decode(bytes, of).ok()
    })
}

/// Runs something when it is dropped.
struct OnEnd(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Drop for OnEnd {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

/// Lets short requests in as priority and fairness say, or, without it, a limited number at once. A watch has a seat
/// until its stream begins, as upstream: it reads what has been.
async fn take_seat(x: &mut Exchange<'_>) -> Result<(), Status> {
    let is_long = is_long_running(&x.attributes, &x.query);
    if is_long && !(x.attributes.verb == "watch" && x.server.config.arguments.fairness) {
        return Ok(());
    }
    let mutating = !x.attributes.is_read_only() && x.parts.method != http::Method::GET;
    let refused = || Status::too_many_requests("Too many requests, please try again later.", 1);
    let arguments = &x.server.config.arguments;
    if arguments.fairness {
        let limit = x.query.number("limit").and_then(|limit| u64::try_from(limit).ok()).unwrap_or(0);
        x.admitted = x.server.flow.admit(&x.attributes, limit).await;
        if x.admitted.as_ref().is_some_and(|a| a.seat.is_err()) {
            return Err(refused());
        }
        if !is_long {
            x.seat = x.server.metrics.request(mutating, 0);
        }
        return Ok(());
    }
    // This process's own parts and the masters are counted and never turned away.
    let exempt = x.conn.identity.is_some() || x.attributes.user.in_group(registry::user::GROUP_MASTERS);
    let (reading, writing) = arguments.inflight;
    let limit = if exempt {
        0
    } else if mutating {
        writing
    } else {
        reading
    };
    x.seat = x.server.metrics.request(mutating, limit);
    match x.seat {
        Some(_) => Ok(()),
        None => Err(refused()),
    }
}

async fn authorize(x: &mut Exchange<'_>) -> Result<(), Status> {
    info::unambiguous(&x.attributes.path)?;
    let unasked = x.server.access.anonymous == Anonymous::Health && x.attributes.user.name == registry::user::ANONYMOUS;
    if unasked && paths::open_to_anonymous(&x.attributes.path) {
        return Ok(());
    }
    x.server.access.require(&x.attributes).await
}

fn finish(x: &Exchange<'_>, response: &mut Response<Body>, watch: &Stopwatch) {
    let code = response.status().as_u16();
    let headers = response.headers_mut();
    headers.insert(AUDIT_ID, x.audit_id.clone());
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    if let Some(admitted) = &x.admitted {
        for (name, uid) in [(FLOW_SCHEMA, &admitted.schema_uid), (PRIORITY_LEVEL, &admitted.level_uid)] {
            if let Ok(uid) = HeaderValue::from_str(uid) {
                headers.insert(name, uid);
            }
        }
    }
    for value in warnings::headers(x.warnings.iter().cloned().chain(x.attributes.trail.take_warnings())) {
        headers.append(WARNING, value);
    }
    let a = &x.attributes;
    let took = watch.elapsed();
    debug!(verb = %a.verb, path = %a.path, user = %a.user.name, code, took_ms = took.as_millis(), "request");
    // Names a client makes up must not become series, or a stranger fills the memory: only what was served, or what we
    // know, is counted by name.
    let known = || {
        a.subresource.is_empty()
            && x.catalog.resource(GroupVersion { group: &a.group, version: &a.version }, &a.resource).is_some()
    };
    x.server.metrics.answered(x.series(code < 400 || known()), code, took, wire::body::len(response.body()));
}

#[cfg(test)]
mod tests {
    use super::*;

    // issue 12: a proxied peer's endless refusal was gathered in memory for the audit log.
    #[test]
    fn the_audit_log_reads_no_answer_of_others_whose_end_it_does_not_know() {
        assert!(!is_read(true, None) && !is_read(true, Some(FOREIGN_BYTES_MAX + 1)));
        assert!(is_read(true, Some(200)) && is_read(false, None));
    }
}
