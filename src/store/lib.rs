//! This room remembers. It keeps every object at every revision since the last compaction and tells
//! watchers what changed, in revision order, without gaps or repeats.
//!
//! In: [`Txn`] and [`RangeRequest`] from `apiserver`. Out: [`Revision`], [`KeyValue`], [`EventBatch`]. It never knows
//! what a Pod is: keys and bytes only. The semantics are etcd's: one revision counter, compare-and-swap transactions,
//! reads at a revision, leases, compaction. The road of a write: `raft/batch` gathers what waits into one Raft entry,
//! `raft/log` hands it to `mvcc/writer`, which makes it durable in the `journal` with one write and applies it, then
//! `mvcc/hub` tells the watchers; `mvcc/flush` brings it to the database later.

pub mod backup;
pub mod bounds;
pub mod codec;
pub mod command;
pub mod config;
pub mod disk;
pub mod error;
pub mod etcd;
pub mod external;
pub mod folder;
pub mod inspect;
pub mod journal;
pub mod kv;
pub mod lease;
pub mod member;
pub mod membership;
pub mod mvcc;
pub mod pending;
pub mod propose;
pub mod raft;
pub mod storage;
pub mod store;
pub mod txn;
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

pub use crate::config::Config;
pub use crate::kv::{Event, EventBatch, EventKind, KeyValue, Revision};
pub use crate::storage::{Storage, WatchRequest};
pub use crate::txn::{Compare, CompareOp, Op, OpReply, RangeReply, RangeRequest, Txn, TxnReply, prefix_end};
