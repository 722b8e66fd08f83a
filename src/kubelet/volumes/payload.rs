//! Files that change all at once: written into a new folder, to which the link `..data` is then turned. Upstream's AtomicWriter.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _, symlink};
use std::path::{Component, Path, PathBuf};

/// One file of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) bytes: Vec<u8>,
    pub(super) mode: u32,
    /// Owner, for tokens that a non-root user must read.
    pub(super) uid: Option<u32>,
}

/// Relative path → file.
pub(super) type Files = BTreeMap<String, File>;

/// Makes `dir` show exactly `files`. Nothing is touched when it does already.
pub(super) fn write(dir: &Path, files: &Files, group: Option<u32>) -> io::Result<()> {
    for path in files.keys() {
        check(path)?;
    }
    let link = dir.join("..data");
    let old = fs::read_link(&link).ok();
    if let Some(old) = &old
        && same(&dir.join(old), files)
    {
        return Ok(());
    }
    let fresh = fresh_dir(dir)?;
    for (path, file) in files {
        write_file(&fresh, path, file, group)?;
    }
    let tmp = dir.join("..data_tmp");
    match fs::remove_file(&tmp) {
        Err(err) if err.kind() != io::ErrorKind::NotFound => return Err(err),
        _ => {}
    }
    symlink(fresh.file_name().unwrap_or_default(), &tmp)?;
    fs::rename(&tmp, &link)?;
    link_names(dir, files)?;
    if let Some(old) = old {
        fs::remove_dir_all(dir.join(old))?;
    }
    Ok(())
}

/// A name may not leave the volume, nor look like ours.
fn check(path: &str) -> io::Result<()> {
    let normal = Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
    if path.is_empty() || path.starts_with("..") || !normal {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid path {path:?}: must stay in the volume")));
    }
    Ok(())
}

fn same(dir: &Path, files: &Files) -> bool {
    let matches = |(path, file): (&String, &File)| {
        let at = dir.join(path);
        fs::read(&at).is_ok_and(|have| have == file.bytes)
            && fs::metadata(&at).is_ok_and(|m| m.permissions().mode() & 0o777 == file.mode & 0o777)
    };
    files.iter().all(matches) && count(dir) == files.len()
}

fn count(dir: &Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    entries.flatten().map(|e| if e.file_type().is_ok_and(|t| t.is_dir()) { count(&e.path()) } else { 1 }).sum()
}

/// `..<n>`: the first free number; a folder left over by a crash is skipped and removed with the next change.
fn fresh_dir(dir: &Path) -> io::Result<PathBuf> {
    let current = fs::read_link(dir.join("..data")).ok();
    for entry in fs::read_dir(dir)?.flatten() {
        let name = entry.file_name();
        let ours = name.to_string_lossy().starts_with("..rev_");
        if ours && current.as_deref() != Some(Path::new(&name)) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    let numbered = (0u64..).map(|n| dir.join(format!("..rev_{n}")));
    for path in numbered {
        match fs::create_dir(&path) {
            Ok(()) => {
                fs::set_permissions(&path, Permissions::from_mode(0o755))?;
                return Ok(path);
            }
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {}
            Err(err) => return Err(err),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn write_file(root: &Path, path: &str, file: &File, group: Option<u32>) -> io::Result<()> {
    let at = root.join(path);
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
        for dir in parent.ancestors().take_while(|d| *d != root) {
            fs::set_permissions(dir, Permissions::from_mode(0o755))?;
        }
    }
    let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&at)?;
    out.write_all(&file.bytes)?;
    std::os::unix::fs::chown(&at, file.uid, group)?;
    // fsGroup makes files readable for the group, as upstream's volume ownership change does.
    let mode = file.mode | if group.is_some() { 0o440 } else { 0 };
    fs::set_permissions(&at, Permissions::from_mode(mode))
}

/// Links for the first part of each path; those of vanished files go.
fn link_names(dir: &Path, files: &Files) -> io::Result<()> {
    let tops: BTreeSet<&str> = files.keys().filter_map(|path| path.split('/').next()).collect();
    for entry in fs::read_dir(dir)?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with("..") && !tops.contains(name.as_str()) && entry.file_type().is_ok_and(|t| t.is_symlink()) {
            fs::remove_file(entry.path())?;
        }
    }
    for top in tops {
        let link = dir.join(top);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new("..data").join(top), &link)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str)]) -> Files {
        list.iter().map(|(path, text)| ((*path).to_owned(), File { bytes: text.as_bytes().to_vec(), mode: 0o644, uid: None })).collect()
    }

    #[test]
    fn a_change_swaps_all_files_and_removes_those_that_vanished() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &files(&[("a", "1"), ("sub/b", "2")]), None).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("sub/b")).unwrap(), "2");
        let before = fs::read_link(dir.path().join("..data")).unwrap();
        write(dir.path(), &files(&[("a", "1"), ("sub/b", "2")]), None).unwrap();
        assert_eq!(fs::read_link(dir.path().join("..data")).unwrap(), before, "an equal payload must not be written again");
        write(dir.path(), &files(&[("a", "3")]), None).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "3");
        assert!(fs::symlink_metadata(dir.path().join("sub")).is_err());
    }

    #[test]
    fn a_path_may_not_leave_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        for bad in ["../x", "/etc/passwd", "a/../../x", "..data", ""] {
            assert!(write(dir.path(), &files(&[(bad, "")]), None).is_err(), "{bad}");
        }
    }
}
