//! How full a volume is, asked of its driver.

use proto::csi as pb;

use super::data::{self, Data};
use crate::config::Config;
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
pub(crate) async fn of(config: &Config, csi: &Csi, path: &std::path::Path) -> Option<Usage> {
    let dir = path.parent()?;
    if dir.parent()?.file_name()? != "kubernetes.io~csi" {
        return None;
    }
    let data = Data::read(dir).ok().flatten()?;
    let driver = csi.driver(&data.driver).ok()?;
    if !driver.can(pb::GET_VOLUME_STATS).await.ok()? {
        return None;
    }
    let staging = data::staging_dir(&config.root_dir, data.id());
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
