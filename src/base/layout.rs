//! The data folder: each path in it, and each path elsewhere that follows from which folder it is.
//!
//! A [`Layout`] is made once, from `--data-dir`. The store alone knows the files in its folder, `pki` alone those in a
//! folder of certificates: whoever wants one of these asks them.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::files::FileError;
use crate::{fnv, owner};

/// The data folder of a kedge that is told of no other.
pub const DEFAULT: &str = "/var/lib/kedge";

/// The administrator's folder of configuration.
pub const CONFIG_DIR: &str = "/etc/kedge";
/// The file of settings.
pub const CONFIG_FILE: &str = "/etc/kedge/config.yaml";
/// The file of settings that k3s left on this machine: read where there is none of ours.
pub const K3S_CONFIG_FILE: &str = "/etc/rancher/k3s/config.yaml";
/// The administrator's kubeconfig.
pub const KUBECONFIG: &str = "/etc/kedge/kedge.yaml";
/// Mirrors and credentials of registries.
pub const REGISTRIES: &str = "/etc/kedge/registries.yaml";
/// The same of k3s: read where there is none of ours.
pub const K3S_REGISTRIES: &str = "/etc/rancher/k3s/registries.yaml";
/// The record of what install.sh made.
pub const INSTALLED: &str = "/etc/kedge/installed";

/// Entries of the kubelet's folder.
pub const KUBELET_PARTS: [&str; 6] =
    ["pods", "plugins", "plugins_registry", "device-plugins", "pod-resources", "seccomp"];

/// Volumes of the local-path StorageClass, in the data folder.
pub const VOLUMES: &str = "storage";

/// Bundles that were applied, in the data folder.
pub const BUNDLE: &str = "bundle";

/// Entries of the data folder.
const DATA_PARTS: [&str; 6] = [SERVER, AGENT, "data", "node", VOLUMES, BUNDLE];
const SERVER: &str = "server";
const AGENT: &str = "agent";
/// State that a restore or a reset has put aside, with a time behind it.
const SERVER_BEFORE: &str = "server-old-";

/// Where the only kubelet of a machine has its folder: drivers of volumes and device plugins look for it there.
const KUBELET: &str = "/var/lib/kubelet";
/// Where the only kubelet of a machine has the logs of its pods.
const POD_LOGS: &str = "/var/log/pods";
/// The machine's identity, outside of the data folder: a new installation finds it again.
const IDENTITY: &str = "/etc/kedge/node";
/// Sockets and running state.
const RUN: &str = "/run/kedge";

/// The paths of one data folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    data_dir: PathBuf,
}

/// The folder as it was named.
impl fmt::Display for Layout {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.data_dir.display().fmt(out)
    }
}

impl Layout {
    /// The layout of this data folder.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Layout {
        Layout { data_dir: data_dir.into() }
    }

    /// Paths as they are below any data folder, for archives.
    #[must_use]
    pub fn relative() -> Layout {
        Layout::new("")
    }

    /// The usual folder. A machine has one node in it, so what others look for at fixed places may lie there; a node
    /// with another data folder has these things inside of that, so that several nodes can share a machine.
    fn is_default(&self) -> bool {
        self.data_dir == Path::new(DEFAULT)
    }

    /// The data folder itself.
    #[must_use]
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The half of a server.
    #[must_use]
    pub fn server(&self) -> ServerFolder {
        ServerFolder::new(self.data_dir.join(SERVER))
    }

    /// Where the server's half of before lies after a restore at `at_secs`.
    #[must_use]
    pub fn server_before(&self, at_secs: i64) -> PathBuf {
        self.data_dir.join(format!("{SERVER_BEFORE}{at_secs}"))
    }

    /// The half of a node.
    #[must_use]
    pub fn agent(&self) -> AgentFolder {
        AgentFolder::new(self.data_dir.join(AGENT))
    }

    /// Volumes of the local-path StorageClass.
    #[must_use]
    pub fn volumes(&self) -> PathBuf {
        self.data_dir.join(VOLUMES)
    }

    /// Bundles that were applied: one folder each, and the links `current` and `previous`.
    #[must_use]
    pub fn bundle(&self) -> PathBuf {
        self.data_dir.join(BUNDLE)
    }

    /// Programs of the bundle in force.
    #[must_use]
    pub fn bundle_bin(&self) -> PathBuf {
        self.bundle().join("current/bin")
    }

    /// Where containerd finds the plugins of the pods' network.
    #[must_use]
    pub fn cni_plugins(&self) -> PathBuf {
        self.data_dir.join("data/cni")
    }

    fn identity(&self) -> PathBuf {
        if self.is_default() { IDENTITY.into() } else { self.data_dir.join("node") }
    }

    /// The key with which this machine shows that it is the node it says.
    #[must_use]
    pub fn node_key(&self) -> PathBuf {
        self.identity().join("key")
    }

    /// The machine's own id, for `--with-node-id`.
    #[must_use]
    pub fn node_id(&self) -> PathBuf {
        self.identity().join("id")
    }

    /// Sockets and running state; one a data folder, so that several servers can share a machine.
    #[must_use]
    pub fn run(&self) -> RunFolder {
        if self.is_default() {
            return RunFolder(RUN.into());
        }
        let sum = fnv::sum(self.data_dir.as_os_str().as_encoded_bytes());
        RunFolder(format!("{RUN}-{:08x}", sum >> 32).into())
    }

    /// Beside [`Layout::run`], which lets root alone in: the folders of helm, which is another user.
    #[must_use]
    pub fn helm_run(&self) -> PathBuf {
        let mut path = self.run().0.into_os_string();
        path.push("-helm");
        path.into()
    }

    /// Logs of the node's pods.
    #[must_use]
    pub fn pod_logs(&self) -> PathBuf {
        if self.is_default() { POD_LOGS.into() } else { self.agent().0.join("pod-logs") }
    }

    /// The folder for a kubelet that is told of no other. Pods that an earlier version has mounted in the node's half
    /// keep that place until none is left.
    #[must_use]
    pub fn kubelet(&self) -> PathBuf {
        let own = self.agent().kubelet();
        let holds_pods = || std::fs::read_dir(own.join("pods")).is_ok_and(|mut pods| pods.next().is_some());
        if self.is_default() && !holds_pods() { KUBELET.into() } else { own }
    }

    /// The folder that the kubelet has used last.
    #[must_use]
    pub fn kubelet_in_use(&self) -> PathBuf {
        let agent = self.agent();
        let noted = std::fs::read_to_string(agent.kubelet_record());
        let dir = noted.map_or_else(|_| agent.kubelet(), PathBuf::from);
        // Earlier versions wrote it down with links in it.
        std::fs::canonicalize(&dir).unwrap_or(dir)
    }

    /// A private file of this process for a snapshot that is fetched.
    #[must_use]
    pub fn fetched(&self, name: &str) -> PathBuf {
        self.data_dir.join(format!(".from-s3-{}-{name}", std::process::id()))
    }

    /// Whether an entry of the data folder is kedge's: nothing else is removed from one that others use, too.
    #[must_use]
    pub fn is_part(name: &OsStr) -> bool {
        DATA_PARTS.iter().any(|part| name == *part) || name.to_string_lossy().starts_with(SERVER_BEFORE)
    }

    /// Whether a kedge that made no marks yet has worked here.
    #[must_use]
    pub fn was_used(&self) -> bool {
        let (server, agent) = (self.server(), self.agent());
        [server.db(), server.tls(), agent.kubelet_record(), agent.containerd()].iter().any(|part| part.exists())
    }

    /// Whether a path belongs to one of the two halves.
    #[must_use]
    pub fn holds(&self, path: &Path) -> bool {
        path.starts_with(self.server().0) || path.starts_with(self.agent().0)
    }

    /// Whether a path is one of a store, whichever the data folder.
    #[must_use]
    pub fn is_of_a_store(path: &Path) -> bool {
        path.to_string_lossy().contains("/server/db/")
    }

    /// Marks the data folder for `kedge uninstall`, which removes nothing else.
    ///
    /// Errors: the folder cannot be read or written.
    pub fn mark(&self) -> Result<(), FileError> {
        owner::mark(&self.data_dir, Layout::is_part).map(drop).map_err(FileError::at("cannot mark", &self.data_dir))
    }
}

/// Whether an entry of a kubelet's folder is kedge's. Pods that were there before its first start are somebody else's.
#[must_use]
pub fn is_of_kubelet(dir: &Path, name: &OsStr, earlier: bool) -> bool {
    let is_empty = || std::fs::read_dir(dir.join(name)).is_ok_and(|mut entries| entries.next().is_none());
    KUBELET_PARTS.iter().any(|part| name == *part) && (earlier || is_empty())
}

/// A server's half of the data folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerFolder(PathBuf);

impl ServerFolder {
    /// The half that lies at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> ServerFolder {
        ServerFolder(path.into())
    }

    /// Paths as they are below any such half: the names under which servers send each other files.
    #[must_use]
    pub fn relative() -> ServerFolder {
        ServerFolder::new("")
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Certificates and keys: `pki` knows the files.
    #[must_use]
    pub fn tls(&self) -> PathBuf {
        self.0.join("tls")
    }

    /// Certificates and keys that were put aside at `at_secs`.
    #[must_use]
    pub fn tls_aside(&self, at_secs: i64) -> PathBuf {
        aside(&self.0, at_secs)
    }

    /// The store: it knows its files.
    #[must_use]
    pub fn db(&self) -> PathBuf {
        self.0.join("db")
    }

    /// Snapshots, unless a flag names another folder.
    #[must_use]
    pub fn snapshots(&self) -> PathBuf {
        self.db().join("snapshots")
    }

    /// The socket on which the store speaks etcd's protocol.
    #[must_use]
    pub fn etcd_socket(&self) -> PathBuf {
        self.db().join("etcd.sock")
    }

    /// Says that the cluster's secrets are here: a server on an external etcd has no store that could tell.
    #[must_use]
    pub fn joined(&self) -> PathBuf {
        self.db().join("joined")
    }

    /// The servers' join token.
    #[must_use]
    pub fn token(&self) -> PathBuf {
        self.0.join("token")
    }

    /// The agents' join token.
    #[must_use]
    pub fn agent_token(&self) -> PathBuf {
        self.0.join("agent-token")
    }

    /// The name under which k3s users look for the token of nodes.
    #[must_use]
    pub fn node_token(&self) -> PathBuf {
        self.0.join("node-token")
    }

    /// Secrets that are neither certificates nor tokens.
    #[must_use]
    pub fn cred(&self) -> PathBuf {
        self.0.join("cred")
    }

    /// Keys of encryption at rest; k3s's name.
    #[must_use]
    pub fn encryption_config(&self) -> PathBuf {
        self.cred().join("encryption-config.json")
    }

    /// When the join tokens in use were set.
    #[must_use]
    pub fn tokens_set_at(&self) -> PathBuf {
        self.cred().join("join-tokens")
    }

    /// Authorities that are taken at the next start.
    #[must_use]
    pub fn next_authorities(&self) -> PathBuf {
        self.cred().join("authorities-next.json")
    }

    /// Keys of encryption at rest as an early kedge had them; snapshots carry them.
    #[must_use]
    pub fn early_encryption(&self) -> PathBuf {
        self.0.join("encryption")
    }

    /// Manifests that are applied.
    #[must_use]
    pub fn manifests(&self) -> PathBuf {
        self.0.join("manifests")
    }

    /// Files that the flags of `--profile` name.
    #[must_use]
    pub fn profile(&self) -> PathBuf {
        self.0.join("profile-cis")
    }

    /// The audit log of a server with a profile.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.0.join("logs")
    }

    /// Helm's folders where the server is not root.
    #[must_use]
    pub fn helm(&self) -> PathBuf {
        self.0.join("helm")
    }
}

/// A node's half of the data folder. Its certificates lie in it directly: `cluster::node_files` knows their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentFolder(PathBuf);

impl AgentFolder {
    /// The half that lies at `path`.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> AgentFolder {
        AgentFolder(path.into())
    }

    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Certificates and keys that were put aside at `at_secs`.
    #[must_use]
    pub fn tls_aside(&self, at_secs: i64) -> PathBuf {
        aside(&self.0, at_secs)
    }

    /// The node's knowledge of its cluster.
    #[must_use]
    pub fn membership(&self) -> PathBuf {
        self.0.join("membership.json")
    }

    /// The servers that the node knows.
    #[must_use]
    pub fn servers(&self) -> PathBuf {
        self.0.join("load-balancer.json")
    }

    /// The name with which the node began.
    #[must_use]
    pub fn node_name(&self) -> PathBuf {
        self.0.join("node-name")
    }

    /// The kubelet's folder where the machine has another kubelet, too.
    #[must_use]
    pub fn kubelet(&self) -> PathBuf {
        self.0.join("kubelet")
    }

    /// The kubelet's folder as it was chosen last.
    #[must_use]
    pub fn kubelet_record(&self) -> PathBuf {
        self.0.join("kubelet-dir")
    }

    /// Images and containers.
    #[must_use]
    pub fn containerd(&self) -> PathBuf {
        self.0.join("containerd")
    }

    /// Archives of images that are loaded.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.0.join("images")
    }

    /// Files of KubeletConfiguration that an administrator adds; k3s's name.
    #[must_use]
    pub fn kubelet_drop_ins(&self) -> PathBuf {
        self.0.join("etc/kubelet.conf.d")
    }

    /// Files of containerd's configuration that an administrator adds, in folders by k3s's names.
    #[must_use]
    pub fn containerd_drop_ins(&self) -> PathBuf {
        self.0.join("etc/containerd")
    }

    /// Manifests of static pods.
    #[must_use]
    pub fn manifests(&self) -> PathBuf {
        self.0.join("pod-manifests")
    }

    /// containerd's configuration of registries.
    #[must_use]
    pub fn registries(&self) -> PathBuf {
        self.0.join("etc/containerd/certs.d")
    }

    /// Where containerd finds the configuration of the pods' network.
    #[must_use]
    pub fn cni_conf(&self) -> PathBuf {
        self.0.join("etc/cni/net.d")
    }

    /// Addresses that pods have.
    #[must_use]
    pub fn cni_addresses(&self) -> PathBuf {
        self.0.join("cni/networks")
    }

    /// Where policies were when the server was heard last.
    #[must_use]
    pub fn policies(&self) -> PathBuf {
        self.0.join("policies.json")
    }
}

/// Sockets and running state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunFolder(PathBuf);

impl RunFolder {
    /// The folder itself.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// containerd's running state.
    #[must_use]
    pub fn containerd(&self) -> PathBuf {
        self.0.join("containerd")
    }

    /// Where containerd listens.
    #[must_use]
    pub fn containerd_socket(&self) -> PathBuf {
        self.containerd().join("containerd.sock")
    }

    /// Where the plugin of policies asks.
    #[must_use]
    pub fn network_socket(&self) -> PathBuf {
        self.0.join("network.sock")
    }

    /// Sandboxes that have asked there.
    #[must_use]
    pub fn sandboxes(&self) -> PathBuf {
        self.0.join("sandboxes.json")
    }
}

fn aside(dir: &Path, at_secs: i64) -> PathBuf {
    dir.join(format!("tls-{at_secs}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_folder_has_parts_where_others_look_for_them() {
        let usual = Layout::new(DEFAULT);
        assert_eq!(usual.node_key(), Path::new("/etc/kedge/node/key"));
        assert_eq!(usual.pod_logs(), Path::new("/var/log/pods"));
        assert_eq!(usual.run().containerd_socket(), Path::new("/run/kedge/containerd/containerd.sock"));
        assert_eq!(usual.helm_run(), Path::new("/run/kedge-helm"));
    }

    #[test]
    fn any_other_folder_has_everything_inside_but_its_sockets() {
        let (one, other) = (Layout::new("/data/one"), Layout::new("/data/other"));
        assert_eq!(one.node_key(), Path::new("/data/one/node/key"));
        assert_eq!(one.pod_logs(), Path::new("/data/one/agent/pod-logs"));
        assert_eq!(one.kubelet(), Path::new("/data/one/agent/kubelet"));
        assert!(one.run().path().to_string_lossy().starts_with("/run/kedge-") && one.run() != other.run());
        assert!(one.holds(Path::new("/data/one/server/db/x")) && !one.holds(Path::new("/data/one/storage/x")));
    }

    #[test]
    fn relative_paths_are_the_names_in_archives() {
        assert_eq!(Layout::relative().server().token(), Path::new("server/token"));
        assert_eq!(ServerFolder::relative().encryption_config(), Path::new("cred/encryption-config.json"));
    }

    #[test]
    fn parts_are_told_from_what_others_put_there() {
        for ours in ["server", "agent", "storage", "bundle", "server-old-17"] {
            assert!(Layout::is_part(OsStr::new(ours)), "{ours}");
        }
        assert!(!Layout::is_part(OsStr::new("photos")));
    }
}
