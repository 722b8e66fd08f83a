//! A certificate with its key that can be replaced while connections run.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use base::files::FileError;
use base::secret::Secret;
use jiff::Timestamp;
use rustls::client::ResolvesClientCert;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{SignatureScheme, pki_types::CertificateDer};

use crate::error::PkiError;
use crate::{identity, pem};

/// One certificate chain with its key, as text and ready for TLS.
pub struct Pair {
    /// Leaf first, PEM.
    pub cert_pem: String,
    /// PEM.
    pub key_pem: Secret<String>,
    /// End of the leaf's life.
    pub not_after: Timestamp,
    key: Arc<CertifiedKey>,
}

impl Pair {
    /// Checks that both texts are what they should be and belong together.
    pub fn from_pem(cert: &str, key: &str) -> Result<Pair, PkiError> {
        let chain = pem::certificates(cert.as_bytes())?;
        let not_after = identity::parse(&chain[0])?.not_after;
        let signer = any_supported_type(&pem::private_key(key.as_bytes())?)
            .map_err(|err| PkiError::malformed("private key", err))?;
        let certified = CertifiedKey::new(chain, signer);
        match certified.keys_match() {
            // A key that cannot tell its public half is taken at its word.
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => {}
            Err(_) => {
                return Err(PkiError::malformed("private key", "it does not belong to the certificate beside it"));
            }
        }
        Ok(Pair {
            cert_pem: cert.to_owned(),
            key_pem: Secret::new(key.to_owned()),
            not_after,
            key: Arc::new(certified),
        })
    }

    /// The chain, leaf first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key.cert
    }
}

/// Holds the current [`Pair`]; rustls asks it at every handshake, so a swap needs no restart.
pub struct CertStore {
    current: ArcSwap<Pair>,
}

impl fmt::Debug for CertStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CertStore(until {})", self.current.load().not_after)
    }
}

impl CertStore {
    /// Starts with `pair`.
    pub fn new(pair: Pair) -> Arc<CertStore> {
        Arc::new(CertStore { current: ArcSwap::from_pointee(pair) })
    }

    /// Reads both files, PEM.
    pub fn load(cert: &Path, key: &Path) -> Result<Arc<CertStore>, PkiError> {
        let read = |path: &Path| std::fs::read_to_string(path).map_err(FileError::at("cannot read", path));
        Ok(CertStore::new(Pair::from_pem(&read(cert)?, &read(key)?).map_err(|err| err.in_file(cert))?))
    }

    /// The pair that is shown now.
    pub fn current(&self) -> Arc<Pair> {
        self.current.load_full()
    }

    /// Shows `pair` from the next handshake on.
    pub fn swap(&self, pair: Pair) {
        self.current.store(Arc::new(pair));
    }
}

impl ResolvesServerCert for CertStore {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.load().key.clone())
    }
}

impl ResolvesClientCert for CertStore {
    fn resolve(&self, _root_hints: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let current = self.current.load();
        current.key.key.choose_scheme(schemes).map(|_| current.key.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}
