//! Entries as the state knows them: batches of commands, and members. Their forms on the disk are openraft's, which
//! `raft` alone knows; a test there holds them byte by byte.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::codec::{decode, encode};
use crate::command::{Batch, Command};
use crate::error::Error;
use crate::journal::frame::{EntryId, Frame, Leader};
use crate::member::Peer;

/// One entry of the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Its number.
    pub log_id: EntryId,
    /// Its content.
    pub payload: Payload,
}

/// The content of an entry. New variants are added at the end: the form on the disk counts them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Payload {
    /// Nothing: a new leader begins with it.
    Blank,
    /// Commands.
    Normal(Batch),
    /// Other members from here on.
    Membership(Membership),
}

impl Entry {
    /// The entry as the log takes it.
    ///
    /// Errors: `Io`, it cannot be encoded.
    pub fn frame(&self) -> Result<Frame, Error> {
        Ok(Frame { id: self.log_id, bytes: encode(self)? })
    }

    /// The entry that the log gave.
    ///
    /// Errors: `Io` if a newer kedge wrote it.
    pub fn read(frame: &Frame) -> Result<Entry, Error> {
        decode(&frame.bytes)
    }

    /// About how many bytes it carries.
    pub fn weight(&self) -> usize {
        let Payload::Normal(batch) = &self.payload else { return 0 };
        batch.commands.iter().map(|command| if let Command::Txn(txn) = command { txn.bytes() } else { 0 }).sum()
    }

    /// Whether it says who the members are.
    pub fn is_membership(&self) -> bool {
        matches!(self.payload, Payload::Membership(_))
    }
}

/// The members of a group: two sets of voters while it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The voters; a majority of each set agrees.
    pub configs: Vec<BTreeSet<u64>>,
    /// All members. Those that no set names are learners.
    pub nodes: BTreeMap<u64, Peer>,
}

/// The members as of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoredMembership {
    /// The entry that named them.
    pub log_id: Option<EntryId>,
    /// The members.
    pub membership: Membership,
}

/// The vote of this member: for whom it is, and whether that one leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vote {
    /// Term and candidate.
    pub leader_id: Leader,
    /// A majority agreed.
    pub committed: bool,
}

/// The reach of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogState {
    /// The last entry that is not there any more.
    pub purged: Option<EntryId>,
    /// The last entry.
    pub last: Option<EntryId>,
}

/// Told once when entries are durable, or why they are not.
pub type Flushed = Box<dyn FnOnce(std::io::Result<()>) + Send>;
