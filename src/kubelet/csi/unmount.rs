//! A pod's volumes of drivers are given back, read off the disk: it makes no difference which kubelet mounted them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use base::confined::Dir;
use base::confined::deadline::within;
use nix::mount::{MntFlags, umount2};
use proto::csi as pb;

use super::Driver;
use super::data::{self, Block, Data, PodVolume, VolumeId, gone_is_fine};
use super::error::{CsiError, TearDownError};
use crate::config::Config;
use crate::csi::Csi;
use crate::mount_points;
use crate::volumes::error::{Phase, VolumeError};

/// Mounts inside volumes are taken off within this; a share whose server is away holds on.
const DETACH_LIMIT: Duration = Duration::from_secs(60);
/// Files that a driver leaves where a device was staged.
const STAGED_MAX: usize = 1000;

/// Unpublishes all volumes of a pod, and unstages those that no other pod has. Done again, it goes on where it stopped.
pub(crate) async fn tear_down(config: &Config, csi: &Csi, uid: &str) -> Result<(), TearDownError> {
    let root = &config.root_dir;
    let (mounted, devices) = (data::pod_volumes(root, uid), data::pod_devices(root, uid));
    if mounted.exists() || devices.exists() {
        let pod = root.join("pods").join(uid);
        let of_work = pod.clone();
        within(&pod, DETACH_LIMIT, move || detach_sub_paths(&of_work)).await?;
        for spec in names(&mounted)? {
            let undone = unmount(root, csi, PodVolume { uid, spec: &spec }).await;
            undone.map_err(|err| VolumeError::new(Phase::TearDown, &spec, err))?;
        }
        for spec in names(&devices)? {
            let undone = unmap(root, csi, PodVolume { uid, spec: &spec }).await;
            undone.map_err(|err| VolumeError::new(Phase::UnmapPodDevice, &spec, err))?;
        }
    }
    csi.let_go(uid);
    Ok(())
}

fn names(dir: &Path) -> io::Result<Vec<String>> {
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect(),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(err) => Err(err),
    }
}

/// Mounts inside a volume are taken off first: the driver could not let it go.
fn detach_sub_paths(pod: &Path) -> io::Result<()> {
    for mount in mount_points::mounts_under(&pod.join("volume-subpaths"))? {
        umount2(&mount, MntFlags::UMOUNT_NOFOLLOW).map_err(io::Error::from)?;
    }
    Ok(())
}

async fn unmount(root: &Path, csi: &Csi, volume: PodVolume<'_>) -> Result<(), CsiError> {
    let dir = volume.dir(root);
    // Without the file nothing of a driver can be there; what else is there is removed with the pod.
    let Some(data) = Data::read(&dir)? else { return Ok(()) };
    let id = data.id();
    let lock = csi.lock(id);
    let _one_at_a_time = lock.lock().await;
    let driver = csi.driver(id.driver)?;
    let target = dir.join("mount");
    unpublish(&driver, id, &target).await?;
    is_off(&target)?;
    // The driver should have removed it.
    gone_is_fine(fs::remove_dir(&target))?;
    if !data.is_ephemeral() && !data::others(root, volume.uid, id) {
        let staging = data::staging_dir(root, id);
        unstage(csi, &driver, id, &staging).await?;
        is_off(&staging)?;
        gone_is_fine(fs::remove_dir(&staging))?;
        if let Some(parent) = staging.parent() {
            Data::remove(parent)?;
            gone_is_fine(fs::remove_dir(parent))?;
        }
        csi.undone(id);
    }
    // Last: until then a kubelet that starts anew must do this again.
    Data::remove(&dir)?;
    Ok(gone_is_fine(fs::remove_dir(&dir))?)
}

async fn unmap(root: &Path, csi: &Csi, volume: PodVolume<'_>) -> Result<(), CsiError> {
    let block = Block::new(root, volume.spec);
    let link = volume.link(root);
    let Some(data) = Data::read(&block.data_dir())? else { return Ok(gone_is_fine(fs::remove_file(&link))?) };
    let id = data.id();
    let lock = csi.lock(id);
    let _one_at_a_time = lock.lock().await;
    let driver = csi.driver(id.driver)?;
    let device = block.device(volume.uid);
    unpublish(&driver, id, &device).await?;
    gone_is_fine(fs::remove_file(&device))?;
    if block.is_unused()? {
        unstage(csi, &driver, id, &block.staging).await?;
        // Some drivers put a file into the folder.
        let staging = Dir::open(&block.staging)?;
        for (name, _) in staging.entries(STAGED_MAX)? {
            staging.remove_file(Path::new(&name))?;
        }
        block.remove()?;
        csi.undone(id);
    }
    Ok(gone_is_fine(fs::remove_file(&link))?)
}

/// Errors: something is still mounted there.
fn is_off(path: &Path) -> Result<(), CsiError> {
    match mount_points::is_mount_point(path)? {
        true => Err(CsiError::StillMounted { path: path.to_owned() }),
        false => Ok(()),
    }
}

async fn unpublish(driver: &Driver, id: VolumeId<'_>, target: &Path) -> Result<(), CsiError> {
    let request = pb::UnpublishRequest { volume_id: id.handle.to_owned(), target_path: target.display().to_string() };
    let _empty: pb::Empty = driver.call(pb::NODE_UNPUBLISH_VOLUME, request).await?;
    Ok(())
}

async fn unstage(csi: &Csi, driver: &Driver, id: VolumeId<'_>, staging: &Path) -> Result<(), CsiError> {
    if driver.can(pb::STAGE_UNSTAGE_VOLUME).await.map_err(CsiError::Unstage)? {
        let request =
            pb::UnstageRequest { volume_id: id.handle.to_owned(), staging_target_path: staging.display().to_string() };
        let done: Result<pb::Empty, _> = driver.call(pb::NODE_UNSTAGE_VOLUME, request).await;
        done.map_err(CsiError::Unstage)?;
    }
    csi.note_unstaged(id);
    Ok(())
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    const ID: VolumeId<'_> = VolumeId { driver: "d.io", handle: "h" };

    #[tokio::test]
    async fn a_volume_whose_driver_is_away_stays_and_is_told_of() {
        let root = tempfile::tempdir().unwrap();
        let (csi, volume) = (Csi::new(root.path()), PodVolume { uid: "u", spec: "pv" });
        Data::staged(ID).write(&volume.dir(root.path())).unwrap();
        let why = unmount(root.path(), &csi, volume).await.unwrap_err();
        assert_eq!(
            Chain(&VolumeError::new(Phase::TearDown, volume.spec, why)).to_string(),
            "UnmountVolume.TearDown failed for volume \"pv\" : \
             driver name d.io not found in the list of registered CSI drivers"
        );
        assert_eq!(Data::read(&volume.dir(root.path())).unwrap(), Some(Data::staged(ID)));
    }

    #[tokio::test]
    async fn a_folder_without_data_is_no_drivers() {
        let root = tempfile::tempdir().unwrap();
        let (csi, volume) = (Csi::new(root.path()), PodVolume { uid: "u", spec: "pv" });
        fs::create_dir_all(volume.dir(root.path())).unwrap();
        unmount(root.path(), &csi, volume).await.unwrap();
        let link = volume.link(root.path());
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/nothing", &link).unwrap();
        unmap(root.path(), &csi, volume).await.unwrap();
        assert!(fs::symlink_metadata(&link).is_err(), "a link that leads to no device goes");
    }

    #[test]
    fn a_pod_without_volumes_of_drivers_has_no_names() {
        let root = tempfile::tempdir().unwrap();
        assert!(names(&root.path().join("none")).unwrap().is_empty());
        fs::create_dir(root.path().join("pv")).unwrap();
        assert_eq!(names(root.path()).unwrap(), ["pv"]);
    }
}
