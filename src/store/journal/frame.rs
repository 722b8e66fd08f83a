//! Entries as the log has them: a number, and bytes that begin with it. Nothing else of them is read here.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::codec;
use crate::error::Error;

/// The leader of a term, under which an entry was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Leader {
    /// Counts elections.
    pub term: u64,
    /// The member that leads.
    pub node_id: u64,
}

/// The number of an entry: of the later leader is the newer one. Its form on the disk is openraft's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntryId {
    /// The leader that made it.
    pub leader_id: Leader,
    /// Its place in the log.
    pub index: u64,
}

impl EntryId {
    /// The entry at `index` of the member that leads in `term`.
    pub fn new(term: u64, node_id: u64, index: u64) -> EntryId {
        EntryId { leader_id: Leader { term, node_id }, index }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "T{}-N{}-{}", self.leader_id.term, self.leader_id.node_id, self.index)
    }
}

/// The index after that of an entry.
pub fn next_index(id: Option<EntryId>) -> u64 {
    id.map_or(0, |id| id.index + 1)
}

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its number.
    pub id: EntryId,
    /// All of it, in the form of [`codec`].
    pub bytes: Vec<u8>,
}

impl Frame {
    /// Reads the number from the front of an entry's bytes.
    ///
    /// Errors: `Io` if a newer kedge wrote it.
    pub fn read(bytes: &[u8]) -> Result<Frame, Error> {
        Ok(Frame { id: codec::decode_front(bytes)?, bytes: bytes.to_owned() })
    }
}
