//! The one thread that writes. Jobs come in order: entries become durable in the log, all that wait with one write, and
//! are applied in memory; `flush` brings them to the database in the background.

use base::sync::{Mutex, RwLock};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use base::chain::Chain;
use bytes::Bytes;
use rusqlite::Connection;
use tokio::sync::mpsc;
use tracing::{debug, error, warn};

use crate::bounds::Bounds;
use crate::command::{Command, Origin, Outcome};
use crate::disk::Disk;
use crate::error::Error;
use crate::journal::Journal;
use crate::journal::frame::{EntryId, Frame, next_index};
use crate::mvcc::apply::{Lease, Leases, Pass};
use crate::mvcc::database::{self, Applied, Loaded, meta, set_meta};
use crate::mvcc::entry::{Entry, Flushed, LogState, Payload, StoredMembership};
use crate::mvcc::files::Files;
use crate::mvcc::flush::Level;
use crate::mvcc::history;
use crate::mvcc::hub::{Hub, Told};
use crate::mvcc::index::Index;
use crate::mvcc::job::Job;
use crate::mvcc::memtable::Unsaved;
use crate::mvcc::shared::Shared;
use crate::mvcc::wait::{self, Came};

/// Jobs that wait for the thread; openraft sends one at a time, the state machine another.
pub const JOBS: usize = 16;

/// Keys that one slice of a compaction looks at; a slice runs when no job waits, or after this many jobs.
const SLICE_KEYS: usize = 2048;
const SLICE_EVERY_JOBS: usize = 16;

/// Bytes of entries, roughly, that are appended or read again together.
const APPEND_BYTES_MAX: usize = 1024 * 1024;

/// The state of the disk, as far as the thread knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// It took what was written last.
    Sound,
    /// The database could not be written last time, and may be the next time.
    Full,
    /// Entries were applied in part, or a write or a sync failed: nobody knows what is on the disk. Only a new process,
    /// from the log, makes the state whole.
    Broken,
}

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

/// The thread's state.
pub struct Writer {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) conn: Connection,
    pub(super) path: PathBuf,
    pub(super) member: u64,
    pub(super) journal: Journal,
    pub(super) bounds: Bounds,
    pub(super) index: Arc<RwLock<Index>>,
    leases: Arc<Mutex<Leases>>,
    pub(super) hub: Arc<Hub>,
    pub(super) shared: Shared,
    pub(super) applied: Applied,
    /// What `meta` in the database says of it, and the entry of its newest row.
    pub(super) saved: Applied,
    pub(super) newest_row: Option<(u64, u64)>,
    /// What the database lacks, beside rows.
    pub(super) unsaved: Unsaved,
    /// Up to which entry the database has everything on the disk, as far as this process knows.
    pub(super) durable: Option<u64>,
    pub(super) health: Health,
    pub(super) quorum: Quorum,
    /// Entries that a full disk refused. To Raft they are there, so the next record begins with them, as ones that
    /// change nothing.
    refused: Vec<Entry>,
    /// Compaction at work: the floor, and the last key looked at.
    compacting: Option<(u64, Option<Bytes>)>,
}

impl Writer {
    /// Takes over open files, and applies what a member that was alone has in its log.
    ///
    /// Errors: `Corrupt` if log and database do not fit together, `Io`.
    pub fn new(files: Files, shared: Shared) -> Result<Writer, Error> {
        let Files { disk, conn, path, member, journal, bounds } = files;
        let mut writer = Writer {
            disk,
            applied: Applied::default(),
            saved: Applied::default(),
            newest_row: None,
            unsaved: Unsaved::default(),
            durable: None,
            health: Health::Sound,
            quorum: Quorum::Several,
            member,
            journal,
            bounds,
            index: shared.index.clone(),
            leases: shared.leases.clone(),
            hub: shared.hub.clone(),
            refused: Vec::new(),
            compacting: None,
            conn,
            path,
            shared,
        };
        writer.conn.pragma_update(None, "synchronous", "NORMAL").map_err(Error::io("cannot prepare the database"))?;
        let revision = writer.load()?;
        writer.hub.start_at(revision);
        writer.check_log()?;
        while writer.is_only() && writer.replay()? {}
        writer.shared.applied_index.note(writer.applied.log);
        writer.judge_alone();
        Ok(writer)
    }

    /// Reads what the database holds. Answers with the newest revision in it.
    pub(super) fn load(&mut self) -> Result<u64, Error> {
        let Loaded { index: loaded, revision } = database::load(&self.conn, &self.path)?;
        self.saved = meta(&self.conn, &self.path, "applied")?.unwrap_or_default();
        self.newest_row = database::newest_row(&self.conn, &self.path)?;
        self.applied = self.saved.clone();
        self.applied.log = database::newest(self.saved.log, self.newest_row, self.member);
        self.shared.applied_index.note(self.applied.log);
        *self.leases.lock() = read_leases(&self.conn, &loaded, &self.path)?;
        self.compacting = (loaded.floor > 0).then_some((loaded.floor, None));
        *self.index.write() = loaded;
        let cluster_id = meta(&self.conn, &self.path, "cluster_id")?;
        let cluster_id =
            cluster_id.ok_or_else(|| Error::Corrupt { path: self.path.clone(), why: "no cluster id".to_owned() })?;
        self.shared.cluster_id.store(cluster_id, Ordering::Release);
        self.judge_alone();
        Ok(revision)
    }

    /// The log must reach to what is applied, and tell the same story.
    fn check_log(&self) -> Result<(), Error> {
        let corrupt = |why| Err(Error::Corrupt { path: self.path.clone(), why });
        let (purged, applied) = (self.journal.purged(), self.applied.log);
        if self.journal.last().is_some() && next_index(purged) > next_index(applied) {
            let (have, from) = (next_index(applied), next_index(purged));
            return corrupt(format!("it has the entries before {have}, and the log beside it begins at {from}"));
        }
        let Some(applied) = applied else { return Ok(()) };
        let logged = self.journal.entries(applied.index, applied.index + 1, 1)?;
        match logged.first().map(|frame| frame.id) {
            Some(logged) if logged != applied => {
                corrupt(format!("it was made by entry {applied}, the log beside it has {logged} there"))
            }
            _ => Ok(()),
        }
    }

    /// Applies some of what is in the log behind the applied entries: alone, what is durable is agreed upon. Says
    /// whether there was any.
    ///
    /// From the moment a membership with others is in the log, entries need their agreement.
    fn replay(&mut self) -> Result<bool, Error> {
        let mut entries = self.entries(next_index(self.applied.log), u64::MAX >> 1, APPEND_BYTES_MAX)?;
        entries.truncate(entries.iter().position(Entry::is_membership).unwrap_or(entries.len()));
        self.replay_all(&entries)?;
        Ok(!entries.is_empty())
    }

    fn replay_all(&mut self, entries: &[Entry]) -> Result<(), Error> {
        if entries.is_empty() {
            return Ok(());
        }
        let applied = self.apply(entries);
        self.flush_if_due();
        applied
    }

    /// Applies all that is in the log, agreed upon or not, and brings it to the disk.
    pub fn apply_log(&mut self) -> Result<(), Error> {
        loop {
            let entries = self.entries(next_index(self.applied.log), u64::MAX >> 1, APPEND_BYTES_MAX)?;
            if entries.is_empty() {
                return self.flush(Level::Durable);
            }
            self.replay_all(&entries)?;
        }
    }

    /// Applies entries of another log, and brings them to the disk.
    pub fn apply_foreign(&mut self, entries: &[Entry]) -> Result<(), Error> {
        self.replay_all(entries)?;
        self.flush(Level::Durable)
    }

    /// Forgets the log, and ends.
    pub fn forget_log(mut self) -> Result<(), Error> {
        self.journal.clear()
    }

    fn is_only(&self) -> bool {
        self.applied.membership.membership.nodes.keys().eq([&self.member])
    }

    /// Alone: the only member as of the applied entries, with nothing in the log behind them.
    fn judge_alone(&mut self) {
        let only = self.is_only() && self.journal.last() <= self.applied.log;
        if self.quorum != Quorum::Growing {
            self.quorum = if only { Quorum::Alone } else { Quorum::Several };
        }
        self.shared.alone.store(only, Ordering::Release);
    }

    /// A membership with others is in the log: from here on entries need their agreement.
    fn leave_alone(&mut self) {
        if self.quorum == Quorum::Alone {
            self.quorum = Quorum::Several;
        }
    }

    /// Works until told to stop, or until something fails that cannot be taken back.
    pub fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let (mut since_slice, mut put_back) = (0, None);
        loop {
            base::sys::give_back_if_asked();
            self.flush_if_due();
            if self.health == Health::Broken {
                // Who waits for the thread ends the process; nothing is written any more, and the log is let go by
                // nobody.
                error!("the store ends: only a new start can tell what is on its disk");
                self.hub.close();
                return;
            }
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
                None => match wait::recv(&mut jobs, self.due_in()) {
                    Came::Job(job) => job,
                    Came::Nothing => continue,
                    Came::End => break,
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
        // Leaves one file behind that holds everything and that any sqlite3 opens, and a short start.
        if let Err(err) = self.flush(Level::Durable) {
            error!(err = %Chain(&err), "cannot write the database, the log has what it lacks");
        }
        if let Err(err) = self.conn.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)") {
            debug!(err = %Chain(&err), "last checkpoint left to the next start");
        }
    }

    fn job(&mut self, job: Job) {
        // A receiver that is gone is a Raft that stopped.
        match job {
            // Taken by `run`.
            Job::Append { entries, callback } => self.append(entries, vec![callback]),
            Job::Apply { entries, reply } => drop(reply.send(self.apply_committed(entries))),
            Job::Entries { from, to, bytes_max, reply } => drop(reply.send(self.entries(from, to, bytes_max))),
            Job::Truncate { since, reply } => {
                let truncated = self.with_room(|writer| writer.journal.truncate(since));
                drop(reply.send(truncated));
            }
            Job::Purge { upto, reply } => {
                self.journal.purge(upto);
                drop(reply.send(Ok(())));
            }
            Job::LogState { reply } => drop(reply.send(Ok(self.log_state()))),
            Job::Applied { reply } => {
                drop(reply.send(Ok((self.shared.applied_index.acknowledged(), self.applied.membership.clone()))))
            }
            Job::KeepLog { reply } => {
                self.quorum = Quorum::Growing;
                drop(reply.send(Ok(self.applied.log)));
            }
            Job::Install { last, file, reply } => drop(reply.send(self.install(last, &file))),
            Job::SaveVote { vote, reply } => {
                let saved = self.with_room(|writer| {
                    let saved = writer.durably(|| set_meta(&writer.conn, "vote", &vote));
                    saved.map_err(|err| writer.broken_by("cannot save the vote", err))
                });
                drop(reply.send(saved));
            }
            Job::ReadVote { reply } => {
                let alone = self.shared.alone.load(Ordering::Acquire);
                drop(reply.send(database::vote(&self.conn, &self.path, self.member, alone)));
            }
            Job::Flush { reply } => drop(reply.send(self.flush(Level::Relaxed))),
            Job::Defragment { reply } => drop(reply.send(self.defragment())),
            Job::Stop => {}
        }
    }

    /// Appends, together with what else waits to be appended: one write for all of it. Gives back a job of another kind
    /// that it met.
    fn append_all(
        &mut self,
        mut entries: Vec<Entry>,
        callback: Flushed,
        jobs: &mut mpsc::Receiver<Job>,
    ) -> Option<Job> {
        let mut callbacks = vec![callback];
        let mut bytes: usize = entries.iter().map(Entry::weight).sum();
        let put_back = loop {
            if bytes > APPEND_BYTES_MAX {
                break None;
            }
            match jobs.try_recv() {
                Ok(Job::Append { entries: more, callback }) => {
                    bytes += more.iter().map(Entry::weight).sum::<usize>();
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

    fn append(&mut self, entries: Vec<Entry>, callbacks: Vec<Flushed>) {
        // From the moment a membership with others is in the log, entries need their agreement.
        if entries.iter().any(Entry::is_membership) && !self.applied.membership.membership.nodes.is_empty() {
            self.leave_alone();
        }
        let follows = entries.first().is_some_and(|e| e.log_id.index == next_index(self.applied.log));
        // Alone, durable is agreed upon: apply at once.
        let result = self.with_room(|writer| {
            if writer.quorum == Quorum::Alone && follows {
                writer.append_alone(&entries)
            } else {
                writer.make_durable(&entries)
            }
        });
        if let Err(err) = &result {
            error!(err = %Chain(err), "cannot append to the log");
        }
        for callback in callbacks {
            callback(result.as_ref().copied().map_err(|err| std::io::Error::other(err.to_string())));
        }
    }

    fn append_alone(&mut self, entries: &[Entry]) -> Result<(), Error> {
        // What the database cannot take is not promised: there is no end to what would be behind it.
        let room = if self.health == Health::Full { self.flush(Level::Relaxed) } else { Ok(()) };
        let Err(err) = room.and_then(|()| self.make_durable(entries)) else { return self.apply(entries) };
        self.fail(entries, &err);
        let lossless = entries.iter().all(|e| matches!(e.payload, Payload::Normal(_)));
        if !matches!(err, Error::NoSpace { .. }) || !lossless {
            return Err(err);
        }
        // A full disk is the callers' error, not the end: as nothing of the entry is kept, it counts as one that
        // changed nothing. Other members could not know, so this holds for a Raft of one only.
        warn!(err = %Chain(&err), "write refused");
        let blank = |entry: &Entry| Entry { log_id: entry.log_id, payload: Payload::Blank };
        self.refused.extend(entries.iter().map(blank));
        self.applied.log = entries.last().map(|e| e.log_id);
        self.shared.applied_index.applied(self.applied.log);
        Ok(())
    }

    fn make_durable(&mut self, entries: &[Entry]) -> Result<(), Error> {
        if self.health == Health::Broken {
            return Err(Error::Closed);
        }
        let frames: Vec<Frame> = self.refused.iter().chain(entries).map(Entry::frame).collect::<Result<_, _>>()?;
        let Some(first) = frames.first() else { return Ok(()) };
        let prev = self.entry_before(first.id.index)?;
        if self.journal.last().is_some() && self.journal.last() < prev && self.durable < prev.map(|log| log.index) {
            // The record says that the database has all before it. So it must, also after a power cut.
            self.flush(Level::Durable)?;
        }
        let appended = self.journal.append(prev, &frames);
        appended.map_err(|err| if matches!(err, Error::NoSpace { .. }) { err } else { self.broken(err) })?;
        self.refused.clear();
        Ok(())
    }

    /// Entries of the log, fewer if they have more than `bytes_max` bytes.
    fn entries(&self, from: u64, to: u64, bytes_max: usize) -> Result<Vec<Entry>, Error> {
        self.journal.entries(from, to, bytes_max)?.iter().map(Entry::read).collect()
    }

    /// The number of the entry before `index`.
    fn entry_before(&self, index: u64) -> Result<Option<EntryId>, Error> {
        let Some(before) = index.checked_sub(1) else { return Ok(None) };
        let known = [self.journal.last(), self.applied.log, self.journal.purged()];
        if let Some(known) = known.into_iter().flatten().find(|log| log.index == before) {
            return Ok(Some(known));
        }
        let logged = self.journal.entries(before, index, 1)?.first().map(|frame| frame.id);
        let missing =
            || Error::Corrupt { path: self.path.clone(), why: format!("entry {before} is missing in the log") };
        logged.map(Some).ok_or_else(missing)
    }

    fn apply_committed(&mut self, entries: Vec<Entry>) -> Result<(), Error> {
        let next = next_index(self.applied.log);
        self.shared.applied_index.note(entries.last().map(|e| e.log_id));
        let fresh: Vec<_> = entries.into_iter().filter(|e| e.log_id.index >= next).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        let room = self.with_room(Writer::check_behind);
        let result = room.and_then(|()| self.apply(&fresh));
        if fresh.iter().any(Entry::is_membership) {
            self.quorum = Quorum::Several;
        }
        self.judge_alone();
        result
    }

    /// Applies entries that are durable, tells the watchers, answers those who wait.
    fn apply(&mut self, entries: &[Entry]) -> Result<(), Error> {
        if self.health == Health::Broken {
            return Err(Error::Closed);
        }
        let applied = self.pass(entries);
        let (answers, told, revision) = match applied {
            Ok(applied) => applied,
            Err(err) => {
                let err = database::sqlite(&self.path, "cannot apply", err);
                let err = self.broken(err);
                self.fail(entries, &err);
                return Err(err);
            }
        };
        // Who the members are is on the disk before anything else is answered: it says what this store is.
        if entries.iter().any(Entry::is_membership)
            && let Err(err) = self.with_room(|writer| writer.flush(Level::Durable))
        {
            self.fail(entries, &err);
            return Err(err);
        }
        self.shared.applied_index.applied(self.applied.log);
        let before = self.hub.revision();
        self.hub.publish(told, revision, || {
            history::everything(&self.conn, (&self.shared.index, &self.shared.memtable), before + 1, revision)
                .map_err(|err| database::sqlite(&self.path, "cannot read the database", err))
        });
        if entries.iter().any(touches_leases) {
            self.shared.leases_changed.notify_one();
        }
        for (origin, outcomes) in answers {
            self.shared.pending.answer(&origin, outcomes);
        }
        Ok(())
    }

    #[allow(clippy::type_complexity, reason = "used by the one caller above")]
    fn pass(&mut self, entries: &[Entry]) -> rusqlite::Result<(Vec<(Origin, Vec<Outcome>)>, Told, u64)> {
        let mut leases = self.leases.lock();
        let mut pass = Pass {
            conn: &self.conn,
            memtable: &self.shared.memtable,
            unsaved: &mut self.unsaved,
            index: &self.index,
            leases: &mut leases,
            revision: self.hub.revision(),
            entry: (0, 0),
            want_prev: self.hub.wants_prev(),
            told: Vec::new(),
            events: Vec::new(),
        };
        let mut answers = Vec::new();
        for entry in entries {
            let log = entry.log_id;
            pass.entry = (log.index, log.leader_id.term);
            self.applied.log = Some(log);
            match &entry.payload {
                Payload::Membership(membership) => {
                    self.applied.membership = StoredMembership { log_id: Some(log), membership: membership.clone() }
                }
                Payload::Normal(batch) if batch.origin.term == log.leader_id.term => {
                    let mut outcomes = Vec::with_capacity(batch.commands.len());
                    for command in batch.commands.iter() {
                        let outcome = pass.command(command)?;
                        if let (Command::Compact { at }, Ok(_)) = (command, &outcome) {
                            self.compacting = Some((at.0, None));
                        }
                        outcomes.push(outcome);
                    }
                    answers.push((batch.origin, outcomes));
                }
                // One of another term was made for that: its member has proposed it again, or will.
                Payload::Normal(_) | Payload::Blank => {}
            }
        }
        Ok((answers, Told { batches: pass.told, has_prev: pass.want_prev }, pass.revision))
    }

    fn log_state(&self) -> LogState {
        let last = self.journal.last();
        // Alone, segments go when the database has what is in them: to openraft all of it is purged.
        if self.quorum == Quorum::Alone || last.is_none() || last < self.applied.log {
            return LogState { purged: self.applied.log, last: self.applied.log };
        }
        LogState { purged: self.journal.purged(), last }
    }

    /// Tells the callers of these entries that wait here the same error.
    fn fail(&self, entries: &[Entry], err: &Error) {
        for entry in entries {
            if let Payload::Normal(batch) = &entry.payload {
                self.shared.pending.fail(&batch.origin, err);
            }
        }
    }

    /// Frees what one slice of keys holds below the floor. Not synced: the floor is durable, so it can be done again.
    fn compact_slice(&mut self) {
        let Some((floor, after)) = self.compacting.take() else { return };
        let (ids, until) = self.index.read().superseded(after.as_ref(), SLICE_KEYS, floor);
        let Some(until) = until else { return };
        if !ids.is_empty()
            && let Err(err) = self.delete_rows(&ids)
        {
            // Rows that stay are only space; the next compaction finds them again.
            warn!(err = %Chain(&err), "compaction stopped");
            return;
        }
        self.index.write().forget(after.as_ref(), &until, floor);
        self.compacting = Some((floor, Some(until)));
    }

    fn delete_rows(&mut self, ids: &[u64]) -> Result<(), Error> {
        let first_behind = self.shared.memtable.rows().keys().next().copied();
        // Only what is there can be deleted, and not before the database says up to where it is.
        if self.unsaved.floor.is_some() || first_behind.is_some_and(|first| ids.iter().any(|id| *id >= first)) {
            self.flush(Level::Relaxed)?;
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
}

fn touches_leases(entry: &Entry) -> bool {
    let Payload::Normal(batch) = &entry.payload else { return false };
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
