//! Ways to an API server: the pod's own with its service account, or one that the Corefile names with a certificate.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use client::transport::Credential;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::around::env;
use crate::error::DnsError;

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A certificate and its key, as files.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity<'a> {
    pub(crate) cert: &'a Path,
    pub(crate) key: &'a Path,
}

/// The namespace of the pod; `None` outside of a pod.
pub(crate) fn namespace() -> Option<String> {
    let path = Path::new(SERVICE_ACCOUNT).join("namespace");
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|name| !name.is_empty())
}

/// The pod's own API server.
pub(crate) fn of_pod() -> Result<kube::Client, DnsError> {
    let (Some(host), Some(port)) = (env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")) else {
        return Err(DnsError::NoApiServer);
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let tls = tls(&PathBuf::from(SERVICE_ACCOUNT).join("ca.crt"), None)?;
    // The kubelet renews the token; the transport reads the file for each request.
    let credential = Credential::TokenFile(PathBuf::from(SERVICE_ACCOUNT).join("token"));
    connect(&format!("https://{host}:{port}"), tls, credential)
}

/// Another API server, with a certificate of ours.
pub(crate) fn at(endpoint: &str, [cert, key, ca]: &[PathBuf; 3]) -> Result<kube::Client, DnsError> {
    connect(endpoint, tls(ca, Some(Identity { cert, key }))?, Credential::Certificate)
}

fn connect(server: &str, tls: rustls::ClientConfig, credential: Credential) -> Result<kube::Client, DnsError> {
    let authority = server.trim_start_matches("https://").trim_end_matches('/');
    let authority = authority.parse().map_err(|_| bad(&format!("{server:?} is not an https:// URL")))?;
    Ok(kube::Client::new(client::transport::tls(authority, tls, credential), "default"))
}

fn bad(what: &dyn Display) -> DnsError {
    DnsError::Credentials(what.to_string())
}

/// A configuration that trusts the certificates of the file `ca`.
pub(crate) fn tls(ca: &Path, identity: Option<Identity<'_>>) -> Result<rustls::ClientConfig, DnsError> {
    let mut roots = rustls::RootCertStore::empty();
    let in_ca = |err: &dyn Display| bad(&format!("{}: {err}", ca.display()));
    for cert in CertificateDer::pem_file_iter(ca).map_err(|err| in_ca(&err))? {
        roots.add(cert.map_err(|err| in_ca(&err))?).map_err(|err| in_ca(&err))?;
    }
    tls_of(roots, identity)
}

/// A configuration that trusts these roots.
pub(crate) fn tls_of(
    roots: rustls::RootCertStore,
    identity: Option<Identity<'_>>,
) -> Result<rustls::ClientConfig, DnsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|err| bad(&err))?;
    let builder = builder.with_root_certificates(roots);
    let Some(Identity { cert, key }) = identity else { return Ok(builder.with_no_client_auth()) };
    let in_file = |path: &Path, err: &dyn Display| bad(&format!("{}: {err}", path.display()));
    let certs: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).map_err(|err| in_file(cert, &err))?.collect();
    let private = PrivateKeyDer::from_pem_file(key).map_err(|err| in_file(key, &err))?;
    builder.with_client_auth_cert(certs.map_err(|err| in_file(cert, &err))?, private).map_err(|err| bad(&err))
}
