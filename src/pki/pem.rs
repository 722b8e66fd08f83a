//! Reading PEM text: certificates, private keys, public keys.

use rustls_pki_types::pem::{PemObject as _, SectionKind};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::error::PkiError;

/// Every certificate of `text`, in order; at least one.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let certs = CertificateDer::pem_slice_iter(text)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|err| PkiError::malformed("certificate", err))?;
    if certs.is_empty() { Err(PkiError::malformed("certificate", "no CERTIFICATE block")) } else { Ok(certs) }
}

/// The first private key of `text`.
pub(crate) fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, PkiError> {
    PrivateKeyDer::from_pem_slice(text).map_err(|err| PkiError::malformed("private key", err))
}

/// The first private key of `text`, which must be in PKCS #8 form.
pub(crate) fn pkcs8_key(text: &[u8]) -> Result<PrivatePkcs8KeyDer<'static>, PkiError> {
    match private_key(text)? {
        PrivateKeyDer::Pkcs8(key) => Ok(key),
        _ => Err(PkiError::malformed(
            "private key",
            "it is not in PKCS #8 form; convert it with: openssl pkcs8 -topk8 -nocrypt",
        )),
    }
}

/// Every section of `text` as its kind and bytes.
pub(crate) fn sections(text: &[u8]) -> Result<Vec<(SectionKind, Vec<u8>)>, PkiError> {
    let mut rest = text;
    let mut sections = Vec::new();
    while let Some(section) =
        rustls_pki_types::pem::from_buf(&mut rest).map_err(|err| PkiError::malformed("PEM text", err))?
    {
        sections.push(section);
    }
    Ok(sections)
}

/// `der` as one PEM block.
pub fn encode(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = format!("-----BEGIN {label}-----\n");
    for line in text.as_bytes().chunks(64) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    out.push_str(&format!("-----END {label}-----\n"));
    out
}
