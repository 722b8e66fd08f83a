//! The data folder: which file of it is whose.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use base::files::FileError;
use base::owner;

/// In the data folder: the kubelet's folder, as it was chosen last.
pub(crate) const KUBELET_RECORD: &str = "agent/kubelet-dir";

/// What lies in the kubelet's folder.
pub(crate) const KUBELET_PARTS: [&str; 6] =
    ["pods", "plugins", "plugins_registry", "device-plugins", "pod-resources", "seccomp"];

/// What lies in the data folder.
const DATA_PARTS: [&str; 5] = ["server", "agent", "data", "node", "storage"];

/// Folder for sockets and running state; one a data dir, so that several servers can share a machine.
pub(crate) fn run_dir(data_dir: &Path) -> PathBuf {
    if data_dir == Path::new("/var/lib/kedge") {
        return PathBuf::from("/run/kedge");
    }
    let sum = base::fnv::sum(data_dir.as_os_str().as_encoded_bytes());
    PathBuf::from(format!("/run/kedge-{:08x}", sum >> 32))
}

/// Beside [`run_dir`], which lets root alone in: where helm, another user, has its folders.
pub(crate) fn helm_dir(data_dir: &Path) -> PathBuf {
    let mut path = run_dir(data_dir).into_os_string();
    path.push("-helm");
    path.into()
}

/// Where containerd finds the plugins of the pods' network.
pub(crate) fn cni_bin_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("data/cni")
}

/// Where containerd finds the configuration of the pods' network.
pub(crate) fn cni_conf_dir(data_dir: &Path) -> PathBuf {
    data_dir.join("agent/etc/cni/net.d")
}

/// What kedge's kubelet has in its folder. Pods that were there before its first start are somebody else's.
pub(crate) fn is_of_kubelet(dir: &Path, name: &OsStr, earlier: bool) -> bool {
    let is_empty = || std::fs::read_dir(dir.join(name)).is_ok_and(|mut entries| entries.next().is_none());
    KUBELET_PARTS.iter().any(|part| name == *part) && (earlier || is_empty())
}

/// Marks the data folder for `kedge uninstall`, which removes nothing else.
pub(crate) fn mark_data_dir(data_dir: &Path) -> Result<(), FileError> {
    owner::mark(data_dir, is_of_data_dir).map(drop).map_err(FileError::at("cannot mark", data_dir))
}

/// What kedge has in its data folder: nothing else is removed from one that others use, too.
pub(crate) fn is_of_data_dir(name: &OsStr) -> bool {
    DATA_PARTS.iter().any(|part| name == *part) || name.to_string_lossy().starts_with("server-old-")
}

/// The folder that the kubelet of a data folder has used last.
pub(crate) fn kubelet_dir(data_dir: &Path) -> PathBuf {
    let noted = std::fs::read_to_string(data_dir.join(KUBELET_RECORD));
    let dir = noted.map_or_else(|_| data_dir.join("agent/kubelet"), PathBuf::from);
    // Earlier versions wrote it down with links in it.
    std::fs::canonicalize(&dir).unwrap_or(dir)
}
