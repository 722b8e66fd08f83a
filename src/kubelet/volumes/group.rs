//! A volume is given to its pod's group.

use std::io;
use std::path::Path;

use base::confined::Dir;
use k8s_openapi::api::core::v1::PodSecurityContext;

/// The group of a pod for its volumes, and how it is set: `fsGroup` and `fsGroupChangePolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FsGroup {
    pub(crate) id: u32,
    /// `OnRootMismatch`: a volume whose root has the group already is left as it is.
    pub(crate) is_on_mismatch: bool,
}

impl FsGroup {
    /// `None` if the pod names no group.
    pub(crate) fn of(context: Option<&PodSecurityContext>) -> Option<FsGroup> {
        let context = context?;
        let id = u32::try_from(context.fs_group?).ok()?;
        Some(FsGroup { id, is_on_mismatch: context.fs_group_change_policy.as_deref() == Some("OnRootMismatch") })
    }
}

/// Whether a folder belongs to the group already as `fsGroup` would make it.
fn fits(dir: &Dir, group: u32) -> io::Result<bool> {
    let meta = dir.meta(Path::new(""))?;
    Ok(meta.gid == group && meta.mode & 0o2770 == 0o2770)
}

/// Gives a volume to the pod's group, as its policy says.
pub(crate) fn give(root: &Path, group: FsGroup) -> io::Result<()> {
    let dir = Dir::open(root)?;
    if group.is_on_mismatch && fits(&dir, group.id)? { Ok(()) } else { own_tree(&dir, group.id) }
}

/// Gives a tree to a group, as `fsGroup` asks: setgid folders, readable and writable for the group. Another pod may be
/// at work in it: each entry is held by a descriptor, and no mount in it is touched.
fn own_tree(dir: &Dir, group: u32) -> io::Result<()> {
    dir.walk(&mut |found| {
        found.chown(None, Some(group))?;
        if found.meta.is_link() {
            return Ok(());
        }
        found.chmod(found.meta.mode | if found.meta.is_dir() { 0o2770 } else { 0o660 })
    })?;
    // The root last: that it fits says that all is done.
    dir.chown(Path::new(""), None, Some(group))?;
    dir.chmod(Path::new(""), dir.meta(Path::new(""))?.mode | 0o2770)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn own(is_on_mismatch: bool) -> FsGroup {
        FsGroup { id: rustix::process::getgid().as_raw(), is_on_mismatch }
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
        give(&volume, own(false)).unwrap();
        assert_eq!(outside.meta(Path::new("other")).unwrap().mode, 0o600);
        assert_eq!(outside.meta(Path::new("v/sub")).unwrap().mode & 0o2770, 0o2770);
    }

    #[test]
    fn a_root_that_fits_says_that_all_was_given_where_the_policy_believes_it() {
        let dir = tempfile::tempdir().unwrap();
        let volume = Dir::open_or_make(&dir.path().join("v"), 0o700).unwrap();
        fs::write(dir.path().join("v/file"), "x").unwrap();
        let mode_after = |policy: bool| {
            volume.chmod(Path::new("file"), 0o600).unwrap();
            give(&dir.path().join("v"), own(policy)).unwrap();
            volume.meta(Path::new("file")).unwrap().mode
        };
        assert_eq!(mode_after(true), 0o660, "the root does not fit yet");
        assert_eq!(mode_after(true), 0o600);
        assert_eq!(mode_after(false), 0o660);
    }

    #[test]
    fn a_pod_names_its_group_and_its_policy() {
        let of = |context: serde_json::Value| FsGroup::of(Some(&serde_json::from_value(context).unwrap()));
        let always = Some(FsGroup { id: 5, is_on_mismatch: false });
        assert_eq!(of(serde_json::json!({"fsGroup": 5})), always);
        assert_eq!(of(serde_json::json!({"fsGroup": 5, "fsGroupChangePolicy": "Always"})), always);
        let on_mismatch = of(serde_json::json!({"fsGroup": 5, "fsGroupChangePolicy": "OnRootMismatch"}));
        assert_eq!(on_mismatch, Some(FsGroup { id: 5, is_on_mismatch: true }));
        assert_eq!(of(serde_json::json!({"fsGroupChangePolicy": "OnRootMismatch"})), None);
        assert_eq!(of(serde_json::json!({"fsGroup": -1})), None, "no group of Linux");
        assert_eq!(FsGroup::of(None), None);
    }
}
