//! Mount points of the machine.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The path as the kernel's table of mounts spells it: with no link in it. Its last part is not looked at: what hangs
/// there may be a server that does not answer. `None` if its folder is not there.
pub(crate) fn resolved(path: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(Some(path.to_owned())) };
    match fs::canonicalize(parent) {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(err) if err.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(err) => Err(err),
    }
}

/// Mount points at or under `dir`, the deepest first, a stacked one as often as it is mounted.
pub(crate) fn mounts_under(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(dir) = resolved(dir)? else { return Ok(Vec::new()) };
    let all = base::mounts::read()?.into_iter().map(|mount| mount.point);
    let mut found: Vec<PathBuf> = all.filter(|point| point.starts_with(&dir)).collect();
    found.sort_by_key(|path| std::cmp::Reverse(path.components().count()));
    Ok(found)
}

pub(crate) fn is_mount_point(path: &Path) -> io::Result<bool> {
    let Some(resolved) = resolved(path)? else { return Ok(false) };
    Ok(mounts_under(path)?.contains(&resolved))
}

#[cfg(test)]
mod tests {
    use super::*;

    // security.md C4: with a link in the kubelet's path no mount was found, and what was mounted was deleted.
    #[test]
    fn a_mount_is_found_through_a_linked_folder() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/", dir.path().join("link")).unwrap();
        assert!(is_mount_point(&dir.path().join("link/proc")).unwrap());
        assert!(mounts_under(&dir.path().join("link/proc")).unwrap().contains(&PathBuf::from("/proc")));
        assert!(!is_mount_point(dir.path()).unwrap());
    }
}
