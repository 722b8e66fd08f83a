//! The administrator's client for commands that talk to a running server: made from a kubeconfig.

use std::path::{Path, PathBuf};

use base::files::FileError;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::transport::{self, Clients, Credential};
use pki::bundle::Bundle;
use pki::certstore::{CertStore, Pair};
use pki::error::PkiError;
use serde_json::Value;

/// Why the kubeconfig does not lead to a server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AdminError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "{path} is no kubeconfig with a server, its authority and a client certificate: {why}",
        path = path.display()
    )]
    Kubeconfig { path: PathBuf, why: String },
    #[error("certificates")]
    Pki(#[from] PkiError),
}

/// Contents of a kubeconfig's current context.
pub(crate) struct Admin {
    /// PEM.
    pub(crate) ca: String,
    /// The API's URL.
    pub(crate) server: String,
    pub(crate) client: kube::Client,
}

/// The item of this name in a list of `{name, …}`.
fn named<'a>(list: &'a Value, name: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find(|item| item["name"] == name)
}

/// Server URL, authority, certificate and key, the last three PEM.
fn current(document: &Value) -> Option<[String; 4]> {
    let context = &named(&document["contexts"], document["current-context"].as_str()?)?["context"];
    let cluster = &named(&document["clusters"], context["cluster"].as_str()?)?["cluster"];
    let user = &named(&document["users"], context["user"].as_str()?)?["user"];
    let pem = |value: &Value| String::from_utf8(STANDARD.decode(value.as_str()?).ok()?).ok();
    Some([
        cluster["server"].as_str()?.to_owned(),
        pem(&cluster["certificate-authority-data"])?,
        pem(&user["client-certificate-data"])?,
        pem(&user["client-key-data"])?,
    ])
}

impl Admin {
    /// Reads the kubeconfig that a server wrote. Must be called within a tokio runtime.
    pub(crate) fn open(path: &Path) -> Result<Admin, AdminError> {
        let bad = |why: &str| AdminError::Kubeconfig { path: path.to_owned(), why: why.to_owned() };
        let text = std::fs::read_to_string(path).map_err(FileError::at("cannot read", path))?;
        let document: Value = serde_saphyr::from_str(&text).map_err(|err| bad(&err.to_string()))?;
        let [server, ca, cert, key] =
            current(&document).ok_or_else(|| bad("something is missing in its current context"))?;
        let address = cluster::join::address_of(&server).map_err(|err| bad(&err.to_string()))?;
        let authority: http::uri::Authority =
            address.parse().map_err(|_| bad("the server's address cannot be read"))?;
        let shown = CertStore::new(Pair::from_pem(&cert, &key)?);
        let tls = rustls::ClientConfig::clone(&*pki::tls::client_config(&Bundle::from_pem(&ca)?, Some(shown))?);
        let clients = Clients::new(move |_| transport::tls(authority.clone(), tls.clone(), Credential::Certificate));
        Ok(Admin { ca, server, client: clients.for_user("") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubeconfig_that_a_server_writes_is_read_back() {
        let written = pki::kubeconfig::Kubeconfig {
            server_url: "https://127.0.0.1:6443",
            ca_pem: "ca",
            cert_pem: "cert",
            key_pem: "key",
        };
        let document: Value = serde_saphyr::from_str(&written.text()).unwrap();
        assert_eq!(current(&document).unwrap(), ["https://127.0.0.1:6443", "ca", "cert", "key"]);
    }
}
