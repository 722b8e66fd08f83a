//! Local volumes that are a block device with a filesystem: made if the device is empty, checked, mounted once for the
//! machine, bound into each pod, and taken off when no pod has it any more. As upstream's pkg/volume/local and
//! mount-utils (v1.36); layout as theirs: `<root>/plugins/kubernetes.io/local-volume/mounts/<volume>`.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::confined::Dir;
use base::confined::deadline::within;
use base::task::Group;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;
use tracing::{info, warn};

use super::{DISK_LIMIT, program};
use crate::config::Config;
use crate::csi::Csi;
use crate::mount_points::{is_mount_point, resolved};

/// The plugin's name in folders and locks.
const PLUGIN: &str = "kubernetes.io/local-volume";
/// A device says what is on it, and is mounted, within this.
const LOOK_LIMIT: Duration = Duration::from_secs(60);
/// A large device is checked, or given a filesystem, within this.
const MAKE_LIMIT: Duration = Duration::from_secs(3600);
/// A pod waits this long for what is under way with its volume's device, and then begins anew: it may have been deleted
/// meanwhile.
const TURN_LIMIT: Duration = Duration::from_secs(60);
/// The end of a pod waits this long for a device. Whoever looks whether pods have it is done in milliseconds; who keeps
/// it longer mounts it, makes it larger, or does not come back.
const BUSY_LIMIT: Duration = Duration::from_secs(1);
/// Bytes of the name of a filesystem.
const TYPE_BYTES_MAX: usize = 32;

/// `blkid`: there is nothing on the device that it knows.
const BLKID_NOTHING: i32 = 2;
/// `fsck`: what was wrong is mended, or not (fsck(8), a sum of bits).
const FSCK_MENDED: i32 = 1;
const FSCK_LEFT: i32 = 4;

/// A block device that holds the filesystem of a persistent volume.
#[derive(Clone)]
pub(super) struct Device {
    /// The persistent volume.
    pub(super) volume: String,
    pub(super) path: String,
    /// `spec.local.fsType`; ext4 if none is named.
    pub(super) fs_type: Option<String>,
    /// `spec.mountOptions`.
    pub(super) options: Vec<String>,
    pub(super) read_only: bool,
}

/// Mounts the device for the machine and binds it at `target`. Gives the folder of the machine's mount.
///
/// Errors: why not, in upstream's words.
/// Cancel safety: dropped, what was begun goes on to its end, and nobody else begins with that volume before.
pub(super) async fn attach(config: &Config, csi: &Csi, device: &Device, target: &Path) -> Result<PathBuf, String> {
    let place = base_of(config).join(&device.volume);
    if is_mount_point(target).map_err(|err| err.to_string())? {
        return Ok(place);
    }
    if !device.path.starts_with('/') {
        return Err(format!("local volume {:?}: want an absolute path", device.path));
    }
    let one_at_a_time = turn(csi, &device.volume, TURN_LIMIT).await?;
    let (device, at, target) = (device.clone(), place.clone(), target.to_owned());
    let work = move || {
        let _until_the_end = one_at_a_time;
        mount_and_bind(&device, &at, &target)
    };
    Group::blocking(work).await.map_err(|err| err.to_string())??;
    Ok(place)
}

fn mount_and_bind(device: &Device, place: &Path, target: &Path) -> Result<(), String> {
    if !is_mount_point(place).map_err(|err| err.to_string())? {
        drop(Dir::open_or_make(place, 0o750).map_err(|err| err.to_string())?);
        let failed =
            |why: String| format!("local: failed to mount device {} at {}: {why}", device.path, place.display());
        format_and_mount(device, place).map_err(failed)?;
        info!(volume = device.volume, device = device.path, "mounted the device of a local volume");
    }
    drop(Dir::open_or_make(target, 0o750).map_err(|err| err.to_string())?);
    mount(Some(place), target, None::<&str>, MsFlags::MS_BIND, None::<&str>).map_err(|err| err.to_string())
}

/// Makes the filesystem as large as its device (upstream's mount-utils `ResizeFs`).
///
/// Errors: why not, in upstream's words.
pub(super) async fn grow(config: &Config, csi: &Csi, device: &Device) -> Result<(), String> {
    let one_at_a_time = turn(csi, &device.volume, TURN_LIMIT).await?;
    let (device, place) = (device.path.clone(), base_of(config).join(&device.volume));
    let work = move || {
        let _until_the_end = one_at_a_time;
        let fs_type = found_on(&device)?.unwrap_or_default();
        let (program, args) = grower(&fs_type, &device, &place)?;
        let failed = |why: String| format!("resize of device {device} failed: {why}");
        let ended = program::run(program, &args, MAKE_LIMIT).map_err(failed)?;
        if ended.status == 0 {
            Ok(())
        } else {
            Err(failed(format!("{program}: exit status {}: {}", ended.status, ended.output)))
        }
    };
    Group::blocking(work).await.map_err(|err| err.to_string())?
}

/// What makes a mounted filesystem larger.
fn grower(fs_type: &str, device: &str, place: &Path) -> Result<(&'static str, Vec<String>), String> {
    let place = place.display().to_string();
    match fs_type {
        "ext2" | "ext3" | "ext4" => Ok(("resize2fs", vec![device.to_owned()])),
        "xfs" => Ok(("xfs_growfs", vec!["-d".to_owned(), place])),
        "btrfs" => {
            Ok(("btrfs", ["filesystem", "resize", "max"].map(str::to_owned).into_iter().chain([place]).collect()))
        }
        other => Err(format!("resize of format {other} is not supported for device {device} mounted at {place}")),
    }
}

/// Waits until nobody else is at the device of a volume, no longer than `limit`: a thread at a device that is dead
/// never gives its turn back.
///
/// Errors: somebody still is.
async fn turn(csi: &Csi, volume: &str, limit: Duration) -> Result<OwnedMutexGuard<()>, String> {
    let turn = timeout(limit, csi.lock(PLUGIN, volume).lock_owned()).await;
    turn.map_err(|_| format!("local: an operation with the device of volume {volume} is still under way"))
}

/// Takes off the machine's mounts of devices that no pod has any more. One that somebody is busy with stays until a
/// later pod ends.
pub(crate) async fn release_unused(config: &Config, csi: &Csi) {
    let base = base_of(config);
    let mounted = match super::mounts_under(&base) {
        Ok(mounted) => mounted,
        Err(err) => {
            warn!(path = %base.display(), %err, "cannot look for local volumes that no pod has any more");
            return;
        }
    };
    release_each(csi, mounted, &config.root_dir.join("pods")).await;
}

async fn release_each(csi: &Csi, mounted: Vec<PathBuf>, pods: &Path) {
    for place in mounted {
        let Some(volume) = place.file_name().and_then(|name| name.to_str()) else { continue };
        // Each pod that ends comes by here, whatever volumes it has: no device holds it up.
        let Ok(one_at_a_time) = turn(csi, volume, BUSY_LIMIT).await else { continue };
        let (at, pods) = (place.clone(), pods.to_owned());
        let work = move || {
            let _until_the_end = one_at_a_time;
            release(&at, &pods)
        };
        match within(&place, DISK_LIMIT, work).await {
            Ok(true) => info!(volume, "took off the device of a local volume that no pod has any more"),
            Ok(false) => {}
            Err(err) => warn!(path = %place.display(), %err, "cannot take off the device of a local volume"),
        }
    }
}

fn base_of(config: &Config) -> PathBuf {
    config.root_dir.join("plugins").join(PLUGIN).join("mounts")
}

/// Unmounts `place` unless a pod has what is mounted there. Gives whether it did.
fn release(place: &Path, pods: &Path) -> io::Result<bool> {
    let pods = resolved(pods)?;
    let table = base::mounts::read()?;
    let own = table.iter().rev().find(|mount| mount.point == place);
    let is_used = |device: &str| {
        let mut others = table.iter().filter(|mount| mount.device == device);
        others.any(|mount| pods.as_ref().is_some_and(|pods| mount.point.starts_with(pods)))
    };
    match own {
        Some(own) if !is_used(&own.device) => {}
        _ => return Ok(false),
    }
    umount2(place, MntFlags::UMOUNT_NOFOLLOW).map_err(io::Error::from)?;
    if let (Some(parent), Some(name)) = (place.parent(), place.file_name()) {
        Dir::open(parent)?.remove_dir(Path::new(name))?;
    }
    Ok(true)
}

/// Mounts the device at `place`; one with nothing on it is given a filesystem first, one that has its own is checked.
/// Nothing is ever written over: a device with anything on it that `blkid` knows, a table of partitions included, is
/// not made anew.
fn format_and_mount(device: &Device, place: &Path) -> Result<(), String> {
    let fs_type = device.fs_type.as_deref().filter(|name| !name.is_empty()).unwrap_or("ext4");
    if !is_fs_type(fs_type) {
        return Err(format!("invalid fsType {fs_type:?}: want letters and digits"));
    }
    let is_read_only = device.read_only || device.options.iter().any(|option| option == "ro");
    match found_on(&device.path)? {
        None if is_read_only => {
            return Err(format!(
                "cannot mount unformatted disk {} as we are manipulating it in read-only mode",
                device.path
            ));
        }
        None => make(&device.path, fs_type)?,
        Some(found) => {
            if found != fs_type {
                warn!(
                    device = device.path,
                    wanted = fs_type,
                    found,
                    "a local volume's device has another filesystem than asked for"
                );
            }
            if !is_read_only {
                check(&device.path)?;
            }
        }
    }
    program::mount(&arguments(device, fs_type, place), LOOK_LIMIT)
}

/// The filesystem on a device; `None` if there is nothing on it.
fn found_on(device: &str) -> Result<Option<String>, String> {
    let args = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", "--", device].map(str::to_owned);
    let failed = |why: String| format!("failed to get disk format of disk {device}: {why}");
    let ended = program::run("blkid", &args, LOOK_LIMIT).map_err(failed)?;
    match ended.status {
        0 => read_format(&ended.output).map_err(failed),
        BLKID_NOTHING => Ok(None),
        status => Err(failed(format!("blkid: exit status {status}: {}", ended.output))),
    }
}

/// What `blkid -o export` says of a device.
fn read_format(said: &str) -> Result<Option<String>, String> {
    let value = |key: &str| {
        said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').filter(|value| !value.is_empty()))
    };
    match (value("TYPE"), value("PTTYPE")) {
        (Some(fs_type), _) => Ok(Some(fs_type.to_owned())),
        (None, Some(table)) => Err(format!("it has a table of partitions ({table}) and no filesystem")),
        (None, None) => Ok(None),
    }
}

fn make(device: &str, fs_type: &str) -> Result<(), String> {
    info!(device, fs_type, "the device of a local volume is empty, it gets a filesystem");
    let mut args: Vec<String> = match fs_type {
        // By force, as the whole device is taken; no blocks are kept for root.
        "ext3" | "ext4" => vec!["-F".to_owned(), "-m0".to_owned()],
        "xfs" => vec!["-f".to_owned()],
        _ => Vec::new(),
    };
    args.extend(["--".to_owned(), device.to_owned()]);
    let failed = |why: String| format!("format of disk {device:?} failed: type:({fs_type:?}) {why}");
    let ended = program::run(&format!("mkfs.{fs_type}"), &args, MAKE_LIMIT).map_err(failed)?;
    if ended.status == 0 { Ok(()) } else { Err(failed(format!("exit status {}: {}", ended.status, ended.output))) }
}

/// Has `fsck` mend what it can. A machine without it, and any other trouble of it, is left to the mount.
fn check(device: &str) -> Result<(), String> {
    let ended = match program::run("fsck", &["-a".to_owned(), device.to_owned()], MAKE_LIMIT) {
        Ok(ended) => ended,
        Err(why) => {
            warn!(device, why, "the device of a local volume is mounted without a check");
            return Ok(());
        }
    };
    match ended.status {
        FSCK_MENDED => info!(device, "fsck mended the filesystem of a local volume"),
        FSCK_LEFT => {
            return Err(format!("'fsck' found errors on device {device} but could not correct them: {}", ended.output));
        }
        status if status > FSCK_LEFT => {
            warn!(device, status, said = ended.output, "fsck could not look through a local volume")
        }
        _ => {}
    }
    Ok(())
}

fn arguments(device: &Device, fs_type: &str, place: &Path) -> Vec<String> {
    let mut options = device.options.to_vec();
    if device.read_only {
        options.push("ro".to_owned());
    }
    options.push("defaults".to_owned());
    let words = ["-t", fs_type, "-o", &options.join(","), "--", &device.path].map(str::to_owned);
    words.into_iter().chain([place.display().to_string()]).collect()
}

/// The name becomes a part of a program's name: no path may stand in it.
fn is_fs_type(name: &str) -> bool {
    name.len() <= TYPE_BYTES_MAX && !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_with_nothing_on_it_counts_as_empty() {
        assert_eq!(read_format("").unwrap(), None);
        assert_eq!(read_format("DEVNAME=/dev/loop0\nTYPE=ext4\n").unwrap().as_deref(), Some("ext4"));
        assert_eq!(read_format("TYPE=vfat\nPTTYPE=dos\n").unwrap().as_deref(), Some("vfat"));
        assert!(read_format("DEVNAME=/dev/sda\nPTTYPE=gpt\n").is_err());
    }

    // The end of every pod of the node waited for a thread that unmounted a device whose target was gone.
    #[tokio::test]
    async fn a_dead_device_holds_up_neither_the_end_of_a_pod_nor_a_pod_that_asks_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let csi = Csi::new(dir.path());
        let _never_given_back = csi.lock(PLUGIN, "dead").lock_owned().await;
        let mounted = ["dead", "other"].map(|volume| dir.path().join(volume)).to_vec();
        timeout(Duration::from_secs(30), release_each(&csi, mounted, &dir.path().join("pods")))
            .await
            .expect("a pod ends");
        let why = turn(&csi, "dead", Duration::from_millis(1)).await.unwrap_err();
        assert_eq!(why, "local: an operation with the device of volume dead is still under way");
        assert!(turn(&csi, "other", Duration::from_secs(30)).await.is_ok());
    }

    #[test]
    fn no_path_and_no_option_stands_in_a_filesystems_name() {
        assert!(is_fs_type("ext4") && is_fs_type("btrfs"));
        for name in ["", "../sh", "-h", "ext4 x", "a/b"] {
            assert!(!is_fs_type(name), "{name}");
        }
    }

    #[test]
    fn a_filesystem_that_cannot_grow_says_so() {
        assert_eq!(grower("ext4", "/dev/sdb", Path::new("/m")).unwrap(), ("resize2fs", vec!["/dev/sdb".to_owned()]));
        let text = "resize of format vfat is not supported for device /dev/sdb mounted at /m";
        assert_eq!(grower("vfat", "/dev/sdb", Path::new("/m")).unwrap_err(), text);
    }

    #[test]
    fn options_end_before_the_device() {
        let (volume, path, options) = ("v".to_owned(), "/dev/sdb".to_owned(), vec!["noatime".to_owned()]);
        let device = Device { volume, path, fs_type: None, options, read_only: true };
        let args = arguments(&device, "ext4", Path::new("/m"));
        assert_eq!(args, ["-t", "ext4", "-o", "noatime,ro,defaults", "--", "/dev/sdb", "/m"]);
    }
}
