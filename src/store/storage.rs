//! The store as its users see it, embedded or an external etcd.

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::Error;
use crate::kv::Revision;
use crate::txn::{RangeReply, RangeRequest, Txn, TxnReply};
use crate::watch::WatchStream;

/// Range and start of a watch.
#[derive(Clone, Debug, Default)]
pub struct WatchRequest {
    /// The key, or the first of the range.
    pub key: Bytes,
    /// As in [`crate::txn::Op::Delete`].
    pub range_end: Bytes,
    /// The first revision wanted; 0 is from the next change on.
    pub start: Revision,
    /// Whether events carry the key as it was before.
    pub prev_kv: bool,
}

/// The store as the API server sees it: embedded, or an external etcd.
#[async_trait]
pub trait Storage: Send + Sync + 'static {
    /// Reads keys, all as of one revision.
    ///
    /// Errors: `Compacted` if the revision is older than the floor, `Future` if it is not yet.
    /// Cancel safety: dropping the future ends the read.
    async fn range(&self, request: RangeRequest) -> Result<RangeReply, Error>;

    /// Runs a transaction; answers when it is durable and applied here.
    ///
    /// Cancel safety: a dropped future may or may not have happened, wholly.
    async fn txn(&self, txn: Txn) -> Result<TxnReply, Error>;

    /// Opens a watch: first what happened since `start`, then what happens, without gap or repeat.
    ///
    /// Errors: `Compacted` if `start` is older than the floor.
    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, Error>;

    /// Sends every watch opened here an empty batch at the current revision, behind the events before it.
    async fn progress(&self) -> Result<(), Error>;

    /// Forgets versions that are superseded at `at`. Answers when the floor is set; space is freed in the background.
    ///
    /// Errors: `Compacted` if the floor is at or above `at` already, `Future` if `at` is not yet.
    async fn compact(&self, at: Revision) -> Result<(), Error>;

    /// Waits until everything that was acknowledged anywhere before the call is applied here, and says where the store
    /// stands then: a read of this member's state from there on is linearizable.
    ///
    /// Errors: `TimedOut` if no leader and majority are found in time.
    async fn read_index(&self) -> Result<Revision, Error>;

    /// The newest revision applied here.
    fn current_revision(&self) -> Revision;

    /// Makes a lease, for [`crate::txn::Op::Put`]: keys that hang on it go when it is not kept alive for
    /// `ttl_secs`. `id` is the caller's draw.
    ///
    /// Errors: `LeaseExists`, `TimedOut`.
    async fn grant_lease(&self, id: u64, ttl_secs: u64) -> Result<(), Error>;

    /// Gives a lease its whole life again; nothing is written to the disk.
    ///
    /// Errors: `LeaseNotFound`, `NotLeader` while there is no leader.
    async fn keep_lease(&self, id: u64) -> Result<(), Error>;
}
