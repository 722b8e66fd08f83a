//! File operations of the store: a trait, so that tests can make each step of it fail. The shipped one hands all to the
//! system.
//!
//! The log calls it directly. SQLite calls the system by itself: a disk of tests names a VFS of its own instead
//! ([`Disk::vfs`]), and so the code above is the same in both cases.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

/// A file of the log that is open for writing.
#[derive(Debug)]
pub struct LogFile {
    /// Its path.
    pub path: PathBuf,
    /// The file.
    pub file: File,
    /// Whether a write is on the disk when it returns; else it needs [`Disk::sync`].
    pub is_direct: bool,
}

/// A disk. What is not overridden is what the system does.
pub trait Disk: std::fmt::Debug + Send + Sync + 'static {
    /// The VFS by which SQLite reaches this disk; `None` is SQLite's own.
    fn vfs(&self) -> Option<&str> {
        None
    }

    /// Reads a whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }

    /// Reads so many bytes of a file.
    fn read_at(&self, path: &Path, bytes: &mut [u8], at: u64) -> io::Result<()> {
        File::open(path)?.read_exact_at(bytes, at)
    }

    /// Makes a file of so many zeros, in the place of one that may be there. They are on the disk when this returns;
    /// its name is after [`Disk::sync_dir`].
    fn make(&self, path: &Path, bytes: usize) -> io::Result<()> {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
        let zeros = vec![0; bytes.min(64 * 1024)];
        let mut left = bytes;
        while left > 0 {
            let n = left.min(zeros.len());
            file.write_all(&zeros[..n])?;
            left -= n;
        }
        file.sync_all()
    }

    /// Opens a file of the log; direct writes go past the page cache, and not every file system takes them.
    fn open(&self, path: &Path, is_direct: bool) -> io::Result<LogFile> {
        let flags = if is_direct { libc::O_DIRECT | libc::O_DSYNC } else { 0 };
        let file = OpenOptions::new().write(true).custom_flags(flags).open(path)?;
        Ok(LogFile { path: path.to_owned(), file, is_direct })
    }

    /// Writes bytes into a file of the log.
    fn write(&self, file: &LogFile, bytes: &[u8], at: u64) -> io::Result<()> {
        file.file.write_all_at(bytes, at)
    }

    /// Brings what was written to the disk.
    fn sync(&self, file: &LogFile) -> io::Result<()> {
        file.file.sync_data()
    }

    /// Bytes of a file.
    fn len(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    /// The paths in a folder, in no order; `NotFound` if there is no folder.
    fn list(&self, dir: &Path) -> io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect()
    }

    /// Makes a folder for this user alone, if there is none; its name is on the disk after [`Disk::sync_dir`] of the
    /// folder that it is in. True if it was made.
    fn make_dir(&self, dir: &Path) -> io::Result<bool> {
        match fs::DirBuilder::new().mode(0o700).create(dir) {
            Ok(()) => Ok(true),
            Err(err) if err.kind() == io::ErrorKind::AlreadyExists && fs::metadata(dir)?.is_dir() => Ok(false),
            Err(err) => Err(err),
        }
    }

    /// Gives a file another name, which is on the disk after [`Disk::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    /// Removes a file; it is gone from the disk after [`Disk::sync_dir`].
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Brings the names in a folder to the disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    /// Makes a file that another process left be what the disk holds: brings to the disk what can be brought, then
    /// drops the page cache.
    ///
    /// After a sync that failed Linux takes the pages for clean: they are read as if they were on the disk, and no
    /// later sync writes them. So a process that comes after one that died of it believes what it reads here, and
    /// nothing else. No file is no error.
    fn settle(&self, path: &Path) -> io::Result<()> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(err) => return Err(err),
        };
        file.sync_all()?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        Ok(())
    }

    /// Bytes that this process can still write below a folder.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let answer = rustix::fs::statvfs(dir)?;
        Ok(answer.f_bavail.saturating_mul(answer.f_frsize))
    }
}

/// The disk of this machine.
#[derive(Debug)]
pub struct SystemDisk;

impl Disk for SystemDisk {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_there_after_the_page_cache_is_dropped() {
        let (dir, disk) = (tempfile::tempdir().unwrap(), SystemDisk);
        let path = dir.path().join("f");
        disk.make(&path, 8192).unwrap();
        let file = disk.open(&path, false).unwrap();
        disk.write(&file, &[7; 4096], 4096).unwrap();
        disk.sync(&file).unwrap();
        disk.settle(&path).unwrap();
        let mut read = [0; 2];
        disk.read_at(&path, &mut read, 4095).unwrap();
        assert_eq!(read, [0, 7]);
        disk.settle(&dir.path().join("not there")).unwrap();
        assert!(disk.free_bytes(dir.path()).unwrap() > 0);
    }
}
