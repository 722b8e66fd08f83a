//! Agreement: openraft over the log and the state machine that `mvcc/writer` keeps.
//!
//! With a single member an entry that is durable is agreed upon, so the writer applies it at once. With several members
//! entries are applied when Raft says so.

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
