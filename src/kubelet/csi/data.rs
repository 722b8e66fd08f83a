//! Where a driver's volumes lie, and the file `vol_data.json` that says what each is. Both as upstream's, since drivers
//! look there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use base::confined::Dir;
use base::files::write_atomic;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The word that texts about volumes begin with.
pub(super) const PLUGIN: &str = "kubernetes.io/csi";
const FILE: &str = "vol_data.json";
/// Bytes of that file. Drivers see the folders in which it lies.
const BYTES_MAX: usize = 64 * 1024;

/// A volume as its driver knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeId<'a> {
    pub(crate) driver: &'a str,
    pub(crate) handle: &'a str,
}

impl VolumeId<'_> {
    /// As volumes are called in a node's `volumesInUse` and `volumesAttached`.
    pub(super) fn unique_name(self) -> String {
        format!("{PLUGIN}/{}^{}", self.driver, self.handle)
    }
}

/// A volume of a driver in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PodVolume<'a> {
    /// The pod's.
    pub(super) uid: &'a str,
    /// The persistent volume's name, or an inline volume's.
    pub(super) spec: &'a str,
}

impl PodVolume<'_> {
    /// Its folder: `mount` and `vol_data.json` lie in it.
    pub(super) fn dir(self, root: &Path) -> PathBuf {
        pod_volumes(root, self.uid).join(self.spec)
    }

    /// Its link, where it is used as a device.
    pub(super) fn link(self, root: &Path) -> PathBuf {
        pod_devices(root, self.uid).join(self.spec)
    }
}

/// The contents of `vol_data.json`; empty parts are left out.
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
    pub(super) fn staged(id: VolumeId<'_>) -> Data {
        Data { driver: id.driver.to_owned(), handle: id.handle.to_owned(), ..Data::default() }
    }

    pub(super) fn id(&self) -> VolumeId<'_> {
        VolumeId { driver: &self.driver, handle: &self.handle }
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

/// For files that should not be there: it is no error that they are not.
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
pub(super) fn staging_dir(root: &Path, id: VolumeId<'_>) -> PathBuf {
    plugin_dir(root).join(id.driver).join(sha256(id.handle)).join("globalmount")
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
pub(super) fn others(root: &Path, uid: &str, id: VolumeId<'_>) -> bool {
    let pods = fs::read_dir(root.join("pods"))
        .into_iter()
        .flatten()
        .flatten()
        .filter(|pod| pod.file_name().to_string_lossy() != uid);
    pods.flat_map(|pod| fs::read_dir(pod.path().join("volumes/kubernetes.io~csi")).into_iter().flatten().flatten())
        .filter_map(|volume| Data::read(&volume.path()).ok().flatten())
        .any(|data| data.id() == id && !data.is_ephemeral())
}

/// In hexadecimal.
pub(super) fn sha256(text: &str) -> String {
    base::hex::encode(&Sha256::digest(text))
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;
    use crate::volumes::error::{Phase, VolumeError};

    const ID: VolumeId<'_> = VolumeId { driver: "d.io", handle: "h" };

    #[test]
    fn data_is_read_back_and_spelt_as_upstreams() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Data::read(dir.path()).unwrap(), None);
        let data = Data { mode: "Persistent".to_owned(), spec: "pv".to_owned(), ..Data::staged(ID) };
        data.write(dir.path()).unwrap();
        let text = fs::read_to_string(dir.path().join(FILE)).unwrap();
        assert_eq!(
            text,
            r#"{"driverName":"d.io","specVolID":"pv","volumeHandle":"h","volumeLifecycleMode":"Persistent"}"#
        );
        assert_eq!(Data::read(dir.path()).unwrap(), Some(data));
        Data::remove(dir.path()).unwrap();
        Data::remove(dir.path()).unwrap();
        assert_eq!(Data::read(dir.path()).unwrap(), None);
    }

    #[test]
    fn data_that_is_no_json_is_told_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(FILE), "{").unwrap();
        let why = Data::read(dir.path()).unwrap_err().to_string();
        assert!(why.starts_with(&format!("{}/vol_data.json: ", dir.path().display())), "{why}");
    }

    // The event of the pod ended with the file's name, without the disk's reason.
    #[test]
    fn data_that_cannot_be_written_is_told_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join(FILE).join("in the way")).unwrap();
        let err = VolumeError::new(Phase::SetUp, "v", Data::staged(ID).write(dir.path()).unwrap_err());
        let why = Chain(&err).to_string();
        assert!(why.contains("cannot write") && why.ends_with("(os error 21)"), "{why}");
    }

    #[test]
    fn a_volume_of_another_pod_is_found() {
        let root = tempfile::tempdir().unwrap();
        Data::staged(ID).write(&PodVolume { uid: "a", spec: "pv" }.dir(root.path())).unwrap();
        assert!(!others(root.path(), "a", ID));
        assert!(others(root.path(), "b", ID));
        assert!(!others(root.path(), "b", VolumeId { handle: "other", ..ID }));
        let inline = Data { mode: "Ephemeral".to_owned(), ..Data::staged(VolumeId { handle: "own", ..ID }) };
        inline.write(&PodVolume { uid: "a", spec: "v" }.dir(root.path())).unwrap();
        assert!(!others(root.path(), "b", inline.id()), "an inline volume is its pod's alone");
    }

    #[test]
    fn volumes_lie_where_upstreams_lie() {
        let root = Path::new("/k");
        let hash = "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123";
        let staging = root.join("plugins/kubernetes.io/csi/d.io").join(hash).join("globalmount");
        assert_eq!(staging_dir(root, ID), staging);
        let volume = PodVolume { uid: "u", spec: "pv" };
        assert_eq!(volume.dir(root), Path::new("/k/pods/u/volumes/kubernetes.io~csi/pv"));
        assert_eq!(volume.link(root), Path::new("/k/pods/u/volumeDevices/kubernetes.io~csi/pv"));
        let block = Block::new(root, "pv");
        let devices = Path::new("/k/plugins/kubernetes.io/csi/volumeDevices");
        assert_eq!(block.staging, devices.join("staging/pv"));
        assert_eq!(block.device("u"), devices.join("publish/pv/u"));
        assert_eq!(block.data_dir(), devices.join("pv/data"));
    }

    #[test]
    fn a_device_is_unused_when_no_pod_has_it_and_leaves_nothing_behind() {
        let root = tempfile::tempdir().unwrap();
        let block = Block::new(root.path(), "pv");
        assert!(block.is_unused().unwrap(), "nothing is there");
        block.make().unwrap();
        Data::staged(ID).write(&block.data_dir()).unwrap();
        assert_eq!(staged(root.path()), [Data::staged(ID)]);
        fs::write(block.device("u"), "").unwrap();
        assert!(!block.is_unused().unwrap());
        fs::remove_file(block.device("u")).unwrap();
        assert!(block.is_unused().unwrap());
        block.remove().unwrap();
        assert!(staged(root.path()).is_empty() && !block.data_dir().exists());
    }
}
