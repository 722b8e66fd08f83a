//! The verifiers of TLS, one for each kind of trust: clients and servers by a bundle, servers that are their own
//! authority, any server, any handshake.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::bundle::Bundle;
use crate::error::PkiError;
use crate::tls;

/// Takes clients that the bundle vouches for at the time of the handshake, and clients that show no certificate.
#[derive(Debug)]
pub(crate) struct ClientsOf {
    bundle: Bundle,
    /// Names of authorities, to help clients choose; those of the beginning.
    hints: Vec<DistinguishedName>,
}

impl ClientsOf {
    pub(crate) fn new(bundle: &Bundle) -> ClientsOf {
        ClientsOf { bundle: bundle.clone(), hints: bundle.clients().root_hint_subjects().to_vec() }
    }
}

impl ClientCertVerifier for ClientsOf {
    fn offer_client_auth(&self) -> bool {
        self.bundle.clients().offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.bundle.clients().client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.bundle.clients().verify_client_cert(leaf, rest, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.bundle.clients().verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.bundle.clients().verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.bundle.clients().supported_verify_schemes()
    }
}

/// Takes servers that the bundle vouches for at the time of the handshake.
#[derive(Debug)]
pub(crate) struct ServersOf(pub(crate) Bundle);

impl ServerCertVerifier for ServersOf {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.0.servers().verify_server_cert(leaf, rest, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.servers().verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.servers().verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.servers().supported_verify_schemes()
    }
}

/// Takes servers that a bundle vouches for, and those whose certificate signed itself and stands in the bundle.
///
/// Go takes such a server at its word, and so do webhooks' configurations; webpki does not when the certificate says
/// that it is an authority. It is taken here if it is the very one, of this name, and of this time.
#[derive(Debug)]
pub(crate) struct OwnAuthority {
    chains: Arc<WebPkiServerVerifier>,
    trusted: Arc<Vec<CertificateDer<'static>>>,
}

impl OwnAuthority {
    pub(crate) fn new(
        roots: Arc<RootCertStore>,
        trusted: Arc<Vec<CertificateDer<'static>>>,
    ) -> Result<OwnAuthority, PkiError> {
        let chains = WebPkiServerVerifier::builder_with_provider(roots, tls::provider());
        let chains = chains.build().map_err(|err| PkiError::malformed("certificate", err))?;
        Ok(OwnAuthority { chains, trusted })
    }
}

impl ServerCertVerifier for OwnAuthority {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.chains.verify_server_cert(leaf, rest, name, ocsp, now) {
            Err(_) if self.trusted.iter().any(|c| c == leaf) && is_of(leaf, name, now) => {
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls12_signature(message, cert, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.chains.verify_tls13_signature(message, cert, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

/// Whether a certificate is good now, for this name.
fn is_of(leaf: &CertificateDer<'_>, name: &ServerName<'_>, now: UnixTime) -> bool {
    let Ok((_, cert)) = X509Certificate::from_der(leaf) else { return false };
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if cert.validity().not_before.timestamp() > now || cert.validity().not_after.timestamp() < now {
        return false;
    }
    let Ok(Some(names)) = cert.subject_alternative_name() else { return false };
    names.value.general_names.iter().any(|of| match (of, name) {
        (GeneralName::DNSName(pattern), ServerName::DnsName(wanted)) => fits(pattern, wanted.as_ref()),
        (GeneralName::IPAddress(bytes), ServerName::IpAddress(wanted)) => match IpAddr::from(*wanted) {
            IpAddr::V4(ip) => *bytes == ip.octets(),
            IpAddr::V6(ip) => *bytes == ip.octets(),
        },
        _ => false,
    })
}

/// A star stands for one label, the first.
fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(rest) => name.split_once('.').is_some_and(|(_, tail)| tail.eq_ignore_ascii_case(rest)),
        None => pattern.eq_ignore_ascii_case(name),
    }
}

/// Takes any server that signs the handshake with its certificate's key.
#[derive(Debug)]
pub(crate) struct AnyServer {
    provider: Arc<CryptoProvider>,
}

impl AnyServer {
    pub(crate) fn new(provider: Arc<CryptoProvider>) -> AnyServer {
        AnyServer { provider }
    }
}

impl ServerCertVerifier for AnyServer {
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

/// Takes any handshake. Its signature is not checked: of some certificates that Go reads webpki takes no key.
#[derive(Debug)]
pub(crate) struct AnyHandshake {
    provider: Arc<CryptoProvider>,
}

impl AnyHandshake {
    pub(crate) fn new(provider: Arc<CryptoProvider>) -> AnyHandshake {
        AnyHandshake { provider }
    }
}

impl ServerCertVerifier for AnyHandshake {
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
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_that_is_its_own_authority_is_taken_for_its_own_names_only() {
        let mut params = rcgen::CertificateParams::new(vec!["hook.ns.svc".to_owned(), "10.0.0.1".to_owned()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let cert = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        let der = cert.der().clone();
        let mut roots = RootCertStore::empty();
        roots.add(der.clone()).unwrap();
        let verifier = OwnAuthority::new(Arc::new(roots), Arc::new(vec![der.clone()])).unwrap();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(1_800_000_000));
        let good = |name: &str, of: &CertificateDer<'_>| {
            verifier.verify_server_cert(of, &[], &ServerName::try_from(name.to_owned()).unwrap(), &[], now).is_ok()
        };
        assert!(good("hook.ns.svc", &der) && good("10.0.0.1", &der));
        assert!(!good("other.ns.svc", &der) && !good("10.0.0.2", &der));
        let stranger = params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap();
        assert!(!good("hook.ns.svc", stranger.der()));
        assert!(fits("*.ns.svc", "a.ns.svc") && !fits("*.ns.svc", "a.b.ns.svc"));
    }
}
