//! A bundle of authorities to trust, and the question whether a client's chain leads to one of them.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use jiff::Timestamp;
use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::error::PkiError;
use crate::{pem, tls};

/// Trusted authorities; a copy is the same bundle, and what replaces one is in force for all set-ups made from it.
#[derive(Clone)]
pub struct Bundle {
    now: Arc<ArcSwap<Trusted>>,
}

struct Trusted {
    roots: Arc<RootCertStore>,
    clients: Arc<dyn ClientCertVerifier>,
    servers: Arc<WebPkiServerVerifier>,
    certs: Arc<Vec<CertificateDer<'static>>>,
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bundle({} authorities)", self.now.load().roots.len())
    }
}

/// Where distributions keep the system's authorities.
const SYSTEM_ROOTS: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

impl Bundle {
    /// The authorities that this machine trusts.
    ///
    /// Errors: it has none, or they cannot be read.
    pub fn of_system() -> Result<Bundle, PkiError> {
        let text = SYSTEM_ROOTS.iter().find_map(|path| std::fs::read_to_string(path).ok());
        Bundle::from_pem(&text.ok_or_else(|| {
            PkiError::malformed("authority", "this machine has no /etc/ssl/certs/ca-certificates.crt")
        })?)
    }

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
        let mut certs = self.certs().as_ref().clone();
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
        let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), tls::provider())
            .build()
            .map_err(|err| PkiError::malformed("certificate", err))?;
        Ok(Bundle { now: Arc::new(ArcSwap::from_pointee(Trusted { roots, clients, servers, certs: Arc::new(certs) })) })
    }

    /// One PEM text.
    pub fn from_pem(text: &str) -> Result<Bundle, PkiError> {
        Bundle::from_pems([text])
    }

    /// Whether `chain` (leaf first) leads to one of these authorities, at `now`, for client use.
    pub fn verify_client(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<(), PkiError> {
        let Some((leaf, rest)) = chain.split_first() else {
            return Err(PkiError::Untrusted("no certificate".to_owned()));
        };
        let since_epoch = std::time::Duration::from_secs(u64::try_from(now.as_second()).unwrap_or(0));
        let verdict = self.now.load().clients.verify_client_cert(leaf, rest, UnixTime::since_unix_epoch(since_epoch));
        verdict.map(drop).map_err(|err| PkiError::Untrusted(err.to_string()))
    }

    /// Trusts what `other` trusts, from the next handshake on.
    pub fn replace_with(&self, other: &Bundle) {
        self.now.store(other.now.load_full());
    }

    pub(crate) fn certs(&self) -> Arc<Vec<CertificateDer<'static>>> {
        self.now.load().certs.clone()
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        self.now.load().roots.clone()
    }

    /// Judges clients by what is trusted now.
    pub(crate) fn clients(&self) -> Arc<dyn ClientCertVerifier> {
        self.now.load().clients.clone()
    }

    /// Judges servers by what is trusted now.
    pub(crate) fn servers(&self) -> Arc<WebPkiServerVerifier> {
        self.now.load().servers.clone()
    }
}
