//! libcni's records of every pod's network. It takes no pod down with a record that a power cut has torn, but does so
//! without one.

use std::fs;
use std::path::Path;

use serde::de::IgnoredAny;
use tracing::warn;

/// Names of our pods' two networks, the second being containerd's own.
const NETWORKS: [&str; 2] = ["kedge-", "cni-loopback-"];

/// Removes the records of our networks that are not JSON.
pub(super) fn drop_torn(dir: &Path) {
    // There is none before the first pod.
    let Ok(entries) = fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = path
            .file_name()
            .is_some_and(|name| NETWORKS.iter().any(|network| name.to_string_lossy().starts_with(network)));
        if !ours || fs::read(&path).is_ok_and(|bytes| serde_json::from_slice::<IgnoredAny>(&bytes).is_ok()) {
            continue;
        }
        match fs::remove_file(&path) {
            Ok(()) => warn!(path = %path.display(), "removed a torn record of a pod's network"),
            Err(err) => warn!(path = %path.display(), err = %err, "cannot remove a torn record of a pod's network"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_torn_records_of_our_networks_go() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("kedge-1-eth0", "{\"kind\":\"cniCacheV1\"}"),
            ("kedge-2-eth0", ""),
            ("kedge-3-eth0", "{\"kind\":"),
            ("other-4-eth0", ""),
        ];
        for (name, content) in files {
            fs::write(dir.path().join(name), content).unwrap();
        }
        drop_torn(dir.path());
        let mut left: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        assert_eq!(left, ["kedge-1-eth0", "other-4-eth0"]);
        drop_torn(&dir.path().join("nothing"));
    }
}
