//! TLS set-ups: ring's cryptography, TLS 1.2 and 1.3, HTTP/2 before HTTP/1.1.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, ServerConfig, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::bundle::Bundle;
use crate::certstore::CertStore;
use crate::error::PkiError;

/// HTTP/2, then HTTP/1.1.
pub const ALPN_HTTP: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// HTTP/1.1 only, for connections that will be upgraded (SPDY, WebSocket).
pub const ALPN_HTTP1: [&[u8]; 1] = [b"http/1.1"];

/// The one provider of cryptography in this process.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// A server that shows what `certs` holds at each handshake. With `clients`, a client may show a certificate, and one that
/// leads to none of these authorities ends the handshake; a client that shows none is let in (as anonymous or by token).
pub fn server_config(certs: Arc<CertStore>, clients: Option<&Bundle>) -> Result<Arc<ServerConfig>, PkiError> {
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(PkiError::Tls)?;
    let builder = match clients {
        Some(bundle) => builder.with_client_cert_verifier(bundle.client_verifier()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(certs);
    config.alpn_protocols = ALPN_HTTP.iter().map(|p| p.to_vec()).collect();
    Ok(Arc::new(config))
}

/// A client that trusts `servers` and shows `cert` if it has one.
///
/// To speak HTTP/1.1 only, clone the configuration and set `alpn_protocols` from [`ALPN_HTTP1`].
pub fn client_config(servers: &Bundle, cert: Option<Arc<CertStore>>) -> Result<Arc<ClientConfig>, PkiError> {
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(PkiError::Tls)?;
    let builder = builder.with_root_certificates(servers.roots());
    let mut config = match cert {
        Some(cert) => builder.with_client_cert_resolver(cert),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = ALPN_HTTP.iter().map(|p| p.to_vec()).collect();
    Ok(Arc::new(config))
}

/// A client that takes any server's certificate, as upstream's HTTPS probes and the first look at `/cacerts` do.
pub fn unverified_client_config() -> Result<Arc<ClientConfig>, PkiError> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().map_err(PkiError::Tls)?;
    let mut config = builder.dangerous().with_custom_certificate_verifier(Arc::new(TrustAnyServer { provider })).with_no_client_auth();
    config.alpn_protocols = ALPN_HTTP.iter().map(|p| p.to_vec()).collect();
    Ok(Arc::new(config))
}

/// What members of the store name in ALPN: their protocol is served beside the API, on its port.
pub const ALPN_PEER: &[u8] = b"kedge-peer";

/// TLS between members of the store, the serving and the calling side: certificates of the peers' authority at both ends.
pub fn between_peers(ca: &Bundle, cert: &Arc<CertStore>) -> Result<(Arc<ServerConfig>, Arc<ClientConfig>), PkiError> {
    let mut server = ServerConfig::clone(&*server_config(Arc::clone(cert), Some(ca))?);
    let mut client = ClientConfig::clone(&*client_config(ca, Some(Arc::clone(cert)))?);
    server.alpn_protocols = vec![ALPN_PEER.to_vec()];
    client.alpn_protocols = vec![ALPN_PEER.to_vec()];
    Ok((Arc::new(server), Arc::new(client)))
}

/// A ready client set-up for rooms that do not know rustls.
pub struct ClientSetup(Arc<ClientConfig>);

impl ClientSetup {
    /// HTTP/1.1 only. `None` for `servers`: takes any server's certificate (and shows none of its own then).
    pub fn http1(servers: Option<&Bundle>, cert: Option<Arc<CertStore>>) -> Result<ClientSetup, PkiError> {
        let config = match servers {
            Some(servers) => client_config(servers, cert)?,
            None => unverified_client_config()?,
        };
        let mut config = ClientConfig::clone(&config);
        config.alpn_protocols = ALPN_HTTP1.iter().map(|p| p.to_vec()).collect();
        Ok(ClientSetup(Arc::new(config)))
    }

    /// For `wire`.
    pub fn config(&self) -> Arc<ClientConfig> {
        self.0.clone()
    }
}

#[derive(Debug)]
struct TrustAnyServer {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for TrustAnyServer {
    fn verify_server_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _rest: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, cert, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
