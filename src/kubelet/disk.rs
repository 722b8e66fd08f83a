//! How full a file system is, and what a tree in it occupies.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use base::confined::Dir;
use base::confined::deadline::within;
use base::sync::Mutex;
use base::time::Stopwatch;
use tracing::debug;

/// A volume's file system says how full it is within this; one whose server is away does not.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);
/// All entries of a volume are looked at within this.
const WALK_LIMIT: Duration = Duration::from_secs(600);
/// A measure is good for this long, so that a limit is kept soon …
const AGE_MIN: Duration = Duration::from_secs(10);
/// … and longer if it was slow: a walk takes at most one part in this many of the time.
const WALK_SHARE: u32 = 20;

/// Bytes and inodes of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) capacity: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
    pub(crate) inodes: u64,
    pub(crate) inodes_free: u64,
}

impl Disk {
    /// The file system that holds `path`. What is reserved for root counts as neither used nor capacity, as `df` does:
    /// a kubelet may not plan with it.
    pub(crate) fn of(path: &Path) -> Option<Disk> {
        let stat = rustix::fs::statvfs(path).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let used = bytes(stat.f_blocks.saturating_sub(stat.f_bfree));
        let available = bytes(stat.f_bavail);
        Some(Disk {
            capacity: used.saturating_add(available),
            available,
            used,
            inodes: stat.f_files,
            inodes_free: stat.f_ffree,
        })
    }

    pub(crate) fn used_percent(&self) -> u64 {
        100 - self.available.saturating_mul(100) / self.capacity.max(1)
    }
}

/// The contents of a volume, by its own file system or by what lies in it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measure {
    /// The file system in which it lies.
    pub(crate) disk: Disk,
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// How a volume is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum By {
    /// It has a file system, or a share of one, for itself: that one knows.
    FileSystem,
    /// It is a folder beside others: all in it is looked at.
    Tree,
}

/// The last measure of each path.
#[derive(Default)]
pub(crate) struct Measures(Mutex<BTreeMap<(PathBuf, By), Kept>>);

struct Kept {
    measure: Measure,
    since: Stopwatch,
    took: Duration,
}

impl Kept {
    fn is_fresh(&self) -> bool {
        self.since.elapsed() < AGE_MIN.max(self.took * WALK_SHARE)
    }
}

impl Measures {
    /// The contents of `path`: measured now, or not long ago. The file system is never waited for longer than a
    /// deadline, and outside of the async threads. `None` if there is no answer.
    pub(crate) async fn of(&self, path: &Path, by: By) -> Option<Measure> {
        let key = (path.to_owned(), by);
        let kept = || self.0.lock();
        if let Some(fresh) = kept().get(&key).filter(|kept| kept.is_fresh()) {
            return Some(fresh.measure);
        }
        let (of_work, took) = (path.to_owned(), Stopwatch::start());
        let limit = if by == By::Tree { WALK_LIMIT } else { ANSWER_LIMIT };
        match within(path, limit, move || measure(&of_work, by)).await {
            Ok(measure) => {
                let mut all = kept();
                all.retain(|_, kept| kept.is_fresh());
                all.insert(key, Kept { measure, took: took.elapsed(), since: Stopwatch::start() });
                Some(measure)
            }
            Err(err) => {
                debug!(path = %path.display(), err = %err, "cannot measure a volume");
                None
            }
        }
    }
}

/// Whether images lie on the file system of volumes and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// One file system has all.
    Together,
    /// Images have one for themselves.
    Apart,
}

/// The file systems of the node.
pub(crate) struct Disks {
    root: PathBuf,
    /// The folder of images, once the runtime has told.
    images: OnceLock<PathBuf>,
    /// Sizes of volumes and logs.
    pub(crate) measures: Measures,
}

impl Disks {
    /// `root`: the folder of pods' volumes.
    pub(crate) fn new(root: &Path) -> Disks {
        Disks { root: root.to_owned(), images: OnceLock::new(), measures: Measures::default() }
    }

    /// The file system of pods' volumes and logs.
    pub(crate) fn of_pods(&self) -> Option<Disk> {
        Disk::of(&self.root)
    }

    /// The file system of images: that of pods while the runtime has told of no other.
    pub(crate) fn of_images(&self) -> Option<Disk> {
        Disk::of(self.images.get().unwrap_or(&self.root))
    }

    /// Whether the folder of images is known.
    pub(crate) fn knows_images(&self) -> bool {
        self.images.get().is_some()
    }

    /// Notes the folder of images; the first word counts.
    pub(crate) fn note_images(&self, dir: PathBuf) {
        let _set_once = self.images.set(dir);
    }

    /// How many file systems there are.
    pub(crate) fn layout(&self) -> Layout {
        let dev = |path: &Path| std::fs::metadata(path).ok().map(|meta| meta.dev());
        let are_apart = self.images.get().is_some_and(|dir| dev(dir) != dev(&self.root));
        if are_apart { Layout::Apart } else { Layout::Together }
    }
}

fn measure(path: &Path, by: By) -> io::Result<Measure> {
    let disk = Disk::of(path).ok_or_else(|| io::Error::other("the file system does not say how full it is"))?;
    let (bytes, inodes) = match by {
        By::FileSystem => (disk.used, disk.inodes.saturating_sub(disk.inodes_free)),
        By::Tree => tree(path),
    };
    Ok(Measure { disk, bytes, inodes })
}

/// Bytes that a tree occupies and its number of inodes; links are not followed, other file systems not entered. What
/// cannot be read counts as nothing.
pub(crate) fn tree(path: &Path) -> (u64, u64) {
    let Ok((parent, name)) = Dir::of_file(path) else { return (0, 0) };
    let Ok(meta) = parent.meta(&name) else { return (0, 0) };
    let mut total = (meta.occupies, 1);
    let walked = Dir::open(path).and_then(|dir| {
        dir.walk(&mut |found| {
            if found.meta.dev == meta.dev {
                total = (total.0 + found.meta.occupies, total.1 + 1);
            }
            Ok(())
        })
    });
    if let Err(err) = walked
        && meta.is_dir()
    {
        debug!(path = %path.display(), err = %err, "cannot count all of a folder");
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_counts_what_its_files_occupy() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/f"), vec![1; 100_000]).unwrap();
        let (bytes, inodes) = tree(dir.path());
        assert!(bytes >= 100_000, "{bytes}");
        assert_eq!(inodes, 3);
        assert_eq!(tree(&dir.path().join("sub/f")).1, 1);
        assert_eq!(tree(&dir.path().join("nothing")), (0, 0));
    }

    #[tokio::test]
    async fn a_volume_is_not_measured_again_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let measures = Measures::default();
        let before = measures.of(dir.path(), By::Tree).await.unwrap();
        std::fs::write(dir.path().join("f"), vec![1; 100_000]).unwrap();
        assert_eq!(measures.of(dir.path(), By::Tree).await.unwrap().inodes, before.inodes);
        assert!(measures.of(dir.path(), By::FileSystem).await.unwrap().disk.capacity > 0);
        assert!(measures.of(&dir.path().join("nothing"), By::Tree).await.is_none());
    }

    #[test]
    fn images_are_apart_only_on_another_file_system() {
        let dir = tempfile::tempdir().unwrap();
        let disks = Disks::new(dir.path());
        assert!(!disks.knows_images());
        assert_eq!(disks.layout(), Layout::Together, "the runtime has not told yet");
        disks.note_images(PathBuf::from("/proc"));
        disks.note_images(dir.path().to_owned());
        assert!(disks.knows_images());
        assert_eq!(disks.layout(), Layout::Apart, "the first word counts");
    }

    #[test]
    fn the_percent_in_use_is_of_what_is_not_reserved() {
        for (available, capacity, expected) in [(25, 100, 75), (100, 100, 0), (0, 100, 100), (0, 0, 100)] {
            assert_eq!(Disk { available, capacity, ..Disk::default() }.used_percent(), expected);
        }
    }
}
