//! Agreement: openraft over the log and the state machine that `mvcc/writer` keeps.
//!
//! With a single member an entry that is durable is agreed upon, so the writer applies it at once. With several members
//! entries are applied when Raft says so.

pub mod batch;
pub mod election;
pub mod grow;
pub mod image;
pub mod last_contact;
pub mod link;
pub mod log;
pub mod machine;
pub mod network;
pub mod node;
pub mod peers;
pub mod report;
pub mod rpc;
pub mod serve;
pub mod start;
pub mod types;
