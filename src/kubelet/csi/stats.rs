//! How full a volume is, asked of its driver.

use std::path::Path;

use proto::csi as pb;

use super::data::{self, Data};
use crate::csi::Csi;
use crate::disk::Disk;

/// In bytes and in files.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) available: i64,
    pub(crate) capacity: i64,
    pub(crate) used: i64,
    pub(crate) inodes_free: i64,
    pub(crate) inodes: i64,
    pub(crate) inodes_used: i64,
}

impl Usage {
    /// In the form of a file system's.
    pub(crate) fn disk(self) -> Disk {
        let count = |n: i64| u64::try_from(n).unwrap_or(0);
        Disk {
            capacity: count(self.capacity),
            available: count(self.available),
            used: count(self.used),
            inodes: count(self.inodes),
            inodes_free: count(self.inodes_free),
        }
    }
}

/// The usage that the driver of a pod's volume tells; `None` if the folder is no driver's, or the driver does not tell.
pub(crate) async fn of(root: &Path, csi: &Csi, path: &Path) -> Option<Usage> {
    let dir = path.parent()?;
    if dir.parent()?.file_name()? != "kubernetes.io~csi" {
        return None;
    }
    let data = Data::read(dir).ok().flatten()?;
    let driver = csi.driver(&data.driver).ok()?;
    if !driver.can(pb::GET_VOLUME_STATS).await.ok()? {
        return None;
    }
    let staging = data::staging_dir(root, data.id());
    let request = pb::StatsRequest {
        staging_target_path: if data.is_ephemeral() { String::new() } else { staging.display().to_string() },
        volume_id: data.handle,
        volume_path: path.display().to_string(),
    };
    let answer: pb::StatsResponse = driver.call(pb::NODE_GET_VOLUME_STATS, request).await.ok()?;
    let mut usage = Usage::default();
    for part in answer.usage {
        match part.unit {
            1 => (usage.available, usage.capacity, usage.used) = (part.available, part.total, part.used),
            2 => (usage.inodes_free, usage.inodes, usage.inodes_used) = (part.available, part.total, part.used),
            _ => {}
        }
    }
    Some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_usage_that_a_driver_cannot_mean_counts_as_nothing() {
        let usage = Usage { available: -1, capacity: 10, used: 4, inodes: 5, inodes_free: -7, inodes_used: 5 };
        let disk = usage.disk();
        assert_eq!((disk.capacity, disk.available, disk.used), (10, 0, 4));
        assert_eq!((disk.inodes, disk.inodes_free), (5, 0));
    }

    #[tokio::test]
    async fn only_a_folder_of_a_driver_is_asked_about() {
        let dir = tempfile::tempdir().unwrap();
        let csi = Csi::new(dir.path());
        for path in ["pods/u/volumes/kubernetes.io~empty-dir/v", "pods/u/volumes/kubernetes.io~csi/v/mount", "v"] {
            assert!(of(dir.path(), &csi, &dir.path().join(path)).await.is_none(), "{path}");
        }
    }
}
