//! The one thread that writes. Jobs come in order; each batch of entries is one SQLite transaction and one fsync.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use base::chain::Chain;
use bytes::Bytes;
use openraft::storage::{LogFlushed, LogState};
use openraft::{Entry, EntryPayload, LogId, RaftLogId as _, SnapshotMeta, StoredMembership, Vote};
use rusqlite::backup::Backup;
use rusqlite::{Connection, OptionalExtension as _, params};
use tokio::sync::mpsc;
use tracing::{debug, error, warn};

use crate::error::Error;
use crate::member::Peer;
use crate::mvcc::ahead::Ahead;
use crate::mvcc::apply::{Lease, Leases, Pass, check};
use crate::mvcc::database::{self, Applied, Loaded, meta, set_meta};
use crate::mvcc::hub::Hub;
use crate::mvcc::index::Index;
pub use crate::mvcc::job::{Answer, AppliedState, Job};
use crate::mvcc::past;
use crate::raft::TypeConfig;
use crate::raft::command::{Command, Origin, Outcome};
use crate::raft::pending::Pending;
use crate::raft::rpc::{decode, encode};

/// Jobs that wait for the thread; openraft sends one at a time, the state machine another.
pub const JOBS: usize = 16;

/// Keys that one slice of a compaction looks at; a slice runs when no job waits, or after this many jobs.
const SLICE_KEYS: usize = 2048;
const SLICE_EVERY_JOBS: usize = 16;

/// What the thread shares with the rest of the store.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The versions.
    pub index: Arc<RwLock<Index>>,
    /// The leases.
    pub leases: Arc<Mutex<Leases>>,
    /// The watchers.
    pub hub: Arc<Hub>,
    /// The callers that wait.
    pub pending: Arc<Pending>,
    /// Whether this member is the only one and applies at once.
    pub alone: Arc<AtomicBool>,
    /// Woken when leases come or go.
    pub leases_changed: Arc<tokio::sync::Notify>,
    /// The cluster's number; a snapshot brings another to a member that joins.
    pub cluster_id: Arc<AtomicU64>,
    /// What openraft need not ask the thread for.
    pub ahead: Arc<Ahead>,
}

/// The thread's state.
pub struct Writer {
    conn: Connection,
    path: PathBuf,
    member: u64,
    index: Arc<RwLock<Index>>,
    leases: Arc<Mutex<Leases>>,
    hub: Arc<Hub>,
    shared: Shared,
    applied: Applied,
    /// Whether this member is the only one, nothing waits in the log, and nobody is about to come.
    alone: bool,
    /// Others are about to come.
    keep_log: bool,
    /// The last entry with a row in `raft_log`.
    last_row: Option<LogId<u64>>,
    /// Compaction at work: the floor, and the last key looked at.
    compacting: Option<(u64, Option<Bytes>)>,
}

impl Writer {
    /// Takes over an open database.
    pub fn new(conn: Connection, path: PathBuf, member: u64, shared: Shared) -> Result<Writer, Error> {
        let mut writer = Writer {
            applied: Applied::default(),
            member,
            index: shared.index.clone(),
            leases: shared.leases.clone(),
            hub: shared.hub.clone(),
            alone: false,
            keep_log: false,
            last_row: None,
            compacting: None,
            conn,
            path,
            shared,
        };
        let revision = writer.load()?;
        writer.hub.start_at(revision);
        Ok(writer)
    }

    /// Reads what the database holds. Answers with the newest revision in it.
    fn load(&mut self) -> Result<u64, Error> {
        let Loaded { index: loaded, revision } = database::load(&self.conn, &self.path)?;
        self.applied = database::applied(&self.conn, &self.path, self.member)?;
        self.shared.ahead.note(self.applied.log);
        self.last_row = self.read_last_row()?;
        *self.leases.lock().unwrap_or_else(PoisonError::into_inner) = read_leases(&self.conn, &loaded, &self.path)?;
        self.compacting = (loaded.floor > 0).then_some((loaded.floor, None));
        *self.index.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        let cluster_id = meta(&self.conn, &self.path, "cluster_id")?;
        let cluster_id = cluster_id.ok_or_else(|| Error::Corrupt { path: self.path.clone(), why: "no cluster id".to_owned() })?;
        self.shared.cluster_id.store(cluster_id, Ordering::Release);
        self.judge_alone();
        Ok(revision)
    }

    /// Applies all that is in the log, agreed upon or not.
    pub fn apply_log(&mut self) -> Result<(), Error> {
        let from = self.applied.log.map_or(0, |log| log.index + 1);
        let entries = self.entries(from, u64::MAX >> 1, usize::MAX)?;
        self.apply_committed(entries)
    }

    /// Alone: the only member as of the applied entries, with nothing in the log behind them.
    fn judge_alone(&mut self) {
        let only = self.applied.membership.nodes().count() == 1 && self.applied.membership.nodes().all(|(id, _)| *id == self.member);
        self.alone = only && !self.keep_log && self.last_row <= self.applied.log;
        self.shared.alone.store(only && self.last_row <= self.applied.log, Ordering::Release);
    }

    /// Works until told to stop, or until something fails that cannot be taken back.
    pub fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let (mut since_slice, mut put_back) = (0, None);
        loop {
            let job = match put_back.take() {
                Some(job) => Some(job),
                None if self.compacting.is_some() && since_slice < SLICE_EVERY_JOBS => jobs.try_recv().ok(),
                None => None,
            };
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
            match job {
                Job::Stop => break,
                Job::Append { entries, callback } => put_back = self.append_all(entries, callback, &mut jobs),
                job => self.job(job),
            }
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
            // Taken by `run`.
            Job::Append { entries, callback } => self.append(entries, vec![callback]),
            Job::Apply { entries, reply } => drop(reply.send(self.apply_committed(entries))),
            Job::Entries { from, to, bytes_max, reply } => drop(reply.send(self.entries(from, to, bytes_max))),
            Job::Truncate { since, reply } => drop(reply.send(self.truncate(since))),
            Job::Purge { upto, reply } => drop(reply.send(self.purge(upto))),
            Job::LogState { reply } => drop(reply.send(self.log_state())),
            Job::Applied { reply } => drop(reply.send(Ok((self.shared.ahead.acknowledged(), self.applied.membership.clone())))),
            Job::KeepLog { reply } => {
                (self.keep_log, self.alone) = (true, false);
                drop(reply.send(Ok(self.applied.log)));
            }
            Job::Install { meta, file, reply } => drop(reply.send(self.install(&meta, &file))),
            Job::SaveVote { vote, reply } => {
                drop(reply.send(set_meta(&self.conn, "vote", &vote).map_err(say("cannot save the vote"))));
            }
            Job::ReadVote { reply } => {
                let alone = self.shared.alone.load(Ordering::Acquire);
                drop(reply.send(database::vote(&self.conn, &self.path, self.member, alone)));
            }
            Job::Stop => {}
        }
    }

    /// Appends, together with what else waits to be appended: one fsync for all of it. Gives back a job of another kind that it met.
    fn append_all(
        &mut self,
        mut entries: Vec<Entry<TypeConfig>>,
        callback: LogFlushed<TypeConfig>,
        jobs: &mut mpsc::Receiver<Job>,
    ) -> Option<Job> {
        let mut callbacks = vec![callback];
        let put_back = loop {
            match jobs.try_recv() {
                Ok(Job::Append { entries: more, callback }) => {
                    entries.extend(more);
                    callbacks.push(callback);
                }
                Ok(other) => break Some(other),
                Err(_) => break None,
            }
        };
        self.append(entries, callbacks);
        put_back
    }

    fn append(&mut self, entries: Vec<Entry<TypeConfig>>, callbacks: Vec<LogFlushed<TypeConfig>>) {
        // From the moment a membership with others is in the log, entries need their agreement.
        if entries.iter().any(|entry| matches!(entry.payload, EntryPayload::Membership(_))) && self.applied.membership.nodes().count() > 0 {
            self.alone = false;
        }
        let next = self.applied.log.map_or(0, |log| log.index + 1);
        let follows = entries.first().is_some_and(|e| e.get_log_id().index == next);
        // Alone, durable is committed: apply in the transaction that makes it durable, and keep no log.
        let result = if self.alone && follows { self.apply(&entries) } else { self.append_to_log(&entries) };
        if let Err(err) = &result {
            error!(err = %Chain(err), "cannot append to the log");
        }
        for callback in callbacks {
            callback.log_io_completed(result.as_ref().copied().map_err(|err| std::io::Error::other(err.to_string())));
        }
    }

    fn append_to_log(&mut self, entries: &[Entry<TypeConfig>]) -> Result<(), Error> {
        let Some(first) = entries.first().map(|e| e.get_log_id().index) else { return Ok(()) };
        let mut rows = Vec::with_capacity(entries.len());
        for entry in entries {
            rows.push((entry.get_log_id().index, encode(entry)?));
        }
        let joined = self.last_row.is_some_and(|last| first <= last.index + 1);
        let write = || -> rusqlite::Result<()> {
            self.conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
            if !joined {
                // Everything before was applied without a row, and older rows are of a time before that.
                self.conn.execute("DELETE FROM raft_log", [])?;
                set_meta(&self.conn, "purged", &self.applied.log)?;
                set_meta(&self.conn, "applied", &self.applied)?;
            }
            let mut insert = self.conn.prepare_cached("INSERT OR REPLACE INTO raft_log VALUES (?, ?)")?;
            for (index, row) in &rows {
                insert.execute(params![index, row])?;
            }
            self.conn.prepare_cached("COMMIT")?.execute([]).map(drop)
        };
        let written = write();
        if let Err(err) = written {
            self.roll_back();
            return Err(database::sqlite(&self.path, "cannot append to the log", err));
        }
        self.last_row = entries.last().map(|e| *e.get_log_id());
        Ok(())
    }

    fn apply_committed(&mut self, entries: Vec<Entry<TypeConfig>>) -> Result<(), Error> {
        let next = self.applied.log.map_or(0, |log| log.index + 1);
        self.shared.ahead.note(entries.last().map(|e| *e.get_log_id()));
        let fresh: Vec<_> = entries.into_iter().filter(|e| e.get_log_id().index >= next).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        // The log is durable already, so this commit needs no fsync: after a power cut it is done again from the log.
        let relax = |level| self.conn.pragma_update(None, "synchronous", level).map_err(Error::io("cannot apply"));
        relax("NORMAL")?;
        let result = self.apply(&fresh);
        self.conn.pragma_update(None, "synchronous", "FULL").map_err(Error::io("cannot apply"))?;
        if fresh.iter().any(|e| matches!(e.payload, EntryPayload::Membership(_))) {
            self.keep_log = false;
        }
        self.judge_alone();
        result
    }

    /// Applies entries in one transaction, commits, tells the watchers, answers those who wait.
    fn apply(&mut self, entries: &[Entry<TypeConfig>]) -> Result<(), Error> {
        let before = self.applied.clone();
        match self.apply_and_commit(entries) {
            Ok((answers, told, revision)) => {
                self.shared.ahead.applied(self.applied.log);
                self.hub.publish(&told, revision);
                if entries.iter().any(touches_leases) {
                    self.shared.leases_changed.notify_one();
                }
                for (origin, outcomes) in answers {
                    self.shared.pending.answer(&origin, outcomes);
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
                    self.fail(entries, &err);
                    return Ok(());
                }
                self.applied = before;
                self.fail(entries, &err);
                Err(err)
            }
        }
    }

    #[allow(clippy::type_complexity, reason = "used by the one caller above")]
    fn apply_and_commit(
        &mut self,
        entries: &[Entry<TypeConfig>],
    ) -> rusqlite::Result<(Vec<(Origin, Vec<Outcome>)>, Vec<crate::EventBatch>, u64)> {
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
                // Made for another term: its member has proposed it again, or will.
                EntryPayload::Normal(batch) if batch.origin.term != log.leader_id.term => keep_applied = true,
                EntryPayload::Normal(batch) => {
                    let mut outcomes = Vec::with_capacity(batch.commands.len());
                    for command in batch.commands.iter() {
                        let outcome = pass.command(command)?;
                        if let (Command::Compact { at }, Ok(_)) = (command, &outcome) {
                            (floor, keep_applied) = (Some(at.0), true);
                        }
                        outcomes.push(outcome);
                    }
                    answers.push((batch.origin, outcomes));
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

    fn entries(&self, from: u64, to: u64, bytes_max: usize) -> Result<Vec<Entry<TypeConfig>>, Error> {
        let failed = |err| database::sqlite(&self.path, "cannot read the log", err);
        let mut statement = self
            .conn
            .prepare_cached("SELECT entry FROM raft_log WHERE log_index >= ? AND log_index < ? ORDER BY log_index")
            .map_err(failed)?;
        let mut rows = statement.query([from, to]).map_err(failed)?;
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.next().map_err(failed)?
            && bytes < bytes_max
        {
            let row: Vec<u8> = row.get(0).map_err(failed)?;
            bytes += row.len();
            entries.push(self.parse(&row)?);
        }
        Ok(entries)
    }

    fn parse(&self, row: &[u8]) -> Result<Entry<TypeConfig>, Error> {
        decode(row).map_err(|err| Error::Corrupt { path: self.path.clone(), why: format!("raft_log: {err}") })
    }

    fn read_last_row(&self) -> Result<Option<LogId<u64>>, Error> {
        let last: Option<Vec<u8>> = self
            .conn
            .query_row("SELECT entry FROM raft_log ORDER BY log_index DESC LIMIT 1", [], |row| row.get(0))
            .optional()
            .map_err(|err| database::sqlite(&self.path, "cannot read the log", err))?;
        last.map(|row| self.parse(&row).map(|e| *e.get_log_id())).transpose()
    }

    fn truncate(&mut self, since: u64) -> Result<(), Error> {
        self.conn
            .execute("DELETE FROM raft_log WHERE log_index >= ?", [since])
            .map_err(|err| database::sqlite(&self.path, "cannot truncate the log", err))?;
        self.last_row = self.read_last_row()?;
        Ok(())
    }

    fn purge(&mut self, upto: LogId<u64>) -> Result<(), Error> {
        if self.last_row.is_none() {
            // Alone there are no rows, and nothing that says what is purged: what is applied is.
            return Ok(());
        }
        let purge = || -> rusqlite::Result<()> {
            self.conn.execute_batch("BEGIN IMMEDIATE")?;
            set_meta(&self.conn, "purged", &Some(upto))?;
            self.conn.execute("DELETE FROM raft_log WHERE log_index <= ?", [upto.index])?;
            self.conn.execute_batch("COMMIT")
        };
        let done = purge().map_err(|err| database::sqlite(&self.path, "cannot purge the log", err));
        if done.is_err() && !self.conn.is_autocommit() {
            self.conn.execute_batch("ROLLBACK").map_err(Error::io("cannot purge the log"))?;
        }
        if self.last_row.is_some_and(|last| last.index <= upto.index) {
            self.last_row = None;
        }
        done
    }

    fn log_state(&self) -> Result<LogState<TypeConfig>, Error> {
        // What was applied alone left no log rows: to openraft it is purged.
        if self.last_row.is_none_or(|last| Some(last) < self.applied.log) {
            return Ok(LogState { last_purged_log_id: self.applied.log, last_log_id: self.applied.log });
        }
        let purged: Option<Option<LogId<u64>>> = meta(&self.conn, &self.path, "purged")?;
        Ok(LogState { last_purged_log_id: purged.flatten(), last_log_id: self.last_row })
    }

    /// Puts a received database in the place of this one, in one SQLite transaction, and tells the watchers what they missed.
    fn install(&mut self, meta: &SnapshotMeta<u64, Peer>, file: &std::path::Path) -> Result<(), Error> {
        let failed = |err| database::sqlite(&self.path, "cannot install a snapshot", err);
        let source = Connection::open(file).map_err(failed)?;
        let found = database::applied(&source, file, self.member)?;
        if found.log != meta.last_log_id {
            return Err(Error::Corrupt { path: file.to_owned(), why: "the snapshot holds something else than it says".to_owned() });
        }
        let vote: Option<Vote<u64>> = database::meta(&self.conn, &self.path, "vote")?;
        let kept_rows = self.entries(meta.last_log_id.map_or(0, |log| log.index + 1), u64::MAX >> 1, usize::MAX)?;
        let mut rows = Vec::new();
        for entry in &kept_rows {
            rows.push((entry.get_log_id().index, encode(entry)?));
        }
        let adopt = || -> rusqlite::Result<()> {
            source.execute_batch("BEGIN IMMEDIATE")?;
            // What is of this member only stays.
            if let Some(vote) = vote {
                set_meta(&source, "vote", &vote)?;
            }
            set_meta(&source, "member", &self.member)?;
            set_meta(&source, "purged", &meta.last_log_id)?;
            for (index, row) in &rows {
                source.execute("INSERT INTO raft_log VALUES (?, ?)", params![index, row])?;
            }
            source.execute_batch("COMMIT")
        };
        adopt().map_err(failed)?;
        let before = self.hub.revision();
        self.conn.flush_prepared_statement_cache();
        Backup::new(&source, &mut self.conn)
            .and_then(|copy| copy.step(-1))
            .map_err(|err| database::sqlite(&self.path, "cannot install a snapshot", err))?;
        let revision = self.load()?;
        self.tell_missed(before, revision)
    }

    /// After a snapshot: watchers hear of the revisions between, or are let go if those are compacted away.
    fn tell_missed(&mut self, before: u64, revision: u64) -> Result<(), Error> {
        let floor = self.index.read().unwrap_or_else(PoisonError::into_inner).floor;
        if before + 1 < floor {
            self.hub.let_go(&Error::Compacted { asked: crate::Revision(before + 1), floor: crate::Revision(floor) });
            self.hub.start_at(revision);
            return Ok(());
        }
        let all = crate::WatchRequest {
            key: Bytes::from_static(&[0]),
            range_end: Bytes::from_static(&[0]),
            prev_kv: self.hub.wants_prev(),
            ..Default::default()
        };
        let mut next = before + 1;
        while next <= revision {
            let page = past::page(&self.conn, &all, next, revision)
                .map_err(|err| database::sqlite(&self.path, "cannot read the database", err))?;
            next = page.1;
            self.hub.publish(&page.0, next - 1);
        }
        self.hub.start_at(revision);
        Ok(())
    }

    /// Tells the callers of these entries that wait here the same error.
    fn fail(&self, entries: &[Entry<TypeConfig>], err: &Error) {
        for entry in entries {
            if let EntryPayload::Normal(batch) = &entry.payload {
                self.shared.pending.fail(&batch.origin, err);
            }
        }
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

fn touches_leases(entry: &Entry<TypeConfig>) -> bool {
    let EntryPayload::Normal(batch) = &entry.payload else { return false };
    batch.commands.iter().any(|command| matches!(command, Command::LeaseGrant { .. } | Command::LeaseRevoke { .. }))
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
