//! HTTP probes and hooks. Certificates are not verified: the probe asks whether the server lives, not who it is.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::{ACCEPT, CONNECTION, HOST, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use wire::dial::DialError;

use super::run::{dial_text, joined, port_of};
use crate::node::Node;

/// The minor version that the probes' user agent tells.
const AGENT: &str = "kube-probe/1.36";

/// Redirects that are followed, as Go's client.
const REDIRECTS_MAX: usize = 10;
/// Bytes of a redirect's body in a warning.
const BODY_BYTES_MAX: usize = 10 * 1024;

/// Where a GET goes.
struct Place {
    scheme: String,
    host: String,
    port: u16,
    path: String,
}

impl Place {
    fn url(&self) -> String {
        format!("{}://{}{}", self.scheme, joined(&self.host, self.port), self.path)
    }

    /// Where a `Location` leads.
    fn follow(&self, location: &str) -> Option<Place> {
        if location.starts_with('/') && !location.starts_with("//") {
            return Some(Place { scheme: self.scheme.clone(), host: self.host.clone(), port: self.port, path: location.to_owned() });
        }
        let uri: http::Uri = location.parse().ok()?;
        let scheme = uri.scheme_str()?.to_owned();
        let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str).to_owned();
        let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Place { scheme, host, port, path })
    }
}

/// One GET; the error is upstream's text. Any status from 200 to 399 is good; redirects to the same host are followed, one to another
/// host is a success with a warning.
pub(crate) async fn get(
    get: &HTTPGetAction,
    container: &Container,
    host: &str,
    timeout: Duration,
    node: &Node,
) -> Result<Option<String>, String> {
    let port = port_of(&get.port, container).ok_or_else(|| format!("couldn't extract HTTP port: {:?}", get.port))?;
    let scheme = get.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
    let path = get.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let first = Place { scheme, host: host.to_owned(), port, path };
    let url = first.url();
    match tokio::time::timeout(timeout, walk(get, first, node)).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("Get \"{url}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)")),
    }
}

async fn walk(get: &HTTPGetAction, first: Place, node: &Node) -> Result<Option<String>, String> {
    let origin = first.host.clone();
    let mut place = first;
    for _ in 0..=REDIRECTS_MAX {
        let answer = one(get, &place, node).await?;
        let code = answer.status().as_u16();
        let location = answer.headers().get(LOCATION).and_then(|l| l.to_str().ok()).and_then(|l| place.follow(l));
        match (code, location) {
            (301 | 302 | 303 | 307 | 308, Some(next)) if next.host == origin => place = next,
            (300..400, _) => {
                let body = beginning(answer.into_body()).await;
                return Ok(Some(format!("Probe terminated redirects, Response body: {}", String::from_utf8_lossy(&body))));
            }
            (200..300, _) => return Ok(None),
            _ => return Err(format!("HTTP probe failed with statuscode: {code}")),
        }
    }
    Err(format!("Get \"{}\": stopped after {REDIRECTS_MAX} redirects", place.url()))
}

/// What a body begins with.
async fn beginning(mut body: wire::Body) -> Vec<u8> {
    let mut read = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(bytes) = frame.into_data() {
            read.extend_from_slice(&bytes);
        }
        if read.len() >= BODY_BYTES_MAX {
            read.truncate(BODY_BYTES_MAX);
            break;
        }
    }
    read
}

async fn one(get: &HTTPGetAction, place: &Place, node: &Node) -> Result<http::Response<wire::Body>, String> {
    let url = place.url();
    let (host, port) = (place.host.as_str(), place.port);
    let tls = (place.scheme == "https").then(insecure);
    let stream = wire::dial::tcp(host, port, host, tls).await.map_err(|err| match err {
        DialError::Connect { source, .. } => format!("Get \"{url}\": {}", dial_text(host, port, &source)),
        other => format!("Get \"{url}\": {other}"),
    })?;
    let request = request(get, &place.path, host, port).map_err(|err| format!("Get \"{url}\": {err}"))?;
    // The connection's task ends with the answer: dropping it closes the socket.
    let group = node.group.child("http-probe");
    wire::dial::request(stream, &url, request, &group).await.map_err(|err| format!("Get \"{url}\": {}", base::chain::Chain(&err)))
}

fn request(get: &HTTPGetAction, path: &str, host: &str, port: u16) -> Result<http::Request<wire::Body>, http::Error> {
    let mut request = http::Request::get(path)
        .header(HOST, joined(host, port))
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(wire::body::empty())?;
    for header in get.http_headers.iter().flatten() {
        let (name, value) = (HeaderName::try_from(header.name.as_str())?, HeaderValue::try_from(header.value.as_str())?);
        request.headers_mut().insert(name, value);
    }
    Ok(request)
}

fn insecure() -> Arc<rustls::ClientConfig> {
    static CONFIG: OnceLock<Arc<rustls::ClientConfig>> = OnceLock::new();
    let make = || {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions();
        let builder = builder.expect("ring offers the default protocol versions").dangerous();
        Arc::new(builder.with_custom_certificate_verifier(Arc::new(Anybody(provider))).with_no_client_auth())
    };
    Arc::clone(CONFIG.get_or_init(make))
}

#[derive(Debug)]
struct Anybody(Arc<rustls::crypto::CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
