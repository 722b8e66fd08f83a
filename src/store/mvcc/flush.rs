//! Bringing to the database what is applied and durable in the log: many entries in one commit, in the background.
//!
//! No commit waits for the disk, but one before a segment of the log is let go, and those of votes and members.

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use rusqlite::{Connection, params};
use tracing::{error, warn};

use crate::error::Error;
use crate::journal::frame::next_index;
use crate::mvcc::database::{self, Applied, set_meta};
use crate::mvcc::memtable::{Row, Unsaved};
use crate::mvcc::space::RESERVE_BYTES;
use crate::mvcc::writer::{Health, Quorum, Writer};

/// While the disk is full other members' entries are applied further, up to so many times what may be behind.
const STUCK_TIMES_MAX: usize = 8;
/// How old what is behind gets: `sqlite3` beside a running server sees a state at most so old.
const BEHIND_FOR: Duration = Duration::from_secs(2);

/// Between two looks whether a full disk has room.
const ROOM_LOOK: Duration = Duration::from_secs(1);

/// When a commit is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Some time; after a power cut the log has what is lost.
    Relaxed,
    /// Before it ends.
    Durable,
}

impl Writer {
    /// How long what is behind may wait; `None` if there is nothing, so that an idle store sleeps.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let since = self.unsaved.since.as_ref().filter(|_| self.health != Health::Broken)?;
        let full = self.unsaved.bytes >= self.bounds.behind_bytes_max && self.health == Health::Sound;
        Some(if full { Duration::ZERO } else { BEHIND_FOR.saturating_sub(since.elapsed()) })
    }

    /// Writes what is behind if it is time. A disk that is full now may not be later: it is tried again.
    pub(super) fn flush_if_due(&mut self) {
        if self.unsaved.since.is_none() && self.journal.can_retire(self.retirable(self.applied_index())) {
            self.unsaved.add(0);
        }
        if self.due_in().is_none_or(|left| !left.is_zero()) {
            return;
        }
        let level =
            if self.journal.can_retire(self.retirable(self.applied_index())) { Level::Durable } else { Level::Relaxed };
        let was = self.health;
        if let Err(err) = self.flush(level) {
            if was == Health::Sound && self.health != Health::Broken {
                error!(err = %Chain(&err), "cannot write the database, the log has what it lacks: it is tried again");
            }
            self.unsaved.since = Some(base::time::Stopwatch::start());
        }
    }

    /// Refuses to apply more while the disk takes nothing.
    pub(super) fn check_behind(&mut self) -> Result<(), Error> {
        let bytes_max = STUCK_TIMES_MAX * self.bounds.behind_bytes_max;
        if self.health == Health::Full && self.unsaved.bytes > bytes_max { self.flush(Level::Relaxed) } else { Ok(()) }
    }

    /// Writes what is behind; afterwards the database says exactly what is applied.
    ///
    /// Errors: `NoSpace`: then what could not be written is still behind. `Io`: the writer is broken.
    pub(super) fn flush(&mut self, level: Level) -> Result<(), Error> {
        if self.health == Health::Broken {
            return Err(Error::Closed);
        }
        let memtable = Arc::clone(&self.shared.memtable);
        let (newest_row, written) = {
            let rows = memtable.rows();
            let newest_row = rows.values().next_back().map(|row| row.entry).or(self.newest_row);
            let told_by_row = database::newest(self.saved.log, newest_row, self.member) == self.applied.log;
            // Compaction may take the newest row, so the floor brings `meta` up to date.
            let meta = !told_by_row || self.saved.membership != self.applied.membership || self.unsaved.floor.is_some();
            let is_clean = self.health == Health::Sound && !meta && rows.is_empty() && self.unsaved.leases.is_empty();
            if is_clean && (level == Level::Relaxed || self.durable == self.applied_index()) {
                drop(rows);
                self.unsaved = Unsaved::default();
                self.judge_space();
                return Ok(());
            }
            let applied = (meta || level == Level::Durable).then_some(&self.applied);
            let write = || write(&self.conn, rows.values(), &self.unsaved, applied);
            let written = if level == Level::Durable { self.durably(write) } else { write() };
            (newest_row, written.map(|()| applied.is_some()))
        };
        match written {
            Ok(with_applied) => {
                if with_applied {
                    self.saved = self.applied.clone();
                }
                (self.newest_row, self.unsaved) = (newest_row, Unsaved::default());
                memtable.clear();
                self.after_commit(level)
            }
            Err(err) => {
                self.health = Health::Full;
                self.take_back();
                self.judge_space();
                Err(self.broken_by("cannot write the database", err))
            }
        }
    }

    fn after_commit(&mut self, level: Level) -> Result<(), Error> {
        if level == Level::Durable {
            self.durable = self.applied_index();
            self.journal.retire(self.retirable(self.durable))?;
        }
        let checkpoint = database::checkpoint_if_long(&self.conn);
        self.health = if checkpoint.is_err() { Health::Full } else { Health::Sound };
        self.judge_space();
        checkpoint.map_err(|err| self.broken_by("cannot bring the WAL to the database", err))
    }

    /// Writes the database anew, without free pages.
    pub(super) fn defragment(&mut self) -> Result<(), Error> {
        self.flush(Level::Durable)?;
        self.conn.flush_prepared_statement_cache();
        let vacuumed = self.conn.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)");
        self.take_back();
        self.judge_space();
        vacuumed.map_err(|err| self.broken_by("cannot defragment the database", err))
    }

    /// What an error of SQLite means. One that does not pass by itself breaks the writer: after a sync that failed the
    /// kernel takes its pages for clean, so a later sync that succeeds says nothing of them, and the log that has what
    /// they held would be let go.
    pub(super) fn broken_by(&mut self, doing: &'static str, err: rusqlite::Error) -> Error {
        let passes = database::is_passing(&err);
        let err = database::sqlite(&self.path, doing, err);
        if passes { err } else { self.broken(err) }
    }

    /// Nobody knows any more what is on the disk: says why, and has the process end.
    pub(super) fn broken(&mut self, err: Error) -> Error {
        if self.health != Health::Broken {
            error!(err = %Chain(&err), "the disk failed the store");
        }
        self.health = Health::Broken;
        err
    }

    /// Tries until the disk has room, or the store closes: what Raft asks for is done or is its end, and a full disk is
    /// no end. Meanwhile this member answers nobody, as one that cannot be reached.
    pub(super) fn with_room<T>(&mut self, mut work: impl FnMut(&mut Writer) -> Result<T, Error>) -> Result<T, Error> {
        let mut was_full = false;
        loop {
            match work(self) {
                Err(err @ Error::NoSpace { .. })
                    if !self.shared.space.is_closing() && self.health != Health::Broken =>
                {
                    if !was_full {
                        error!(err = %Chain(&err), "the disk is full: this member waits for room");
                    }
                    was_full = true;
                    self.shared.space.note(true);
                    std::thread::park_timeout(ROOM_LOOK);
                    // A commit lets segments of the log go, which are written again.
                    let _tried = self.flush(Level::Durable);
                }
                done => {
                    if was_full && done.is_ok() {
                        warn!("the disk has room again");
                        self.judge_space();
                    }
                    return done;
                }
            }
        }
    }

    /// Looks how much room there is.
    pub(super) fn judge_space(&mut self) {
        let dir = self.path.parent().unwrap_or(&self.path);
        // A disk that cannot say is not taken for full: writes tell.
        let free = self.disk.free_bytes(dir).unwrap_or(u64::MAX);
        let is_low = self.health != Health::Sound || free < RESERVE_BYTES;
        if self.shared.space.note(is_low) {
            match is_low {
                true => warn!(free, "alarm NOSPACE: new values are refused until there is room"),
                false => warn!(free, "alarm NOSPACE is over"),
            }
        }
        if is_low {
            // Somebody else may make room: it is looked at again, though nothing is written.
            self.unsaved.add(0);
        }
    }

    /// Does work on the database that is on the disk when this returns, with all commits before it.
    pub(super) fn durably<T>(&self, work: impl FnOnce() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        self.conn.pragma_update(None, "synchronous", "FULL")?;
        let done = work();
        // Not inside a transaction, where it would change nothing.
        self.take_back();
        self.conn.pragma_update(None, "synchronous", "NORMAL")?;
        done
    }

    /// After a transaction that failed.
    pub(super) fn take_back(&self) {
        if !self.conn.is_autocommit()
            && let Err(err) = self.conn.execute_batch("ROLLBACK")
        {
            error!(err = %Chain(&err), "cannot roll back");
        }
    }

    /// Up to which entry the log may forget if the database durably has those up to `durable`: alone all of them, with
    /// others what Raft needs no more.
    pub(super) fn retirable(&self, durable: Option<u64>) -> Option<u64> {
        if self.quorum == Quorum::Alone {
            durable
        } else {
            durable.min(next_index(self.journal.purged()).checked_sub(1))
        }
    }

    pub(super) fn applied_index(&self) -> Option<u64> {
        self.applied.log.map(|log| log.index)
    }
}

fn write<'r>(
    conn: &Connection,
    rows: impl Iterator<Item = &'r Row>,
    unsaved: &Unsaved,
    applied: Option<&Applied>,
) -> rusqlite::Result<()> {
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
    let mut insert = conn.prepare_cached("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?)")?;
    for Row { version, entry, key, value } in rows {
        insert.execute(params![
            version.id,
            version.create,
            version.version,
            version.lease,
            entry.0,
            entry.1,
            &key[..],
            &value[..]
        ])?;
    }
    for (id, ttl_secs) in &unsaved.leases {
        match ttl_secs {
            Some(ttl_secs) => {
                conn.prepare_cached("INSERT OR REPLACE INTO lease VALUES (?, ?)")?.execute(params![id, ttl_secs])?
            }
            None => conn.prepare_cached("DELETE FROM lease WHERE id = ?")?.execute([id])?,
        };
    }
    if let Some((floor, revision)) = unsaved.floor {
        // Rows that carry them may be freed, so the numbers are kept apart from now on.
        set_meta(conn, "floor", &floor)?;
        set_meta(conn, "revision", &revision)?;
    }
    if let Some(applied) = applied {
        set_meta(conn, "applied", applied)?;
    }
    conn.prepare_cached("COMMIT")?.execute([]).map(drop)
}
