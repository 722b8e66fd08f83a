//! A member's status report.

use std::path::PathBuf;
use std::sync::Arc;

use openraft::LogIdOptionExt as _;

use crate::folder;
use crate::mvcc::hub::Hub;
use crate::raft::node::Node;
use crate::raft::rpc::MemberStatus;

/// Reports on this member.
#[derive(Clone)]
pub struct Reporter {
    /// Its part in the group.
    pub node: Arc<Node>,
    /// Its newest revision.
    pub hub: Arc<Hub>,
    /// The folder of its files.
    pub dir: PathBuf,
}

impl Reporter {
    /// The status of now, without a fingerprint: that costs a look at every key.
    pub fn status(&self) -> MemberStatus {
        let (leader, term) = self.node.leader();
        let applied = self.node.raft.data_metrics().borrow().last_applied.index().unwrap_or(0);
        let db_bytes = folder::disk_use(&self.dir).database;
        MemberStatus { revision: self.hub.revision(), applied, term, leader, db_bytes, hash: 0 }
    }
}
