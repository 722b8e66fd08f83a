//! Hearing that files in a folder changed, without looking again and again.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;

/// Editors and copies write in several steps; a change is told when the folder has been quiet for this long.
const QUIET: Duration = Duration::from_millis(200);
/// A folder that never gets quiet is told of after this all the same.
const PATIENCE: Duration = Duration::from_secs(5);
/// Folders are followed this deep; links may lead in circles.
const DEPTH_MAX: usize = 8;

/// Watches a folder and those in it.
pub struct FolderWatch {
    root: PathBuf,
    depth_max: usize,
    fd: AsyncFd<OwnedFd>,
}

impl FolderWatch {
    /// Watches `root`, which must exist. Must be called within a tokio runtime.
    ///
    /// Errors: the kernel has no more watches (`fs.inotify.max_user_watches`), or the folder cannot be read.
    pub fn new(root: &Path) -> io::Result<FolderWatch> {
        FolderWatch::down_to(root, DEPTH_MAX)
    }

    /// The same for a folder alone, without those in it.
    pub fn flat(root: &Path) -> io::Result<FolderWatch> {
        FolderWatch::down_to(root, 0)
    }

    fn down_to(root: &Path, depth_max: usize) -> io::Result<FolderWatch> {
        let fd = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        let watch = FolderWatch { root: root.to_owned(), depth_max, fd: crate::sys::watched(fd)? };
        watch.add(root, 0)?;
        Ok(watch)
    }

    /// To be called before the folder is read: folders that came since are watched from then on, too.
    ///
    /// Errors: as for [`FolderWatch::new`].
    pub fn renew(&self) -> io::Result<()> {
        self.add(&self.root, 0)
    }

    fn add(&self, dir: &Path, depth: usize) -> io::Result<()> {
        let wanted = WatchFlags::CLOSE_WRITE
            | WatchFlags::MOVED_TO
            | WatchFlags::MOVED_FROM
            | WatchFlags::DELETE
            | WatchFlags::CREATE
            | WatchFlags::ATTRIB;
        // One that is watched already is not watched twice.
        inotify::add_watch(&self.fd, dir, wanted)?;
        if depth >= self.depth_max {
            return Ok(());
        }
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path.is_dir() {
                match self.add(&path, depth + 1) {
                    // Gone since: its deletion is an event of its own.
                    Err(err) if err.kind() == io::ErrorKind::NotFound => {}
                    done => done?,
                }
            }
        }
        Ok(())
    }

    /// Waits for a change and then until the folder is quiet. Cancel safe: what was not told yet is told next time.
    pub async fn changed(&self) {
        self.heard().await;
        let quiet = async { while tokio::time::timeout(QUIET, self.heard()).await.is_ok() {} };
        let _told_all_the_same = tokio::time::timeout(PATIENCE, quiet).await;
    }

    /// [`FolderWatch::changed`] of a folder that perhaps could not be watched: then it never tells.
    pub async fn changed_if(watch: &io::Result<FolderWatch>) {
        match watch {
            Ok(watch) => watch.changed().await,
            Err(_) => std::future::pending().await,
        }
    }

    async fn heard(&self) {
        loop {
            let Ok(mut ready) = self.fd.readable().await else { return std::future::pending().await };
            let mut buffer = [0u8; 4096];
            let mut any = false;
            while matches!(rustix::io::read(self.fd.get_ref(), &mut buffer), Ok(n) if n > 0) {
                any = true;
            }
            ready.clear_ready();
            if any {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_in_a_folder_that_came_later_is_heard_of() {
        let dir = tempfile::tempdir().unwrap();
        let watch = FolderWatch::new(dir.path()).unwrap();
        let long = Duration::from_secs(10);
        fs::write(dir.path().join("a"), "1").unwrap();
        tokio::time::timeout(long, watch.changed()).await.unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        tokio::time::timeout(long, watch.changed()).await.unwrap();
        watch.renew().unwrap();
        fs::write(dir.path().join("sub/b"), "1").unwrap();
        tokio::time::timeout(long, watch.changed()).await.unwrap();
    }
}
