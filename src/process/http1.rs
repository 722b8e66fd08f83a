//! A TLS configuration that speaks HTTP/1.1 alone.

use std::sync::Arc;

/// The same set-up for HTTP/1.1 alone.
pub(crate) fn h1(config: &rustls::ClientConfig) -> Arc<rustls::ClientConfig> {
    let mut config = config.clone();
    config.alpn_protocols = pki::tls::ALPN_HTTP1.iter().map(|p| p.to_vec()).collect();
    Arc::new(config)
}
