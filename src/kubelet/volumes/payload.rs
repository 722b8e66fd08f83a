//! Files that change all at once: written into a new folder, to which the link `..data` is then turned. Upstream's
//! AtomicWriter.
//!
//! Containers see the volume read-only. All the same nothing here believes what it finds there: every step is taken by
//! descriptor.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io::{self, Write as _};
use std::path::{Component, Path, PathBuf};

use base::confined::Dir;
use rustix::fs::FileType;

/// Entries of one folder of a volume: more keys than an object of 3 MiB can hold.
const ENTRIES_MAX: usize = 1 << 20;
/// The link that is turned.
const DATA: &str = "..data";
/// Names of the folders behind it begin with this; a number follows.
const REVISION: &str = "..rev_";

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
pub(super) fn write(dir: &Dir, files: &Files, group: Option<u32>) -> io::Result<()> {
    for path in files.keys() {
        check(path)?;
    }
    let old = current(dir)?;
    if let Some(old) = &old
        && same(&dir.dir(old)?, files, group)
    {
        return Ok(());
    }
    let name = fresh_name(dir, old.as_deref())?;
    let fresh = dir.make_new_dir(&name, 0o755)?;
    for (path, file) in files {
        write_file(&fresh, Path::new(path), file, group)?;
    }
    let tmp = Path::new("..data_tmp");
    dir.remove_tree(tmp.as_os_str()).as_error()?;
    dir.symlink(&name, tmp)?;
    if old.is_none() {
        // No link of ours is there: whatever is goes, a folder would not let itself be replaced.
        dir.remove_tree(OsStr::new(DATA)).as_error()?;
    }
    dir.rename(tmp, Path::new(DATA))?;
    link_names(dir, files)?;
    if let Some(old) = old {
        dir.remove_tree(old.as_os_str()).as_error()?;
    }
    Ok(())
}

/// A name may not leave the volume, nor look like ours.
fn check(path: &str) -> io::Result<()> {
    let normal = Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
    if path.is_empty() || path.starts_with("..") || !normal {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("invalid path {path:?}: must stay in the volume"),
        ));
    }
    Ok(())
}

/// The folder that `..data` names, if that is a link to one of ours; anything else is nobody's.
fn current(dir: &Dir) -> io::Result<Option<PathBuf>> {
    match dir.meta(Path::new(DATA)) {
        Ok(meta) if meta.is_link() => {}
        Ok(_) => return Ok(None),
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(err) => return Err(err),
    }
    let Ok(name) = dir.read_link(Path::new(DATA)) else { return Ok(None) };
    let ours = revision(name.as_os_str()).is_some() && dir.meta(&name).is_ok_and(|meta| meta.is_dir());
    Ok(ours.then_some(name))
}

/// The number of one of our folders.
fn revision(name: &OsStr) -> Option<u64> {
    let digits = name.to_str()?.strip_prefix(REVISION)?;
    digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// The mode that a file gets: fsGroup makes files readable for the group, as upstream's volume ownership change does.
fn mode(file: &File, group: Option<u32>) -> u32 {
    file.mode | if group.is_some() { 0o440 } else { 0 }
}

fn same(dir: &Dir, files: &Files, group: Option<u32>) -> bool {
    let matches = |(path, file): (&String, &File)| {
        let path = Path::new(path);
        dir.read(path, file.bytes.len()).is_ok_and(|have| have == file.bytes)
            && dir.meta(path).is_ok_and(|meta| meta.mode & 0o777 == mode(file, group) & 0o777)
    };
    files.iter().all(matches) && count(dir).is_ok_and(|n| n == files.len())
}

fn count(dir: &Dir) -> io::Result<usize> {
    let mut n = 0;
    dir.walk(&mut |found| {
        n += usize::from(!found.meta.is_dir());
        Ok(())
    })?;
    Ok(n)
}

/// A name for a new folder. What a crash, or somebody else, left under such a name is removed.
fn fresh_name(dir: &Dir, current: Option<&Path>) -> io::Result<PathBuf> {
    for (name, _) in dir.entries(ENTRIES_MAX)? {
        if name.to_string_lossy().starts_with(REVISION) && current != Some(Path::new(&name)) {
            dir.remove_tree(&name).as_error()?;
        }
    }
    let number = current.and_then(|name| revision(name.as_os_str())).map_or(0, |n| n.wrapping_add(1));
    Ok(PathBuf::from(format!("{REVISION}{number}")))
}

fn write_file(root: &Dir, path: &Path, file: &File, group: Option<u32>) -> io::Result<()> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        root.make_dir(parent, 0o755)?;
    }
    // Whoever may not read the finished file cannot open it before it is one.
    let mut out = root.create_new(path, 0o600)?;
    out.write_all(&file.bytes)?;
    std::os::unix::fs::fchown(&out, file.uid, group)?;
    Ok(rustix::fs::fchmod(&out, rustix::fs::Mode::from_raw_mode(mode(file, group)))?)
}

/// Links for the first part of each path; those of vanished files go.
fn link_names(dir: &Dir, files: &Files) -> io::Result<()> {
    let tops: BTreeSet<&str> = files.keys().filter_map(|path| path.split('/').next()).collect();
    let mut there = BTreeSet::new();
    for (name, kind) in dir.entries(ENTRIES_MAX)? {
        let name = name.to_string_lossy().into_owned();
        if !name.starts_with("..") && !tops.contains(name.as_str()) && kind == FileType::Symlink {
            dir.remove_file(Path::new(&name))?;
        } else {
            there.insert(name);
        }
    }
    for top in tops.into_iter().filter(|top| !there.contains(*top)) {
        dir.symlink(&Path::new(DATA).join(top), Path::new(top))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    fn files(list: &[(&str, &str)]) -> Files {
        list.iter()
            .map(|(path, text)| ((*path).to_owned(), File { bytes: text.as_bytes().to_vec(), mode: 0o644, uid: None }))
            .collect()
    }

    fn volume() -> (tempfile::TempDir, Dir) {
        let dir = tempfile::tempdir().unwrap();
        let volume = Dir::open_or_make(&dir.path().join("v"), 0o755).unwrap();
        (dir, volume)
    }

    #[test]
    fn a_change_swaps_all_files_and_removes_those_that_vanished() {
        let (_dir, dir) = volume();
        write(&dir, &files(&[("a", "1"), ("sub/b", "2")]), None).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("sub/b")).unwrap(), "2");
        let before = fs::read_link(dir.path().join("..data")).unwrap();
        write(&dir, &files(&[("a", "1"), ("sub/b", "2")]), None).unwrap();
        assert_eq!(
            fs::read_link(dir.path().join("..data")).unwrap(),
            before,
            "an equal payload must not be written again"
        );
        write(&dir, &files(&[("a", "3")]), None).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "3");
        assert!(fs::symlink_metadata(dir.path().join("sub")).is_err());
        assert_eq!(dir.entries(10).unwrap().len(), 3, "the link, its folder and one file");
    }

    #[test]
    fn a_group_makes_files_readable_and_does_not_write_them_again_and_again() {
        let (_dir, dir) = volume();
        let secret = BTreeMap::from([("k".to_owned(), File { bytes: b"v".to_vec(), mode: 0o400, uid: None })]);
        let group = rustix::process::getgid().as_raw();
        write(&dir, &secret, Some(group)).unwrap();
        assert_eq!(dir.meta(Path::new("..rev_0/k")).unwrap().mode, 0o440);
        write(&dir, &secret, Some(group)).unwrap();
        assert!(dir.meta(Path::new("..rev_0/k")).is_ok());
    }

    #[test]
    fn a_path_may_not_leave_the_volume() {
        let (_dir, dir) = volume();
        for bad in ["../x", "/etc/passwd", "a/../../x", "..data", ""] {
            assert!(write(&dir, &files(&[(bad, "")]), None).is_err(), "{bad}");
        }
    }

    // security.md C1: `..data` turned to a folder of the host, which was then removed with all that was in it.
    #[test]
    fn a_planted_data_link_costs_nothing_but_itself() {
        for target in ["/abs", "../victim", "..", "..rev_0/../../victim", "plain"] {
            let (outer, dir) = volume();
            let victim = outer.path().join("victim");
            fs::create_dir(&victim).unwrap();
            fs::create_dir(dir.path().join("plain")).unwrap();
            fs::write(victim.join("precious"), "x").unwrap();
            fs::write(dir.path().join("plain/mine"), "x").unwrap();
            write(&dir, &files(&[("k", "1")]), None).unwrap();
            fs::remove_file(dir.path().join("..data")).unwrap();
            let target = if target == "/abs" { victim.clone() } else { PathBuf::from(target) };
            symlink(&target, dir.path().join("..data")).unwrap();
            write(&dir, &files(&[("k", "2")]), None).unwrap();
            assert!(victim.join("precious").exists() && dir.path().join("plain/mine").exists(), "{}", target.display());
            assert_eq!(fs::read_to_string(dir.path().join("k")).unwrap(), "2");
        }
    }

    // security.md S1: the new folder replaced by a link before the files are written.
    #[test]
    fn folders_and_links_under_our_names_are_removed_not_entered() {
        let (outer, dir) = volume();
        let victim = outer.path().join("victim");
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("precious"), "x").unwrap();
        write(&dir, &files(&[("k", "1")]), None).unwrap();
        symlink(&victim, dir.path().join("..rev_1")).unwrap();
        symlink(&victim, dir.path().join("..data_tmp")).unwrap();
        write(&dir, &files(&[("k", "2"), ("sub/l", "3")]), None).unwrap();
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 1, "nothing was written or removed there");
        fs::remove_file(dir.path().join("..data")).unwrap();
        fs::create_dir_all(dir.path().join("..data/full")).unwrap();
        write(&dir, &files(&[("k", "4")]), None).unwrap();
        assert_eq!(fs::read_to_string(dir.path().join("k")).unwrap(), "4");
    }
}
