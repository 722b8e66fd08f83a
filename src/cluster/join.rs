//! The joining side: finds the server, makes sure that it is the right one, and asks to be let in.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::Clock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::{HeaderValue, Method, Request};
use pki::bundle::Bundle;
use pki::node_key::NodeKey;
use pki::tls;
use pki::token::{Credential, JoinToken, ca_hash};
use rustls::CertificateError;
use tracing::warn;
use wire::dial::{self, DialError, Stream};
use wire::{Body, body};

use crate::node_files::{self, Requests};
use crate::protocol::{AUTHORITIES, BODY_BYTES_MAX, CACERTS, JOIN, JoinRequest, MINOR, Role, SIGNATURE, Welcome};
use crate::refusal::Refusal;
use crate::tunnel::split;

/// One attempt at one server, from the first packet to the answer.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(20);

/// A URL that is not the address of a server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{url}' is not the address of a server ({why}); want https://HOST:6443")]
pub struct BadAddress {
    url: String,
    why: &'static str,
}

/// `host:port` of a `https://` URL; 6443 where it names no port.
pub fn address_of(url: &str) -> Result<String, BadAddress> {
    let bad = |why: &'static str| BadAddress { url: url.to_owned(), why };
    let rest = url.strip_prefix("https://").ok_or_else(|| bad("it does not begin with https://"))?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.contains(['@', '/']) {
        return Err(bad("it holds more than host and port"));
    }
    let authority: http::uri::Authority = rest.parse().map_err(|_| bad("its host and port cannot be read"))?;
    if authority.port_u16().is_none() && authority.as_str().len() > authority.host().len() {
        return Err(bad("its port is no number"));
    }
    Ok(format!("{}:{}", authority.host(), authority.port_u16().unwrap_or(base::ports::API)))
}

/// The reason for asking a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To join.
    Join,
    /// To learn whether it would let the machine in.
    Check,
}

/// A machine that wants to join.
pub struct Joiner {
    /// Agent or server.
    pub role: Role,
    /// The token it was given.
    pub token: Option<JoinToken>,
    /// The machine's key.
    pub key: NodeKey,
    /// The node's name.
    pub node_name: String,
    /// Its addresses.
    pub node_ips: Vec<IpAddr>,
    /// `/etc/machine-id`.
    pub machine_id: String,
    /// The program's version.
    pub version: String,
    /// Flags that must agree on servers.
    pub flags: std::collections::BTreeMap<String, String>,
    /// Where the node's credentials are kept; a server's authorities.
    pub dir: PathBuf,
    /// Wall time.
    pub clock: Clock,
    /// Connections live here while they are used.
    pub group: Group,
}

impl Joiner {
    /// Asks the servers one after the other (`host:port`) until one answers; what it answers is the verdict. A
    /// check makes and keeps nothing; else an agent's credentials are in the files when this returns, and a server's
    /// secrets in the answer.
    ///
    /// Errors: the reason, of the first server if none can be reached.
    pub async fn join(&self, servers: &[String], purpose: Purpose) -> Result<Welcome, Refusal> {
        let mut first = None;
        for address in servers {
            let late = || Refusal::Unreachable { url: url_of(address), why: "it did not answer in time".to_owned() };
            let attempt = tokio::time::timeout(ATTEMPT_TIMEOUT, self.ask(address, purpose)).await;
            match attempt.unwrap_or_else(|_| Err(late())) {
                Err(refusal @ Refusal::Unreachable { .. }) => drop(first.get_or_insert(refusal)),
                verdict => return verdict,
            }
        }
        Err(first.unwrap_or(Refusal::Invalid { why: "no server is known: name one with --server".to_owned() }))
    }

    /// Which set of authorities a server uses, as it says; whoever acts on it joins, and looks closer then.
    pub async fn authorities(&self, servers: &[String]) -> Option<String> {
        for server in servers {
            let asked = tokio::time::timeout(ATTEMPT_TIMEOUT, self.authorities_of(server)).await;
            if let Ok(Some(found)) = asked {
                return Some(found);
            }
        }
        None
    }

    async fn authorities_of(&self, server: &str) -> Option<String> {
        let server = Server::parse(server)?;
        let stream = server.connect(tls::unverified_client_config().ok()?).await.ok()?;
        let req = Request::builder().uri(AUTHORITIES).header(HOST, server.address).body(body::empty()).ok()?;
        let (status, found) = self.send(stream, &server, req).await.ok()?;
        (status == http::StatusCode::OK).then(|| String::from_utf8_lossy(&found).into_owned())
    }

    async fn ask(&self, address: &str, purpose: Purpose) -> Result<Welcome, Refusal> {
        let server =
            Server::parse(address).ok_or_else(|| Refusal::Invalid { why: format!("'{address}' is not host:port") })?;
        let trust = self.trusted(&server).await?;
        let unusable = |err: pki::error::PkiError| Refusal::Invalid { why: Chain(&err).to_string() };
        let requests = match self.role {
            Role::Agent => Some(Requests::new(&self.node_name, &self.node_ips).map_err(unusable)?),
            Role::Server => None,
        };
        let asked = self.request(requests.as_ref(), purpose);
        let bytes = serde_json::to_vec(&asked).map_err(|err| Refusal::Invalid { why: err.to_string() })?;
        let mut req = Request::builder()
            .method(Method::POST)
            .uri(JOIN)
            .header(HOST, server.address)
            .header(CONTENT_TYPE, "application/json")
            .header(SIGNATURE, self.key.sign(&bytes).map_err(unusable)?);
        if let Some(credential) = self.authorization() {
            req = req.header(AUTHORIZATION, credential);
        }
        let req = req.body(body::full(bytes)).map_err(|err| Refusal::Invalid { why: err.to_string() })?;
        let stream = server.connect(tls::client_config(&trust, None).map_err(unusable)?).await?;
        let (status, answer) = self.send(stream, &server, req).await?;
        if status != http::StatusCode::OK {
            let not_kedge = |_| server.not_kedge(format!("it answered {status} to {JOIN}"));
            return Err(serde_json::from_slice(&answer).unwrap_or_else(not_kedge));
        }
        let welcome: Welcome = serde_json::from_slice(&answer).map_err(|err| server.not_kedge(err.to_string()))?;
        if let Some(requests) = requests.filter(|_| purpose == Purpose::Join) {
            let saved = node_files::save(&self.dir, &self.node_name, &requests, &welcome);
            saved.map_err(|err| Refusal::Invalid { why: Chain(&err).to_string() })?;
        }
        Ok(welcome)
    }

    /// The server's authorities, once they are known to be the right ones.
    async fn trusted(&self, server: &Server<'_>) -> Result<Bundle, Refusal> {
        let (url, not_kedge) = (&server.url, |why: String| server.not_kedge(why));
        let unusable = |err: pki::error::PkiError| Refusal::Invalid { why: Chain(&err).to_string() };
        let known = node_files::known_ca(&self.dir).map_err(|err| Refusal::Invalid { why: Chain(&err).to_string() })?;
        let stream = server.connect(tls::unverified_client_config().map_err(unusable)?).await?;
        let req = Request::builder().uri(CACERTS).header(HOST, server.address).body(body::empty());
        let req = req.map_err(|err| Refusal::Invalid { why: err.to_string() })?;
        let (status, ca) = self.send(stream, server, req).await?;
        if status != http::StatusCode::OK {
            return Err(not_kedge(format!("it answered {status} to {CACERTS}")));
        }
        let found = ca_hash(&ca).map_err(|_| not_kedge(format!("what it answers to {CACERTS} is no certificate")))?;
        let pinned = self.token.as_ref().and_then(|token| token.ca_hash.clone());
        let vouched = match (&pinned, &known) {
            (Some(hash), _) => pki::token::vouched_for(&ca, hash),
            (None, Some(known)) => pki::token::shared(&ca, known.as_bytes()),
            (None, None) => {
                warn!(
                    url,
                    fingerprint = found,
                    "THE TOKEN DOES NOT SAY WHICH CLUSTER IT IS FOR: whoever answers at this address is trusted. Use \
                     the full token (K10...) of the server's file server/node-token"
                );
                Ok(String::from_utf8_lossy(&ca).into_owned())
            }
        };
        let mut vouched = vouched.map_err(|err| not_kedge(Chain(&err).to_string()))?;
        if let (true, Some(known), Some(_)) = (vouched.is_empty(), &known, &pinned) {
            vouched = pki::token::shared(&ca, known.as_bytes()).map_err(|err| not_kedge(Chain(&err).to_string()))?;
            if !vouched.is_empty() {
                warn!(
                    url,
                    "the token names an authority that the cluster has no more: trusting those that this machine \
                     knows. Give it a new token"
                );
            }
        }
        if vouched.is_empty() {
            let pinned = pinned.or_else(|| ca_hash(known?.as_bytes()).ok()).unwrap_or_default();
            return Err(Refusal::WrongCa { url: url.clone(), pinned, found });
        }
        Bundle::from_pem(&vouched).map_err(|err| not_kedge(Chain(&err).to_string()))
    }

    fn request(&self, requests: Option<&Requests>, purpose: Purpose) -> JoinRequest {
        let [client, serving, proxy] =
            requests.map(|requests| requests.requests.each_ref().map(|der| STANDARD.encode(der))).unwrap_or_default();
        JoinRequest {
            role: self.role,
            check: purpose == Purpose::Check,
            node_name: self.node_name.clone(),
            node_ips: self.node_ips.clone(),
            machine_id: self.machine_id.clone(),
            version: self.version.clone(),
            minor: MINOR,
            unix_ms: self.clock.now().as_millisecond(),
            public_key: self.key.public(),
            kubelet_client_csr: client,
            kubelet_serving_csr: serving,
            proxy_client_csr: proxy,
            flags: self.flags.clone(),
        }
    }

    fn authorization(&self) -> Option<HeaderValue> {
        let text = match &self.token.as_ref()?.credential {
            Credential::Bootstrap(token) => format!("Bearer {}", token.expose()),
            Credential::Password { user, password } => {
                let user = user.as_deref().unwrap_or(if self.role == Role::Server { "server" } else { "node" });
                format!("Basic {}", STANDARD.encode(format!("{user}:{}", password.expose())))
            }
        };
        let mut value = HeaderValue::from_str(&text).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    async fn send(
        &self,
        stream: Box<dyn Stream>,
        server: &Server<'_>,
        req: Request<Body>,
    ) -> Result<(http::StatusCode, bytes::Bytes), Refusal> {
        let broken = |why: String| server.unreachable(why);
        let answer = dial::request(stream, server.address, req, &self.group).await;
        let answer = answer.map_err(|err| broken(Chain(&err).to_string()))?;
        let status = answer.status();
        let bytes =
            body::collect(answer.into_body(), BODY_BYTES_MAX).await.map_err(|err| broken(Chain(&err).to_string()))?;
        Ok((status, bytes))
    }
}

fn url_of(address: &str) -> String {
    format!("https://{address}")
}

/// A server to ask.
struct Server<'a> {
    /// `host:port`, as it was given.
    address: &'a str,
    /// Without brackets.
    host: &'a str,
    port: u16,
    /// For people.
    url: String,
}

impl<'a> Server<'a> {
    fn parse(address: &'a str) -> Option<Server<'a>> {
        let (host, port) = split(address)?;
        Some(Server { address, host, port, url: url_of(address) })
    }

    fn unreachable(&self, why: String) -> Refusal {
        Refusal::Unreachable { url: self.url.clone(), why }
    }

    fn not_kedge(&self, why: String) -> Refusal {
        Refusal::NotKedge { url: self.url.clone(), why }
    }

    /// Connects with TLS, and tells apart why that fails.
    async fn connect(&self, tls: Arc<rustls::ClientConfig>) -> Result<Box<dyn Stream>, Refusal> {
        let mut tls = rustls::ClientConfig::clone(&tls);
        tls.alpn_protocols = tls::ALPN_HTTP1.iter().map(|p| p.to_vec()).collect();
        let stream = dial::tcp(self.host, self.port, self.host, Some(Arc::new(tls))).await;
        stream.map_err(|err| self.refusal_of(&err))
    }

    fn refusal_of(&self, err: &DialError) -> Refusal {
        let DialError::Connect { source, .. } = err else { return self.unreachable(Chain(err).to_string()) };
        let tls = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        match tls {
            Some(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Refusal::WrongName { url: self.url.clone(), name: self.host.to_owned() },
            Some(err) => self.not_kedge(err.to_string()),
            None => self.unreachable(source.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_host_and_port_and_nothing_else() {
        assert_eq!(address_of("https://10.0.0.1").unwrap(), "10.0.0.1:6443");
        assert_eq!(address_of("https://edge.lan:7000/").unwrap(), "edge.lan:7000");
        assert_eq!(address_of("https://[fd00::1]:6443").unwrap(), "[fd00::1]:6443");
        for (bad, why) in [
            ("http://10.0.0.1", "it does not begin with https://"),
            ("10.0.0.1:6443", "it does not begin with https://"),
            ("", "it does not begin with https://"),
            ("https://", "its host and port cannot be read"),
            ("https://a b", "its host and port cannot be read"),
            ("https://a:", "its port is no number"),
            ("https://a:70000", "its port is no number"),
            ("https://u@a", "it holds more than host and port"),
            ("https://a/b", "it holds more than host and port"),
        ] {
            let want = format!("'{bad}' is not the address of a server ({why}); want https://HOST:6443");
            assert_eq!(address_of(bad).unwrap_err().to_string(), want);
        }
        assert!(address_of("https://a:x").is_err());
    }

    #[test]
    fn the_cause_of_a_failed_connection_is_told_apart() {
        let server = Server::parse("[fd00::1]:6443").unwrap();
        assert_eq!((server.host, server.port, server.url.as_str()), ("fd00::1", 6443, "https://[fd00::1]:6443"));
        assert!(Server::parse("edge.lan").is_none() && Server::parse("edge.lan:99999").is_none());
        let failed =
            |source: std::io::Error| server.refusal_of(&DialError::Connect { to: "[fd00::1]:6443".to_owned(), source });
        let tls = |err: rustls::Error| failed(std::io::Error::new(std::io::ErrorKind::InvalidData, err));
        let refused = failed(std::io::ErrorKind::ConnectionRefused.into());
        assert!(
            matches!(refused, Refusal::Unreachable { ref url, .. } if url == "https://[fd00::1]:6443"),
            "{refused}"
        );
        let name = tls(rustls::Error::InvalidCertificate(CertificateError::NotValidForName));
        assert!(matches!(name, Refusal::WrongName { ref name, .. } if name == "fd00::1"), "{name}");
        let unknown = tls(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer));
        assert!(matches!(unknown, Refusal::NotKedge { .. }), "{unknown}");
        let ended = server.refusal_of(&DialError::Ended { to: "x".to_owned(), why: "reset".into() });
        assert_eq!(ended, server.unreachable("connection to x ended: reset".to_owned()));
    }
}
