//! Removing a folder with all that is in it, and never through a mount: what hangs there is somebody's data (a CSI volume, an NFS share).
//!
//! The kernel refuses to open what lies beyond a mount (`openat2` with `RESOLVE_NO_XDEV`), bind mounts of the same file system included.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, ResolveFlags, openat, openat2, unlinkat};
use rustix::io::Errno;

/// What was left, and why.
#[derive(Debug, Default)]
pub(super) struct Left(pub(super) Vec<(PathBuf, String)>);

/// Removes `path`, but for the entries directly in it that `keep` names. Returns what could not be removed. What is not there is no error.
pub(super) fn remove(path: &Path, keep: &[&str]) -> Left {
    let mut left = Left::default();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(CWD, path, flags, Mode::empty()) {
        Ok(dir) => {
            empty(&dir, path, keep, &mut left);
            if left.0.is_empty() && !keep.iter().any(|name| path.join(name).exists()) {
                match unlinkat(CWD, path, AtFlags::REMOVEDIR) {
                    // A file system of its own is mounted there: it is empty now, and the mount is the administrator's.
                    Err(Errno::BUSY) => {}
                    removed => note(removed, path, &mut left),
                }
            }
        }
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR | Errno::LOOP) => note(unlinkat(CWD, path, AtFlags::empty()), path, &mut left),
        Err(err) => left.0.push((path.to_owned(), err.to_string())),
    }
    left
}

fn empty(dir: &OwnedFd, path: &Path, keep: &[&str], left: &mut Left) {
    let entries = match Dir::read_from(dir) {
        Ok(entries) => entries,
        Err(err) => return left.0.push((path.to_owned(), err.to_string())),
    };
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(err) => return left.0.push((path.to_owned(), err.to_string())),
        };
        let name = entry.file_name();
        let text = name.to_string_lossy();
        if matches!(text.as_ref(), "." | "..") || keep.contains(&text.as_ref()) {
            continue;
        }
        one(dir.as_fd(), name, &path.join(text.as_ref()), left);
    }
}

fn one(parent: BorrowedFd<'_>, name: &CStr, path: &Path, left: &mut Left) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(parent, name, flags, Mode::empty(), ResolveFlags::NO_XDEV | ResolveFlags::BENEATH) {
        Ok(dir) => {
            let before = left.0.len();
            empty(&dir, path, &[], left);
            if left.0.len() == before {
                note(unlinkat(parent, name, AtFlags::REMOVEDIR), path, left);
            }
        }
        Err(Errno::XDEV) => left.0.push((path.to_owned(), "something is mounted there".to_owned())),
        Err(Errno::NOTDIR | Errno::LOOP) => note(unlinkat(parent, name, AtFlags::empty()), path, left),
        Err(Errno::NOENT) => {}
        // Without openat2 (Linux before 5.6) nobody can say what is a mount: nothing is deleted blindly.
        Err(err) => left.0.push((path.to_owned(), err.to_string())),
    }
}

/// Removes a folder in which there is nothing but folders. One file, link or socket anywhere in it, and all of it stays.
pub(super) fn remove_empty(path: &Path) -> io::Result<()> {
    if has_files(path)? { Ok(()) } else { remove_folders(path) }
}

fn has_files(path: &Path) -> io::Result<bool> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() || has_files(&entry.path())? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// rmdir refuses what is mounted or has been filled meanwhile.
fn remove_folders(path: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        remove_folders(&entry?.path())?;
    }
    std::fs::remove_dir(path)
}

fn note(removed: rustix::io::Result<()>, path: &Path, left: &mut Left) {
    match removed {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(err) => left.0.push((path.to_owned(), io::Error::from(err).to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn folders_go_unless_there_is_a_file_in_one() {
        let dir = tempfile::tempdir().unwrap();
        let (empty, used) = (dir.path().join("empty"), dir.path().join("used"));
        for path in ["a/b", "c"] {
            fs::create_dir_all(empty.join(path)).unwrap();
            fs::create_dir_all(used.join(path)).unwrap();
        }
        fs::write(used.join("a/b/socket"), "").unwrap();
        remove_empty(&empty).unwrap();
        remove_empty(&used).unwrap();
        assert!(!empty.exists());
        assert!(used.join("c").is_dir() && used.join("a/b/socket").exists());
    }

    #[test]
    fn a_link_goes_and_what_it_points_at_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (data, other) = (dir.path().join("data"), dir.path().join("other"));
        fs::create_dir_all(data.join("a/b")).unwrap();
        fs::create_dir_all(data.join("storage")).unwrap();
        fs::create_dir_all(&other).unwrap();
        fs::write(other.join("precious"), "x").unwrap();
        fs::write(data.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink(&other, data.join("a/link")).unwrap();
        assert!(remove(&data, &["storage"]).0.is_empty());
        assert!(other.join("precious").exists() && data.join("storage").exists() && !data.join("a").exists());
        assert!(remove(&data, &[]).0.is_empty());
        assert!(!data.exists());
        assert!(remove(&data, &[]).0.is_empty());
    }
}
