//! Agreement: openraft over the log and the state machine that `mvcc/writer` keeps in one file.
//!
//! With a single member an entry that is durable is committed, so the writer applies it in the transaction that makes it
//! durable: one fsync for the whole batch, and no log rows at all. With several members entries go to `raft_log` first.

pub mod batch;
pub mod command;
pub mod pending;

pub mod node;

pub mod log;
pub mod machine;

pub mod grow;
pub mod image;
pub mod link;
pub mod network;
pub mod peers;
pub mod rpc;
pub mod serve;
pub mod vigil;

openraft::declare_raft_types!(
    /// The types of our Raft group.
    pub TypeConfig:
        D = crate::raft::command::Batch,
        R = (),
        NodeId = u64,
        Node = crate::member::Peer,
        SnapshotData = crate::raft::image::Image,
);
