//! Volumes of a pod: made before its containers, kept fresh while it runs, tidied after it. Layout as upstream's
//! `/var/lib/kubelet`.

mod claims;

mod empty_dir;

pub(crate) mod error;

mod faults;

pub(crate) mod group;

pub(crate) mod mounted;

pub(crate) mod content;

mod host_path;

pub(crate) mod image;

pub(crate) mod local;

mod mark;

mod nfs;

pub(crate) mod mounts;

mod payload;

pub(crate) mod plugin;

mod program;

pub(crate) mod refs;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use base::confined::deadline::within;
use base::confined::{Dir, tree};
use k8s_openapi::api::core::v1::{Pod, PodSpec, Volume, VolumeDevice, VolumeMount};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use self::error::{FolderError, NoPlugin};
use self::group::FsGroup;
use self::mark::{is_in_use, mark, note_ready};
use self::mounted::shown;
use self::plugin::Plugin;
use crate::config::Config;
use crate::container::fields::Surroundings;
use crate::csi::mount::Pass;
use crate::csi::{self, wanted::Wanted};
use crate::mount_points::{is_mount_point, mounts_under};
use crate::node::Node;
use crate::pods::folder::mark_pod;
use crate::volumes::error::VolumeError;
use crate::volumes::mounted::Mounted;

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
    mark_pod(&node.config.root_dir, uid).map_err(VolumeError::set_up(""))?;
    let mut mounted = Mounted { shown: shown(pod), ..Mounted::default() };
    let spec = pod.spec.clone().unwrap_or_default();
    let group = FsGroup::of(spec.security_context.as_ref());
    for volume in spec.volumes.iter().flatten().filter(|volume| is_used(&spec, &volume.name)) {
        let name = &volume.name;
        let pass = if before.paths.contains_key(name) { Pass::Again } else { Pass::First };
        if volume.image.is_some() {
            // Mounted when its image is here, before the first container that shows it.
            mounted.paths.extend(before.paths.get(name).map(|path| (name.clone(), path.clone())));
            mounted.read_only.insert(name.clone(), true);
        } else if let Some(source) = &volume.host_path {
            let path = host_path::prepare(source).await.map_err(VolumeError::set_up(name))?;
            mounted.paths.insert(name.clone(), path);
        } else if let Some(source) = &volume.empty_dir {
            let path = plugin_dir(&node.config, pod, Plugin::EmptyDir, name);
            if pass == Pass::First {
                let group = group.map(|group| group.id);
                let made = empty_dir::prepare(&node.config, &node.machine, pod, name, source, group).await;
                made.map_err(FolderError::at(&path)).map_err(VolumeError::set_up(name))?;
            }
            mounted.paths.insert(name.clone(), path);
        } else if let Some(claim) = claim_name(pod, volume) {
            claimed(node, pod, volume, &claim, group, pass, &mut mounted).await?;
        } else if let Some(source) = &volume.nfs {
            if source.read_only == Some(true) {
                mounted.read_only.insert(name.clone(), true);
            }
            let target = plugin_dir(&node.config, pod, Plugin::Nfs, name);
            nfs::attach(source, &[], &target).await.map_err(VolumeError::set_up(name))?;
            mounted.paths.insert(name.clone(), target);
        } else if let Some(source) = &volume.csi {
            driven(node, pod, name, &Wanted::inline(pod, volume, source), pass, &mut mounted).await?;
        } else {
            let path = rendered(node, pod, volume, around, group, &mut mounted).await?;
            mounted.paths.insert(name.clone(), path);
        }
    }
    Ok(mounted)
}

/// A volume behind a claim.
async fn claimed(
    node: &Node,
    pod: &Pod,
    volume: &Volume,
    claim: &str,
    group: Option<FsGroup>,
    pass: Pass,
    mounted: &mut Mounted,
) -> Result<(), VolumeError> {
    let name = &volume.name;
    let targets = claims::Targets {
        nfs: plugin_dir(&node.config, pod, Plugin::Nfs, name),
        local: plugin_dir(&node.config, pod, Plugin::LocalVolume, name),
    };
    let found = claims::resolve(node, pod, volume, claim, &targets).await.map_err(VolumeError::set_up(name))?;
    let local = match found {
        claims::Found::Local(local) => local,
        claims::Found::Driver(wanted) => return driven(node, pod, name, &wanted, pass, mounted).await,
    };
    if local.read_only || volume.persistent_volume_claim.as_ref().and_then(|c| c.read_only) == Some(true) {
        mounted.read_only.insert(name.clone(), true);
    }
    if local.may_grow {
        mounted.look_again_at(csi::mount::next_look(&node.clock));
    }
    if let Some((group, at)) = group.zip(local.group_at.as_deref()).filter(|_| pass == Pass::First) {
        local_group(&node.config, pod, name, at, group).await.map_err(VolumeError::set_up(name))?;
    }
    mounted.paths.insert(name.clone(), local.path);
    Ok(())
}

/// A volume that a driver has.
async fn driven(
    node: &Node,
    pod: &Pod,
    name: &str,
    wanted: &Wanted,
    pass: Pass,
    mounted: &mut Mounted,
) -> Result<(), VolumeError> {
    let ready = Box::pin(csi::mount::set_up(node, pod, wanted, pass)).await?;
    if wanted.read_only {
        mounted.read_only.insert(name.to_owned(), true);
    }
    mounted.look_again_at(ready.again_at);
    mounted.paths.insert(name.to_owned(), ready.path);
    Ok(())
}

/// An ephemeral volume's claim has a name made of the pod's and the volume's.
pub(crate) fn claim_name(pod: &Pod, volume: &Volume) -> Option<String> {
    let named = volume.persistent_volume_claim.as_ref().map(|c| c.claim_name.clone());
    let ephemeral = || Some(format!("{}-{}", pod.metadata.name.as_deref()?, volume.name));
    named.or_else(|| volume.ephemeral.as_ref().and_then(|_| ephemeral()))
}

pub(crate) fn plugin_dir(config: &Config, pod: &Pod, plugin: Plugin, volume: &str) -> PathBuf {
    let pod_dir = pod_dir(config, pod.metadata.uid.as_deref().unwrap_or_default());
    pod_dir.join("volumes").join(plugin.folder()).join(volume)
}

/// ConfigMaps, Secrets, tokens and the downward API: files made of objects.
async fn rendered(
    node: &Node,
    pod: &Pod,
    volume: &Volume,
    around: &Surroundings,
    group: Option<FsGroup>,
    mounted: &mut Mounted,
) -> Result<PathBuf, VolumeError> {
    let name = &volume.name;
    let plugin = Plugin::of_objects(volume).ok_or(NoPlugin).map_err(VolumeError::set_up(name))?;
    let path = plugin_dir(&node.config, pod, plugin, name);
    let content = content::of(node, pod, volume, around, &path).await.map_err(VolumeError::set_up(name))?;
    if let Some(at) = content.refresh_at {
        mounted.look_again_at(at);
    }
    // Whatever the spec says: root writes here, and would otherwise share the folder with the container. As upstream's
    // attributes.
    mounted.read_only.insert(name.clone(), true);
    let (target, group) = (path.clone(), group.map(|group| group.id));
    let work = move || -> io::Result<()> {
        let mut dir = Dir::open_or_make(&target, 0o755)?;
        if plugin.is_in_memory() && !is_mount_point(&target)? {
            mount_tmpfs(&target, None)?;
            dir = Dir::open(&target)?;
        }
        dir.chown(Path::new(""), None, group)?;
        dir.chmod(Path::new(""), 0o755 | if group.is_some() { 0o2000 } else { 0 })?;
        payload::write(&dir, &content.files, group)
    };
    let written = within(&path, DISK_LIMIT, work).await;
    written.map_err(FolderError::at(&path)).map_err(VolumeError::set_up(name))?;
    Ok(path)
}

/// Gives a local volume to the pod's group once for the pod, and not while another pod works in it. As upstream's
/// `local.go`.
async fn local_group(config: &Config, pod: &Pod, volume: &str, path: &Path, group: FsGroup) -> io::Result<()> {
    let mark = mark(config, pod, Plugin::LocalVolume, volume);
    let (pods, root) = (config.root_dir.join("pods"), path.to_owned());
    let work = move || {
        let text = root.display().to_string();
        if mark.exists() {
            return Ok(());
        }
        if !is_in_use(&pods, &text)? {
            group::give(&root, group)?;
        }
        note_ready(&mark, &text)
    };
    within(path, GROUP_LIMIT, work).await
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
    for mount in mounts_under(&dir.join("volumes").join(Plugin::Nfs.folder()))? {
        umount2(&mount, MntFlags::UMOUNT_NOFOLLOW | MntFlags::MNT_FORCE).map_err(io::Error::from)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn an_ephemeral_volumes_claim_has_the_names_of_its_pod_and_its_own() {
        let pod = Pod { metadata: serde_json::from_value(serde_json::json!({"name": "p"})).unwrap(), ..Pod::default() };
        let name = |volume: serde_json::Value| claim_name(&pod, &serde_json::from_value(volume).unwrap());
        let claim = serde_json::json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}});
        assert_eq!(name(claim).as_deref(), Some("c"));
        assert_eq!(name(serde_json::json!({"name": "v", "ephemeral": {}})).as_deref(), Some("p-v"));
        assert_eq!(name(serde_json::json!({"name": "v", "emptyDir": {}})), None);
    }
}
