//! Errors of keys, certificates and tokens.

use std::path::PathBuf;

/// An error of this room.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error(transparent)]
    File(#[from] base::files::FileError),
    /// A file is there but does not hold what its name promises.
    #[error("{path} holds no usable {what}: {why}", path = path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The wanted content, e.g. `certificate`.
        what: &'static str,
        /// The fault, and the remedy where one is known.
        why: String,
    },
    /// Text that should hold a certificate or key does not.
    #[error("no usable {what}: {why}")]
    Malformed {
        /// The wanted kind.
        what: &'static str,
        /// The fault.
        why: String,
    },
    /// A certificate could not be made.
    #[error("cannot make the certificate {subject}")]
    Issue {
        /// Its common name.
        subject: String,
        /// Why.
        source: rcgen::Error,
    },
    /// A certificate signing request asks for something that its profile refuses.
    #[error("certificate signing request refused: {0}")]
    Refused(String),
    /// A certificate chain that no trusted authority vouches for, or that is out of its time.
    #[error("x509: {0}")]
    Untrusted(String),
    /// TLS could not be set up.
    #[error("cannot set up TLS")]
    Tls(#[source] rustls::Error),
    /// A private key could not sign.
    #[error("cannot sign")]
    Sign,
}

impl PkiError {
    pub(crate) fn malformed(what: &'static str, why: impl ToString) -> PkiError {
        PkiError::Malformed { what, why: why.to_string() }
    }

    /// The same error with the file it came from.
    pub(crate) fn in_file(self, path: &std::path::Path) -> PkiError {
        match self {
            PkiError::Malformed { what, why } => PkiError::Unusable { path: path.to_owned(), what, why },
            other => other,
        }
    }
}
