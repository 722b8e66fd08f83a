//! The types of our Raft group, as openraft asks for them.

use openraft::{Entry, EntryPayload};

use crate::command::Command;

/// A whole database. openraft passes it around and never looks into it.
#[derive(Debug)]
pub struct Image {
    /// One that was received; `None` is the running database, which is copied only when it is sent.
    pub received: Option<tempfile::TempPath>,
}

openraft::declare_raft_types!(
    /// The types of our Raft group.
    pub TypeConfig:
        D = crate::command::Batch,
        R = (),
        NodeId = u64,
        Node = crate::member::Peer,
        SnapshotData = crate::raft::types::Image,
);

/// About how many bytes an entry carries.
pub fn weight(entry: &Entry<TypeConfig>) -> usize {
    let EntryPayload::Normal(batch) = &entry.payload else { return 0 };
    let bytes = |command: &Command| if let Command::Txn(txn) = command { txn.bytes() } else { 0 };
    batch.commands.iter().map(bytes).sum()
}
