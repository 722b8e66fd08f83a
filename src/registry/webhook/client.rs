//! The client of all webhooks: resolves services to their endpoints, trusts what the configuration says, keeps
//! connections.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base::chain::Chain;
use base::secret::Secret;
use base::sync::Mutex;
use base::task::Group;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use model::reference::{GroupResource, NamespacedName};
use pki::bundle::Bundle;
use pki::certstore::CertStore;
use pki::tls;
use serde_json::Value;
use wire::dial::{DialError, Stream};
use wire::keep::{ExchangeError, Kept};

use super::call::{Endpoint, Target};
use crate::connect::Connector;
use crate::lookup::Lookup;

/// Longest answer of a webhook, as upstream's body limit of its clients.
const ANSWER_BYTES_MAX: usize = 10 * 1024 * 1024;
/// TLS set-ups that are remembered; when full, all are made anew.
const SETUPS_MAX: usize = 64;

/// Why a webhook gave no answer. The text is what follows `failed to call webhook: `.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It was not reached, or broke off.
    #[error("Post {url:?}: {why}")]
    Unreached {
        /// URL with its query.
        url: String,
        /// Reason.
        why: String,
    },
    /// It took too long.
    #[error("Post {url:?}: context deadline exceeded")]
    TimedOut {
        /// URL with its query.
        url: String,
    },
    /// It answered with another code than 2xx.
    #[error("{text}")]
    Refused {
        /// HTTP code.
        code: u16,
        /// As client-go words it.
        text: String,
    },
}

/// Why a backend was not reached.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// There is no such service.
    #[error("service {name:?} not found")]
    NoService {
        /// Name of the service.
        name: String,
    },
    /// The service has other ports.
    #[error("no service port {port} found for service {name:?}")]
    NoPort {
        /// Name of the service.
        name: String,
        /// The port that was asked for.
        port: u16,
    },
    /// Nothing stands behind the service.
    #[error("no endpoints available for service {name:?}")]
    NoEndpoints {
        /// Name of the service.
        name: String,
    },
    /// It was not dialled, or broke off. Told in Go's words, down to the innermost reason.
    #[error("{}", why(.0))]
    Exchange(ExchangeError),
}

/// Our identity to a webhook, beyond trusting it.
#[derive(Clone, Default)]
pub struct Identity {
    /// Certificate to show.
    pub certificate: Option<Arc<CertStore>>,
    /// Bearer token to send.
    pub token: Option<Arc<Secret<String>>>,
    /// Take any certificate of the server.
    pub insecure: bool,
}

/// Calls webhooks.
pub struct Webhooks {
    lookup: Arc<dyn Lookup>,
    connector: Arc<dyn Connector>,
    kept: Kept,
    group: Group,
    setups: Mutex<HashMap<String, Arc<tls::ClientSetup>>>,
    turn: AtomicUsize,
}

/// An address behind a service or host.
struct Backend {
    host: String,
    port: u16,
    node: Option<Arc<Value>>,
}

impl Webhooks {
    /// Services and their endpoints are read through `lookup` and reached through `connector`; connections live in
    /// `group`.
    pub fn new(lookup: Arc<dyn Lookup>, connector: Arc<dyn Connector>, group: &Group) -> Webhooks {
        Webhooks {
            lookup,
            connector,
            kept: Kept::new(group),
            group: group.clone(),
            setups: Mutex::default(),
            turn: AtomicUsize::new(0),
        }
    }

    /// Posts JSON and reads the answer of a 2xx.
    pub async fn post(
        &self,
        to: &Endpoint,
        as_who: &Identity,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let mut request = Request::new(body);
        *request.method_mut() = Method::POST;
        let answer = self.send(request, to, as_who, timeout).await?;
        match answer.status() {
            code if code.is_success() => Ok(answer.into_body()),
            code => Err(CallError::Refused { code: code.as_u16(), text: refusal(code.as_u16(), answer.body()) }),
        }
    }

    /// Asks without a body and with further headers; reads the whole answer, whatever its code.
    pub async fn send_with(
        &self,
        method: Method,
        to: &Endpoint,
        as_who: &Identity,
        more: HeaderMap,
        timeout: Duration,
    ) -> Result<Response<Bytes>, CallError> {
        let mut request = Request::new(Bytes::new());
        *request.method_mut() = method;
        *request.headers_mut() = more;
        self.send(request, to, as_who, timeout).await
    }

    async fn send(
        &self,
        mut request: Request<Bytes>,
        to: &Endpoint,
        as_who: &Identity,
        timeout: Duration,
    ) -> Result<Response<Bytes>, CallError> {
        let url = to.url();
        let unreached = |why: String| CallError::Unreached { url: url.clone(), why };
        *request.uri_mut() = to.path.parse().map_err(|err: http::uri::InvalidUri| unreached(err.to_string()))?;
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(&to.authority()).map_err(|err| unreached(err.to_string()))?);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("application/json, */*"));
        headers.insert(USER_AGENT, HeaderValue::from_static("kube-apiserver-admission"));
        if let Some(token) = &as_who.token {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
                .map_err(|err| unreached(err.to_string()))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        match tokio::time::timeout(timeout, self.exchange(to, as_who, &request)).await {
            Ok(answer) => answer.map_err(|err| unreached(err.to_string())),
            Err(_) => Err(CallError::TimedOut { url: url.clone() }),
        }
    }

    async fn exchange(
        &self,
        to: &Endpoint,
        as_who: &Identity,
        request: &Request<Bytes>,
    ) -> Result<Response<Bytes>, ReachError> {
        let backend = self.resolve(&to.target).await?;
        // Connections are shared by those who go to the same place with the same trust.
        let shown = as_who.certificate.as_ref().map_or(0, |c| Arc::as_ptr(c).addr());
        let key =
            format!("{} {}:{} {shown} {} {}", to.authority(), backend.host, backend.port, as_who.insecure, to.ca_pem);
        let open: BoxFuture<'_, Result<Box<dyn Stream>, DialError>> = Box::pin(self.reach(to, as_who, &backend));
        self.kept.exchange(&key, open, request, ANSWER_BYTES_MAX).await.map_err(ReachError::Exchange)
    }

    /// A connection of one's own, TLS done, for what is more than a question and an answer.
    ///
    /// Errors: there is no backend, or it was not reached.
    pub async fn open(&self, to: &Endpoint, as_who: &Identity) -> Result<Box<dyn Stream>, ReachError> {
        let backend = self.resolve(&to.target).await?;
        self.reach(to, as_who, &backend).await.map_err(|err| ReachError::Exchange(err.into()))
    }

    /// Where connections live.
    pub fn group(&self) -> &Group {
        &self.group
    }

    async fn reach(&self, to: &Endpoint, as_who: &Identity, backend: &Backend) -> Result<Box<dyn Stream>, DialError> {
        let stream = self.connector.dial(&backend.host, backend.port, backend.node.clone()).await?;
        if matches!(to.target, Target::Host { tls: false, .. }) {
            return Ok(stream);
        }
        let setup = self
            .setup(&to.ca_pem, as_who)
            .map_err(|err| DialError::Connect { to: to.authority(), source: std::io::Error::other(err) })?;
        wire::dial::tls(stream, &to.server_name(), setup.config()).await
    }

    fn setup(&self, ca_pem: &str, as_who: &Identity) -> Result<Arc<tls::ClientSetup>, pki::error::PkiError> {
        let shown = as_who.certificate.as_ref().map_or(0, |c| Arc::as_ptr(c).addr());
        let key = format!("{shown} {} {ca_pem}", as_who.insecure);
        let mut setups = self.setups.lock();
        if let Some(setup) = setups.get(&key) {
            return Ok(setup.clone());
        }
        let trust = match (as_who.insecure, ca_pem.is_empty()) {
            (true, _) => None,
            (false, false) => Some(Bundle::from_pem(ca_pem)?),
            (false, true) => Some(Bundle::of_system()?),
        };
        let setup = Arc::new(tls::ClientSetup::http1(trust.as_ref(), as_who.certificate.clone())?);
        if setups.len() >= SETUPS_MAX {
            setups.clear();
        }
        setups.insert(key, setup.clone());
        Ok(setup)
    }

    /// The address to dial. Several endpoints take turns.
    async fn resolve(&self, target: &Target) -> Result<Backend, ReachError> {
        let (namespace, name, port) = match target {
            Target::Host { host, port, .. } => return Ok(Backend { host: host.clone(), port: *port, node: None }),
            Target::Service { namespace, name, port } => (namespace, name, *port),
        };
        self.lookup.load(GroupResource { group: "discovery.k8s.io", resource: "endpointslices" }).await;
        let service = self
            .lookup
            .get(GroupResource::core("services"), NamespacedName { namespace, name })
            .ok_or_else(|| ReachError::NoService { name: name.clone() })?;
        if service["spec"]["type"] == "ExternalName" {
            return Ok(Backend {
                host: service["spec"]["externalName"].as_str().unwrap_or_default().to_owned(),
                port,
                node: None,
            });
        }
        let ports = service["spec"]["ports"].as_array().into_iter().flatten();
        let wanted = ports.into_iter().find(|p| p["port"].as_u64() == Some(u64::from(port)));
        let wanted = wanted.ok_or_else(|| ReachError::NoPort { name: name.clone(), port })?;
        let slices =
            self.lookup.list(GroupResource { group: "discovery.k8s.io", resource: "endpointslices" }, Some(namespace));
        let mine = slices.iter().filter(|s| s["metadata"]["labels"]["kubernetes.io/service-name"] == name.as_str());
        let ready: Vec<_> = mine.flat_map(|slice| ready(slice, wanted["name"].as_str().unwrap_or_default())).collect();
        if ready.is_empty() {
            return Err(ReachError::NoEndpoints { name: name.clone() });
        }
        let (host, port, node) = ready[self.turn.fetch_add(1, Ordering::Relaxed) % ready.len()].clone();
        Ok(Backend {
            host,
            port,
            node: node.and_then(|node| self.lookup.get(GroupResource::core("nodes"), NamespacedName::cluster(&node))),
        })
    }
}

/// Addresses of a slice's ready endpoints, with the number of the port of this name.
pub fn ready(slice: &Value, port_name: &str) -> Vec<(String, u16, Option<String>)> {
    let port =
        slice["ports"].as_array().into_iter().flatten().find(|p| p["name"].as_str().unwrap_or_default() == port_name);
    let Some(number) = port.and_then(|p| p["port"].as_u64()).and_then(|n| u16::try_from(n).ok()) else {
        return Vec::new();
    };
    let ready =
        slice["endpoints"].as_array().into_iter().flatten().filter(|e| e["conditions"]["ready"] != Value::Bool(false));
    ready
        .filter_map(|e| {
            Some((e["addresses"][0].as_str()?.to_owned(), number, e["nodeName"].as_str().map(str::to_owned)))
        })
        .collect()
}

/// The innermost reason, as Go's errors end with it.
fn why(err: &ExchangeError) -> String {
    match err {
        ExchangeError::Dial(DialError::Connect { to, source }) => {
            let text = Chain(source).to_string();
            // Go's words for the one failure that everybody greps for.
            if text.contains("UnknownIssuer") || text.contains("invalid peer certificate") {
                return format!(
                    "tls: failed to verify certificate: x509: certificate signed by unknown authority ({text})"
                );
            }
            format!("dial tcp {to}: {text}")
        }
        other => Chain(other).to_string(),
    }
}

/// As client-go words an answer that is no success.
fn refusal(code: u16, body: &[u8]) -> String {
    if let Ok(status) = serde_json::from_slice::<Value>(body)
        && status["kind"] == "Status"
        && let Some(message) = status["message"].as_str()
    {
        return message.to_owned();
    }
    let text: String = String::from_utf8_lossy(body).trim().chars().take(2048).collect();
    match code {
        400 => "the server rejected our request for an unknown reason".to_owned(),
        401 => "the server has asked for the client to provide credentials".to_owned(),
        403 => format!("forbidden: {text}"),
        404 => "the server could not find the requested resource".to_owned(),
        405 => "the server does not allow this method on the requested resource".to_owned(),
        429 => "the server has received too many requests and has asked us to try again later".to_owned(),
        500.. => format!("an error on the server ({text:?}) has prevented the request from succeeding"),
        _ => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connect::Unreachable;
    use crate::memory::Objects;
    use serde_json::json;

    fn webhooks(objects: Objects) -> Webhooks {
        let (group, _fatal) = Group::root("test");
        Webhooks::new(Arc::new(objects), Arc::new(Unreachable), &group)
    }

    #[tokio::test]
    async fn a_service_is_its_ready_endpoints_by_the_name_of_the_port() {
        let mut objects = Objects::default();
        let service = json!({ "metadata": { "name": "hook", "namespace": "n" }, "spec": { "ports": [{ "name": "a",
            "port": 443 }] } });
        objects.put(GroupResource::core("services"), service);
        let target = Target::Service { namespace: "n".into(), name: "hook".into(), port: 443 };
        assert_eq!(
            webhooks(objects).resolve(&target).await.err().unwrap().to_string(),
            r#"no endpoints available for service "hook""#
        );
        let service = json!({ "metadata": { "name": "hook", "namespace": "n" }, "spec": { "ports": [{ "name": "a",
            "port": 443 }] } });
        let slice = json!({
            "metadata": { "name": "s", "namespace": "n", "labels": { "kubernetes.io/service-name": "hook" } },
            "ports": [{ "name": "b", "port": 1 }, { "name": "a", "port": 8443 }],
            "endpoints": [{ "addresses": ["10.0.0.1"], "conditions": { "ready": false } },
                { "addresses": ["10.0.0.2"] }],
        });
        let hooks = webhooks(Objects::of([("", "services", service), ("discovery.k8s.io", "endpointslices", slice)]));
        let backend = hooks.resolve(&target).await.ok().unwrap();
        assert_eq!((backend.host.as_str(), backend.port), ("10.0.0.2", 8443));
        let other = Target::Service { namespace: "n".into(), name: "hook".into(), port: 80 };
        let refused = |err: Option<ReachError>| err.unwrap().to_string();
        assert_eq!(refused(hooks.resolve(&other).await.err()), r#"no service port 80 found for service "hook""#);
        let missing = Target::Service { namespace: "other".into(), name: "hook".into(), port: 443 };
        assert_eq!(refused(hooks.resolve(&missing).await.err()), r#"service "hook" not found"#);
    }

    #[tokio::test]
    async fn an_external_name_is_dialled_as_it_is() {
        let service = json!({
            "metadata": { "name": "hook", "namespace": "n" },
            "spec": { "type": "ExternalName", "externalName": "hook.example.org" },
        });
        let target = Target::Service { namespace: "n".into(), name: "hook".into(), port: 8443 };
        let backend = webhooks(Objects::of([("", "services", service)])).resolve(&target).await.ok().unwrap();
        assert_eq!((backend.host.as_str(), backend.port), ("hook.example.org", 8443));
    }

    #[test]
    fn a_refusal_speaks_as_client_go() {
        for (code, body, expected) in [
            (500, "boom\n", r#"an error on the server ("boom") has prevented the request from succeeding"#),
            (503, "", r#"an error on the server ("") has prevented the request from succeeding"#),
            (404, "", "the server could not find the requested resource"),
            (400, "x", "the server rejected our request for an unknown reason"),
            (401, "", "the server has asked for the client to provide credentials"),
            (403, "no\n", "forbidden: no"),
            (405, "", "the server does not allow this method on the requested resource"),
            (429, "", "the server has received too many requests and has asked us to try again later"),
            (418, "", "unknown"),
            (403, r#"{"kind": "Status", "message": "as it says"}"#, "as it says"),
            (403, r#"{"kind": "Other", "message": "x"}"#, r#"forbidden: {"kind": "Other", "message": "x"}"#),
        ] {
            assert_eq!(refusal(code, body.as_bytes()), expected, "{code} {body}");
        }
    }
}
