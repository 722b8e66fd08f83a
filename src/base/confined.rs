//! The one door to folders that others can change: a pod's volumes and logs, an unpacked archive, a plugin's folder.
//!
//! A path is a trap where somebody else may rename or link its parts between two looks. A [`Dir`] holds a descriptor,
//! and the kernel resolves all names below it (`openat2` with BENEATH, NO_SYMLINKS, NO_MAGICLINKS), so a planted link,
//! `..` or FIFO is an error. Without openat2 (Linux before 5.6) every call fails: nothing is done blindly. All calls
//! block: [`deadline::within`] keeps them off the async threads.

pub mod deadline;

pub mod tree;

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, CWD, FileType, Gid, Mode, OFlags, ResolveFlags, Stat, Uid};
use rustix::io::Errno;

/// How every name below a [`Dir`] is resolved.
const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// Links on one way, as the kernel.
const LINKS_MAX: usize = 40;

/// Metadata of an entry, without following a link.
#[derive(Clone, Copy, Debug)]
pub struct Meta {
    /// File, folder, link, FIFO, ….
    pub kind: FileType,
    /// Permission bits, 0o7777.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes that can be read.
    pub size: u64,
    /// Bytes that it occupies on the disk.
    pub occupies: u64,
    /// The file system's number.
    pub dev: u64,
    /// The inode's number.
    pub ino: u64,
}

impl Meta {
    /// Whether it is a folder.
    pub fn is_dir(&self) -> bool {
        self.kind == FileType::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileType::RegularFile
    }

    /// Whether it is a symbolic link.
    pub fn is_link(&self) -> bool {
        self.kind == FileType::Symlink
    }

    /// Metadata of an open descriptor.
    pub fn of_fd(fd: impl AsFd) -> io::Result<Meta> {
        Ok(Meta::of(&rustix::fs::fstat(fd)?))
    }

    #[allow(
        clippy::allow_attributes,
        clippy::useless_conversion,
        reason = "the widths of these fields differ between architectures"
    )]
    fn of(stat: &Stat) -> Meta {
        Meta {
            kind: FileType::from_raw_mode(stat.st_mode),
            mode: stat.st_mode & 0o7777,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: u64::try_from(stat.st_size).unwrap_or_default(),
            occupies: u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(512),
            dev: stat.st_dev.into(),
            ino: stat.st_ino.into(),
        }
    }
}

/// An open folder. All paths given to it are relative, made of plain names, and never leave it.
#[derive(Debug)]
pub struct Dir {
    fd: OwnedFd,
    /// Where it was opened, for messages only.
    path: PathBuf,
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Dir {
    /// Opens a folder by a path that only root can change, all its parents included; links in it are followed.
    ///
    /// Errors: it is not there, or no folder.
    pub fn open(trusted: &Path) -> io::Result<Dir> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(CWD, trusted, flags, Mode::empty()).map_err(|err| said(err, trusted))?;
        Ok(Dir { fd, path: trusted.to_owned() })
    }

    /// Opens a folder as [`Dir::open`] does; missing parts are made first, for root alone to enter (0750), the last
    /// with `mode`.
    pub fn open_or_make(trusted: &Path, mode: u32) -> io::Result<Dir> {
        use std::os::unix::fs::DirBuilderExt as _;
        std::fs::DirBuilder::new().recursive(true).mode(0o750).create(trusted)?;
        let dir = Dir::open(trusted)?;
        rustix::fs::fchmod(&dir.fd, Mode::from_raw_mode(mode))?;
        Ok(dir)
    }

    /// The trusted parent of a path and its last name: for a file of which only the name itself is somebody else's.
    pub fn of_file(trusted: &Path) -> io::Result<(Dir, PathBuf)> {
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, format!("{} names no file", trusted.display()));
        let (parent, name) = trusted.parent().zip(trusted.file_name()).ok_or_else(invalid)?;
        Ok((Dir::open(parent)?, PathBuf::from(name)))
    }

    /// The file system's top, and an absolute path as one below it: for a path that was resolved once and may have no
    /// link in it now.
    pub fn exact(path: &Path) -> io::Result<(Dir, PathBuf)> {
        let below = path.strip_prefix("/").map_err(|err| io::Error::new(io::ErrorKind::InvalidInput, err))?;
        Ok((Dir::open(Path::new("/"))?, below.to_owned()))
    }

    /// Where it was opened. A name for people: what lies there may be another folder by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a folder below.
    pub fn dir(&self, path: &Path) -> io::Result<Dir> {
        let fd = self.resolve(path, OFlags::RDONLY | OFlags::DIRECTORY)?;
        Ok(Dir { fd, path: self.path.join(path) })
    }

    /// Makes a folder that was not there, with exactly this mode. What is there already is an error.
    pub fn make_new_dir(&self, path: &Path, mode: u32) -> io::Result<Dir> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::mkdirat(&parent.fd, &name, Mode::from_raw_mode(0o700))
            .map_err(|err| said(err, &self.path.join(path)))?;
        let made = parent.dir(Path::new(&name))?;
        rustix::fs::fchmod(&made.fd, Mode::from_raw_mode(mode))?;
        Ok(made)
    }

    /// Opens a folder below; parts that are missing are made, each with `mode` whatever the umask.
    pub fn make_dir(&self, path: &Path, mode: u32) -> io::Result<Dir> {
        plain(path)?;
        let mut at = Dir { fd: self.fd.try_clone()?, path: self.path.clone() };
        for part in path.components().filter(|part| matches!(part, Component::Normal(_))) {
            let part = Path::new(part.as_os_str());
            let made = rustix::fs::mkdirat(&at.fd, part, Mode::from_raw_mode(mode & 0o777));
            let next = at.dir(part);
            match made {
                Ok(()) => rustix::fs::fchmod(&next.as_ref().map_err(again)?.fd, Mode::from_raw_mode(mode))?,
                Err(Errno::EXIST) => {}
                Err(err) => return Err(said(err, &at.path.join(part))),
            }
            at = next?;
        }
        Ok(at)
    }

    /// Opens a regular file for reading. A FIFO, socket, device, link or folder is an error, and none of them makes it
    /// wait.
    pub fn open_file(&self, path: &Path) -> io::Result<File> {
        self.regular(path, OFlags::RDONLY)
    }

    /// Looks first and opens then, and exactly what it looked at: some devices act on being opened (a watchdog starts
    /// to count).
    fn regular(&self, path: &Path, how: OFlags) -> io::Result<File> {
        let pinned = self.resolve(path, OFlags::PATH)?;
        if !Meta::of_fd(&pinned)?.is_file() {
            let text = format!("{} is no regular file", self.path.join(path).display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let flags = how | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(format!("/proc/self/fd/{}", pinned.as_raw_fd()), flags, Mode::empty());
        Ok(File::from(opened.map_err(|err| said(err, &self.path.join(path)))?))
    }

    /// Reads a regular file whole.
    ///
    /// Errors: `FileTooLarge` when it has more than `bytes_max` bytes; no more than these are ever held.
    pub fn read(&self, path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
        let bytes = self.head(path, bytes_max.saturating_add(1))?;
        if bytes.len() > bytes_max {
            let text = format!("{} has more than {bytes_max} bytes", self.path.join(path).display());
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        Ok(bytes)
    }

    /// The first bytes of a regular file, at most `bytes_max`.
    pub fn head(&self, path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
        up_to(self.open_file(path)?, bytes_max)
    }

    /// The last bytes of a regular file, at most `bytes_max`.
    pub fn tail(&self, path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
        let mut file = self.open_file(path)?;
        let size = file.metadata()?.len();
        let bytes = u64::try_from(bytes_max).unwrap_or(u64::MAX);
        file.seek(SeekFrom::Start(size.saturating_sub(bytes)))?;
        up_to(file, bytes_max)
    }

    /// Makes a file that was not there, open for writing, with exactly this mode. What is there, a link too, is an
    /// error.
    pub fn create_new(&self, path: &Path, mode: u32) -> io::Result<File> {
        let (parent, name) = self.parent(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Nobody else may open it before it is complete: the wanted mode is set by descriptor.
        let made = rustix::fs::openat(&parent.fd, &name, flags, Mode::from_raw_mode(0o600));
        let file = File::from(made.map_err(|err| said(err, &self.path.join(path)))?);
        rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        Ok(file)
    }

    /// Opens a regular file that is there, for appending.
    pub fn open_for_appending(&self, path: &Path) -> io::Result<File> {
        self.regular(path, OFlags::WRONLY | OFlags::APPEND)
    }

    /// Replaces a file at once: the bytes go into a new one beside it, which is renamed over it. A link there is
    /// replaced, not followed.
    pub fn write(&self, path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        let (tmp, mut file) = parent.create_temporary(&name, mode)?;
        let written = file.write_all(bytes).and_then(|()| parent.rename(&tmp, Path::new(&name)));
        if written.is_err() {
            let _the_error_is_told = parent.remove_file(&tmp);
        }
        written
    }

    /// A new file beside `name`, which no other writer has: what a dead one left under that name is removed.
    pub(crate) fn create_temporary(&self, name: &OsStr, mode: u32) -> io::Result<(PathBuf, File)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut tmp = OsString::from(".");
        tmp.push(name);
        tmp.push(format!(".{}.{number}.tmp", std::process::id()));
        let tmp = PathBuf::from(tmp);
        match self.create_new(&tmp, mode) {
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists => {
                self.remove_file(&tmp)?;
                Ok((tmp.clone(), self.create_new(&tmp, mode)?))
            }
            made => Ok((tmp, made?)),
        }
    }

    /// Renames what is below to another name below.
    pub fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let ((from_dir, from_name), (to_dir, to_name)) = (self.parent(from)?, self.parent(to)?);
        // All but a name that is not there speaks of what stands in the way.
        let about = |err| self.path.join(if err == Errno::NOENT { from } else { to });
        rustix::fs::renameat(&from_dir.fd, &from_name, &to_dir.fd, &to_name).map_err(|err| said(err, &about(err)))
    }

    /// Makes a link with the text `target`. Nobody here follows it: the text is for those who see the volume.
    pub fn symlink(&self, target: &Path, path: &Path) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::symlinkat(target, &parent.fd, &name).map_err(|err| said(err, &self.path.join(path)))
    }

    /// The text of a link, if that is one plain name; a link to anywhere else is an error (`InvalidData`).
    pub fn read_link(&self, path: &Path) -> io::Result<PathBuf> {
        let (parent, name) = self.parent(path)?;
        let text =
            rustix::fs::readlinkat(&parent.fd, &name, Vec::new()).map_err(|err| said(err, &self.path.join(path)))?;
        let target = PathBuf::from(OsStr::from_bytes(text.as_bytes()));
        let mut parts = target.components();
        match (parts.next(), parts.next()) {
            (Some(Component::Normal(name)), None) => Ok(PathBuf::from(name)),
            _ => {
                let text =
                    format!("{} leads out of its folder, to {}", self.path.join(path).display(), target.display());
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
        }
    }

    /// The place a path leads to, as a path without links: links on its way are followed as long as they stay in this
    /// folder. A target that begins with where this folder lies counts as below it. Whatever is changed afterwards, the
    /// path that is returned leads nowhere else.
    ///
    /// Errors: a link that leads out or more than forty of them (`InvalidData`), something that is not there.
    pub fn follow(&self, path: &Path) -> io::Result<PathBuf> {
        plain(path)?;
        let (mut at, mut links) = (PathBuf::new(), 0);
        let mut left: VecDeque<PathBuf> = path.components().map(|part| PathBuf::from(part.as_os_str())).collect();
        while let Some(part) = left.pop_front() {
            let next = match part.components().next() {
                Some(Component::Normal(name)) => at.join(name),
                Some(Component::ParentDir) if at.pop() => continue,
                Some(Component::CurDir) | None => continue,
                Some(_) => return Err(self.leads_out(path)),
            };
            if !self.meta(&next)?.is_link() {
                at = next;
                continue;
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("{} has no end", self.path.join(path).display()),
                ));
            }
            let (parent, name) = self.parent(&next)?;
            let text = rustix::fs::readlinkat(&parent.fd, &name, Vec::new())
                .map_err(|err| said(err, &self.path.join(&next)))?;
            let mut target = PathBuf::from(OsStr::from_bytes(text.as_bytes()));
            if target.is_absolute() {
                let real = std::fs::canonicalize(&self.path)?;
                let below = target.strip_prefix(&self.path).or_else(|_| target.strip_prefix(&real));
                target = below.map_err(|_| self.leads_out(path))?.to_owned();
                at = PathBuf::new();
            }
            for part in target.components().rev() {
                left.push_front(PathBuf::from(part.as_os_str()));
            }
        }
        Ok(at)
    }

    fn leads_out(&self, path: &Path) -> io::Error {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} leads out of its folder", self.path.join(path).display()),
        )
    }

    /// Removes a file, a link, a socket. What is not there is no error; a folder is one.
    pub fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.unlink(path, AtFlags::empty())
    }

    /// Removes an empty folder. What is not there is no error.
    pub fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.unlink(path, AtFlags::REMOVEDIR)
    }

    fn unlink(&self, path: &Path, flags: AtFlags) -> io::Result<()> {
        let (parent, name) = self.parent(path)?;
        match rustix::fs::unlinkat(&parent.fd, &name, flags) {
            Err(Errno::NOENT) => Ok(()),
            done => done.map_err(|err| said(err, &self.path.join(path))),
        }
    }

    /// Metadata of an entry, without following a link and without opening it.
    pub fn meta(&self, path: &Path) -> io::Result<Meta> {
        if path.as_os_str().is_empty() {
            return Ok(Meta::of(&rustix::fs::fstat(&self.fd)?));
        }
        let (parent, name) = self.parent(path)?;
        let stat = rustix::fs::statat(&parent.fd, &name, AtFlags::SYMLINK_NOFOLLOW);
        stat.map(|stat| Meta::of(&stat)).map_err(|err| said(err, &self.path.join(path)))
    }

    /// Sets permission bits by descriptor; with an empty path those of the folder itself. A link is an error.
    pub fn chmod(&self, path: &Path, mode: u32) -> io::Result<()> {
        chmod(&self.pinned(path)?, mode)
    }

    /// Sets owner and group by descriptor; with an empty path those of the folder itself. A link itself is an error.
    pub fn chown(&self, path: &Path, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        chown(&self.pinned(path)?, uid, gid)
    }

    /// The names in this folder, sorted, and what they were when they were read.
    ///
    /// Errors: `FileTooLarge` when there are more than `entries_max`.
    pub fn entries(&self, entries_max: usize) -> io::Result<Vec<(OsString, FileType)>> {
        let mut found = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.fd)? {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if found.len() >= entries_max {
                let text = format!("{} has more than {entries_max} entries", self.path.display());
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
            }
            let kind = match entry.file_type() {
                FileType::Unknown => self.meta(Path::new(name))?.kind,
                known => known,
            };
            found.push((name.to_owned(), kind));
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }

    /// A descriptor of what is there, of whatever kind, that reads nothing (`O_PATH`): what is done through it is done
    /// to exactly that.
    pub fn pinned(&self, path: &Path) -> io::Result<OwnedFd> {
        self.resolve(path, OFlags::PATH | OFlags::NOFOLLOW)
    }

    /// A descriptor (`O_PATH`) of what is there, through links that stay in this folder: for what the folder's owner
    /// may arrange as he likes, as a subPath. A link that leads out is an error. Missing parts become folders with this
    /// mode, whatever the umask.
    pub fn pinned_or_made(&self, path: &Path, mode: u32) -> io::Result<OwnedFd> {
        plain(path)?;
        let look = |at: BorrowedFd<'_>, part: &Path| {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
            rustix::fs::openat2(at, part, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)
        };
        let failed = |err| said(err, &self.path.join(path));
        match look(self.fd.as_fd(), path) {
            Err(Errno::NOENT) => {}
            found => return found.map_err(failed),
        }
        let mut at = self.fd.try_clone()?;
        for part in path.components().filter(|part| matches!(part, Component::Normal(_))) {
            let part = Path::new(part.as_os_str());
            at = match look(at.as_fd(), part) {
                Err(Errno::NOENT) => {
                    rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(0o700)).map_err(failed)?;
                    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                    let made = rustix::fs::openat2(&at, part, flags, Mode::empty(), CONFINED).map_err(failed)?;
                    chmod(&made, mode)?;
                    made
                }
                found => found.map_err(failed)?,
            };
        }
        Ok(at)
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        plain(path)?;
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let opened = rustix::fs::openat2(&self.fd, path, flags | OFlags::CLOEXEC, Mode::empty(), CONFINED);
        opened.map_err(|err| said(err, &self.path.join(path)))
    }

    /// The folder in which the last name of `path` lies, and that name.
    fn parent(&self, path: &Path) -> io::Result<(Dir, OsString)> {
        plain(path)?;
        let invalid = || io::Error::new(io::ErrorKind::InvalidInput, format!("{path:?} names nothing in a folder"));
        let name = path.file_name().ok_or_else(invalid)?.to_owned();
        match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => Ok((self.dir(parent)?, name)),
            _ => Ok((Dir { fd: self.fd.try_clone()?, path: self.path.clone() }, name)),
        }
    }
}

/// Only plain names: `..` and absolute paths never reach the kernel.
fn plain(path: &Path) -> io::Result<()> {
    if path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, format!("invalid path {path:?}: must stay in its folder")))
}

fn up_to(file: File, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(u64::try_from(bytes_max).unwrap_or(u64::MAX)).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn again(err: &io::Error) -> io::Error {
    io::Error::new(err.kind(), err.to_string())
}

/// The kernel's error with the path, and in words where its own are a riddle.
fn said(err: Errno, path: &Path) -> io::Error {
    let path = path.display();
    let text = match err {
        Errno::LOOP => format!("{path}: a link is in the way"),
        Errno::XDEV => format!("{path}: leads out of its folder, or something is mounted there"),
        Errno::NOSYS => format!("{path}: this kernel has no openat2 (Linux 5.6), without which nothing is done there"),
        other => format!("{path}: {}", io::Error::from(other)),
    };
    io::Error::new(io::Error::from(err).kind(), text)
}

/// Through /proc the kernel goes to exactly the inode of the descriptor, of whatever kind; fchmod itself refuses
/// O_PATH.
fn chmod(pinned: &OwnedFd, mode: u32) -> io::Result<()> {
    if Meta::of(&rustix::fs::fstat(pinned)?).is_link() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a link has no mode of its own"));
    }
    Ok(rustix::fs::chmod(format!("/proc/self/fd/{}", pinned.as_raw_fd()), Mode::from_raw_mode(mode))?)
}

fn chown(pinned: &OwnedFd, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    Ok(rustix::fs::chownat(pinned, c"", uid, gid, AtFlags::EMPTY_PATH)?)
}

#[cfg(test)]
mod tests;
