//! What a node keeps of its membership under `<data-dir>/agent`: certificates, authorities, settings. With them it
//! starts while no server can be reached.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use base::files::{self, FileError};
use pki::bundle::Bundle;
use pki::certstore::{CertStore, Pair};
use pki::csr;
use pki::error::PkiError;
use pki::leaf::{LeafSpec, Usage};
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

/// What is remembered beside the certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Membership {
    /// The node's name.
    pub node_name: String,
    /// What every node must know.
    pub settings: Settings,
    /// The fingerprint of the cluster's authorities.
    #[serde(default)]
    pub authorities: String,
}

/// A node's credentials, ready for TLS; the stores stay the same over renewals.
pub struct NodeFiles {
    dir: PathBuf,
    /// `system:node:NAME`.
    pub kubelet: Arc<CertStore>,
    /// What port 10250 shows.
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

fn path(dir: &Path, stem: &str, ending: &str) -> PathBuf {
    dir.join(format!("{stem}.{ending}"))
}

fn read(path: &Path) -> Result<String, FileError> {
    std::fs::read_to_string(path).map_err(FileError::at("cannot read", path))
}

/// The authority that this node trusted last time, PEM.
pub fn known_ca(dir: &Path) -> Result<Option<String>, FileError> {
    Ok(files::read_if_exists(&dir.join("server-ca.crt"))?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// Writes what a server answered. The membership is written last: without it nothing of the rest counts.
pub fn save(dir: &Path, node: &str, keys: &Requests, welcome: &Welcome) -> Result<(), FileError> {
    files::create_private_dir(dir)?;
    let certs = [&welcome.kubelet_client, &welcome.kubelet_serving, &welcome.proxy_client];
    for ((stem, key), cert) in STEMS.iter().zip(&keys.keys).zip(certs) {
        files::write_atomic(&path(dir, stem, "key"), key.as_bytes(), 0o600)?;
        files::write_atomic(&path(dir, stem, "crt"), cert.as_bytes(), 0o600)?;
    }
    files::write_atomic(&dir.join("client-ca.crt"), welcome.client_ca.as_bytes(), 0o600)?;
    files::write_atomic(&dir.join("server-ca.crt"), welcome.server_ca.as_bytes(), 0o600)?;
    let membership = Membership {
        node_name: node.to_owned(),
        settings: welcome.settings.clone(),
        authorities: welcome.authorities.clone(),
    };
    files::write_atomic(
        &dir.join("membership.json"),
        &serde_json::to_vec_pretty(&membership).unwrap_or_default(),
        0o600,
    )
}

fn pair(dir: &Path, stem: &str) -> Result<Pair, PkiError> {
    Pair::from_pem(&read(&path(dir, stem, "crt"))?, &read(&path(dir, stem, "key"))?)
}

impl NodeFiles {
    /// Reads what was saved; `None` if this machine never joined, or what is there cannot be used (then it joins anew).
    pub fn load(dir: &Path) -> Option<NodeFiles> {
        let membership = serde_json::from_slice(&std::fs::read(dir.join("membership.json")).ok()?).ok()?;
        let [kubelet, serving, proxy] = STEMS.map(|stem| pair(dir, stem).ok().map(CertStore::new));
        Some(NodeFiles {
            dir: dir.to_owned(),
            kubelet: kubelet?,
            serving: serving?,
            proxy: proxy?,
            servers: Bundle::from_pem(&read(&dir.join("server-ca.crt")).ok()?).ok()?,
            clients: Bundle::from_pem(&read(&dir.join("client-ca.crt")).ok()?).ok()?,
            membership,
        })
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// When the oldest of the files was written, in seconds since 1970; `None` if one is missing.
    pub fn written_secs(&self) -> Option<i64> {
        use std::os::unix::fs::MetadataExt as _;
        let all = STEMS.iter().flat_map(|stem| ["crt", "key"].map(|ending| path(&self.dir, stem, ending)));
        all.map(|file| std::fs::metadata(file).ok().map(|meta| meta.mtime()))
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .min()
    }

    /// Shows the saved certificates from the next handshake on, and trusts the saved authorities.
    pub fn swap(&self) -> Result<(), PkiError> {
        for (name, bundle) in [("server-ca.crt", &self.servers), ("client-ca.crt", &self.clients)] {
            bundle.replace_with(&Bundle::from_pem(&read(&self.dir.join(name))?)?);
        }
        for (stem, store) in STEMS.iter().zip([&self.kubelet, &self.serving, &self.proxy]) {
            store.swap(pair(&self.dir, stem)?);
        }
        Ok(())
    }
}
