//! A bundle of authorities to trust, and the question whether a client's chain leads to one of them.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::error::PkiError;
use crate::{pem, tls};

/// Trusted authorities.
#[derive(Clone)]
pub struct Bundle {
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    certs: Arc<Vec<CertificateDer<'static>>>,
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bundle({} authorities)", self.roots.len())
    }
}

impl Bundle {
    /// Every certificate of the PEM texts becomes a trusted authority.
    pub fn from_pems<'a>(texts: impl IntoIterator<Item = &'a str>) -> Result<Bundle, PkiError> {
        let mut certs = Vec::new();
        for text in texts {
            certs.extend(pem::certificates(text.as_bytes())?);
        }
        Bundle::from_certs(certs)
    }

    /// These authorities and those of a PEM text; an empty one adds none.
    pub fn and(&self, text: &str) -> Result<Bundle, PkiError> {
        let mut certs = self.certs.as_ref().clone();
        if !text.trim().is_empty() {
            certs.extend(pem::certificates(text.as_bytes())?);
        }
        Bundle::from_certs(certs)
    }

    fn from_certs(certs: Vec<CertificateDer<'static>>) -> Result<Bundle, PkiError> {
        let mut roots = RootCertStore::empty();
        for cert in &certs {
            roots.add(cert.clone()).map_err(|err| PkiError::malformed("certificate", err))?;
        }
        let roots = Arc::new(roots);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), tls::provider())
            .allow_unauthenticated()
            .build()
            .map_err(|err| PkiError::malformed("certificate", err))?;
        Ok(Bundle { roots, clients, certs: Arc::new(certs) })
    }

    /// One PEM text.
    pub fn from_pem(text: &str) -> Result<Bundle, PkiError> {
        Bundle::from_pems([text])
    }

    /// Whether `chain` (leaf first) leads to one of these authorities, at `now`, for client use.
    pub fn verify_client(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<(), PkiError> {
        let Some((leaf, rest)) = chain.split_first() else { return Err(PkiError::Untrusted("no certificate".to_owned())) };
        let since_epoch = std::time::Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0));
        let verdict = self.clients.verify_client_cert(leaf, rest, UnixTime::since_unix_epoch(since_epoch));
        verdict.map(drop).map_err(|err| PkiError::Untrusted(err.to_string()))
    }

    pub(crate) fn certs(&self) -> Arc<Vec<CertificateDer<'static>>> {
        self.certs.clone()
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        self.roots.clone()
    }

    pub(crate) fn client_verifier(&self) -> Arc<dyn ClientCertVerifier> {
        self.clients.clone()
    }
}
