//! The log as the writer's thread knows it: the journal, what a full disk refused of it, and whose agreement an entry
//! needs.

use crate::error::Error;
use crate::journal::Journal;
use crate::journal::frame::{EntryId, Frame, next_index};
use crate::mvcc::entry::{Entry, LogState, Payload};

/// The agreement that an entry needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quorum {
    /// None: this member is the only one, and all of the log is applied. Entries are applied when they are durable.
    Alone,
    /// That of this member, which keeps its log: others are about to come.
    Growing,
    /// That of a majority.
    Several,
}

/// Entries that go into the log together.
pub(super) struct Record {
    /// The entry before them.
    pub(super) prev: Option<EntryId>,
    frames: Vec<Frame>,
}

/// The log of this member.
#[derive(Debug)]
pub(super) struct Log {
    journal: Journal,
    /// Entries that a full disk refused. To Raft they are there, so the next record begins with them, as ones that
    /// change nothing.
    refused: Vec<Entry>,
    quorum: Quorum,
}

impl Log {
    pub(super) fn new(journal: Journal) -> Log {
        Log { journal, refused: Vec::new(), quorum: Quorum::Several }
    }

    /// The last entry.
    pub(super) fn last(&self) -> Option<EntryId> {
        self.journal.last()
    }

    /// The last entry that is let go.
    pub(super) fn purged(&self) -> Option<EntryId> {
        self.journal.purged()
    }

    /// Whether an entry is applied as soon as it is durable.
    pub(super) fn is_alone(&self) -> bool {
        self.quorum == Quorum::Alone
    }

    /// Notes the agreement that applied entries and log call for. A log that grows does so until others have come.
    pub(super) fn judge(&mut self, quorum: Quorum) {
        if self.quorum != Quorum::Growing {
            self.quorum = quorum;
        }
    }

    /// Others are about to come.
    pub(super) fn grow(&mut self) {
        self.quorum = Quorum::Growing;
    }

    /// A membership with others is in the log: from here on entries need their agreement.
    pub(super) fn leave_alone(&mut self) {
        if self.quorum == Quorum::Alone {
            self.quorum = Quorum::Several;
        }
    }

    /// A membership was agreed upon: others have come, or nobody has.
    pub(super) fn has_grown(&mut self) {
        self.quorum = Quorum::Several;
    }

    /// Entries of the log, fewer if they have more than `bytes_max` bytes.
    pub(super) fn entries(&self, from: u64, to: u64, bytes_max: usize) -> Result<Vec<Entry>, Error> {
        self.journal.entries(from, to, bytes_max)?.iter().map(Entry::read).collect()
    }

    /// The number of an entry in the log.
    pub(super) fn id_of(&self, index: u64) -> Result<Option<EntryId>, Error> {
        Ok(self.journal.entries(index, index + 1, 1)?.first().map(|frame| frame.id))
    }

    /// The record that puts these entries into the log, with those that were refused before; `None` if it is empty.
    pub(super) fn record(&self, entries: &[Entry], applied: Option<EntryId>) -> Result<Option<Record>, Error> {
        let frames: Vec<Frame> = self.refused.iter().chain(entries).map(Entry::frame).collect::<Result<_, _>>()?;
        let Some(first) = frames.first() else { return Ok(None) };
        Ok(Some(Record { prev: self.entry_before(first.id.index, applied)?, frames }))
    }

    /// Whether the record leaves out entries between it and the log: it says that the database has all of them.
    pub(super) fn leaps(&self, record: &Record) -> bool {
        self.journal.last().is_some() && self.journal.last() < record.prev
    }

    /// Makes a record durable.
    pub(super) fn append(&mut self, record: &Record) -> Result<(), Error> {
        self.journal.append(record.prev, &record.frames)?;
        self.refused.clear();
        Ok(())
    }

    /// Keeps nothing of these entries; Raft takes them for ones that change nothing.
    pub(super) fn refuse(&mut self, entries: &[Entry]) {
        let blank = |entry: &Entry| Entry { log_id: entry.log_id, payload: Payload::Blank };
        self.refused.extend(entries.iter().map(blank));
    }

    /// Drops entries from `since` on.
    pub(super) fn truncate(&mut self, since: u64) -> Result<(), Error> {
        self.journal.truncate(since)
    }

    /// Drops entries up to `upto`, as soon as the database has them.
    pub(super) fn purge(&mut self, upto: EntryId) {
        self.journal.purge(upto);
    }

    /// Whether a segment can be let go once the database durably has the entries up to `durable`.
    pub(super) fn can_retire(&self, durable: Option<u64>) -> bool {
        self.journal.can_retire(self.retirable(durable))
    }

    /// Lets segments go: the database durably has the entries up to `durable`.
    pub(super) fn retire(&mut self, durable: Option<u64>) -> Result<(), Error> {
        self.journal.retire(self.retirable(durable))
    }

    /// Lets all of it go.
    pub(super) fn clear(&mut self) -> Result<(), Error> {
        self.journal.clear()
    }

    /// The state that Raft is told.
    pub(super) fn state(&self, applied: Option<EntryId>) -> LogState {
        let last = self.journal.last();
        // Alone, segments go when the database has what is in them: to openraft all of it is purged.
        if self.is_alone() || last.is_none() || last < applied {
            return LogState { purged: applied, last: applied };
        }
        LogState { purged: self.journal.purged(), last }
    }

    /// Up to which entry the log may forget: alone what the database durably has, with others what Raft needs no more.
    fn retirable(&self, durable: Option<u64>) -> Option<u64> {
        if self.is_alone() { durable } else { durable.min(next_index(self.journal.purged()).checked_sub(1)) }
    }

    /// The number of the entry before `index`.
    fn entry_before(&self, index: u64, applied: Option<EntryId>) -> Result<Option<EntryId>, Error> {
        let Some(before) = index.checked_sub(1) else { return Ok(None) };
        let known = [self.journal.last(), applied, self.journal.purged()];
        if let Some(known) = known.into_iter().flatten().find(|log| log.index == before) {
            return Ok(Some(known));
        }
        let missing = || Error::Corrupt {
            path: self.journal.dir().to_owned(),
            why: format!("entry {before} is missing in the log"),
        };
        self.id_of(before)?.map(Some).ok_or_else(missing)
    }
}
