//! How full a file system is.

use std::path::Path;

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
    /// The file system that holds `path`. What is reserved for root counts as neither used nor capacity, as `df` does: a kubelet may
    /// not plan with it.
    pub(crate) fn of(path: &Path) -> Option<Disk> {
        let stat = rustix::fs::statvfs(path).ok()?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        let used = bytes(stat.f_blocks.saturating_sub(stat.f_bfree));
        let available = bytes(stat.f_bavail);
        Some(Disk { capacity: used.saturating_add(available), available, used, inodes: stat.f_files, inodes_free: stat.f_ffree })
    }

    pub(crate) fn used_percent(&self) -> u64 {
        100 - self.available.saturating_mul(100) / self.capacity.max(1)
    }
}

/// Bytes that a tree occupies and its number of inodes; links are not followed, other file systems not entered.
pub(crate) fn tree(path: &Path) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(meta) = std::fs::symlink_metadata(path) else { return (0, 0) };
    let mut total = (meta.blocks().saturating_mul(512), 1);
    if meta.is_dir() {
        for entry in std::fs::read_dir(path).into_iter().flatten().flatten() {
            if entry.metadata().is_ok_and(|m| m.dev() == meta.dev()) {
                let (bytes, inodes) = tree(&entry.path());
                total = (total.0 + bytes, total.1 + inodes);
            }
        }
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
    }
}
