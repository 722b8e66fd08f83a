//! HTTP probes and hooks. Certificates are not verified: the probe asks whether the server lives, not who it is.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::header::{ACCEPT, CONNECTION, HOST, HeaderName, HeaderValue, USER_AGENT};
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use wire::dial::DialError;

use super::run::{dial_text, joined, port_of};
use crate::node::Node;

/// The minor version that the probes' user agent tells.
const AGENT: &str = "kube-probe/1.36";

/// One GET; the error is upstream's text. Any status from 200 to 399 is good.
pub(crate) async fn get(get: &HTTPGetAction, container: &Container, host: &str, timeout: Duration, node: &Node) -> Result<(), String> {
    let port = port_of(&get.port, container).ok_or_else(|| format!("couldn't extract HTTP port: {:?}", get.port))?;
    let scheme = get.scheme.as_deref().unwrap_or("HTTP").to_lowercase();
    let path = get.path.as_deref().filter(|p| !p.is_empty()).unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let url = format!("{scheme}://{}{path}", joined(host, port));
    let ask = async {
        let tls = (scheme == "https").then(insecure);
        let stream = wire::dial::tcp(host, port, host, tls).await.map_err(|err| match err {
            DialError::Connect { source, .. } => format!("Get \"{url}\": {}", dial_text(host, port, &source)),
            other => format!("Get \"{url}\": {other}"),
        })?;
        let request = request(get, &path, host, port).map_err(|err| format!("Get \"{url}\": {err}"))?;
        // The connection's task ends with the answer: dropping it closes the socket.
        let group = node.group.child("http-probe");
        let answer = wire::dial::request(stream, &url, request, &group).await.map_err(|err| format!("Get \"{url}\": {}", base::chain::Chain(&err)))?;
        match answer.status().as_u16() {
            200..400 => Ok(()),
            code => Err(format!("HTTP probe failed with statuscode: {code}")),
        }
    };
    match tokio::time::timeout(timeout, ask).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("Get \"{url}\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)")),
    }
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

    fn verify_tls12_signature(&self, _: &[u8], _: &CertificateDer<'_>, _: &DigitallySignedStruct) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(&self, _: &[u8], _: &CertificateDer<'_>, _: &DigitallySignedStruct) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
