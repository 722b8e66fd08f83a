//! Where a driver's volumes lie, and the file `vol_data.json` that says what each is. Both as upstream's, since drivers
//! look there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base::confined::Dir;
use base::files::write_atomic;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

const FILE: &str = "vol_data.json";
/// Bytes of that file. Drivers see the folders in which it lies.
const BYTES_MAX: usize = 64 * 1024;

/// What is known of a volume; empty parts are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Data {
    #[serde(rename = "attachmentID", skip_serializing_if = "String::is_empty")]
    pub(super) attachment: String,
    #[serde(rename = "driverName")]
    pub(super) driver: String,
    #[serde(rename = "nodeName", skip_serializing_if = "String::is_empty")]
    pub(super) node: String,
    #[serde(rename = "specVolID", skip_serializing_if = "String::is_empty")]
    pub(super) spec: String,
    #[serde(rename = "volumeHandle")]
    pub(super) handle: String,
    #[serde(rename = "volumeLifecycleMode", skip_serializing_if = "String::is_empty")]
    pub(super) mode: String,
}

impl Data {
    /// Of a volume that is mounted once for the node.
    pub(super) fn staged(driver: &str, handle: &str) -> Data {
        Data { driver: driver.to_owned(), handle: handle.to_owned(), ..Data::default() }
    }

    /// Whether the volume lives as long as its pod.
    pub(super) fn is_ephemeral(&self) -> bool {
        self.mode == "Ephemeral"
    }

    pub(super) fn write(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        let text = serde_json::to_vec(self).map_err(io::Error::other)?;
        write_atomic(&dir.join(FILE), &text, 0o600).map_err(io::Error::other)
    }

    /// `None` if there is no such file.
    pub(super) fn read(dir: &Path) -> io::Result<Option<Data>> {
        match Dir::open(dir).and_then(|dir| dir.read(Path::new(FILE), BYTES_MAX)) {
            Ok(text) => serde_json::from_slice(&text)
                .map(Some)
                .map_err(|err| io::Error::other(format!("{}/{FILE}: {err}", dir.display()))),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(err) => Err(err),
        }
    }

    pub(super) fn remove(dir: &Path) -> io::Result<()> {
        gone_is_fine(fs::remove_file(dir.join(FILE)))
    }
}

/// What should not be there is not there.
pub(super) fn gone_is_fine(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn plugin_dir(root: &Path) -> PathBuf {
    root.join("plugins/kubernetes.io/csi")
}

/// Where a volume is mounted once for the node; `vol_data.json` lies beside it.
pub(super) fn staging_dir(root: &Path, driver: &str, handle: &str) -> PathBuf {
    plugin_dir(root).join(driver).join(sha256(handle)).join("globalmount")
}

/// The folder of a pod's volume: `mount` and `vol_data.json` lie in it.
pub(super) fn pod_volume_dir(root: &Path, uid: &str, spec: &str) -> PathBuf {
    pod_volumes(root, uid).join(spec)
}

/// All volumes of drivers that a pod has with a file system.
pub(super) fn pod_volumes(root: &Path, uid: &str) -> PathBuf {
    root.join("pods").join(uid).join("volumes/kubernetes.io~csi")
}

/// All volumes of drivers that a pod has as devices: a link each.
pub(super) fn pod_devices(root: &Path, uid: &str) -> PathBuf {
    root.join("pods").join(uid).join("volumeDevices/kubernetes.io~csi")
}

/// The places of a volume that is used as a device.
pub(super) struct Block {
    pub(super) staging: PathBuf,
    publish: PathBuf,
    own: PathBuf,
}

impl Block {
    pub(super) fn new(root: &Path, spec: &str) -> Block {
        let dir = plugin_dir(root).join("volumeDevices");
        Block { staging: dir.join("staging").join(spec), publish: dir.join("publish").join(spec), own: dir.join(spec) }
    }

    /// Where the driver puts the device for a pod.
    pub(super) fn device(&self, uid: &str) -> PathBuf {
        self.publish.join(uid)
    }

    /// Where `vol_data.json` lies.
    pub(super) fn data_dir(&self) -> PathBuf {
        self.own.join("data")
    }

    pub(super) fn make(&self) -> io::Result<()> {
        for dir in [&self.staging, &self.publish, &self.data_dir(), &self.own.join("dev")] {
            fs::create_dir_all(dir)?;
        }
        Ok(())
    }

    /// Whether no pod has the device.
    pub(super) fn is_unused(&self) -> io::Result<bool> {
        match fs::read_dir(&self.publish) {
            Ok(mut pods) => Ok(pods.next().is_none()),
            Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(true),
            Err(err) => Err(err),
        }
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        Data::remove(&self.data_dir())?;
        for dir in [&self.staging, &self.publish, &self.own.join("dev"), &self.data_dir(), &self.own] {
            gone_is_fine(fs::remove_dir(dir))?;
        }
        Ok(())
    }
}

/// Every volume that lies staged on this node.
pub(super) fn staged(root: &Path) -> Vec<Data> {
    let list =
        |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()).collect::<Vec<_>>();
    let drivers = list(&plugin_dir(root)).into_iter();
    drivers
        .flat_map(|driver| match driver.file_name() {
            Some(name) if name == "volumeDevices" => list(&driver).into_iter().map(|dir| dir.join("data")).collect(),
            _ => list(&driver),
        })
        .filter_map(|dir| Data::read(&dir).ok().flatten())
        .collect()
}

/// The pods other than `uid` that have the volume with a file system.
pub(super) fn others(root: &Path, uid: &str, driver: &str, handle: &str) -> bool {
    let pods = fs::read_dir(root.join("pods"))
        .into_iter()
        .flatten()
        .flatten()
        .filter(|pod| pod.file_name().to_string_lossy() != uid);
    pods.flat_map(|pod| fs::read_dir(pod.path().join("volumes/kubernetes.io~csi")).into_iter().flatten().flatten())
        .filter_map(|volume| Data::read(&volume.path()).ok().flatten())
        .any(|data| data.driver == driver && data.handle == handle && !data.is_ephemeral())
}

/// In hexadecimal.
pub(super) fn sha256(text: &str) -> String {
    base::hex::encode(&Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_read_back_and_spelt_as_upstreams() {
        let dir = tempfile::tempdir().unwrap();
        let data = Data { mode: "Persistent".to_owned(), spec: "pv".to_owned(), ..Data::staged("d.io", "h") };
        data.write(dir.path()).unwrap();
        let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert_eq!(
            text,
            r#"{"driverName":"d.io","specVolID":"pv","volumeHandle":"h","volumeLifecycleMode":"Persistent"}"#
        );
        assert_eq!(Data::read(dir.path()).unwrap(), Some(data));
    }

    #[test]
    fn a_volume_of_another_pod_is_found() {
        let root = tempfile::tempdir().unwrap();
        Data::staged("d.io", "h").write(&pod_volume_dir(root.path(), "a", "pv")).unwrap();
        assert!(!others(root.path(), "a", "d.io", "h"));
        assert!(others(root.path(), "b", "d.io", "h"));
        assert!(!others(root.path(), "b", "d.io", "other"));
    }

    #[test]
    fn a_volume_is_staged_where_upstream_stages_it() {
        let dir = staging_dir(Path::new("/k"), "d.io", "h");
        let hash = "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123";
        assert_eq!(dir, Path::new("/k/plugins/kubernetes.io/csi/d.io").join(hash).join("globalmount"));
    }
}
