//! Jobs of the thread that writes.

use tokio::sync::oneshot;

use crate::error::Error;
use crate::journal::frame::EntryId;
use crate::mvcc::entry::{Entry, Flushed, LogState, StoredMembership, Vote};

/// Where an answer goes.
pub type Answer<T> = oneshot::Sender<Result<T, Error>>;

/// Last applied entry and the membership then.
pub type AppliedState = (Option<EntryId>, StoredMembership);

/// Work for the thread.
pub enum Job {
    /// Makes entries durable, and applies them at once if this member is alone.
    Append { entries: Vec<Entry>, callback: Flushed },
    /// Applies committed entries; those applied already are passed over.
    Apply { entries: Vec<Entry>, reply: Answer<()> },
    /// Reads the entries `from..to` from the log, fewer if they have more than `bytes_max` bytes.
    Entries { from: u64, to: u64, bytes_max: usize, reply: Answer<Vec<Entry>> },
    /// Drops entries from `since` on.
    Truncate { since: u64, reply: Answer<()> },
    /// Drops entries up to `upto`.
    Purge { upto: EntryId, reply: Answer<()> },
    /// Reports the log's bounds.
    LogState { reply: Answer<LogState> },
    /// Reports the state machine's position.
    Applied { reply: Answer<AppliedState> },
    /// Makes the vote durable.
    SaveVote { vote: Vote, reply: Answer<()> },
    /// The vote.
    ReadVote { reply: Answer<Option<Vote>> },
    /// Keeps the log from now on although this member is alone, as others are about to come. Answers with what is
    /// applied.
    KeepLog { reply: Answer<Option<EntryId>> },
    /// Puts a received database in the place of this one.
    /// `last`: what is applied in it, as its sender said.
    Install { last: Option<EntryId>, file: tempfile::TempPath, reply: Answer<()> },
    /// Brings all that is applied to the database, for who reads it with a connection of its own.
    Flush { reply: Answer<()> },
    /// Writes the database anew, without free pages.
    Defragment { reply: Answer<()> },
    /// Ends the thread.
    Stop,
}
