//! `emptyDir` volumes: a folder, or a mount of the medium that is asked for.

use std::io;
use std::path::Path;

use base::confined::Dir;
use base::confined::deadline::within;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod};
use nix::mount::{MsFlags, mount};

use super::mark::{mark, note_ready};
use super::plugin::Plugin;
use super::{DISK_LIMIT, mount_tmpfs, plugin_dir};
use crate::cgroups::limits;
use crate::config::Config;
use crate::machine::Machine;
use crate::mount_points::is_mount_point;

/// Makes the folder of an `emptyDir`, or its mount.
///
/// Errors: the disk's, or that it does not answer.
pub(super) async fn prepare(
    config: &Config,
    machine: &Machine,
    pod: &Pod,
    volume: &str,
    source: &EmptyDirVolumeSource,
    fs_group: Option<u32>,
) -> io::Result<()> {
    let path = plugin_dir(config, pod, Plugin::EmptyDir, volume);
    let (at, source, mark) = (path.clone(), source.clone(), mark(config, pod, Plugin::EmptyDir, volume));
    let size = memory_size(machine, pod, &source);
    within(&path, DISK_LIMIT, move || make(&at, &source, size, fs_group, &mark)).await
}

fn make(
    path: &Path,
    source: &EmptyDirVolumeSource,
    size: Option<i64>,
    fs_group: Option<u32>,
    mark: &Path,
) -> io::Result<()> {
    let medium = source.medium.as_deref().unwrap_or_default();
    let mounts = !medium.is_empty();
    // As the kernel makes a tmpfs, and upstream leaves it.
    let sticky = if medium == "Memory" { 0o1000 } else { 0 };
    if mark.exists() && path.is_dir() && (!mounts || is_mount_point(path)?) {
        return Ok(());
    }
    let mut dir = Dir::open_or_make(path, 0o777)?;
    if mounts && !is_mount_point(path)? {
        match medium {
            "Memory" => mount_tmpfs(path, size)?,
            huge if huge == "HugePages" || huge.starts_with("HugePages-") => {
                mount(Some("nodev"), path, Some("hugetlbfs"), MsFlags::empty(), page_size(huge).as_deref())
                    .map_err(io::Error::from)?;
            }
            other => return Err(io::Error::other(format!("unknown storage medium \"{other}\""))),
        }
        dir = Dir::open(path)?;
    }
    dir.chown(Path::new(""), None, fs_group)?;
    dir.chmod(Path::new(""), sticky | 0o777 | if fs_group.is_some() { 0o2000 } else { 0 })?;
    note_ready(mark, "")
}

/// The option of a mount of huge pages: `HugePages-2Mi` is the kernel's `pagesize=2M`.
fn page_size(medium: &str) -> Option<String> {
    medium.strip_prefix("HugePages-").map(|size| format!("pagesize={}", size.trim_end_matches('i')))
}

/// Bytes that an emptyDir in memory may hold: its own limit, the pod's memory limit, what pods of the node may have;
/// the least of them. As upstream's `calculateEmptyDirMemorySize`.
fn memory_size(machine: &Machine, pod: &Pod, source: &EmptyDirVolumeSource) -> Option<i64> {
    if source.medium.as_deref() != Some("Memory") {
        return None;
    }
    least(&[
        source.size_limit.as_ref().map(|q| limits::parse(q).value()),
        limits::Limits::of(pod).memory,
        Some(machine.memory),
    ])
}

fn least(sizes: &[Option<i64>]) -> Option<i64> {
    sizes.iter().flatten().copied().filter(|size| *size > 0).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_dir_is_open_to_all_and_carries_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mark) = (dir.path().join("v"), dir.path().join("plugins/v/ready"));
        let plain = EmptyDirVolumeSource::default();
        let mode = || Dir::open(&path).unwrap().meta(Path::new("")).unwrap().mode;
        make(&path, &plain, None, None, &mark).unwrap();
        assert_eq!(mode(), 0o777);
        // node.md M11: a kubelet that starts anew leaves what the application has made of it.
        Dir::open(&path).unwrap().chmod(Path::new(""), 0o700).unwrap();
        make(&path, &plain, None, None, &mark).unwrap();
        assert_eq!(mode(), 0o700);
        std::fs::remove_file(&mark).unwrap();
        make(&path, &plain, None, Some(rustix::process::getgid().as_raw()), &mark).unwrap();
        assert_eq!(mode(), 0o2777, "a folder that is not marked as ready is made so again");
    }

    #[test]
    fn a_medium_that_nobody_knows_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let odd = EmptyDirVolumeSource { medium: Some("Tape".to_owned()), ..Default::default() };
        let why = make(&dir.path().join("w"), &odd, None, None, &dir.path().join("plugins/w/ready")).unwrap_err();
        assert_eq!(why.to_string(), "unknown storage medium \"Tape\"");
    }

    // node.md M21: half of the machine's memory for a pod with a limit of a few MiB.
    #[test]
    fn memory_for_files_is_the_least_of_all_limits() {
        assert_eq!(least(&[None, Some(64), Some(1 << 30)]), Some(64));
        assert_eq!(least(&[Some(16), Some(64), Some(1 << 30)]), Some(16));
        assert_eq!(least(&[Some(0), None, Some(1 << 30)]), Some(1 << 30));
    }

    #[test]
    fn huge_pages_have_the_size_that_the_medium_names() {
        assert_eq!(page_size("HugePages-2Mi").as_deref(), Some("pagesize=2M"));
        assert_eq!(page_size("HugePages-1Gi").as_deref(), Some("pagesize=1G"));
        assert_eq!(page_size("HugePages"), None, "the kernel's default");
    }
}
