//! A node's files about its membership under `<data-dir>/agent`: certificates, authorities, settings. With them it
//! starts while no server can be reached.

use std::path::Path;
use std::sync::Arc;

use base::files::{self, FileError};
use base::layout::AgentFolder;
use pki::bundle::Bundle;
use pki::certstore::{CertStore, Pair};
use pki::csr;
use pki::error::PkiError;
use pki::folder;
use pki::leaf::{Ca, LeafSpec, Usage};
use serde::{Deserialize, Serialize};

use crate::protocol::{Settings, Welcome};

/// Files of one certificate, by their stem.
const STEMS: [&str; 3] = ["client-kubelet", "serving-kubelet", "client-kube-proxy"];

/// New keys with the requests for their certificates, in the order kubelet client, kubelet serving, proxy client.
pub struct Requests {
    keys: [String; 3],
    /// DER.
    pub requests: [Vec<u8>; 3],
}

impl Requests {
    /// Keys and requests for a node of this name at these addresses.
    pub fn new(node: &str, ips: &[std::net::IpAddr]) -> Result<Requests, PkiError> {
        let spec = |user: &str, groups: &[&str], sans: Vec<String>, usage| LeafSpec {
            common_name: user.to_owned(),
            organizations: groups.iter().map(|&g| g.to_owned()).collect(),
            sans: sans.into_iter().collect(),
            usage,
        };
        let user = format!("system:node:{node}");
        let names = std::iter::once(node.to_owned()).chain(ips.iter().map(ToString::to_string)).collect();
        let (a, client) = csr::create(&spec(&user, &["system:nodes"], Vec::new(), Usage::Client))?;
        let (b, serving) = csr::create(&spec(&user, &["system:nodes"], names, Usage::Server))?;
        let (c, proxy) = csr::create(&spec("system:kube-proxy", &[], Vec::new(), Usage::Client))?;
        Ok(Requests { keys: [a, b, c], requests: [client, serving, proxy] })
    }
}

/// Facts that are kept beside the certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// The node's name.
    pub node_name: String,
    /// The settings of every node.
    pub settings: Settings,
    /// The fingerprint of the cluster's authorities.
    #[serde(default)]
    pub authorities: String,
}

/// A node's credentials, ready for TLS; the stores stay the same over renewals.
pub struct NodeFiles {
    folder: AgentFolder,
    /// `system:node:NAME`.
    pub kubelet: Arc<CertStore>,
    /// The certificate of port 10250.
    pub serving: Arc<CertStore>,
    /// `system:kube-proxy`.
    pub proxy: Arc<CertStore>,
    /// Authorities of servers.
    pub servers: Bundle,
    /// Authorities of clients.
    pub clients: Bundle,
    /// Name and settings.
    pub membership: Membership,
}

fn read(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(FileError::at("cannot read", path))
}

/// The authority that this node trusted last time, PEM.
pub fn known_ca(dir: &Path) -> Result<Option<String>, FileError> {
    let known = files::read_if_exists(&folder::certificate(dir, Ca::Server.stem()))?;
    Ok(known.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Writes what a server answered. The membership is written last: without it nothing of the rest counts.
pub fn save(dir: &Path, node: &str, keys: &Requests, welcome: &Welcome) -> Result<(), FileError> {
    files::create_private_dir(dir)?;
    let certs = [&welcome.kubelet_client, &welcome.kubelet_serving, &welcome.proxy_client];
    for ((stem, key), cert) in STEMS.iter().zip(&keys.keys).zip(certs) {
        files::write_atomic(&folder::key(dir, stem), key.as_bytes(), 0o600)?;
        files::write_atomic(&folder::certificate(dir, stem), cert.as_bytes(), 0o600)?;
    }
    for (ca, text) in [(Ca::Client, &welcome.client_ca), (Ca::Server, &welcome.server_ca)] {
        files::write_atomic(&folder::certificate(dir, ca.stem()), text.as_bytes(), 0o600)?;
    }
    let membership = Membership {
        node_name: node.to_owned(),
        settings: welcome.settings.clone(),
        authorities: welcome.authorities.clone(),
    };
    files::write_atomic(
        &AgentFolder::new(dir).membership(),
        &serde_json::to_vec_pretty(&membership).unwrap_or_default(),
        0o600,
    )
}

fn pair(dir: &Path, stem: &str) -> Result<Pair, PkiError> {
    Pair::from_pem(&read(&folder::certificate(dir, stem))?, &read(&folder::key(dir, stem))?)
}

impl NodeFiles {
    /// Reads what was saved; `None` if this machine never joined, or what is there cannot be used (then it joins anew).
    pub fn load(folder: &AgentFolder) -> Option<NodeFiles> {
        let dir = folder.path();
        let membership = serde_json::from_slice(&std::fs::read(folder.membership()).ok()?).ok()?;
        let bundle = |ca: Ca| Bundle::from_pem(&read(&folder::certificate(dir, ca.stem())).ok()?).ok();
        let [kubelet, serving, proxy] = STEMS.map(|stem| pair(dir, stem).ok().map(CertStore::new));
        Some(NodeFiles {
            folder: folder.clone(),
            kubelet: kubelet?,
            serving: serving?,
            proxy: proxy?,
            servers: bundle(Ca::Server)?,
            clients: bundle(Ca::Client)?,
            membership,
        })
    }

    /// The folder.
    pub fn folder(&self) -> &AgentFolder {
        &self.folder
    }

    /// When the oldest of the files was written, in seconds since 1970; `None` if one is missing.
    pub fn written_secs(&self) -> Option<i64> {
        use std::os::unix::fs::MetadataExt as _;
        let dir = self.folder.path();
        let all = STEMS.iter().flat_map(|stem| [folder::certificate(dir, stem), folder::key(dir, stem)]);
        all.map(|file| std::fs::metadata(file).ok().map(|meta| meta.mtime()))
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .min()
    }

    /// Shows the saved certificates from the next handshake on, and trusts the saved authorities.
    pub fn swap(&self) -> Result<(), PkiError> {
        let dir = self.folder.path();
        for (ca, bundle) in [(Ca::Server, &self.servers), (Ca::Client, &self.clients)] {
            bundle.replace_with(&Bundle::from_pem(&read(&folder::certificate(dir, ca.stem()))?)?);
        }
        for (stem, store) in STEMS.iter().zip([&self.kubelet, &self.serving, &self.proxy]) {
            store.swap(pair(dir, stem)?);
        }
        Ok(())
    }
}
