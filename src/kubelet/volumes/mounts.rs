//! The mounts of one container: volumes with subPath and propagation, the hosts file, the termination log.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use base::confined::deadline::within;
use base::confined::{Dir, Meta};
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod, VolumeDevice, VolumeMount};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::pod_dir;
use crate::container::env;
use crate::container::error::ConfigError;
use crate::mount_points::is_mount_point;
use crate::node::Node;
use crate::volumes::mounted::Mounted;

/// A volume answers within this; a share whose server is away does not.
const VOLUME_LIMIT: Duration = Duration::from_secs(30);

/// The volume mounts of a container.
pub(crate) async fn of_container(
    node: &Node,
    pod: &Pod,
    container: &Container,
    mounted: &Mounted,
    envs: &[(String, String)],
    userns: Option<&cri::UserNamespace>,
) -> Result<Vec<cri::Mount>, ConfigError> {
    let recursive_works = node.runtime.handler("").recursive_read_only_mounts;
    let mut mounts = Vec::new();
    for (i, wish) in container.volume_mounts.iter().flatten().enumerate() {
        let Some(volume) = mounted.paths.get(&wish.name) else {
            return Err(ConfigError::new(format!(
                "cannot find volume \"{}\" to mount into container \"{}\"",
                wish.name, container.name
            )));
        };
        let sub_path = sub_path(wish, envs)?;
        let host_path = match sub_path {
            None => volume.clone(),
            Some(sub) => {
                let target = pod_dir(&node.config, pod.metadata.uid.as_deref().unwrap_or_default())
                    .join("volume-subpaths")
                    .join(&wish.name)
                    .join(&container.name)
                    .join(i.to_string());
                let from = volume.clone();
                let bound = within(volume, VOLUME_LIMIT, move || bind_sub_path(&from, &sub, &target)).await;
                bound.map_err(|err| {
                    ConfigError::new(format!(
                        "failed to prepare subPath for volumeMount \"{}\" of container \"{}\": {err}",
                        wish.name, container.name
                    ))
                })?
            }
        };
        let propagation = match wish.mount_propagation.as_deref() {
            Some("HostToContainer") => cri::MountPropagation::PropagationHostToContainer,
            Some("Bidirectional") => cri::MountPropagation::PropagationBidirectional,
            _ => cri::MountPropagation::PropagationPrivate,
        };
        let read_only = wish.read_only.unwrap_or(false) || mounted.read_only.contains_key(&wish.name);
        let recursive = match wish.recursive_read_only.as_deref() {
            Some("Enabled") if !recursive_works => {
                return Err(ConfigError::new(format!(
                    "failed to resolve recursive read-only mode: volume mount \"{}\" requires recursive read-only \
                     mounts, which the runtime does not support",
                    wish.name
                )));
            }
            Some("Enabled" | "IfPossible") => recursive_works && read_only,
            _ => false,
        };
        let idmap =
            |map: fn(&cri::UserNamespace) -> &Vec<cri::IdMapping>| userns.map(|u| map(u).clone()).unwrap_or_default();
        mounts.push(cri::Mount {
            recursive_read_only: recursive,
            uid_mappings: idmap(|u| &u.uids),
            gid_mappings: idmap(|u| &u.gids),
            container_path: absolute(&wish.mount_path),
            host_path: host_path.display().to_string(),
            readonly: read_only,
            propagation: propagation as i32,
            ..Default::default()
        });
    }
    Ok(mounts)
}

/// The block devices of a container.
pub(crate) fn devices(container: &Container, mounted: &Mounted) -> Result<Vec<cri::Device>, ConfigError> {
    let device = |wish: &VolumeDevice| {
        let missing = || {
            ConfigError::new(format!(
                "cannot find volume \"{}\" to pass into container \"{}\"",
                wish.name, container.name
            ))
        };
        let path = mounted.paths.get(&wish.name).ok_or_else(missing)?;
        let permissions = if mounted.read_only.contains_key(&wish.name) { "r" } else { "mrw" };
        Ok(cri::Device {
            container_path: wish.device_path.clone(),
            host_path: path.display().to_string(),
            permissions: permissions.to_owned(),
        })
    };
    container.volume_devices.iter().flatten().map(device).collect()
}

fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { format!("/{path}") }
}

fn sub_path(wish: &VolumeMount, envs: &[(String, String)]) -> Result<Option<PathBuf>, ConfigError> {
    let text = match (&wish.sub_path, &wish.sub_path_expr) {
        (Some(plain), _) if !plain.is_empty() => plain.clone(),
        (_, Some(expr)) if !expr.is_empty() => {
            let vars: HashMap<&str, &str> = envs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            let text = env::expand(expr, |name| vars.get(name).copied(), &mut { env::BYTES_MAX })?;
            if text.contains("$(") {
                return Err(ConfigError::new(format!("missing value for variable in subPathExpr \"{expr}\"")));
            }
            text
        }
        _ => return Ok(None),
    };
    let path = PathBuf::from(text);
    if !path.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir)) {
        return Err(ConfigError::new(format!("subPath \"{}\" must be a relative path without '..'", path.display())));
    }
    Ok(Some(path))
}

/// Binds `volume/sub` to `target`. The kernel resolves every part under the volume, so a link planted by a container
/// cannot lead out, not even one that is swapped in between: the mount takes what the descriptor holds. What is bound
/// there already stays if it is still the same file; else a container that starts again would see an old one.
fn bind_sub_path(volume: &Path, sub: &Path, target: &Path) -> io::Result<PathBuf> {
    let source = open_beneath(&Dir::open(volume)?, sub)?;
    let wanted = Meta::of_fd(&source)?;
    let parent = Dir::open_or_make(target.parent().unwrap_or(target), 0o750)?;
    let name = Path::new(target.file_name().ok_or(io::ErrorKind::InvalidInput)?);
    if is_mount_point(target)? {
        let bound = parent.meta(name)?;
        if (bound.dev, bound.ino) == (wanted.dev, wanted.ino) {
            return Ok(target.to_owned());
        }
    }
    // Containers that still run keep their own copy of the mount. What is stacked there comes off layer by layer.
    while is_mount_point(target)? {
        umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW).map_err(io::Error::from)?;
    }
    let fits = parent.meta(name).is_ok_and(|meta| meta.is_dir() == wanted.is_dir());
    if !fits {
        parent.remove_tree(name.as_os_str()).as_error()?;
        match wanted.is_dir() {
            true => drop(parent.make_new_dir(name, 0o750)?),
            false => drop(parent.create_new(name, 0o640)?),
        }
    }
    let by_fd = format!("/proc/self/fd/{}", source.as_raw_fd());
    mount(Some(by_fd.as_str()), target, None::<&str>, MsFlags::MS_BIND | MsFlags::MS_REC, None::<&str>)?;
    Ok(target.to_owned())
}

/// Missing parts become folders with the mode of the volume's root, as upstream's: else only root could write into
/// them.
fn open_beneath(volume: &Dir, sub: &Path) -> io::Result<OwnedFd> {
    volume.pinned_or_made(sub, volume.meta(Path::new(""))?.mode & 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::unshared::in_own_namespace;

    #[test]
    fn a_link_that_leads_out_of_the_volume_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", dir.path().join("out")).unwrap();
        let volume = Dir::open(dir.path()).unwrap();
        assert!(open_beneath(&volume, Path::new("out/passwd")).is_err());
        assert!(open_beneath(&volume, Path::new("out/new")).is_err());
        assert!(open_beneath(&volume, Path::new("new/deep")).is_ok());
        assert!(dir.path().join("new/deep").is_dir());
        std::os::unix::fs::symlink("new", dir.path().join("in")).unwrap();
        open_beneath(&volume, Path::new("in/side")).unwrap();
        assert!(dir.path().join("new/side").is_dir());
    }

    // node.md N9: 0750 of root's, in which no other user could write.
    #[test]
    fn a_new_folder_is_as_open_as_its_volume() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let volume = Dir::open_or_make(&dir.path().join("v"), 0o3777).unwrap();
        open_beneath(&volume, Path::new("data/deep")).unwrap();
        for path in ["v/data", "v/data/deep"] {
            let mode = std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode();
            assert_eq!(mode & 0o7777, 0o3777, "{path}");
        }
    }

    // node.md M10
    #[test]
    fn a_sub_path_that_was_replaced_is_bound_anew_and_one_that_was_not_stays() {
        if !in_own_namespace(
            "volumes::mounts::tests::a_sub_path_that_was_replaced_is_bound_anew_and_one_that_was_not_stays",
            &[],
        )
        .unwrap()
        {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (volume, target) = (dir.path().join("v"), dir.path().join("subpaths/c/0"));
        std::fs::create_dir(&volume).unwrap();
        // Numbers of the mounts there: each mount has another one.
        let mounts = || {
            let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
            let here = table.lines().filter(|line| line.split(' ').nth(4) == target.to_str());
            here.map(|line| line.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let bind = || assert_eq!(bind_sub_path(&volume, Path::new("f"), &target).unwrap(), target);
        std::fs::write(volume.join("f"), "old").unwrap();
        bind();
        let first = mounts();
        std::fs::write(volume.join("f"), "newer words").unwrap();
        bind();
        assert_eq!((mounts(), first.len()), (first, 1), "it is the same file");
        // As editors write: another file under the name.
        std::fs::write(volume.join("g"), "new").unwrap();
        std::fs::rename(volume.join("g"), volume.join("f")).unwrap();
        bind();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "new");
        assert_eq!(mounts().len(), 1, "the old one is beneath it");
        std::fs::remove_file(volume.join("f")).unwrap();
        std::fs::create_dir_all(volume.join("f/deep")).unwrap();
        bind();
        assert!(target.join("deep").is_dir() && mounts().len() == 1);
        umount2(&target, MntFlags::MNT_DETACH).unwrap();
    }

    #[test]
    fn parents_are_refused_in_a_sub_path() {
        let wish = VolumeMount { sub_path: Some("a/../b".to_owned()), ..Default::default() };
        assert!(sub_path(&wish, &[]).is_err());
    }
}
