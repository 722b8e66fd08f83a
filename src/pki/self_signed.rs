//! Servers that are their own authority: a certificate that signed itself and stands in the bundle of those that are
//! trusted.
//!
//! Go takes such a server at its word, and so do webhooks' configurations; webpki does not when the certificate says
//! that it is an authority. It is taken here if it is the very one, of this name, and of this time.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::{DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::error::PkiError;
use crate::tls;

/// Checks servers against a bundle, each of whose certificates is also taken for itself.
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
