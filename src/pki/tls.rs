//! TLS set-ups: ring's cryptography, TLS 1.2 and 1.3, HTTP/2 before HTTP/1.1.

use std::sync::Arc;

use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, ServerConfig};

use crate::bundle::Bundle;
use crate::certstore::CertStore;
use crate::error::PkiError;
use crate::verifiers::{AnyHandshake, AnyServer, ClientsOf, OwnAuthority, ServersOf};

/// HTTP/2, then HTTP/1.1.
pub const ALPN_HTTP: [&[u8]; 2] = [b"h2", b"http/1.1"];
/// HTTP/1.1 only, for connections that will be upgraded (SPDY, WebSocket).
pub const ALPN_HTTP1: [&[u8]; 1] = [b"http/1.1"];

/// The one provider of cryptography in this process.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Which versions of TLS and which suites a server takes: upstream's `tls-min-version` and `tls-cipher-suites`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    only_tls13: bool,
    /// Of TLS 1.2; empty: all we have. Those of TLS 1.3 cannot be chosen, as in Go.
    suites: Vec<String>,
}

/// Suites of TLS 1.2 that Go knows and we do not have: in a list they are allowed and never spoken.
const NOT_OURS: [&str; 12] = [
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
];

/// A value of `tls-min-version` or `tls-cipher-suites` that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// A version that is too old.
    #[error("{0} is not spoken: want VersionTLS12 or VersionTLS13")]
    OldVersion(String),
    /// A version that nobody knows.
    #[error("unknown tls version {0:?}")]
    UnknownVersion(String),
    /// A suite that nobody knows.
    #[error("Cipher suite {0} not supported or doesn't exist")]
    UnknownSuite(String),
    /// Suites of which none is ours.
    #[error("none of these suites is spoken here")]
    NoSuite,
}

impl Policy {
    /// Reads `VersionTLS12` or `VersionTLS13`.
    ///
    /// Errors: a version that is not spoken.
    pub fn set_min_version(&mut self, text: &str) -> Result<(), PolicyError> {
        self.only_tls13 = match text {
            "VersionTLS12" => false,
            "VersionTLS13" => true,
            "VersionTLS10" | "VersionTLS11" => return Err(PolicyError::OldVersion(text.to_owned())),
            _ => return Err(PolicyError::UnknownVersion(text.to_owned())),
        };
        Ok(())
    }

    /// Reads suites by Go's names.
    ///
    /// Errors: a name that nobody knows, or none of them is ours.
    pub fn set_suites(&mut self, names: &[String]) -> Result<(), PolicyError> {
        let ours: Vec<&str> = provider().cipher_suites.iter().filter_map(|s| s.suite().as_str()).collect();
        let mut chosen = Vec::new();
        for name in names {
            // Go has a shorter name for the two with ChaCha20.
            let full = if name.ends_with("_CHACHA20_POLY1305") { format!("{name}_SHA256") } else { name.clone() };
            let tls13 = full.replacen("TLS_", "TLS13_", 1);
            if ours.contains(&full.as_str()) {
                chosen.push(full);
            } else if !ours.contains(&tls13.as_str()) && !NOT_OURS.contains(&name.as_str()) {
                return Err(PolicyError::UnknownSuite(name.clone()));
            }
        }
        if chosen.is_empty() && !names.is_empty() {
            return Err(PolicyError::NoSuite);
        }
        self.suites = chosen;
        Ok(())
    }

    fn provider(&self) -> CryptoProvider {
        let mut provider = rustls::crypto::ring::default_provider();
        if !self.suites.is_empty() {
            let wanted = |s: &rustls::SupportedCipherSuite| {
                s.suite().as_str().is_some_and(|n| self.suites.iter().any(|w| w == n))
            };
            provider.cipher_suites.retain(|s| s.tls13().is_some() || wanted(s));
        }
        provider
    }
}

/// The same as [`server_config`], by a policy.
pub fn server_config_by(
    policy: &Policy,
    certs: Arc<CertStore>,
    clients: Option<&Bundle>,
) -> Result<Arc<ServerConfig>, PkiError> {
    let versions: &[&rustls::SupportedProtocolVersion] = if policy.only_tls13 {
        &[&rustls::version::TLS13]
    } else {
        &[&rustls::version::TLS13, &rustls::version::TLS12]
    };
    let builder = ServerConfig::builder_with_provider(Arc::new(policy.provider()))
        .with_protocol_versions(versions)
        .map_err(PkiError::Tls)?;
    let builder = match clients {
        Some(bundle) => builder.with_client_cert_verifier(Arc::new(ClientsOf::new(bundle))),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(certs);
    if clients.is_some() {
        // A resumed session brings the client certificate of the first one back: after a renewal that is the old one,
        // and it ends.
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
    }
    config.alpn_protocols = ALPN_HTTP.iter().map(|p| p.to_vec()).collect();
    Ok(Arc::new(config))
}

/// A server that shows what `certs` holds at each handshake. With `clients`, a client may show a certificate, and one
/// that leads to none of these authorities ends the handshake; a client that shows none is let in (as anonymous or by
/// token).
pub fn server_config(certs: Arc<CertStore>, clients: Option<&Bundle>) -> Result<Arc<ServerConfig>, PkiError> {
    server_config_by(&Policy::default(), certs, clients)
}

/// A client that trusts `servers` and shows `cert` if it has one.
///
/// To speak HTTP/1.1 only, clone the configuration and set `alpn_protocols` from [`ALPN_HTTP1`].
pub fn client_config(servers: &Bundle, cert: Option<Arc<CertStore>>) -> Result<Arc<ClientConfig>, PkiError> {
    let builder =
        ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(PkiError::Tls)?;
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(ServersOf(servers.clone())));
    let shows_one = cert.is_some();
    let mut config = match cert {
        Some(cert) => builder.with_client_cert_resolver(cert),
        None => builder.with_no_client_auth(),
    };
    if shows_one {
        // A resumed session stands for the certificate it began with, which may have been renewed since.
        config.resumption = rustls::client::Resumption::disabled();
    }
    config.alpn_protocols = ALPN_HTTP.iter().map(|p| p.to_vec()).collect();
    Ok(Arc::new(config))
}

/// A client that takes any server's certificate, as the first look at `/cacerts` does.
pub fn unverified_client_config() -> Result<Arc<ClientConfig>, PkiError> {
    let mut config = unverified_by(Arc::new(AnyServer::new(provider())))?;
    config.alpn_protocols = ALPN_HTTP.iter().map(|p| p.to_vec()).collect();
    Ok(Arc::new(config))
}

/// A client that takes any handshake, readable certificate or not, and names no protocol in ALPN, as upstream's HTTPS
/// probes do.
pub fn probe_client_config() -> Result<Arc<ClientConfig>, PkiError> {
    Ok(Arc::new(unverified_by(Arc::new(AnyHandshake::new(provider())))?))
}

fn unverified_by(verifier: Arc<dyn ServerCertVerifier>) -> Result<ClientConfig, PkiError> {
    let builder =
        ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions().map_err(PkiError::Tls)?;
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// The ALPN name of the store's members: their protocol is served beside the API, on its port.
pub const ALPN_PEER: &[u8] = b"kedge-peer";

/// TLS between members of the store, the serving and the calling side: certificates of the peers' authority at both
/// ends.
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
            Some(servers) => {
                let mut config = ClientConfig::clone(&*client_config(servers, cert)?);
                let verifier = OwnAuthority::new(servers.roots(), servers.certs())?;
                config.dangerous().set_certificate_verifier(Arc::new(verifier));
                Arc::new(config)
            }
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

#[cfg(test)]
#[path = "tls_tests.rs"]
mod tests;
