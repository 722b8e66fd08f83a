//! A received database in the place of this one.

use std::path::Path;

use bytes::Bytes;
use rusqlite::Connection;
use rusqlite::backup::Backup;

use crate::error::Error;
use crate::journal::frame::EntryId;
use crate::mvcc::database::{self, SCHEMA_VERSION, set_meta};
use crate::mvcc::entry::Vote;
use crate::mvcc::history;
use crate::mvcc::hub::Told;
use crate::mvcc::writer::Writer;

impl Writer {
    /// Puts a received database in the place of this one, in one SQLite transaction, and tells the watchers what they
    /// missed.
    ///
    /// What was behind the old one is behind no more: the new one is newer. So is all of the log that Raft keeps: it
    /// goes on behind it.
    pub(super) fn install(&mut self, last: Option<EntryId>, file: &Path) -> Result<(), Error> {
        let flusher = &mut self.flusher;
        let path = flusher.path.clone();
        let failed = |err| database::sqlite(&path, "cannot install a snapshot", err);
        let source = Connection::open(file).map_err(failed)?;
        let found = database::applied(&source, file, flusher.member)?;
        if found.log != last {
            return Err(Error::Corrupt {
                path: file.to_owned(),
                why: "the snapshot holds something else than it says".to_owned(),
            });
        }
        let vote: Option<Vote> = database::meta(&flusher.conn, &flusher.path, "vote")?;
        let salt: Option<u64> = database::meta(&flusher.conn, &flusher.path, "log_salt")?;
        let adopt = || -> rusqlite::Result<()> {
            source.execute_batch("BEGIN IMMEDIATE")?;
            // What is of this member only stays.
            if let Some(vote) = vote {
                set_meta(&source, "vote", &vote)?;
            }
            set_meta(&source, "member", &flusher.member)?;
            set_meta(&source, "log_salt", &salt)?;
            source.pragma_update(None, "user_version", SCHEMA_VERSION)?;
            source.execute_batch("COMMIT")
        };
        adopt().map_err(failed)?;
        let before = self.shared.hub.revision();
        flusher.conn.flush_prepared_statement_cache();
        flusher.conn.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
        let copied = Backup::new(&source, &mut flusher.conn).and_then(|copy| copy.step(-1));
        flusher.conn.pragma_update(None, "synchronous", "NORMAL").map_err(failed)?;
        copied.map_err(|err| flusher.broken_by("cannot install a snapshot", err))?;
        let held = flusher.is_replaced()?;
        let revision = held.revision;
        self.take_over(held);
        self.tell_missed(before, revision)
    }

    /// After a snapshot: watchers hear of the revisions between, or are let go if those are compacted away.
    fn tell_missed(&mut self, before: u64, revision: u64) -> Result<(), Error> {
        let floor = self.shared.index.read().floor;
        if before + 1 < floor {
            self.shared.hub.let_go(&Error::Compacted {
                asked: crate::kv::Revision(before + 1),
                floor: crate::kv::Revision(floor),
            });
            self.shared.hub.start_at(revision);
            return Ok(());
        }
        let all = crate::storage::WatchRequest {
            key: Bytes::from_static(&[0]),
            range_end: Bytes::from_static(&[0]),
            prev_kv: self.shared.hub.wants_prev(),
            ..Default::default()
        };
        let failed = |err| database::sqlite(&self.flusher.path, "cannot read the database", err);
        let mut next = before + 1;
        while next <= revision {
            let page =
                history::page(&self.flusher.conn, (&self.shared.index, &self.shared.memtable), &all, next, revision)
                    .map_err(failed)?;
            let from = std::mem::replace(&mut next, page.1);
            self.shared.hub.publish(Told { batches: page.0, has_prev: all.prev_kv }, next - 1, || {
                history::everything(&self.flusher.conn, (&self.shared.index, &self.shared.memtable), from, next - 1)
                    .map_err(failed)
            });
        }
        self.shared.hub.start_at(revision);
        Ok(())
    }
}
