//! A pod's volumes of drivers are given back, read off the disk: it makes no difference which kubelet mounted them.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use base::confined::Dir;
use base::confined::deadline::within;
use nix::mount::{MntFlags, umount2};
use proto::csi as pb;

use super::data::{self, Block, Data, gone_is_fine};
use crate::config::Config;
use crate::csi::Csi;
use crate::mount_points;

/// What hangs on volumes is taken off within this; a share whose server is away holds on.
const DETACH_LIMIT: Duration = Duration::from_secs(60);
/// Files that a driver leaves where a device was staged.
const STAGED_MAX: usize = 1000;

/// Unpublishes all volumes of a pod, and unstages those that no other pod has. Done again, it goes on where it stopped.
pub(crate) async fn tear_down(config: &Config, csi: &Csi, uid: &str) -> Result<(), String> {
    let root = &config.root_dir;
    let (mounted, devices) = (data::pod_volumes(root, uid), data::pod_devices(root, uid));
    if mounted.exists() || devices.exists() {
        let pod = root.join("pods").join(uid);
        let of_work = pod.clone();
        within(&pod, DETACH_LIMIT, move || detach_sub_paths(&of_work)).await.map_err(|err| err.to_string())?;
        for spec in names(&mounted).map_err(|err| err.to_string())? {
            let text = |why: String| format!("UnmountVolume.TearDown failed for volume {spec:?} : {why}");
            unmount(config, csi, uid, &spec).await.map_err(text)?;
        }
        for spec in names(&devices).map_err(|err| err.to_string())? {
            let text = |why: String| format!("UnmapVolume.UnmapPodDevice failed for volume {spec:?} : {why}");
            unmap(config, csi, uid, &spec).await.map_err(text)?;
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

/// What hangs on a volume is taken off first: the driver could not let it go.
fn detach_sub_paths(pod: &Path) -> io::Result<()> {
    for mount in mount_points::mounts_under(&pod.join("volume-subpaths"))? {
        umount2(&mount, MntFlags::UMOUNT_NOFOLLOW).map_err(io::Error::from)?;
    }
    Ok(())
}

async fn unmount(config: &Config, csi: &Csi, uid: &str, spec: &str) -> Result<(), String> {
    let io = |err: io::Error| err.to_string();
    let root = &config.root_dir;
    let dir = data::pod_volume_dir(root, uid, spec);
    // Without the file nothing of a driver can be there; what else is there is removed with the pod.
    let Some(data) = Data::read(&dir).map_err(io)? else { return Ok(()) };
    let lock = csi.lock(&data.driver, &data.handle);
    let _one_at_a_time = lock.lock().await;
    let driver = csi.driver(&data.driver)?;
    let target = dir.join("mount");
    let request = pb::UnpublishRequest { volume_id: data.handle.clone(), target_path: target.display().to_string() };
    let done: Result<pb::Empty, _> = driver.call(pb::NODE_UNPUBLISH_VOLUME, request).await;
    done.map_err(|err| err.to_string())?;
    if mount_points::is_mount_point(&target).map_err(io)? {
        return Err(format!("{} is still mounted", target.display()));
    }
    // The driver should have removed it.
    gone_is_fine(fs::remove_dir(&target)).map_err(io)?;
    if !data.is_ephemeral() && !data::others(root, uid, &data.driver, &data.handle) {
        let staging = data::staging_dir(root, &data.driver, &data.handle);
        unstage(csi, &driver, &data.handle, &staging).await?;
        if mount_points::is_mount_point(&staging).map_err(io)? {
            return Err(format!("{} is still mounted", staging.display()));
        }
        gone_is_fine(fs::remove_dir(&staging)).map_err(io)?;
        if let Some(parent) = staging.parent() {
            Data::remove(parent).and_then(|()| gone_is_fine(fs::remove_dir(parent))).map_err(io)?;
        }
        csi.undone(&data.driver, &data.handle);
    }
    // Last: until then a kubelet that starts anew must do this again.
    Data::remove(&dir).and_then(|()| gone_is_fine(fs::remove_dir(&dir))).map_err(io)
}

async fn unmap(config: &Config, csi: &Csi, uid: &str, spec: &str) -> Result<(), String> {
    let io = |err: io::Error| err.to_string();
    let root = &config.root_dir;
    let block = Block::new(root, spec);
    let link = data::pod_devices(root, uid).join(spec);
    let Some(data) = Data::read(&block.data_dir()).map_err(io)? else {
        return gone_is_fine(fs::remove_file(&link)).map_err(io);
    };
    let lock = csi.lock(&data.driver, &data.handle);
    let _one_at_a_time = lock.lock().await;
    let driver = csi.driver(&data.driver)?;
    let device = block.device(uid);
    let request = pb::UnpublishRequest { volume_id: data.handle.clone(), target_path: device.display().to_string() };
    let done: Result<pb::Empty, _> = driver.call(pb::NODE_UNPUBLISH_VOLUME, request).await;
    done.map_err(|err| err.to_string())?;
    gone_is_fine(fs::remove_file(&device)).map_err(io)?;
    if block.is_unused().map_err(io)? {
        unstage(csi, &driver, &data.handle, &block.staging).await?;
        // Some drivers put a file into the folder.
        let staging = Dir::open(&block.staging).map_err(io)?;
        for (name, _) in staging.entries(STAGED_MAX).map_err(io)? {
            staging.remove_file(Path::new(&name)).map_err(io)?;
        }
        block.remove().map_err(io)?;
        csi.undone(&data.driver, &data.handle);
    }
    gone_is_fine(fs::remove_file(&link)).map_err(io)
}

async fn unstage(csi: &Csi, driver: &super::Driver, handle: &str, staging: &Path) -> Result<(), String> {
    let text = |err: crate::plugins::link::CallError| format!("UnmountDevice failed: {err}");
    if driver.can(pb::STAGE_UNSTAGE_VOLUME).await.map_err(text)? {
        let request =
            pb::UnstageRequest { volume_id: handle.to_owned(), staging_target_path: staging.display().to_string() };
        let done: Result<pb::Empty, _> = driver.call(pb::NODE_UNSTAGE_VOLUME, request).await;
        done.map_err(text)?;
    }
    csi.staged.lock().remove(&(driver.name.clone(), handle.to_owned()));
    Ok(())
}
