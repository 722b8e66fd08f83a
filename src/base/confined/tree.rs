//! Walking and removing trees of any depth with a constant stack, few descriptors, and never across a mount: what hangs
//! there is somebody's data (a CSI volume, an NFS share).
//!
//! The way back up is `..`, believed only if it is the folder from which the walk came.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, ResolveFlags};
use rustix::io::Errno;

use super::{CONFINED, Dir, Meta, said};

/// Levels of a walk that keep their descriptor: in them, a folder that somebody moves meanwhile ends nothing.
const OPEN_LEVELS_MAX: usize = 32;
/// Levels of a walk; one more is an error. 24 bytes each.
const WALK_LEVELS_MAX: usize = 1 << 20;
/// Levels of a removal; deeper folders are first moved up to the top.
const REMOVE_LEVELS_MAX: usize = 4096;
/// Things that a removal leaves and names; one more ends it.
const LEFT_MAX: usize = 256;

const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const SAME_MOUNT: ResolveFlags = CONFINED.union(ResolveFlags::NO_XDEV);

/// One entry of a walk. What is done to it is done through a descriptor, in the mount of the walk.
pub struct Found<'a> {
    parent: BorrowedFd<'a>,
    name: &'a CStr,
    /// Its metadata when it was found.
    pub meta: Meta,
}

impl Found<'_> {
    /// Its name in its folder.
    pub fn name(&self) -> &OsStr {
        OsStr::from_bytes(self.name.to_bytes())
    }

    /// Sets owner and group, of a link its own. What vanished meanwhile, or is a mount, is let be.
    pub fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        self.pinned()?.map_or(Ok(()), |fd| super::chown(&fd, uid, gid))
    }

    /// Sets permission bits. What vanished meanwhile, is a link by now, or is a mount, is let be.
    pub fn chmod(&self, mode: u32) -> io::Result<()> {
        let Some(fd) = self.pinned()? else { return Ok(()) };
        if Meta::of(&rustix::fs::fstat(&fd)?).is_link() { Ok(()) } else { super::chmod(&fd, mode) }
    }

    fn pinned(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        match rustix::fs::openat2(self.parent, self.name, flags, Mode::empty(), resolve) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT | Errno::XDEV) => Ok(None),
            Err(err) => Err(said(err, Path::new(self.name()))),
        }
    }
}

/// A folder of which the rest is still to be walked.
struct Level {
    fd: Option<OwnedFd>,
    id: (u64, u64),
    offset: i64,
}

impl Dir {
    /// Visits everything below this folder, parents before what is in them, links as links. Mounts below are not
    /// entered.
    ///
    /// Errors: those of `visit`, which end the walk; the tree is deeper than a million levels, or a folder far down was
    /// moved meanwhile.
    pub fn walk(&self, visit: &mut dyn FnMut(&Found<'_>) -> io::Result<()>) -> io::Result<()> {
        let mut here = rustix::fs::openat(&self.fd, c".", FOLDER, Mode::empty())?;
        let mut above: Vec<Level> = Vec::new();
        let mut offset = 0;
        loop {
            match next_folder(&here, offset, visit)? {
                Some((child, offset_here)) => {
                    if above.len() >= WALK_LEVELS_MAX {
                        return Err(io::Error::other(format!(
                            "{} is deeper than {WALK_LEVELS_MAX} levels",
                            self.path.display()
                        )));
                    }
                    let (id, parent) = (id(&here)?, std::mem::replace(&mut here, child));
                    above.push(Level {
                        fd: (above.len() < OPEN_LEVELS_MAX).then_some(parent),
                        id,
                        offset: offset_here,
                    });
                    offset = 0;
                }
                None => {
                    let Some(level) = above.pop() else { return Ok(()) };
                    here = match level.fd {
                        Some(fd) => fd,
                        None => back_up(&here, level.id, &self.path)?,
                    };
                    offset = level.offset;
                }
            }
        }
    }

    /// Removes what `name` names directly in this folder, and all below it, but no mount and nothing behind one: `name`
    /// itself, if it is one, is left and named.
    pub fn remove_tree(&self, name: &OsStr) -> Left {
        let mut left = Left::default();
        remove_at(self.fd.as_fd(), name, &self.path.join(name), &[], Top::NoMount, &mut left);
        left
    }
}

/// Visits entries from `offset` on until one is a folder; answers with that, and where to go on after it.
fn next_folder(
    here: &OwnedFd,
    offset: i64,
    visit: &mut dyn FnMut(&Found<'_>) -> io::Result<()>,
) -> io::Result<Option<(OwnedFd, i64)>> {
    let mut entries = rustix::fs::Dir::read_from(here)?;
    if offset != 0 {
        entries.seek(offset)?;
    }
    while let Some(entry) = entries.read() {
        let entry = entry?;
        let name = entry.file_name();
        if is_dots(name) {
            continue;
        }
        let child = match entry.file_type() {
            FileType::Directory | FileType::Unknown => {
                rustix::fs::openat2(here, name, FOLDER, Mode::empty(), SAME_MOUNT)
            }
            _ => Err(Errno::NOTDIR),
        };
        let found = match &child {
            Ok(child) => rustix::fs::fstat(child),
            // A mount's root belongs to whoever mounted it.
            Err(Errno::XDEV) => continue,
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => {
                rustix::fs::statat(here, name, AtFlags::SYMLINK_NOFOLLOW)
            }
            Err(err) => return Err(said(*err, Path::new(OsStr::from_bytes(name.to_bytes())))),
        };
        match found {
            Ok(stat) => visit(&Found { parent: here.as_fd(), name, meta: Meta::of(&stat) })?,
            Err(Errno::NOENT) => continue,
            Err(err) => return Err(err.into()),
        }
        if let Ok(child) = child {
            return Ok(Some((child, entry.offset())));
        }
    }
    Ok(None)
}

/// Entries that were left, and why.
#[derive(Debug, Default)]
pub struct Left(pub Vec<(PathBuf, String)>);

impl Left {
    /// The first thing that is left as an error, for whoever wanted all of it gone.
    pub fn as_error(&self) -> io::Result<()> {
        let told = |(path, why): &(PathBuf, String)| Err(io::Error::other(format!("{}: {why}", path.display())));
        self.0.first().map_or(Ok(()), told)
    }

    fn note(&mut self, path: &Path, why: impl Into<String>) {
        self.0.push((path.to_owned(), why.into()));
    }
}

/// Whether what is to be removed may itself be a mount. Below it, none is ever entered.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Top {
    NoMount,
    /// Then it is emptied, and the mount stays.
    MayBeMount,
}

/// Removes `path` and all below it. What is not there is no error; of a link only itself goes; a mount is left and
/// named.
///
/// The parents of `path` must be root's alone.
pub fn remove(path: &Path) -> Left {
    remove_path(path, &[], Top::NoMount)
}

/// Removes `path` as [`remove`] does, but for the entries directly in it that `keep` names, and even if it is a disk
/// that the administrator has mounted for us: that is emptied, and stays mounted.
pub fn remove_or_empty_mount(path: &Path, keep: &[&str]) -> Left {
    remove_path(path, keep, Top::MayBeMount)
}

fn remove_path(path: &Path, keep: &[&str], top: Top) -> Left {
    let mut left = Left::default();
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        left.note(path, "this is no folder that may go");
        return left;
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    match rustix::fs::openat(CWD, parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(fd) => remove_at(fd.as_fd(), name, path, keep, top, &mut left),
        Err(Errno::NOENT) => {}
        Err(err) => left.note(path, io::Error::from(err).to_string()),
    }
    left
}

/// Extent of a removal.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Takes {
    All,
    Folders,
}

/// Removes a folder and those below it, if there is nothing else in them: a file that comes meanwhile stays with its
/// folder.
pub fn remove_folders(path: &Path) -> io::Result<()> {
    let dir = Dir::open(path)?;
    dir.walk(&mut |found| if found.meta.is_dir() { Ok(()) } else { Err(io::ErrorKind::DirectoryNotEmpty.into()) })?;
    let mut left = Left::default();
    empty(dir.fd, path, &[], Takes::Folders, &mut left);
    left.as_error()?;
    Ok(rustix::fs::unlinkat(CWD, path, AtFlags::REMOVEDIR)?)
}

fn remove_at(parent: BorrowedFd<'_>, name: &OsStr, path: &Path, keep: &[&str], top: Top, left: &mut Left) {
    let opened = match top {
        Top::NoMount => rustix::fs::openat2(parent, name, FOLDER, Mode::empty(), SAME_MOUNT),
        Top::MayBeMount => rustix::fs::openat(parent, name, FOLDER, Mode::empty()),
    };
    match opened {
        Ok(dir) => {
            let kept =
                keep.iter().filter(|name| rustix::fs::statat(&dir, **name, AtFlags::SYMLINK_NOFOLLOW).is_ok()).count();
            empty(dir, path, keep, Takes::All, left);
            if left.0.is_empty() && kept == 0 {
                match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    // A file system of its own is mounted there: it is empty now, and the mount is the administrator's.
                    Err(Errno::BUSY) if top == Top::MayBeMount => {}
                    Err(err) => left.note(path, why_not(err)),
                }
            }
        }
        Err(Errno::NOENT) => {}
        Err(Errno::NOTDIR | Errno::LOOP) => match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(err) => left.note(path, why_not(err)),
        },
        Err(err) => left.note(path, why_not(err)),
    }
}

/// Why something stays, in words where the kernel's own are a riddle.
fn why_not(err: Errno) -> String {
    match err {
        Errno::XDEV | Errno::BUSY => "something is mounted there".to_owned(),
        // Without openat2 (Linux before 5.6) nobody can say what is a mount: nothing is deleted blindly.
        Errno::NOSYS => "this kernel has no openat2 (Linux 5.6), so nobody knows what is mounted there".to_owned(),
        err => io::Error::from(err).to_string(),
    }
}

/// A folder on the way from the top to where a removal is.
struct Step {
    name: CString,
    id: (u64, u64),
    /// Entries that stay: asked for at the top, impossible below.
    spared: BTreeSet<CString>,
    /// Something below could not go, so this cannot.
    is_stuck: bool,
}

fn path_of(top: &Path, steps: &[Step], name: &CStr) -> PathBuf {
    let names = steps.iter().skip(1).map(|step| step.name.as_c_str()).chain([name]);
    names.fold(top.to_owned(), |path, name| path.join(OsStr::from_bytes(name.to_bytes())))
}

/// Removes everything in the folder `top`.
fn empty(top: OwnedFd, path: &Path, keep: &[&str], takes: Takes, left: &mut Left) {
    let spared = keep.iter().filter_map(|name| CString::new(*name).ok()).collect();
    let result = id(&top).and_then(|id| {
        let steps = vec![Step { name: CString::default(), id, spared, is_stuck: false }];
        let mut removal = Removal { path, steps, takes, left };
        removal.run(&top)
    });
    if let Err(err) = result {
        left.note(path, err.to_string());
    }
}

struct Removal<'a> {
    path: &'a Path,
    steps: Vec<Step>,
    takes: Takes,
    left: &'a mut Left,
}

impl Removal<'_> {
    fn run(&mut self, top: &OwnedFd) -> io::Result<()> {
        let mut here = rustix::fs::openat(top, c".", FOLDER, Mode::empty())?;
        let mut n_moved = 0;
        loop {
            if self.left.0.len() >= LEFT_MAX {
                return Err(io::Error::other("too much here cannot be removed"));
            }
            match self.sweep(&here)? {
                Some((name, child)) if self.steps.len() < REMOVE_LEVELS_MAX => {
                    let id = id(&child)?;
                    self.steps.push(Step { name, id, spared: BTreeSet::new(), is_stuck: false });
                    here = child;
                }
                Some((name, _)) => {
                    if let Err(err) = move_up(&here, &name, top, &mut n_moved) {
                        self.spare(&name, &io::Error::from(err).to_string());
                    }
                }
                None => {
                    let done = self.steps.pop();
                    let (Some(done), Some(above)) = (done, self.steps.last_mut()) else { return Ok(()) };
                    here = back_up(&here, above.id, self.path)?;
                    if done.is_stuck {
                        above.spared.insert(done.name);
                        above.is_stuck = true;
                        continue;
                    }
                    match rustix::fs::unlinkat(&here, &done.name, AtFlags::REMOVEDIR) {
                        Ok(()) | Err(Errno::NOENT) => {}
                        // Somebody filled it again: it stays, or this would never end.
                        Err(err) => self.spare(&done.name, &io::Error::from(err).to_string()),
                    }
                }
            }
        }
    }

    /// Removes what can go from one folder; answers with the first folder in it that holds something. What cannot go is
    /// spared.
    fn sweep(&mut self, here: &OwnedFd) -> io::Result<Option<(CString, OwnedFd)>> {
        // Always from the start: some file systems number entries by place, so that what was removed would move the
        // rest.
        let mut entries = rustix::fs::Dir::read_from(here)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name();
            if is_dots(name) || self.steps.last().is_some_and(|step| step.spared.contains(name)) {
                continue;
            }
            let is_folder = entry.file_type() == FileType::Directory;
            if self.takes == Takes::Folders && !is_folder {
                self.spare(name, "it is no folder");
                continue;
            }
            let flags = if is_folder { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            let gone = match rustix::fs::unlinkat(here, name, flags) {
                // The file system does not say what its entries are.
                Err(Errno::ISDIR) => rustix::fs::unlinkat(here, name, AtFlags::REMOVEDIR),
                gone => gone,
            };
            let why = match gone {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(Errno::NOTEMPTY | Errno::EXIST) => {
                    match rustix::fs::openat2(here, name, FOLDER, Mode::empty(), SAME_MOUNT) {
                        Ok(child) => return Ok(Some((name.to_owned(), child))),
                        Err(Errno::NOENT) => continue,
                        Err(err) => err,
                    }
                }
                Err(err) => err,
            };
            self.spare(name, &why_not(why));
        }
        Ok(None)
    }

    fn spare(&mut self, name: &CStr, why: &str) {
        let path = path_of(self.path, &self.steps, name);
        self.left.note(&path, why);
        if let Some(step) = self.steps.last_mut() {
            step.spared.insert(name.to_owned());
            step.is_stuck = true;
        }
    }
}

/// Moves a folder up to the top, under a name that is free.
fn move_up(here: &OwnedFd, name: &CStr, top: &OwnedFd, n_moved: &mut u64) -> rustix::io::Result<()> {
    loop {
        let to = format!(".kedge-removed-{n_moved}");
        *n_moved += 1;
        match rustix::fs::renameat_with(here, name, top, to, RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            moved => return moved,
        }
    }
}

/// The folder above `here`, if it is still the one from which the way led down.
fn back_up(here: &OwnedFd, expected: (u64, u64), path: &Path) -> io::Result<OwnedFd> {
    let parent = rustix::fs::openat(here, c"..", FOLDER, Mode::empty())?;
    if id(&parent)? == expected {
        return Ok(parent);
    }
    Err(io::Error::other(format!("a folder below {} was moved while it was walked", path.display())))
}

fn id(fd: &OwnedFd) -> io::Result<(u64, u64)> {
    let meta = Meta::of(&rustix::fs::fstat(fd)?);
    Ok((meta.dev, meta.ino))
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unshared::in_own_namespace;
    use std::fs;

    /// Levels beyond which a recursion on a thread's stack, or a path, has ended.
    const DEEP: u32 = 5_000;

    fn deep(dir: &Path) {
        let mut here = rustix::fs::openat(CWD, dir, FOLDER, Mode::empty()).unwrap();
        for _ in 0..DEEP {
            rustix::fs::mkdirat(&here, c"d", Mode::from_raw_mode(0o700)).unwrap();
            here = rustix::fs::openat(&here, c"d", FOLDER, Mode::empty()).unwrap();
        }
        rustix::fs::symlinkat(c"/etc", &here, c"link").unwrap();
    }

    /// On a thread with a stack that a few hundred levels of recursion would end.
    fn with_small_stack(work: impl FnOnce() + Send + 'static) {
        std::thread::Builder::new().stack_size(128 * 1024).spawn(work).unwrap().join().unwrap();
    }

    #[test]
    fn a_tree_of_any_depth_is_walked_and_removed_on_a_small_stack() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("v");
        fs::create_dir(&top).unwrap();
        deep(&top);
        fs::write(top.join("file"), "x").unwrap();
        with_small_stack(move || {
            let (mut n_folders, mut n_others) = (0, 0);
            let mut count = |found: &Found<'_>| {
                *(if found.meta.is_dir() { &mut n_folders } else { &mut n_others }) += 1;
                Ok(())
            };
            Dir::open(&top).unwrap().walk(&mut count).unwrap();
            assert_eq!((n_folders, n_others), (DEEP, 2));
            remove(&top).as_error().unwrap();
            assert!(!top.exists());
        });
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
        assert!(remove_or_empty_mount(&data, &["storage"]).0.is_empty());
        assert!(other.join("precious").exists() && data.join("storage").exists() && !data.join("a").exists());
        std::os::unix::fs::symlink(&other, data.join("storage/link")).unwrap();
        assert!(remove(&data).0.is_empty());
        assert!(!data.exists() && other.join("precious").exists());
        assert!(remove(&data).0.is_empty());
    }

    fn bind(source: &Path, target: &Path) {
        rustix::mount::mount_bind(source, target).unwrap();
    }

    #[test]
    fn what_is_mounted_at_the_name_itself_is_not_emptied() {
        if !in_own_namespace("confined::tree::tests::what_is_mounted_at_the_name_itself_is_not_emptied", &[]).unwrap() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let [data, target, file] = ["data", "target", "file"].map(|name| dir.path().join(name));
        fs::create_dir_all(data.join("deep")).unwrap();
        fs::create_dir(&target).unwrap();
        fs::write(data.join("deep/precious"), "x").unwrap();
        fs::write(&file, "").unwrap();
        // A bind mount has the number of the same file system: only the kernel knows that it is one.
        bind(&data, &target);
        bind(&data.join("deep/precious"), &file);
        let parent = Dir::open(dir.path()).unwrap();
        for path in [&target, &file] {
            let name = path.file_name().unwrap();
            for left in [parent.remove_tree(name), remove(path)] {
                let [(at, why)] = &left.0[..] else { panic!("{left:?}") };
                assert!(at == path && why.contains("mounted"), "{left:?}");
            }
        }
        assert!(data.join("deep/precious").exists());
        // Whoever uninstalls asks for it: a disk of the administrator's is emptied and stays.
        remove_or_empty_mount(&target, &["deep"]).as_error().unwrap();
        assert!(data.join("deep/precious").exists());
        remove_or_empty_mount(&target, &[]).as_error().unwrap();
        assert!(data.exists() && !data.join("deep").exists() && target.exists());
    }

    #[test]
    fn folders_go_unless_there_is_a_file_in_one() {
        let dir = tempfile::tempdir().unwrap();
        let (empty, used) = (dir.path().join("empty"), dir.path().join("used"));
        for path in ["a/b", "c"] {
            fs::create_dir_all(empty.join(path)).unwrap();
            fs::create_dir_all(used.join(path)).unwrap();
        }
        fs::write(used.join("a/b/socket"), "").unwrap();
        remove_folders(&empty).unwrap();
        assert!(remove_folders(&used).is_err());
        assert!(!empty.exists());
        assert!(used.join("c").is_dir() && used.join("a/b/socket").exists());
    }

    #[test]
    fn a_walk_visits_each_entry_once_and_no_link_leads_it_out() {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..50 {
            fs::create_dir_all(dir.path().join(format!("d{i}/e"))).unwrap();
            fs::write(dir.path().join(format!("d{i}/f")), "x").unwrap();
        }
        std::os::unix::fs::symlink("/", dir.path().join("out")).unwrap();
        let mut names = Vec::new();
        let mut note = |found: &Found<'_>| {
            names.push(found.name().to_string_lossy().into_owned());
            Ok(())
        };
        Dir::open(dir.path()).unwrap().walk(&mut note).unwrap();
        assert_eq!(names.len(), 151);
        assert_eq!(names.iter().filter(|name| *name == "out").count(), 1);
    }
}
