//! Payload of Raft's entries: batches of commands, each with the mark of the member where their callers wait.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::kv::Revision;
use crate::txn::{Txn, TxnReply};

/// One change of the state. New variants are added at the end: the form on the disk counts them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A transaction.
    Txn(Txn),
    /// Raises the floor.
    Compact {
        /// To where.
        at: Revision,
    },
    /// Makes a lease.
    LeaseGrant {
        /// Its id, not 0.
        id: u64,
        /// How long it lives without a keep-alive.
        ttl_secs: u64,
    },
    /// Ends a lease and deletes its keys.
    LeaseRevoke {
        /// Its id.
        id: u64,
    },
}

/// Answer to a command.
pub type Outcome = Result<TxnReply, Error>;

/// Where a batch comes from, and the term for which it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The member whose callers wait.
    pub member: u64,
    /// Drawn when that member's process started.
    pub boot: u64,
    /// Counts that process's batches.
    pub seq: u64,
    /// The batch counts only as an entry of this term. So a member that has applied an entry of a later term knows that
    /// a batch which it has not seen yet never comes, and may propose it again: nothing happens twice.
    pub term: u64,
}

/// Commands that become durable together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    /// The member and the place where its caller waits.
    pub origin: Origin,
    /// In the order in which they are applied.
    pub commands: Arc<Vec<Command>>,
}
