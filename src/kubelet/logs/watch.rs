//! One inotify instance for all logs that somebody follows. Root has 128 of them, containerd's and systemd's included:
//! one for each `kubectl logs -f` would leave none for others.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use base::chain::Chain;
use base::sync::{Mutex, MutexGuard};
use base::task::Group;
use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;
use tracing::warn;

/// Of an event: the watch, its kind, a cookie and the length of a name that follows.
const HEAD_BYTES: usize = 16;
/// Events were lost: anything may have changed.
const LOST: i32 = -1;

/// All of them; clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Watches(Option<Arc<Shared>>);

struct Shared {
    fd: AsyncFd<OwnedFd>,
    folders: Mutex<HashMap<i32, Folder>>,
}

/// A folder, by its watch.
struct Folder {
    n_followers: usize,
    changes: watch::Sender<u64>,
}

impl Shared {
    fn folders(&self) -> MutexGuard<'_, HashMap<i32, Folder>> {
        self.folders.lock()
    }

    /// Tells whoever follows what changed.
    fn tell(&self, mut events: &[u8]) {
        let folders = self.folders();
        let word = |bytes: &[u8], at: usize| {
            bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(i32::from_ne_bytes)
        };
        while let (Some(watch), Some(len)) = (word(events, 0), word(events, 12)) {
            for (_, folder) in folders.iter().filter(|(number, _)| watch == LOST || **number == watch) {
                folder.changes.send_modify(|n| *n += 1);
            }
            let next = HEAD_BYTES.saturating_add(usize::try_from(len).unwrap_or(usize::MAX));
            events = events.get(next..).unwrap_or_default();
        }
    }
}

impl Watches {
    /// Begins; without an instance of inotify nobody hears anything, and logs are looked at each second.
    pub(crate) fn start(group: &Group) -> Watches {
        let opened = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(io::Error::from);
        let fd = match opened.and_then(base::sys::watched) {
            Ok(fd) => fd,
            Err(err) => {
                warn!(err = %Chain(&err), "cannot hear when logs are written: they are looked at each second");
                return Watches::default();
            }
        };
        let shared = Arc::new(Shared { fd, folders: Mutex::default() });
        let reader = Arc::clone(&shared);
        group.spawn("log-watches", async move {
            loop {
                let Ok(mut ready) = reader.fd.readable().await else { return std::future::pending().await };
                let mut buffer = [0u8; 16 * 1024];
                while let Ok(n) = rustix::io::read(reader.fd.get_ref(), &mut buffer)
                    && n > 0
                {
                    reader.tell(&buffer[..n]);
                }
                ready.clear_ready();
            }
        });
        Watches(Some(shared))
    }

    /// Follows the files in a folder; `None` if the kernel does not tell of it.
    pub(crate) fn follow(&self, dir: &Path) -> Option<Follower> {
        let shared = Arc::clone(self.0.as_ref()?);
        let wanted = WatchFlags::MODIFY | WatchFlags::CREATE | WatchFlags::MOVED_TO | WatchFlags::DONT_FOLLOW;
        let (number, changes) = {
            // Two followers of one folder have one watch: nobody may take it away in between.
            let mut folders = shared.folders();
            let number = inotify::add_watch(&shared.fd, dir, wanted).ok()?;
            let fresh = || Folder { n_followers: 0, changes: watch::Sender::new(0) };
            let folder = folders.entry(number).or_insert_with(fresh);
            folder.n_followers += 1;
            (number, folder.changes.subscribe())
        };
        Some(Follower { shared, number, changes })
    }
}

/// Follows until it is dropped.
pub(crate) struct Follower {
    shared: Arc<Shared>,
    number: i32,
    changes: watch::Receiver<u64>,
}

impl Follower {
    /// Waits for a change since the last one that was heard of. Cancel safe.
    pub(crate) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut folders = self.shared.folders();
        let Some(folder) = folders.get_mut(&self.number) else { return };
        folder.n_followers -= 1;
        if folder.n_followers == 0 {
            folders.remove(&self.number);
            // A folder that is gone took its watch along.
            let _gone_already = inotify::remove_watch(&self.shared.fd, self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn instances() -> usize {
        let links =
            std::fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
        links.filter(|target| target.to_string_lossy().contains("inotify")).count()
    }

    // review node.md E5: 128 people who followed logs, and nobody else heard of anything
    #[tokio::test]
    async fn all_who_follow_logs_share_one_instance() {
        let (group, _fatal) = Group::root("t");
        let dir = tempfile::tempdir().unwrap();
        let before = instances();
        let watches = Watches::start(&group);
        let folder = |n: usize| dir.path().join((n % 100).to_string());
        (0..100).for_each(|n| std::fs::create_dir(folder(n)).unwrap());
        let mut all: Vec<Follower> = (0..200).map(|n| watches.follow(&folder(n)).unwrap()).collect();
        assert!(instances() < before + 50, "{} more", instances() - before);
        let mut second = all.split_off(100);
        drop(all);
        for (n, follower) in second.iter_mut().enumerate() {
            std::fs::write(folder(n).join("0.log"), "x").unwrap();
            tokio::time::timeout(Duration::from_secs(10), follower.changed())
                .await
                .expect("whoever came second is told, too");
        }
        drop(second);
        assert!(watches.0.as_ref().unwrap().folders().is_empty());
        group.shutdown().await;
    }

    #[tokio::test]
    async fn no_bytes_of_events_are_too_strange() {
        let (group, _fatal) = Group::root("t");
        let watches = Watches::start(&group);
        let shared = watches.0.as_ref().unwrap();
        for len in 0..40 {
            shared.tell(&vec![0xff; len]);
            shared.tell(&vec![0; len]);
        }
        group.shutdown().await;
    }
}
