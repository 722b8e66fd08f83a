//! The marks of volumes that were made ready for a pod: their mode and owner are the pod's own business from then on.
//! As upstream's.

use std::io;
use std::path::{Path, PathBuf};

use base::confined::Dir;
use k8s_openapi::api::core::v1::Pod;

use super::plugin::Plugin;
use super::pod_dir;
use crate::config::Config;

/// Folders of pods, and volumes of one pod, that are looked through.
const PODS_MAX: usize = 1 << 16;
const VOLUMES_MAX: usize = 1 << 12;
/// Bytes of a path.
const PATH_BYTES_MAX: usize = 4096;

/// The file that says that a volume of a pod was made ready.
pub(super) fn mark(config: &Config, pod: &Pod, plugin: Plugin, volume: &str) -> PathBuf {
    pod_dir(config, pod.metadata.uid.as_deref().unwrap_or_default())
        .join("plugins")
        .join(plugin.folder())
        .join(volume)
        .join("ready")
}

pub(super) fn note_ready(mark: &Path, text: &str) -> io::Result<()> {
    let dir = Dir::open_or_make(mark.parent().unwrap_or(mark), 0o750)?;
    dir.write(Path::new("ready"), text.as_bytes(), 0o644)
}

/// Whether a pod's mark names this local volume.
pub(super) fn is_in_use(pods: &Path, volume: &str) -> io::Result<bool> {
    let dir = Dir::open(pods)?;
    for (uid, _) in dir.entries(PODS_MAX)? {
        let marks = Path::new(&uid).join("plugins").join(Plugin::LocalVolume.folder());
        let Ok(volumes) = dir.dir(&marks) else { continue };
        for (name, _) in volumes.entries(VOLUMES_MAX)? {
            let noted = volumes.read(&Path::new(&name).join("ready"), PATH_BYTES_MAX);
            if noted.is_ok_and(|text| text == volume.as_bytes()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    // node.md M11: a database's files changed hands while it ran.
    #[test]
    fn a_local_volume_is_in_use_while_a_pods_mark_names_it() {
        let pods = tempfile::tempdir().unwrap();
        let mark = pods.path().join("uid/plugins/kubernetes.io~local-volume/v/ready");
        assert!(!is_in_use(pods.path(), "/data").unwrap());
        note_ready(&mark, "/data").unwrap();
        assert!(is_in_use(pods.path(), "/data").unwrap() && !is_in_use(pods.path(), "/dat").unwrap());
    }
}
