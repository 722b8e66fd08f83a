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

use super::faults::{DeviceError, LocalError, LookError, ProgramError};
use super::program::Ended;
use super::{DISK_LIMIT, program};
use crate::config::Config;
use crate::csi::Csi;
use crate::csi::data::VolumeId;
use crate::mount_points::{is_mount_point, mounts_under, resolved};

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
pub(super) async fn attach(config: &Config, csi: &Csi, device: &Device, target: &Path) -> Result<PathBuf, LocalError> {
    let place = base_of(config).join(&device.volume);
    if is_mount_point(target)? {
        return Ok(place);
    }
    if !device.path.starts_with('/') {
        return Err(LocalError::Relative { path: device.path.clone() });
    }
    let one_at_a_time = turn(csi, &device.volume, TURN_LIMIT).await?;
    let (device, at, target) = (device.clone(), place.clone(), target.to_owned());
    let work = move || {
        let _until_the_end = one_at_a_time;
        mount_and_bind(&device, &at, &target)
    };
    Group::blocking(work).await??;
    Ok(place)
}

fn mount_and_bind(device: &Device, place: &Path, target: &Path) -> Result<(), LocalError> {
    if !is_mount_point(place)? {
        drop(Dir::open_or_make(place, 0o750)?);
        let failed = |source: DeviceError| LocalError::Mount {
            device: device.path.clone(),
            place: place.to_owned(),
            source: Box::new(source),
        };
        format_and_mount(device, place).map_err(failed)?;
        info!(volume = device.volume, device = device.path, "mounted the device of a local volume");
    }
    drop(Dir::open_or_make(target, 0o750)?);
    Ok(mount(Some(place), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?)
}

/// Makes the filesystem as large as its device (upstream's mount-utils `ResizeFs`).
///
/// Errors: why not, in upstream's words.
pub(super) async fn grow(config: &Config, csi: &Csi, device: &Device) -> Result<(), LocalError> {
    let one_at_a_time = turn(csi, &device.volume, TURN_LIMIT).await?;
    let (device, place) = (device.path.clone(), base_of(config).join(&device.volume));
    let work = move || {
        let _until_the_end = one_at_a_time;
        let fs_type = found_on(&device)?.unwrap_or_default();
        let (program, args) = grower(fs_type, Path::new(&device), &place)?;
        let ended = program::run(program, &args, MAKE_LIMIT)
            .map_err(|source| LocalError::NotRun { device: device.clone(), source })?;
        ended.well().map(drop).map_err(|source| LocalError::Resize { device, program, source })
    };
    Group::blocking(work).await?
}

/// The program that makes a mounted filesystem larger, and its arguments.
fn grower(fs_type: String, device: &Path, place: &Path) -> Result<(&'static str, Vec<String>), LocalError> {
    let [device, place] = [device, place].map(|path| path.display().to_string());
    match fs_type.as_str() {
        "ext2" | "ext3" | "ext4" => Ok(("resize2fs", vec![device])),
        "xfs" => Ok(("xfs_growfs", vec!["-d".to_owned(), place])),
        "btrfs" => {
            Ok(("btrfs", ["filesystem", "resize", "max"].map(str::to_owned).into_iter().chain([place]).collect()))
        }
        _ => Err(LocalError::NoGrower { fs_type, device, place }),
    }
}

/// Waits until nobody else is at the device of a volume, no longer than `limit`: a thread at a device that is dead
/// never gives its turn back.
///
/// Errors: somebody still is.
async fn turn(csi: &Csi, volume: &str, limit: Duration) -> Result<OwnedMutexGuard<()>, LocalError> {
    let turn = timeout(limit, csi.lock(VolumeId { driver: PLUGIN, handle: volume }).lock_owned()).await;
    turn.map_err(|_| LocalError::Busy { volume: volume.to_owned() })
}

/// Takes off the machine's mounts of devices that no pod has any more. One that somebody is busy with stays until a
/// later pod ends.
pub(crate) async fn release_unused(config: &Config, csi: &Csi) {
    let base = base_of(config);
    let mounted = match mounts_under(&base) {
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
fn format_and_mount(device: &Device, place: &Path) -> Result<(), DeviceError> {
    let fs_type = device.fs_type.as_deref().filter(|name| !name.is_empty()).unwrap_or("ext4");
    if !is_fs_type(fs_type) {
        return Err(DeviceError::FsType { fs_type: fs_type.to_owned() });
    }
    let is_read_only = device.read_only || device.options.iter().any(|option| option == "ro");
    match found_on(&device.path)? {
        None if is_read_only => return Err(DeviceError::Unformatted { device: device.path.clone() }),
        None => make(device, fs_type)?,
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
    Ok(program::mount(&arguments(device, fs_type, place), LOOK_LIMIT)?)
}

/// The filesystem on a device; `None` if there is nothing on it.
fn found_on(device: &str) -> Result<Option<String>, DeviceError> {
    let args = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", "--", device].map(str::to_owned);
    let failed = |source: LookError| DeviceError::Look { device: device.to_owned(), source };
    let ended = program::run("blkid", &args, LOOK_LIMIT).map_err(|err| failed(err.into()))?;
    if ended.status == BLKID_NOTHING {
        return Ok(None);
    }
    let said = ended.well().map_err(|err| failed(LookError::Blkid(err)))?;
    read_format(&said).map_err(failed)
}

/// The filesystem that `blkid -o export` says is on a device.
fn read_format(said: &str) -> Result<Option<String>, LookError> {
    let value = |key: &str| {
        said.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('=').filter(|value| !value.is_empty()))
    };
    match (value("TYPE"), value("PTTYPE")) {
        (Some(fs_type), _) => Ok(Some(fs_type.to_owned())),
        (None, Some(table)) => Err(LookError::Partitioned { table: table.to_owned() }),
        (None, None) => Ok(None),
    }
}

fn make(device: &Device, fs_type: &str) -> Result<(), DeviceError> {
    let path = &device.path;
    info!(device = path, fs_type, "the device of a local volume is empty, it gets a filesystem");
    let mut args: Vec<String> = match fs_type {
        // By force, as the whole device is taken; no blocks are kept for root.
        "ext3" | "ext4" => vec!["-F".to_owned(), "-m0".to_owned()],
        "xfs" => vec!["-f".to_owned()],
        _ => Vec::new(),
    };
    args.extend(["--".to_owned(), path.clone()]);
    let ended = program::run(&format!("mkfs.{fs_type}"), &args, MAKE_LIMIT).map_err(ProgramError::from);
    let done = ended.and_then(Ended::well);
    done.map(drop).map_err(|why| DeviceError::Make { device: path.clone(), fs_type: fs_type.to_owned(), why })
}

/// Has `fsck` mend what it can. A machine without it, and any other trouble of it, is left to the mount.
fn check(device: &str) -> Result<(), DeviceError> {
    let ended = match program::run("fsck", &["-a".to_owned(), device.to_owned()], MAKE_LIMIT) {
        Ok(ended) => ended,
        Err(err) => {
            warn!(device, %err, "the device of a local volume is mounted without a check");
            return Ok(());
        }
    };
    match ended.status {
        FSCK_MENDED => info!(device, "fsck mended the filesystem of a local volume"),
        FSCK_LEFT => return Err(DeviceError::Check { device: device.to_owned(), output: ended.output }),
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
        let _never_given_back = csi.lock(VolumeId { driver: PLUGIN, handle: "dead" }).lock_owned().await;
        let mounted = ["dead", "other"].map(|volume| dir.path().join(volume)).to_vec();
        timeout(Duration::from_secs(30), release_each(&csi, mounted, &dir.path().join("pods")))
            .await
            .expect("a pod ends");
        let why = turn(&csi, "dead", Duration::from_millis(1)).await.unwrap_err();
        assert_eq!(why.to_string(), "local: an operation with the device of volume dead is still under way");
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
        let of = |fs_type: &str| grower(fs_type.to_owned(), Path::new("/dev/sdb"), Path::new("/m"));
        for (fs_type, words) in [
            ("ext4", &["resize2fs", "/dev/sdb"][..]),
            ("xfs", &["xfs_growfs", "-d", "/m"]),
            ("btrfs", &["btrfs", "filesystem", "resize", "max", "/m"]),
        ] {
            let (program, args) = of(fs_type).unwrap();
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            assert_eq!((program, args.as_slice()), (words[0], &words[1..]), "{fs_type}");
        }
        let text = "resize of format vfat is not supported for device /dev/sdb mounted at /m";
        assert_eq!(of("vfat").unwrap_err().to_string(), text);
    }

    #[test]
    fn options_end_before_the_device() {
        let (volume, path, options) = ("v".to_owned(), "/dev/sdb".to_owned(), vec!["noatime".to_owned()]);
        let device = Device { volume, path, fs_type: None, options, read_only: true };
        let args = arguments(&device, "ext4", Path::new("/m"));
        assert_eq!(args, ["-t", "ext4", "-o", "noatime,ro,defaults", "--", "/dev/sdb", "/m"]);
    }
}
