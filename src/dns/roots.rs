//! Certificate authorities that a resolver over TLS is trusted by, where the Corefile names none.

use std::path::Path;

use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

use crate::error::DnsError;

/// Where systems keep their bundle, in the order in which Go looks.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The system's bundle. The image of the cluster's DNS holds no files: there it is Mozilla's list, as of the build.
pub(crate) fn of_system() -> Result<RootCertStore, DnsError> {
    let mut roots = RootCertStore::empty();
    for bundle in BUNDLES.iter().filter(|path| Path::new(path).is_file()) {
        let certs =
            CertificateDer::pem_file_iter(bundle).map_err(|err| DnsError::Credentials(format!("{bundle}: {err}")))?;
        // A bundle may hold certificates that no verifier takes any more.
        roots.add_parsable_certificates(certs.filter_map(Result::ok));
        if !roots.is_empty() {
            return Ok(roots);
        }
    }
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    Ok(roots)
}
