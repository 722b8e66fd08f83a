//! Bringing to the database what is applied and durable in the log: many entries in one commit, in the background.
//!
//! No commit waits for the disk, but one before a segment of the log is let go, and those of votes and members. The
//! order is fixed: commit, retire segments, checkpoint.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use rusqlite::{Connection, params};
use tracing::{error, warn};

use crate::disk::Disk;
use crate::error::Error;
use crate::mvcc::apply::{Lease, Leases};
use crate::mvcc::database::{self, Applied, Loaded, meta, set_meta};
use crate::mvcc::entry::Vote;
use crate::mvcc::index::{Index, POSITION_BITS};
use crate::mvcc::log::Log;
use crate::mvcc::memtable::{Memtable, Row, Unsaved};
use crate::mvcc::space::{RESERVE_BYTES, Space};

/// While the disk is full other members' entries are applied further, up to so many times what may be behind.
const STUCK_TIMES_MAX: usize = 8;
/// How old what is behind gets: `sqlite3` beside a running server sees a state at most so old.
const BEHIND_FOR: Duration = Duration::from_secs(2);

/// The state of the disk, as far as the thread knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// It took what was written last.
    Sound,
    /// The database could not be written last time, and may be the next time.
    Full,
    /// Entries were applied in part, or a write or a sync failed: nobody knows what is on the disk. Only a new process,
    /// from the log, makes the state whole.
    Broken,
}

/// When a commit is on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Some time; after a power cut the log has what is lost.
    Relaxed,
    /// Before it ends.
    Durable,
}

/// Contents of a database, beside values.
pub(super) struct Held {
    pub(super) index: Index,
    pub(super) leases: Leases,
    /// The newest revision.
    pub(super) revision: u64,
    pub(super) applied: Applied,
    pub(super) cluster_id: u64,
}

/// The database, and what it lacks.
#[derive(Debug)]
pub(super) struct Flusher {
    disk: Arc<dyn Disk>,
    pub(super) conn: Connection,
    pub(super) path: PathBuf,
    pub(super) member: u64,
    behind_bytes_max: usize,
    memtable: Arc<Memtable>,
    space: Arc<Space>,
    /// The applied entry and members in the database's `meta`, and the entry of its newest row.
    saved: Applied,
    newest_row: Option<(u64, u64)>,
    /// Changes beside rows that the database lacks.
    pub(super) unsaved: Unsaved,
    /// Up to which entry the database has everything on the disk, as far as this process knows.
    durable: Option<u64>,
    health: Health,
}

/// An open database, and where it lies.
pub(super) struct Opened {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) conn: Connection,
    pub(super) path: PathBuf,
    pub(super) member: u64,
}

impl Flusher {
    /// `behind_bytes_max`: bytes of rows that the database may lack before they are written.
    pub(super) fn new(
        opened: Opened,
        behind_bytes_max: usize,
        memtable: Arc<Memtable>,
        space: Arc<Space>,
    ) -> Result<Flusher, Error> {
        let Opened { disk, conn, path, member } = opened;
        conn.pragma_update(None, "synchronous", "NORMAL").map_err(Error::io("cannot prepare the database"))?;
        Ok(Flusher {
            disk,
            conn,
            path,
            member,
            behind_bytes_max,
            memtable,
            space,
            saved: Applied::default(),
            newest_row: None,
            unsaved: Unsaved::default(),
            durable: None,
            health: Health::Sound,
        })
    }

    /// Reads what the database holds.
    pub(super) fn load(&mut self) -> Result<Held, Error> {
        let Loaded { index, revision } = database::load(&self.conn, &self.path)?;
        self.saved = meta(&self.conn, &self.path, "applied")?.unwrap_or_default();
        self.newest_row = database::newest_row(&self.conn, &self.path)?;
        let mut applied = self.saved.clone();
        applied.log = database::newest(self.saved.log, self.newest_row, self.member);
        let leases = self.leases(&index)?;
        let cluster_id = meta(&self.conn, &self.path, "cluster_id")?;
        let cluster_id =
            cluster_id.ok_or_else(|| Error::Corrupt { path: self.path.clone(), why: "no cluster id".to_owned() })?;
        Ok(Held { index, leases, revision, applied, cluster_id })
    }

    fn leases(&self, index: &Index) -> Result<Leases, Error> {
        let read = || -> rusqlite::Result<Leases> {
            let mut statement = self.conn.prepare_cached("SELECT id, ttl_secs FROM lease")?;
            let lease =
                |row: &rusqlite::Row<'_>| Ok((row.get(0)?, Lease { ttl_secs: row.get(1)?, ..Lease::default() }));
            statement.query_map([], lease)?.collect()
        };
        let mut leases = read().map_err(|err| database::sqlite(&self.path, "cannot read the leases", err))?;
        if !leases.is_empty() {
            for (key, version) in index.range(&[], &[0], u64::MAX >> POSITION_BITS) {
                if let Some(lease) = leases.get_mut(&version.lease) {
                    lease.keys.insert(key.clone());
                }
            }
        }
        Ok(leases)
    }

    /// Errors: `Closed` if nobody knows what is on the disk.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.is_broken() { Err(Error::Closed) } else { Ok(()) }
    }

    /// Whether nobody knows what is on the disk.
    pub(super) fn is_broken(&self) -> bool {
        self.health == Health::Broken
    }

    /// Whether the database could not be written last time.
    pub(super) fn is_full(&self) -> bool {
        self.health == Health::Full
    }

    /// Whether the database has all entries up to this one on the disk, as far as this process knows.
    pub(super) fn has_durably(&self, entry: Option<u64>) -> bool {
        self.durable >= entry
    }

    /// How long what is behind may wait; `None` if there is nothing, so that an idle store sleeps.
    pub(super) fn due_in(&self) -> Option<Duration> {
        let since = self.unsaved.since.as_ref().filter(|_| !self.is_broken())?;
        let full = self.unsaved.bytes >= self.behind_bytes_max && self.health == Health::Sound;
        Some(if full { Duration::ZERO } else { BEHIND_FOR.saturating_sub(since.elapsed()) })
    }

    /// Writes what is behind if it is time. A disk that is full now may not be later: it is tried again.
    pub(super) fn flush_if_due(&mut self, log: &mut Log, applied: &Applied) {
        let index = applied.index();
        if self.unsaved.since.is_none() && log.can_retire(index) {
            self.unsaved.add(0);
        }
        if self.due_in().is_none_or(|left| !left.is_zero()) {
            return;
        }
        let level = if log.can_retire(index) { Level::Durable } else { Level::Relaxed };
        let was = self.health;
        if let Err(err) = self.flush(log, applied, level) {
            if was == Health::Sound && !self.is_broken() {
                error!(err = %Chain(&err), "cannot write the database, the log has what it lacks: it is tried again");
            }
            self.unsaved.since = Some(base::time::Stopwatch::start());
        }
    }

    /// Refuses to apply more while the disk takes nothing.
    pub(super) fn check_behind(&mut self, log: &mut Log, applied: &Applied) -> Result<(), Error> {
        let is_over = self.unsaved.bytes > STUCK_TIMES_MAX * self.behind_bytes_max;
        if self.is_full() && is_over { self.flush(log, applied, Level::Relaxed) } else { Ok(()) }
    }

    /// Writes what is behind; afterwards the database says exactly what is applied. The log lets go of what the
    /// database durably has.
    ///
    /// Errors: `NoSpace`: then what could not be written is still behind. `Io`: nobody knows what is on the disk.
    pub(super) fn flush(&mut self, log: &mut Log, applied: &Applied, level: Level) -> Result<(), Error> {
        self.check()?;
        let memtable = Arc::clone(&self.memtable);
        let index = applied.index();
        let (newest_row, written) = {
            let rows = memtable.rows();
            let newest_row = rows.values().next_back().map(|row| row.entry).or(self.newest_row);
            let told_by_row = database::newest(self.saved.log, newest_row, self.member) == applied.log;
            // Compaction may take the newest row, so the floor brings `meta` up to date.
            let meta = !told_by_row || self.saved.membership != applied.membership || self.unsaved.floor.is_some();
            let is_clean = self.health == Health::Sound && !meta && rows.is_empty() && self.unsaved.leases.is_empty();
            if is_clean && (level == Level::Relaxed || self.durable == index) {
                drop(rows);
                self.unsaved = Unsaved::default();
                self.judge_space();
                return Ok(());
            }
            let told = (meta || level == Level::Durable).then_some(applied);
            let write = || write(&self.conn, rows.values(), &self.unsaved, told);
            let written = if level == Level::Durable { self.durably(write) } else { write() };
            (newest_row, written.map(|()| told.is_some()))
        };
        match written {
            Ok(with_applied) => {
                if with_applied {
                    self.saved = applied.clone();
                }
                (self.newest_row, self.unsaved) = (newest_row, Unsaved::default());
                memtable.clear();
                if level == Level::Durable {
                    self.durable = index;
                    log.retire(index)?;
                }
                self.checkpoint()
            }
            Err(err) => {
                self.health = Health::Full;
                self.take_back();
                self.judge_space();
                Err(self.broken_by("cannot write the database", err))
            }
        }
    }

    fn checkpoint(&mut self) -> Result<(), Error> {
        let checkpoint = database::checkpoint_if_long(&self.conn);
        self.health = if checkpoint.is_err() { Health::Full } else { Health::Sound };
        self.judge_space();
        checkpoint.map_err(|err| self.broken_by("cannot bring the WAL to the database", err))
    }

    /// Deletes rows that compaction frees.
    pub(super) fn delete_rows(&mut self, log: &mut Log, applied: &Applied, ids: &[u64]) -> Result<(), Error> {
        let first_behind = self.memtable.rows().keys().next().copied();
        // Only what is there can be deleted, and not before the database says up to where it is.
        if self.unsaved.floor.is_some() || first_behind.is_some_and(|first| ids.iter().any(|id| *id >= first)) {
            self.flush(log, applied, Level::Relaxed)?;
        }
        let delete = || -> rusqlite::Result<()> {
            self.conn.execute_batch("BEGIN IMMEDIATE")?;
            let mut statement = self.conn.prepare_cached("DELETE FROM history WHERE id = ?")?;
            for id in ids {
                statement.execute([id])?;
            }
            self.conn.execute_batch("COMMIT")?;
            database::checkpoint_if_long(&self.conn)
        };
        let deleted = delete();
        self.take_back();
        deleted.map_err(|err| self.broken_by("cannot compact", err))
    }

    /// Makes the vote durable.
    pub(super) fn save_vote(&mut self, vote: &Vote) -> Result<(), Error> {
        let saved = self.durably(|| set_meta(&self.conn, "vote", vote));
        saved.map_err(|err| self.broken_by("cannot save the vote", err))
    }

    /// Writes the database anew, without free pages.
    pub(super) fn defragment(&mut self, log: &mut Log, applied: &Applied) -> Result<(), Error> {
        self.flush(log, applied, Level::Durable)?;
        self.conn.flush_prepared_statement_cache();
        let vacuumed = self.conn.execute_batch("VACUUM; PRAGMA wal_checkpoint(TRUNCATE)");
        self.take_back();
        self.judge_space();
        vacuumed.map_err(|err| self.broken_by("cannot defragment the database", err))
    }

    /// Leaves one file behind that holds everything that is committed, and that any sqlite3 opens.
    pub(super) fn close(&self) -> rusqlite::Result<()> {
        self.conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)")
    }

    /// Another database has taken the place of this one: nothing is behind it.
    pub(super) fn is_replaced(&mut self) -> Result<Held, Error> {
        self.memtable.clear();
        (self.unsaved, self.health) = (Unsaved::default(), Health::Sound);
        let held = self.load()?;
        self.durable = held.applied.index();
        Ok(held)
    }

    /// Converts an error of SQLite. One that does not pass by itself breaks the store: after a sync that failed the
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

    /// Looks how much room there is.
    pub(super) fn judge_space(&mut self) {
        let dir = self.path.parent().unwrap_or(&self.path);
        // A disk that cannot say is not taken for full: writes tell.
        let free = self.disk.free_bytes(dir).unwrap_or(u64::MAX);
        let is_low = self.health != Health::Sound || free < RESERVE_BYTES;
        if self.space.note(is_low) {
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
    fn durably<T>(&self, work: impl FnOnce() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
        self.conn.pragma_update(None, "synchronous", "FULL")?;
        let done = work();
        // Not inside a transaction, where it would change nothing.
        self.take_back();
        self.conn.pragma_update(None, "synchronous", "NORMAL")?;
        done
    }

    /// After a transaction that failed.
    fn take_back(&self) {
        if !self.conn.is_autocommit()
            && let Err(err) = self.conn.execute_batch("ROLLBACK")
        {
            error!(err = %Chain(&err), "cannot roll back");
        }
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
