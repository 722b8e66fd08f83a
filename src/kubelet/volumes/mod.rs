//! Volumes of a pod: made before its containers, kept fresh while it runs, tidied after it. Layout as upstream's
//! `/var/lib/kubelet`.

mod claims;

pub(crate) mod error;

pub(crate) mod group;

pub(crate) mod mounted;

pub(crate) mod content;

mod host_path;

pub(crate) mod image;

pub(crate) mod local;

mod nfs;

pub(crate) mod mounts;

mod payload;

mod program;

pub(crate) mod refs;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::confined::deadline::within;
use base::confined::{Dir, tree};
use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, PodSpec, Volume, VolumeDevice, VolumeMount};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use self::mounted::shown;
use crate::cgroups::limits;
use crate::config::Config;
use crate::container::fields::Surroundings;
use crate::csi::{self, wanted::Wanted};
use crate::machine::Machine;
use crate::mount_points::{is_mount_point, mounts_under};
use crate::node::Node;
use crate::pods::folder::mark_pod;
use crate::volumes::error::VolumeError;
use crate::volumes::mounted::Mounted;

/// Folders of pods, and volumes of one pod, that are looked through.
const PODS_MAX: usize = 1 << 16;
const VOLUMES_MAX: usize = 1 << 12;
/// Bytes of a path.
const PATH_BYTES_MAX: usize = 4096;
/// Folders of the machine's own disk answer within this.
const DISK_LIMIT: Duration = Duration::from_secs(60);
/// All that a pod has written is removed within this.
const REMOVE_LIMIT: Duration = Duration::from_secs(3600);
/// All that a volume holds is given to its group within this; a large one takes long.
const GROUP_LIMIT: Duration = Duration::from_secs(3600);

/// `<root>/pods/<uid>`.
pub(crate) fn pod_dir(config: &Config, uid: &str) -> PathBuf {
    config.root_dir.join("pods").join(uid)
}

/// The mounts and the devices of each container.
fn uses(spec: &PodSpec) -> impl Iterator<Item = (&[VolumeMount], &[VolumeDevice])> {
    let plain = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .map(|c| (&c.volume_mounts, &c.volume_devices));
    let all = plain.chain(spec.ephemeral_containers.iter().flatten().map(|c| (&c.volume_mounts, &c.volume_devices)));
    all.map(|(mounts, devices)| (mounts.as_deref().unwrap_or_default(), devices.as_deref().unwrap_or_default()))
}

/// Whether any container uses a volume: else it is left alone, as upstream's `processPodVolumes` leaves it.
fn is_used(spec: &PodSpec, volume: &str) -> bool {
    uses(spec).any(|(mounts, devices)| {
        mounts.iter().any(|mount| mount.name == volume) || devices.iter().any(|device| device.name == volume)
    })
}

/// The volumes that a container uses and that are not there, though the content of those that are may be old. Those of
/// images come with their containers.
pub(crate) fn missing<'p>(pod: &'p Pod, mounted: &Mounted) -> Vec<&'p str> {
    let of = |spec: &'p PodSpec| spec.volumes.iter().flatten().filter(|v| v.image.is_none() && is_used(spec, &v.name));
    let used = pod.spec.iter().flat_map(of).map(|volume| volume.name.as_str());
    used.filter(|name| !mounted.paths.contains_key(*name)).collect()
}

/// Mounts what is not mounted and renews what is made of API objects. Done again, it changes only what changed.
pub(crate) async fn mount_all(
    node: &Node,
    pod: &Pod,
    around: &Surroundings,
    before: &Mounted,
) -> Result<Mounted, VolumeError> {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    mark_pod(&node.config.root_dir, uid).map_err(|err| VolumeError::new("MountVolume.SetUp", "", err.to_string()))?;
    let mut mounted = Mounted { shown: shown(pod), ..Mounted::default() };
    let spec = pod.spec.clone().unwrap_or_default();
    let fs_group = spec.security_context.as_ref().and_then(|c| c.fs_group).and_then(|g| u32::try_from(g).ok());
    for volume in spec.volumes.iter().flatten().filter(|volume| is_used(&spec, &volume.name)) {
        let failed = |why: String| VolumeError::new("MountVolume.SetUp", &volume.name, why);
        let known = before.paths.contains_key(&volume.name);
        if volume.image.is_some() {
            // Mounted when its image is here, before the first container that shows it.
            mounted.paths.extend(before.paths.get(&volume.name).map(|path| (volume.name.clone(), path.clone())));
            mounted.read_only.insert(volume.name.clone(), true);
            continue;
        }
        let path = if let Some(source) = &volume.host_path {
            host_path::prepare(source).await.map_err(failed)?
        } else if let Some(source) = &volume.empty_dir {
            let path = plugin_dir(&node.config, pod, "kubernetes.io~empty-dir", &volume.name);
            if !known {
                let made = scratch(&node.config, &node.machine, pod, &volume.name, source, fs_group).await;
                made.map_err(|err| failed(format!("{}: {err}", path.display())))?;
            }
            path
        } else if let Some(claim) = claim_name(pod, volume) {
            let targets = claims::Targets {
                nfs: plugin_dir(&node.config, pod, "kubernetes.io~nfs", &volume.name),
                local: plugin_dir(&node.config, pod, "kubernetes.io~local-volume", &volume.name),
            };
            let local = match claims::resolve(node, pod, volume, &claim, &targets).await.map_err(failed)? {
                claims::Found::Local(local) => local,
                claims::Found::Driver(wanted) => {
                    driven(node, pod, &volume.name, &wanted, known, &mut mounted).await?;
                    continue;
                }
            };
            if local.read_only || volume.persistent_volume_claim.as_ref().and_then(|c| c.read_only) == Some(true) {
                mounted.read_only.insert(volume.name.clone(), true);
            }
            if local.may_grow {
                let again_at = csi::mount::next_look(&node.clock);
                mounted.refresh_at = Some(mounted.refresh_at.map_or(again_at, |at| at.min(again_at)));
            }
            let mismatch_only = spec
                .security_context
                .as_ref()
                .is_some_and(|c| c.fs_group_change_policy.as_deref() == Some("OnRootMismatch"));
            if let Some((group, at)) = fs_group.zip(local.group_at.as_deref()).filter(|_| !known) {
                local_group(&node.config, pod, &volume.name, at, group, mismatch_only)
                    .await
                    .map_err(|err| failed(err.to_string()))?;
            }
            local.path
        } else if let Some(source) = &volume.nfs {
            if source.read_only == Some(true) {
                mounted.read_only.insert(volume.name.clone(), true);
            }
            let target = plugin_dir(&node.config, pod, "kubernetes.io~nfs", &volume.name);
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
async fn driven(
    node: &Node,
    pod: &Pod,
    name: &str,
    wanted: &Wanted,
    known: bool,
    mounted: &mut Mounted,
) -> Result<(), VolumeError> {
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

pub(crate) fn plugin_dir(config: &Config, pod: &Pod, plugin: &str, volume: &str) -> PathBuf {
    pod_dir(config, pod.metadata.uid.as_deref().unwrap_or_default()).join("volumes").join(plugin).join(volume)
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
    let path = plugin_dir(&node.config, pod, plugin.dir, &volume.name);
    let content = content::of(node, pod, volume, around, &path).await?;
    if let Some(at) = content.refresh_at {
        mounted.refresh_at = Some(mounted.refresh_at.map_or(at, |earlier| earlier.min(at)));
    }
    // Whatever the spec says: root writes here, and would otherwise share the folder with the container. As upstream's
    // attributes.
    mounted.read_only.insert(volume.name.clone(), true);
    let target = path.clone();
    let work = move || -> io::Result<()> {
        let mut dir = Dir::open_or_make(&target, 0o755)?;
        if plugin.in_memory && !is_mount_point(&target)? {
            mount_tmpfs(&target, None)?;
            dir = Dir::open(&target)?;
        }
        dir.chown(Path::new(""), None, fs_group)?;
        dir.chmod(Path::new(""), 0o755 | if fs_group.is_some() { 0o2000 } else { 0 })?;
        payload::write(&dir, &content.files, fs_group)
    };
    within(&path, DISK_LIMIT, work).await.map_err(|err| format!("{}: {err}", path.display()))?;
    Ok(path)
}

/// The file that says that a volume of a pod was made ready: its mode and owner are the pod's own business from then
/// on. As upstream's.
fn mark(config: &Config, pod: &Pod, plugin: &str, volume: &str) -> PathBuf {
    pod_dir(config, pod.metadata.uid.as_deref().unwrap_or_default())
        .join("plugins")
        .join(plugin)
        .join(volume)
        .join("ready")
}

fn note_ready(mark: &Path, text: &str) -> io::Result<()> {
    let dir = Dir::open_or_make(mark.parent().unwrap_or(mark), 0o750)?;
    dir.write(Path::new("ready"), text.as_bytes(), 0o644)
}

/// Makes the folder of an `emptyDir`, or its mount.
///
/// Errors: the disk's, or that it does not answer.
async fn scratch(
    config: &Config,
    machine: &Machine,
    pod: &Pod,
    volume: &str,
    source: &EmptyDirVolumeSource,
    fs_group: Option<u32>,
) -> io::Result<()> {
    let path = plugin_dir(config, pod, "kubernetes.io~empty-dir", volume);
    let (at, source, mark) = (path.clone(), source.clone(), mark(config, pod, "kubernetes.io~empty-dir", volume));
    let size = memory_size(machine, pod, &source);
    within(&path, DISK_LIMIT, move || empty_dir(&at, &source, size, fs_group, &mark)).await
}

fn empty_dir(
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
                // `HugePages-2Mi`: the kernel wants `pagesize=2M`.
                let size = huge.strip_prefix("HugePages-").map(|s| format!("pagesize={}", s.trim_end_matches('i')));
                mount(Some("nodev"), path, Some("hugetlbfs"), MsFlags::empty(), size.as_deref())
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

/// Gives a local volume to the pod's group once for the pod, and not while another pod works in it. As upstream's
/// `local.go`.
async fn local_group(
    config: &Config,
    pod: &Pod,
    volume: &str,
    path: &Path,
    group: u32,
    mismatch_only: bool,
) -> io::Result<()> {
    let mark = mark(config, pod, "kubernetes.io~local-volume", volume);
    let (pods, root) = (config.root_dir.join("pods"), path.to_owned());
    let work = move || {
        let text = root.display().to_string();
        if mark.exists() {
            return Ok(());
        }
        if !is_in_use(&pods, &text)? {
            group::give(&root, group, mismatch_only)?;
        }
        note_ready(&mark, &text)
    };
    within(path, GROUP_LIMIT, work).await
}

/// Whether a pod's mark names this local volume.
fn is_in_use(pods: &Path, volume: &str) -> io::Result<bool> {
    let dir = Dir::open(pods)?;
    for (uid, _) in dir.entries(PODS_MAX)? {
        let Ok(volumes) = dir.dir(&Path::new(&uid).join("plugins/kubernetes.io~local-volume")) else { continue };
        for (name, _) in volumes.entries(VOLUMES_MAX)? {
            if volumes.read(&Path::new(&name).join("ready"), PATH_BYTES_MAX).is_ok_and(|text| text == volume.as_bytes())
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn mount_tmpfs(path: &Path, size: Option<i64>) -> io::Result<()> {
    let options = size.filter(|s| *s > 0).map(|size| format!("size={size}"));
    mount(Some("tmpfs"), path, Some("tmpfs"), MsFlags::empty(), options.as_deref()).map_err(io::Error::from)
}

/// Unmounts and removes everything of a pod. Nothing is removed behind a mount that is left, or comes meanwhile: it
/// could be the user's data.
///
/// Errors: something is left; it is tried again later. A share whose server is away is taken off by force.
pub(crate) async fn tidy(dir: &Path) -> io::Result<()> {
    let of_work = dir.to_owned();
    match within(dir, DISK_LIMIT, move || unmount_all(&of_work)).await {
        Err(err) if err.kind() == io::ErrorKind::TimedOut => {
            let of_work = dir.to_owned();
            within(dir, DISK_LIMIT, move || force_shares(&of_work)).await?;
            return Err(err);
        }
        done => done?,
    }
    let of_work = dir.to_owned();
    within(dir, REMOVE_LIMIT, move || tree::remove(&of_work).as_error()).await
}

fn unmount_all(dir: &Path) -> io::Result<()> {
    for mount in mounts_under(dir)? {
        umount2(&mount, MntFlags::UMOUNT_NOFOLLOW).map_err(io::Error::from)?;
    }
    if let Some(left) = mounts_under(dir)?.first() {
        return Err(io::Error::other(format!("{} is still mounted", left.display())));
    }
    Ok(())
}

/// Gives up what is under way to servers that do not answer, so that the unmount that waits for it ends.
fn force_shares(dir: &Path) -> io::Result<()> {
    for mount in mounts_under(&dir.join("volumes/kubernetes.io~nfs"))? {
        umount2(&mount, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_FORCE).map_err(io::Error::from)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    // Seen with upstream's "should not mount / map unused volumes in a pod".
    #[test]
    fn a_volume_that_no_container_uses_is_left_alone() {
        let spec = serde_json::json!({"containers": [{"name": "c", "volumeMounts": [{"name": "a", "mountPath": "/a"}]}],
            "initContainers": [{"name": "i", "volumeDevices": [{"name": "b", "devicePath": "/b"}]}],
            "ephemeralContainers": [{"name": "e", "volumeMounts": [{"name": "c", "mountPath": "/c"}]}]});
        let spec: PodSpec = serde_json::from_value(spec).unwrap();
        assert_eq!(["a", "b", "c", "d"].map(|name| is_used(&spec, name)), [true, true, true, false]);
        let volumes = ["a", "b", "c", "d"].map(|name| serde_json::json!({"name": name, "emptyDir": {}}));
        let volumes = serde_json::from_value(serde_json::json!(volumes)).unwrap();
        let pod = Pod { spec: Some(PodSpec { volumes: Some(volumes), ..spec }), ..Pod::default() };
        let mut mounted = Mounted::default();
        assert_eq!(missing(&pod, &mounted), ["a", "b", "c"]);
        for name in ["a", "b"] {
            mounted.paths.insert(name.to_owned(), "/v".into());
        }
        assert_eq!(missing(&pod, &mounted), ["c"], "an ephemeral container is the first to use it");
        mounted.paths.insert("c".to_owned(), "/v".into());
        assert!(missing(&pod, &mounted).is_empty(), "what nobody uses is not waited for");
    }

    #[test]
    fn an_empty_dir_is_open_to_all_and_carries_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let (path, mark) = (dir.path().join("v"), dir.path().join("plugins/v/ready"));
        let plain = EmptyDirVolumeSource::default();
        let mode = || Dir::open(&path).unwrap().meta(Path::new("")).unwrap().mode;
        empty_dir(&path, &plain, None, None, &mark).unwrap();
        assert_eq!(mode(), 0o777);
        // node.md M11: a kubelet that starts anew leaves what the application has made of it.
        Dir::open(&path).unwrap().chmod(Path::new(""), 0o700).unwrap();
        empty_dir(&path, &plain, None, None, &mark).unwrap();
        assert_eq!(mode(), 0o700);
        let odd = EmptyDirVolumeSource { medium: Some("Tape".to_owned()), ..Default::default() };
        assert!(empty_dir(&dir.path().join("w"), &odd, None, None, &dir.path().join("plugins/w/ready")).is_err());
    }

    // node.md M21: half of the machine's memory for a pod with a limit of a few MiB.
    #[test]
    fn memory_for_files_is_the_least_of_all_limits() {
        assert_eq!(least(&[None, Some(64), Some(1 << 30)]), Some(64));
        assert_eq!(least(&[Some(16), Some(64), Some(1 << 30)]), Some(16));
        assert_eq!(least(&[Some(0), None, Some(1 << 30)]), Some(1 << 30));
    }

    // node.md M11: a database's files changed hands while it ran.
    #[test]
    fn a_local_volume_is_in_use_while_a_pods_mark_names_it() {
        let pods = tempfile::tempdir().unwrap();
        let mark = pods.path().join("uid/plugins/kubernetes.io~local-volume/v/ready");
        assert!(!is_in_use(pods.path(), "/data").unwrap());
        note_ready(&mark, "/data").unwrap();
        assert!(is_in_use(pods.path(), "/data").unwrap() && !is_in_use(pods.path(), "/dat").unwrap());
    }

    // node.md S4: a recursion, by path, that a deep tree ended; and a chmod through a planted link (security.md L4).
    #[test]
    fn a_tree_is_given_to_a_group_link_by_link() {
        let dir = tempfile::tempdir().unwrap();
        let (volume, other) = (dir.path().join("v"), dir.path().join("other"));
        fs::create_dir_all(volume.join("sub")).unwrap();
        fs::write(&other, "x").unwrap();
        let outside = Dir::open(dir.path()).unwrap();
        outside.chmod(Path::new("other"), 0o600).unwrap();
        std::os::unix::fs::symlink(&other, volume.join("sub/link")).unwrap();
        group::give(&volume, rustix::process::getgid().as_raw(), false).unwrap();
        assert_eq!(outside.meta(Path::new("other")).unwrap().mode, 0o600);
        assert_eq!(outside.meta(Path::new("v/sub")).unwrap().mode & 0o2770, 0o2770);
    }
}
