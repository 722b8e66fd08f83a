//! This room remembers. It keeps every object at every revision since the last compaction and tells
//! watchers what changed, in revision order, without gaps or repeats.
//!
//! In: [`Txn`] and [`RangeRequest`] from `apiserver`. Out: [`Revision`], [`KeyValue`], [`EventBatch`]. It never knows
//! what a Pod is: keys and bytes only. The semantics are etcd's: one revision counter, compare-and-swap transactions,
//! reads at a revision, leases, compaction. The road of a write: `raft/batch` gathers what waits into one Raft entry,
//! `raft/log` hands it to `mvcc/writer`, which makes it durable in the `journal` with one write and applies it, then
//! `mvcc/hub` tells the watchers; `mvcc/flush` brings it to the database later.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

pub mod backup;
pub mod bounds;
pub mod disk;
pub mod error;
pub mod etcd;
pub mod external;
pub mod folder;
pub mod journal;
pub mod lease;
pub mod member;
pub mod mvcc;
pub mod raft;
pub mod store;
pub mod watch;

#[cfg(test)]
mod etcd_tests;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod faults_tests;
#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod linear_tests;
#[cfg(test)]
mod members_tests;
#[cfg(test)]
mod net;
#[cfg(test)]
mod power_tests;
#[cfg(test)]
mod tests;

use crate::error::Error;
use crate::watch::WatchStream;

/// A point in the store's history: the number of the transaction that made it. An empty store stands at 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Revision(pub u64);

/// One key as it stood at some revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyValue {
    /// The key.
    pub key: Bytes,
    /// Its bytes; empty when only keys were asked for.
    pub value: Bytes,
    /// The revision that created this generation of the key.
    pub create_revision: Revision,
    /// The revision that last changed it.
    pub mod_revision: Revision,
    /// Changes since its creation; 1 is fresh.
    pub version: u64,
    /// The lease it hangs on; 0 is none.
    pub lease: u64,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// Created or changed.
    Put,
    /// Deleted.
    Delete,
}

/// One change of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub kind: EventKind,
    /// The key after it; for a delete only `key` and `mod_revision` (of the delete) are set.
    pub kv: KeyValue,
    /// The key before it, when the watch asked for it and it is not compacted away.
    pub prev: Option<KeyValue>,
}

/// The events of one revision that a watch asked for, in their order. Empty: a progress mark, nothing up to
/// `revision` is still to come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBatch {
    /// The revision of all events in it.
    pub revision: Revision,
    /// What changed.
    pub events: Arc<[Event]>,
}

/// How a [`Compare`] compares: `stored OP given`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CompareOp {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `>`
    Greater,
    /// `<`
    Less,
}

/// A condition of a transaction on one key. A key that is not there has revisions and version 0; its value
/// equals nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Compare {
    /// On the revision of the last change; 0 means "is not there".
    ModRevision {
        /// The key.
        key: Bytes,
        /// How.
        op: CompareOp,
        /// With what.
        revision: Revision,
    },
    /// On the revision of the creation.
    CreateRevision {
        /// The key.
        key: Bytes,
        /// How.
        op: CompareOp,
        /// With what.
        revision: Revision,
    },
    /// On the number of changes since creation.
    Version {
        /// The key.
        key: Bytes,
        /// How.
        op: CompareOp,
        /// With what.
        version: u64,
    },
    /// On the bytes.
    Value {
        /// The key.
        key: Bytes,
        /// How.
        op: CompareOp,
        /// With what.
        value: Bytes,
    },
    /// On the lease.
    Lease {
        /// The key.
        key: Bytes,
        /// How.
        op: CompareOp,
        /// With what.
        lease: u64,
    },
}

/// One step of a transaction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Creates or changes a key.
    Put {
        /// The key.
        key: Bytes,
        /// Its new bytes.
        value: Bytes,
        /// The lease to hang it on; 0 is none.
        lease: u64,
        /// Whether the reply carries the key as it was.
        prev_kv: bool,
    },
    /// Deletes a key, or all keys in `key..range_end`.
    Delete {
        /// The key, or the first of the range.
        key: Bytes,
        /// Empty: `key` alone. `[0]`: all keys from `key` on. Else the first key that is not meant any more.
        range_end: Bytes,
        /// Whether the reply carries the keys as they were.
        prev_kv: bool,
    },
    /// Reads; sees the steps before it.
    Range(RangeRequest),
    /// A transaction inside: its conditions are judged before any step of the whole runs.
    Txn(#[serde(deserialize_with = "nested")] Box<Txn>),
}

/// Transactions inside of each other that are decoded, as many as prost takes of etcd's clients.
const TXN_DEPTH_MAX: usize = 100;

/// Reads an inner transaction. The decoder calls itself for each: without a bound a few bytes each would end the
/// process.
fn nested<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Box<Txn>, D::Error> {
    thread_local!(static DEPTH: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });
    let depth = DEPTH.get();
    if depth >= TXN_DEPTH_MAX {
        return Err(serde::de::Error::custom("too many transactions inside of each other"));
    }
    DEPTH.set(depth + 1);
    let txn = Box::<Txn>::deserialize(deserializer);
    DEPTH.set(depth);
    txn
}

/// Steps that happen together, at one revision, if all conditions hold; other steps if not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Txn {
    /// The conditions; none is true.
    pub compare: Vec<Compare>,
    /// Steps when all hold.
    pub success: Vec<Op>,
    /// Steps when one does not.
    pub failure: Vec<Op>,
}

/// What one step of a transaction answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpReply {
    /// Of [`Op::Put`].
    Put {
        /// The key as it was, if asked for and there.
        prev: Option<KeyValue>,
    },
    /// Of [`Op::Delete`].
    Delete {
        /// Keys deleted.
        deleted: u64,
        /// The keys as they were, if asked for.
        prev: Vec<KeyValue>,
    },
    /// Of [`Op::Range`].
    Range(RangeReply),
    /// Of [`Op::Txn`].
    Txn(Box<TxnReply>),
}

/// What a transaction answered, once it is durable and applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TxnReply {
    /// Whether the conditions held.
    pub succeeded: bool,
    /// The store's revision after it: its own if it changed something.
    pub revision: Revision,
    /// One answer per step that ran.
    pub replies: Vec<OpReply>,
}

/// What to read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeRequest {
    /// The key, or the first of the range.
    pub key: Bytes,
    /// As in [`Op::Delete`]; [`prefix_end`] makes it from a prefix.
    pub range_end: Bytes,
    /// Keys to return at most; 0 is no limit.
    pub limit: u64,
    /// As of when; `None` is now.
    pub revision: Option<Revision>,
    /// Leave the values out.
    pub keys_only: bool,
    /// Leave the keys out too.
    pub count_only: bool,
    /// May be answered from this member's own state, however old.
    pub serializable: bool,
}

/// What was read; all of it as of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeReply {
    /// The store's revision when it answered. With `RangeRequest::revision = None` the keys are as of it, so a watch
    /// from `revision + 1` misses nothing and repeats nothing.
    pub revision: Revision,
    /// The keys in their order.
    pub kvs: Vec<KeyValue>,
    /// Whether the limit cut keys off.
    pub more: bool,
    /// Keys in the range, whatever the limit.
    pub count: u64,
}

/// What to watch.
#[derive(Clone, Debug, Default)]
pub struct WatchRequest {
    /// The key, or the first of the range.
    pub key: Bytes,
    /// As in [`Op::Delete`].
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

    /// Makes a lease, for [`Op::Put`]: keys that hang on it go when it is not kept alive for `ttl_secs`. `id` is the
    /// caller's draw.
    ///
    /// Errors: `LeaseExists`, `TimedOut`.
    async fn grant_lease(&self, id: u64, ttl_secs: u64) -> Result<(), Error>;

    /// Gives a lease its whole life again; nothing is written to the disk.
    ///
    /// Errors: `LeaseNotFound`, `NotLeader` while there is no leader.
    async fn keep_lease(&self, id: u64) -> Result<(), Error>;
}

/// The end of the range of all keys that start with `prefix`, for `range_end`.
pub fn prefix_end(prefix: &[u8]) -> Bytes {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return Bytes::from(end);
        }
    }
    // Only 0xff bytes, or nothing: every key from the prefix on.
    Bytes::from_static(&[0])
}

/// Where the store lives and who it is.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory of the database, e.g. `<data-dir>/server/db`; made with mode 0700 if missing.
    pub dir: std::path::PathBuf,
    /// What an empty directory becomes.
    pub birth: member::Birth,
    /// How members reach each other; `None` is a store that stays alone.
    pub network: Option<member::Network>,
    /// Draws the numbers of a new store.
    pub rng: base::rng::Rng,
    /// Sizes and times.
    pub bounds: bounds::Bounds,
}
