//! State that the calls of etcd's protocol work with.

use std::sync::Arc;

use base::rng::Rng;
use base::task::Group;
use proto::etcd as pb;

use super::convert;
use crate::kv::Revision;
use crate::store::Store;

/// The version whose protocol this is; clients look at it to see what they may ask for.
pub const VERSION: &str = "3.5.21";

/// The store, and what else a call needs.
pub struct Context {
    /// The store.
    pub store: Arc<Store>,
    /// Draws ids of leases.
    pub rng: Rng,
    /// Owns the tasks of watches.
    pub group: Group,
    /// The address at which clients are told to reach this member.
    pub client_url: String,
}

impl Context {
    /// The header of every answer.
    pub fn header(&self, revision: Option<Revision>) -> Option<pb::ResponseHeader> {
        use crate::storage::Storage as _;
        let revision = revision.unwrap_or_else(|| self.store.current_revision());
        Some(pb::ResponseHeader {
            cluster_id: self.store.cluster_id(),
            member_id: self.store.member_id(),
            revision: convert::signed(revision.0),
            raft_term: self.store.node().leader().1,
        })
    }
}
