//! Volumes of a pod: made before its containers, kept fresh while it runs, tidied after it. Layout as upstream's `/var/lib/kubelet`.

mod claims;

pub(crate) mod content;

mod host_path;

pub(crate) mod image;

mod nfs;

pub(crate) mod mounts;

mod payload;

pub(crate) mod refs;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use base::task::Group;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, Volume};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::cgroups;
use crate::container::fields::Surroundings;
use crate::csi::{self, wanted::Wanted};
use crate::node::Node;

/// A volume that cannot be mounted, with upstream's text for the event `FailedMount`.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{phase} failed for volume \"{volume}\" : {why}")]
pub(crate) struct VolumeError {
    pub(crate) phase: &'static str,
    pub(crate) volume: String,
    pub(crate) why: String,
    /// Nothing is wrong: the volume is on its way.
    pub(crate) is_waiting: bool,
}

impl VolumeError {
    pub(crate) fn new(phase: &'static str, volume: &str, why: String) -> VolumeError {
        VolumeError { phase, volume: volume.to_owned(), why, is_waiting: false }
    }

    /// Somebody else must do something first.
    pub(crate) fn waiting(volume: &str) -> VolumeError {
        VolumeError {
            is_waiting: true,
            ..VolumeError::new("VerifyControllerAttachedVolume", volume, "volume is not attached yet".to_owned())
        }
    }

    /// The reason of its event.
    pub(crate) fn reason(&self) -> &'static str {
        if self.phase.starts_with("MapVolume") { "FailedMapVolume" } else { "FailedMount" }
    }
}

/// The volumes of one pod as they are mounted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mounted {
    /// Where each volume lies on the host.
    pub(crate) paths: BTreeMap<String, PathBuf>,
    /// Volumes that the spec's author made read-only as a whole.
    pub(crate) read_only: BTreeMap<String, bool>,
    /// When tokens must be fetched again.
    pub(crate) refresh_at: Option<Timestamp>,
    /// The labels and annotations that files of the downward API show.
    shown: Option<(Texts, Texts)>,
}

type Texts = BTreeMap<String, String>;

impl Mounted {
    /// Whether files of the downward API show labels or annotations that the pod no longer has.
    pub(crate) fn is_outdated(&self, pod: &Pod) -> bool {
        self.shown.is_some() && self.shown != shown(pod)
    }
}

/// What files of the downward API may show of the pod's metadata; `None` if it has no such files.
fn shown(pod: &Pod) -> Option<(Texts, Texts)> {
    let projects = |v: &Volume| v.projected.iter().flat_map(|p| p.sources.iter().flatten()).any(|s| s.downward_api.is_some());
    let mut volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    let shows = volumes.any(|v| v.downward_api.is_some() || projects(v));
    shows.then(|| (pod.metadata.labels.clone().unwrap_or_default(), pod.metadata.annotations.clone().unwrap_or_default()))
}

/// `<root>/pods/<uid>`.
pub(crate) fn pod_dir(node: &Node, uid: &str) -> PathBuf {
    node.config.root_dir.join("pods").join(uid)
}

/// Mounts what is not mounted and renews what is made of API objects. Done again, it changes only what changed.
pub(crate) async fn mount_all(node: &Node, pod: &Pod, around: &Surroundings, before: &Mounted) -> Result<Mounted, VolumeError> {
    let mut mounted = Mounted { shown: shown(pod), ..Mounted::default() };
    let spec = pod.spec.clone().unwrap_or_default();
    let fs_group = spec.security_context.as_ref().and_then(|c| c.fs_group).and_then(|g| u32::try_from(g).ok());
    for volume in spec.volumes.iter().flatten() {
        let failed = |why: String| VolumeError::new("MountVolume.SetUp", &volume.name, why);
        let known = before.paths.contains_key(&volume.name);
        if volume.image.is_some() {
            // Mounted when its image is here, before the first container that shows it.
            mounted.paths.extend(before.paths.get(&volume.name).map(|path| (volume.name.clone(), path.clone())));
            mounted.read_only.insert(volume.name.clone(), true);
            continue;
        }
        let path = if let Some(source) = &volume.host_path {
            host_path::prepare(source).map_err(failed)?
        } else if let Some(source) = &volume.empty_dir {
            let path = plugin_dir(node, pod, "kubernetes.io~empty-dir", &volume.name);
            if !known {
                empty_dir(&path, source, fs_group).map_err(|err| failed(format!("{}: {err}", path.display())))?;
            }
            path
        } else if let Some(claim) = claim_name(pod, volume) {
            let target = plugin_dir(node, pod, "kubernetes.io~nfs", &volume.name);
            let pod_read_only = volume.persistent_volume_claim.as_ref().and_then(|c| c.read_only) == Some(true);
            let local = match claims::resolve(node, pod, &claim, &target, pod_read_only).await.map_err(failed)? {
                claims::Found::Local(local) => local,
                claims::Found::Driver(wanted) => {
                    driven(node, pod, &volume.name, &wanted, known, &mut mounted).await?;
                    continue;
                }
            };
            if local.read_only || volume.persistent_volume_claim.as_ref().and_then(|c| c.read_only) == Some(true) {
                mounted.read_only.insert(volume.name.clone(), true);
            }
            let mismatch_only =
                spec.security_context.as_ref().is_some_and(|c| c.fs_group_change_policy.as_deref() == Some("OnRootMismatch"));
            if let Some(group) = fs_group.filter(|_| local.takes_group && !known) {
                let root = local.path.clone();
                let owned = Group::blocking(move || give(&root, group, mismatch_only)).await.map_err(|err| failed(err.to_string()))?;
                owned.map_err(|err| failed(err.to_string()))?;
            }
            local.path
        } else if let Some(source) = &volume.nfs {
            if source.read_only == Some(true) {
                mounted.read_only.insert(volume.name.clone(), true);
            }
            let target = plugin_dir(node, pod, "kubernetes.io~nfs", &volume.name);
            nfs::attach(source, &[], &target).await.map_err(failed)?;
            target
        } else if let Some(source) = &volume.csi {
            let wanted = Wanted::inline(pod, volume, source);
            driven(node, pod, &volume.name, &wanted, known, &mut mounted).await?;
            continue;
        } else {
            rendered(node, pod, volume, around, fs_group, &mut mounted).await.map_err(failed)?
        };
        mounted.paths.insert(volume.name.clone(), path);
    }
    Ok(mounted)
}

/// A volume that a driver has.
async fn driven(node: &Node, pod: &Pod, name: &str, wanted: &Wanted, known: bool, mounted: &mut Mounted) -> Result<(), VolumeError> {
    let ready = Box::pin(csi::mount::set_up(node, pod, wanted, known)).await?;
    if wanted.read_only {
        mounted.read_only.insert(name.to_owned(), true);
    }
    mounted.refresh_at = Some(mounted.refresh_at.map_or(ready.again_at, |at| at.min(ready.again_at)));
    mounted.paths.insert(name.to_owned(), ready.path);
    Ok(())
}

/// An ephemeral volume's claim has a name made of the pod's and the volume's.
pub(crate) fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.clone());
    let ephemeral = || Some(format!("{}-{}", pod.metadata.name.as_deref()?, volume.name));
    named.or_else(|| volume.ephemeral.as_ref().and_then(|_| ephemeral()))
}

pub(crate) fn plugin_dir(node: &Node, pod: &Pod, plugin: &str, volume: &str) -> PathBuf {
    pod_dir(node, pod.metadata.uid.as_deref().unwrap_or_default()).join("volumes").join(plugin).join(volume)
}

/// ConfigMaps, Secrets, tokens and the downward API: files made of objects.
async fn rendered(
    node: &Node,
    pod: &Pod,
    volume: &Volume,
    around: &Surroundings,
    fs_group: Option<u32>,
    mounted: &mut Mounted,
) -> Result<PathBuf, String> {
    let Some(plugin) = content::plugin(volume) else {
        return Err("no volume plugin matched".to_owned());
    };
    let path = plugin_dir(node, pod, plugin.dir, &volume.name);
    let content = content::of(node, pod, volume, around, &path).await?;
    if let Some(at) = content.refresh_at {
        mounted.refresh_at = Some(mounted.refresh_at.map_or(at, |earlier| earlier.min(at)));
    }
    let target = path.clone();
    let work = move || -> io::Result<()> {
        make_dir(&target, 0o777)?;
        if plugin.in_memory && !is_mount_point(&target)? {
            mount_tmpfs(&target, None)?;
            fs::set_permissions(&target, Permissions::from_mode(0o777 | if fs_group.is_some() { 0o2000 } else { 0 }))?;
        }
        payload::write(&target, &content.files, fs_group)
    };
    match Group::blocking(work).await {
        Ok(Ok(())) => Ok(path),
        Ok(Err(err)) => Err(format!("{}: {err}", path.display())),
        Err(err) => Err(err.to_string()),
    }
}

fn empty_dir(path: &Path, source: &EmptyDirVolumeSource, fs_group: Option<u32>) -> io::Result<()> {
    make_dir(path, 0o777)?;
    match source.medium.as_deref().unwrap_or_default() {
        "" => {}
        "Memory" => {
            if !is_mount_point(path)? {
                mount_tmpfs(path, source.size_limit.as_ref().map(|q| cgroups::parse(q).value()))?;
            }
        }
        huge if huge == "HugePages" || huge.starts_with("HugePages-") => {
            if !is_mount_point(path)? {
                // `HugePages-2Mi`: the kernel wants `pagesize=2M`.
                let size = huge.strip_prefix("HugePages-").map(|s| format!("pagesize={}", s.trim_end_matches('i')));
                mount(Some("nodev"), path, Some("hugetlbfs"), MsFlags::empty(), size.as_deref()).map_err(io::Error::from)?;
            }
        }
        other => return Err(io::Error::other(format!("unknown storage medium \"{other}\""))),
    }
    let group_bit = if fs_group.is_some() { 0o2000 } else { 0 };
    if let Some(group) = fs_group {
        std::os::unix::fs::chown(path, None, Some(group))?;
    }
    fs::set_permissions(path, Permissions::from_mode(0o777 | group_bit))
}

fn mount_tmpfs(path: &Path, size: Option<i64>) -> io::Result<()> {
    let options = size.filter(|s| *s > 0).map(|size| format!("size={size}"));
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), options.as_deref()).map_err(io::Error::from)
}

/// Parents stay closed to others (0750 as upstream's root folder); the last part gets `mode` whatever the umask.
pub(super) fn make_dir(path: &Path, mode: u32) -> io::Result<()> {
    fs::create_dir_all(path)?;
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Whether a folder belongs to the group already as `fsGroup` would make it.
fn fits(path: &Path, group: u32) -> bool {
    use std::os::unix::fs::MetadataExt as _;
    fs::metadata(path).is_ok_and(|m| m.gid() == group && m.permissions().mode() & 0o2770 == 0o2770)
}

/// Gives a volume to the pod's group; with `mismatch_only` not again if its root shows that this was done.
pub(crate) fn give(root: &Path, group: u32, mismatch_only: bool) -> io::Result<()> {
    if mismatch_only && fits(root, group) { Ok(()) } else { own_tree(root, group) }
}

/// Gives a tree to a group, as `fsGroup` asks: setgid folders, readable and writable for the group.
fn own_tree(path: &Path, group: u32) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    std::os::unix::fs::lchown(path, None, Some(group))?;
    if meta.is_symlink() {
        return Ok(());
    }
    let mode = meta.permissions().mode() | if meta.is_dir() { 0o2770 } else { 0o660 };
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            own_tree(&entry?.path(), group)?;
        }
    }
    Ok(())
}

/// Mount points at or under `dir`, the deepest first.
pub(crate) fn mounts_under(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let text = fs::read_to_string("/proc/self/mountinfo")?;
    let mut found: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|field| PathBuf::from(unescape(field)))
        .filter(|path| path.starts_with(dir))
        .collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    Ok(found)
}

/// mountinfo writes space, tab, newline and backslash as three octal digits.
fn unescape(field: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(field.to_owned(), |text, (code, plain)| text.replace(code, plain))
}

pub(crate) fn is_mount_point(path: &Path) -> io::Result<bool> {
    Ok(mounts_under(path)?.iter().any(|mount| mount == path))
}

/// Unmounts and removes everything of a pod. Nothing is removed while a mount is left: it could be the user's data.
pub(crate) fn tidy(dir: &Path) -> io::Result<()> {
    for mount in mounts_under(dir)? {
        umount2(&mount, MntFlags::UMOUNT_NOFOLLOW).map_err(io::Error::from)?;
    }
    if let Some(left) = mounts_under(dir)?.first() {
        return Err(io::Error::other(format!("{} is still mounted", left.display())));
    }
    match fs::remove_dir_all(dir) {
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escaped_mount_points_are_read_back() {
        assert_eq!(unescape("/a\\040b\\134c"), "/a b\\c");
    }

    #[test]
    fn a_new_label_outdates_only_pods_that_show_it() {
        let labelled = |volumes: serde_json::Value, label: &str| -> Pod {
            let pod = serde_json::json!({"metadata": {"labels": {"a": label}}, "spec": {"containers": [], "volumes": volumes}});
            serde_json::from_value(pod).unwrap()
        };
        let show = serde_json::json!([{"name": "v", "projected": {"sources": [{"downwardAPI": {"items": []}}]}}]);
        let mounted = Mounted { shown: shown(&labelled(show.clone(), "1")), ..Mounted::default() };
        assert!(!mounted.is_outdated(&labelled(show.clone(), "1")));
        assert!(mounted.is_outdated(&labelled(show, "2")));
        let plain = serde_json::json!([{"name": "v", "emptyDir": {}}]);
        let mounted = Mounted { shown: shown(&labelled(plain.clone(), "1")), ..Mounted::default() };
        assert!(!mounted.is_outdated(&labelled(plain, "2")));
    }

    #[test]
    fn an_empty_dir_is_open_to_all_and_carries_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v");
        empty_dir(&path, &EmptyDirVolumeSource::default(), None).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o777);
        let odd = EmptyDirVolumeSource { medium: Some("Tape".to_owned()), ..Default::default() };
        assert!(empty_dir(&path, &odd, None).is_err());
    }
}
