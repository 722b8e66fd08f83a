//! The one thread that writes. Jobs come in order; each batch of entries is one SQLite transaction and one fsync.

use std::ops::Bound;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use base::chain::Chain;
use bytes::Bytes;
use openraft::storage::{LogFlushed, LogState};
use openraft::{BasicNode, CommittedLeaderId, Entry, EntryPayload, LogId, RaftLogId as _, StoredMembership, Vote};
use rusqlite::{Connection, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, error, warn};

use crate::error::Error;
use crate::mvcc::apply::{Lease, Leases, Pass, check};
use crate::mvcc::database::{self, Loaded, meta, set_meta};
use crate::mvcc::hub::Hub;
use crate::mvcc::index::Index;
use crate::raft::TypeConfig;
use crate::raft::command::{Command, Outcome, Tickets};

/// Jobs that wait for the thread; openraft sends one at a time, the state machine another.
pub const JOBS: usize = 16;

/// Keys that one slice of a compaction looks at; a slice runs when no job waits, or after this many jobs.
const SLICE_KEYS: usize = 2048;
const SLICE_EVERY_JOBS: usize = 16;

type Answer<T> = oneshot::Sender<Result<T, Error>>;

/// Last applied entry and the membership then.
pub type AppliedState = (Option<LogId<u64>>, StoredMembership<u64, BasicNode>);

/// Work for the thread.
pub enum Job {
    /// Makes entries durable, and applies them at once if this member is alone.
    Append { entries: Vec<Entry<TypeConfig>>, callback: LogFlushed<TypeConfig> },
    /// Applies committed entries; those applied already are passed over.
    Apply { entries: Vec<Entry<TypeConfig>>, reply: Answer<()> },
    /// Reads entries from the log.
    Entries { from: Bound<u64>, to: Bound<u64>, reply: Answer<Vec<Entry<TypeConfig>>> },
    /// Drops entries from `since` on.
    Truncate { since: u64, reply: Answer<()> },
    /// Drops entries up to `upto`.
    Purge { upto: LogId<u64>, reply: Answer<()> },
    /// What the log holds.
    LogState { reply: Answer<LogState<TypeConfig>> },
    /// What the state machine holds.
    Applied { reply: Answer<AppliedState> },
    /// Makes the vote durable.
    SaveVote { vote: Vote<u64>, reply: Answer<()> },
    /// The vote.
    ReadVote { reply: Answer<Option<Vote<u64>>> },
    /// Ends the thread.
    Stop,
}

/// What is applied, as `meta` keeps it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Applied {
    log: Option<LogId<u64>>,
    membership: StoredMembership<u64, BasicNode>,
}

/// The thread's state.
pub struct Writer {
    conn: Connection,
    path: PathBuf,
    index: Arc<RwLock<Index>>,
    leases: Arc<Mutex<Leases>>,
    hub: Arc<Hub>,
    applied: Applied,
    /// Of the newest appended membership: whether this member is the only one.
    alone: bool,
    /// Compaction at work: the floor, and the last key looked at.
    compacting: Option<(u64, Option<Bytes>)>,
}

impl Writer {
    /// Takes over an open database.
    pub fn new(
        conn: Connection,
        path: PathBuf,
        member: u64,
        index: Arc<RwLock<Index>>,
        leases: Arc<Mutex<Leases>>,
        hub: Arc<Hub>,
    ) -> Result<Writer, Error> {
        let Loaded { index: loaded, revision, log } = database::load(&conn, &path)?;
        let mut applied: Applied = meta(&conn, &path, "applied")?.unwrap_or_default();
        if let Some((index, term)) = log {
            // Entries that made rows do not touch `meta`: the newest of the two counts.
            let id = LogId::new(CommittedLeaderId::new(term, member), index);
            if applied.log.is_none_or(|log| log.index < index) {
                applied.log = Some(id);
            }
        }
        *leases.lock().unwrap_or_else(PoisonError::into_inner) = read_leases(&conn, &loaded, &path)?;
        let compacting = (loaded.floor > 0).then_some((loaded.floor, None));
        *index.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        hub.start_at(revision);
        let mut writer = Writer { conn, path, index, leases, hub, alone: false, applied, compacting };
        writer.alone = writer.is_alone(&writer.applied.membership);
        Ok(writer)
    }

    fn is_alone(&self, membership: &StoredMembership<u64, BasicNode>) -> bool {
        membership.nodes().count() == 1
    }

    /// Works until told to stop, or until something fails that cannot be taken back.
    pub fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut since_slice = 0;
        loop {
            let job = if self.compacting.is_some() && since_slice < SLICE_EVERY_JOBS { jobs.try_recv().ok() } else { None };
            let job = match job {
                Some(job) => job,
                None if self.compacting.is_some() => {
                    since_slice = 0;
                    self.compact_slice();
                    continue;
                }
                None => match jobs.blocking_recv() {
                    Some(job) => job,
                    None => break,
                },
            };
            since_slice += 1;
            if matches!(job, Job::Stop) {
                break;
            }
            self.job(job);
        }
        self.hub.close();
        // Leaves one file behind that any sqlite3 opens, and a short start.
        if let Err(err) = self.conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            debug!(err = %Chain(&err), "last checkpoint left to the next start");
        }
    }

    fn job(&mut self, job: Job) {
        let path = self.path.clone();
        let say = |doing| move |err| database::sqlite(&path, doing, err);
        // A receiver that is gone is a Raft that stopped.
        match job {
            Job::Append { entries, callback } => self.append(entries, callback),
            Job::Apply { entries, reply } => drop(reply.send(self.apply_committed(entries))),
            Job::Entries { from, to, reply } => drop(reply.send(self.entries(from, to))),
            Job::Truncate { since, reply } => drop(reply.send(self.truncate(since).map_err(say("cannot truncate the log")))),
            Job::Purge { upto, reply } => drop(reply.send(self.purge(upto).map_err(say("cannot purge the log")))),
            Job::LogState { reply } => drop(reply.send(self.log_state())),
            Job::Applied { reply } => drop(reply.send(Ok((self.applied.log, self.applied.membership.clone())))),
            Job::SaveVote { vote, reply } => {
                drop(reply.send(set_meta(&self.conn, "vote", &vote).map_err(say("cannot save the vote"))));
            }
            Job::ReadVote { reply } => drop(reply.send(meta(&self.conn, &self.path, "vote"))),
            Job::Stop => {}
        }
    }

    fn append(&mut self, entries: Vec<Entry<TypeConfig>>, callback: LogFlushed<TypeConfig>) {
        for entry in &entries {
            if let EntryPayload::Membership(membership) = &entry.payload {
                self.alone = self.is_alone(&StoredMembership::new(Some(*entry.get_log_id()), membership.clone()));
            }
        }
        let next = self.applied.log.map_or(0, |log| log.index + 1);
        let follows = entries.first().is_some_and(|e| e.get_log_id().index == next);
        // Alone, durable is committed: apply in the transaction that makes it durable, and keep no log.
        let result = if self.alone && follows { self.apply(&entries) } else { self.append_to_log(&entries) };
        if let Err(err) = &result {
            error!(err = %Chain(err), "cannot append to the log");
        }
        callback.log_io_completed(result.map_err(|err| std::io::Error::other(err.to_string())));
    }

    fn append_to_log(&mut self, entries: &[Entry<TypeConfig>]) -> Result<(), Error> {
        let write = || -> rusqlite::Result<()> {
            self.conn.execute_batch("BEGIN IMMEDIATE")?;
            let n_rows: u64 = self.conn.query_row("SELECT count(*) FROM (SELECT 1 FROM raft_log LIMIT 1)", [], |r| r.get(0))?;
            if n_rows == 0 {
                // Everything before was applied without a row.
                set_meta(&self.conn, "purged", &self.applied.log)?;
                set_meta(&self.conn, "applied", &self.applied)?;
            }
            let mut insert = self.conn.prepare_cached("INSERT OR REPLACE INTO raft_log VALUES (?, ?)")?;
            for entry in entries {
                let text = serde_json::to_string(entry).map_err(|err| rusqlite::Error::ToSqlConversionFailure(Box::new(err)))?;
                insert.execute(params![entry.get_log_id().index, text])?;
            }
            self.conn.execute_batch("COMMIT")
        };
        write().map_err(|err| {
            self.roll_back();
            database::sqlite(&self.path, "cannot append to the log", err)
        })
    }

    fn apply_committed(&mut self, entries: Vec<Entry<TypeConfig>>) -> Result<(), Error> {
        let next = self.applied.log.map_or(0, |log| log.index + 1);
        let fresh: Vec<_> = entries.into_iter().filter(|e| e.get_log_id().index >= next).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        // The log is durable already, so this commit needs no fsync: after a power cut it is done again from the log.
        let relax = |level| self.conn.pragma_update(None, "synchronous", level).map_err(Error::io("cannot apply"));
        relax("NORMAL")?;
        let result = self.apply(&fresh);
        self.conn.pragma_update(None, "synchronous", "FULL").map_err(Error::io("cannot apply"))?;
        result
    }

    /// Applies entries in one transaction, commits, tells the watchers, answers those who wait.
    fn apply(&mut self, entries: &[Entry<TypeConfig>]) -> Result<(), Error> {
        let before = self.applied.clone();
        match self.apply_and_commit(entries) {
            Ok((answers, told, revision)) => {
                self.hub.publish(&told, revision);
                for (tickets, outcomes) in answers {
                    tickets.answer(outcomes);
                }
                Ok(())
            }
            Err(err) => {
                self.roll_back();
                let err = database::sqlite(&self.path, "cannot apply", err);
                let lossless = entries.iter().all(|e| matches!(e.payload, EntryPayload::Normal(_)));
                if matches!(err, Error::NoSpace { .. }) && self.alone && lossless {
                    // A full disk is the callers' error, not the end: as nothing of the entry is kept, it counts as one that
                    // changed nothing. Other members could not know, so this holds for a Raft of one only.
                    warn!(err = %Chain(&err), "write refused");
                    self.applied.log = entries.last().map(|e| *e.get_log_id());
                    fail(entries, &err);
                    return Ok(());
                }
                self.applied = before;
                fail(entries, &err);
                Err(err)
            }
        }
    }

    #[allow(clippy::type_complexity, reason = "used by the one caller above")]
    fn apply_and_commit(
        &mut self,
        entries: &[Entry<TypeConfig>],
    ) -> rusqlite::Result<(Vec<(Tickets, Vec<Outcome>)>, Vec<crate::EventBatch>, u64)> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        let mut pass = Pass {
            conn: &self.conn,
            path: &self.path,
            index: &self.index,
            leases: &mut leases,
            revision: self.hub.revision(),
            entry: (0, 0),
            want_prev: self.hub.wants_prev(),
            told: Vec::new(),
            writing: false,
            events: Vec::new(),
        };
        let (mut answers, mut keep_applied, mut floor) = (Vec::new(), false, None);
        for entry in entries {
            let log = *entry.get_log_id();
            pass.entry = (log.index, log.leader_id.term);
            self.applied.log = Some(log);
            match &entry.payload {
                EntryPayload::Blank => keep_applied = true,
                EntryPayload::Membership(membership) => {
                    self.applied.membership = StoredMembership::new(Some(log), membership.clone());
                    keep_applied = true;
                }
                EntryPayload::Normal(batch) => {
                    let mut outcomes = Vec::with_capacity(batch.commands.len());
                    for command in batch.commands.iter() {
                        let outcome = pass.command(command)?;
                        if let (Command::Compact { at }, Ok(_)) = (command, &outcome) {
                            (floor, keep_applied) = (Some(at.0), true);
                        }
                        outcomes.push(outcome);
                    }
                    answers.push((batch.tickets.clone(), outcomes));
                }
            }
        }
        keep_applied |= pass.writing && pass.told.is_empty();
        if keep_applied || !self.alone {
            pass.begin()?;
            set_meta(&self.conn, "applied", &self.applied)?;
        }
        let (told, revision, writing) = (pass.told, pass.revision, pass.writing);
        if writing {
            self.conn.prepare_cached("COMMIT")?.execute([])?;
        }
        if let Some(floor) = floor {
            self.compacting = Some((floor, None));
        }
        Ok((answers, told, revision))
    }

    /// After a failed transaction: memory goes back to what is on the disk.
    fn roll_back(&mut self) {
        if !self.conn.is_autocommit()
            && let Err(err) = self.conn.execute_batch("ROLLBACK")
        {
            error!(err = %Chain(&err), "cannot roll back");
        }
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index.roll_back(self.hub.revision());
        if let Ok(floor) = meta::<u64>(&self.conn, &self.path, "floor") {
            index.floor = floor.unwrap_or(0);
        }
        match read_leases(&self.conn, &index, &self.path) {
            Ok(leases) => *self.leases.lock().unwrap_or_else(PoisonError::into_inner) = leases,
            Err(err) => error!(err = %Chain(&err), "cannot read the leases again"),
        }
    }

    fn entries(&self, from: Bound<u64>, to: Bound<u64>) -> Result<Vec<Entry<TypeConfig>>, Error> {
        let from = match from {
            Bound::Included(i) => i,
            Bound::Excluded(i) => i + 1,
            Bound::Unbounded => 0,
        };
        let to = match to {
            Bound::Included(i) => i + 1,
            Bound::Excluded(i) => i,
            Bound::Unbounded => u64::MAX >> 1,
        };
        let read = || -> rusqlite::Result<Vec<String>> {
            let mut s = self.conn.prepare_cached("SELECT entry FROM raft_log WHERE log_index >= ? AND log_index < ? ORDER BY log_index")?;
            s.query_map([from, to], |row| row.get(0))?.collect()
        };
        let texts = read().map_err(|err| database::sqlite(&self.path, "cannot read the log", err))?;
        texts.iter().map(|text| self.parse(text)).collect()
    }

    fn parse(&self, text: &str) -> Result<Entry<TypeConfig>, Error> {
        serde_json::from_str(text).map_err(|err| Error::Corrupt { path: self.path.clone(), why: format!("raft_log: {err}") })
    }

    fn truncate(&self, since: u64) -> rusqlite::Result<()> {
        self.conn.execute("DELETE FROM raft_log WHERE log_index >= ?", [since]).map(drop)
    }

    fn purge(&self, upto: LogId<u64>) -> rusqlite::Result<()> {
        self.conn.execute_batch("BEGIN IMMEDIATE")?;
        let done = set_meta(&self.conn, "purged", &Some(upto))
            .and_then(|()| self.conn.execute("DELETE FROM raft_log WHERE log_index <= ?", [upto.index]))
            .and_then(|_| self.conn.execute_batch("COMMIT"));
        if done.is_err() {
            self.conn.execute_batch("ROLLBACK")?;
        }
        done
    }

    fn log_state(&self) -> Result<LogState<TypeConfig>, Error> {
        let last: Option<String> = self
            .conn
            .query_row("SELECT entry FROM raft_log ORDER BY log_index DESC LIMIT 1", [], |row| row.get(0))
            .optional()
            .map_err(|err| database::sqlite(&self.path, "cannot read the log", err))?;
        let last = last.map(|text| self.parse(&text).map(|e| *e.get_log_id())).transpose()?;
        // What was applied alone left no log rows: to openraft it is purged.
        if last.is_none_or(|last| Some(last) < self.applied.log) {
            return Ok(LogState { last_purged_log_id: self.applied.log, last_log_id: self.applied.log });
        }
        let purged: Option<Option<LogId<u64>>> = meta(&self.conn, &self.path, "purged")?;
        Ok(LogState { last_purged_log_id: purged.flatten(), last_log_id: last })
    }

    /// Frees what one slice of keys holds below the floor. Not synced: the floor is durable, so it can be done again.
    fn compact_slice(&mut self) {
        let Some((floor, after)) = self.compacting.take() else { return };
        let (ids, until) = self.index.read().unwrap_or_else(PoisonError::into_inner).superseded(after.as_ref(), SLICE_KEYS, floor);
        let Some(until) = until else { return };
        if !ids.is_empty()
            && let Err(err) = self.delete_rows(&ids)
        {
            // Rows that stay are only space; the next compaction finds them again.
            warn!(err = %Chain(&err), "compaction stopped");
            return;
        }
        self.index.write().unwrap_or_else(PoisonError::into_inner).forget(after.as_ref(), &until, floor);
        self.compacting = Some((floor, Some(until)));
    }

    fn delete_rows(&self, ids: &[u64]) -> rusqlite::Result<()> {
        self.conn.pragma_update(None, "synchronous", "NORMAL")?;
        let delete = || -> rusqlite::Result<()> {
            self.conn.execute_batch("BEGIN IMMEDIATE")?;
            let mut statement = self.conn.prepare_cached("DELETE FROM history WHERE id = ?")?;
            for id in ids {
                statement.execute([id])?;
            }
            self.conn.execute_batch("COMMIT")
        };
        let deleted = delete();
        if deleted.is_err() && !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK")?;
        }
        self.conn.pragma_update(None, "synchronous", "FULL")?;
        deleted
    }
}

fn fail(entries: &[Entry<TypeConfig>], err: &Error) {
    for entry in entries {
        if let EntryPayload::Normal(batch) = &entry.payload {
            batch.tickets.fail(err);
        }
    }
}

fn read_leases(conn: &Connection, index: &Index, path: &std::path::Path) -> Result<Leases, Error> {
    let read = || -> rusqlite::Result<Leases> {
        let mut statement = conn.prepare_cached("SELECT id, ttl_secs FROM lease")?;
        statement.query_map([], |row| Ok((row.get(0)?, Lease { ttl_secs: row.get(1)?, ..Lease::default() })))?.collect()
    };
    let mut leases = read().map_err(|err| database::sqlite(path, "cannot read the leases", err))?;
    if !leases.is_empty() {
        for (key, version) in index.range(&[], &[0], u64::MAX >> crate::mvcc::index::POSITION_BITS) {
            if let Some(lease) = leases.get_mut(&version.lease) {
                lease.keys.insert(key.clone());
            }
        }
    }
    Ok(leases)
}

/// Refuses a command that no state could make valid, before it is proposed.
pub fn check_command(command: &Command) -> Result<(), Error> {
    match command {
        Command::Txn(txn) => check(txn),
        Command::LeaseGrant { id: 0, .. } => Err(Error::Invalid { why: "lease id 0 means no lease" }),
        _ => Ok(()),
    }
}
