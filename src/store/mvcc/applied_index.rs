//! Facts of the log that openraft reads without asking the writer's thread.

use std::sync::atomic::{AtomicU64, Ordering};

use base::sync::Mutex;

use crate::journal::frame::EntryId;

/// Alone, entries are applied when they are made durable: what openraft then hands over to be applied is only
/// acknowledged, and the thread is not woken for it.
#[derive(Debug, Default)]
pub struct AppliedIndex {
    /// The index after that of the last applied entry.
    next: AtomicU64,
    /// The last entry that openraft knows to be applied.
    acknowledged: Mutex<Option<EntryId>>,
}

impl AppliedIndex {
    /// Notes that openraft knows of the application of `last`; false if it is not applied yet.
    pub fn acknowledge(&self, last: EntryId) -> bool {
        let applied = last.index < self.next.load(Ordering::Acquire);
        if applied {
            self.note(Some(last));
        }
        applied
    }

    /// Says up to where entries are applied.
    pub fn applied(&self, last: Option<EntryId>) {
        self.next.store(last.map_or(0, |log| log.index + 1), Ordering::Release);
    }

    /// Notes that openraft was told of `last`.
    pub fn note(&self, last: Option<EntryId>) {
        let mut acknowledged = self.acknowledged.lock();
        *acknowledged = last.max(*acknowledged);
    }

    /// The last entry that openraft knows to be applied.
    pub fn acknowledged(&self) -> Option<EntryId> {
        *self.acknowledged.lock()
    }
}
