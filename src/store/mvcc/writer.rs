//! The one thread that writes. Jobs come in order: entries become durable in the log, all that wait with one write, and
//! are applied in memory; `flush` brings them to the database in the background.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use base::chain::Chain;
use tokio::sync::mpsc;
use tracing::{debug, error, warn};

use crate::error::Error;
use crate::journal::frame::next_index;
use crate::mvcc::applier::Applier;
use crate::mvcc::compact::Compactor;
use crate::mvcc::database;
use crate::mvcc::entry::{Entry, Flushed, Payload};
use crate::mvcc::files::Files;
use crate::mvcc::flush::{Flusher, Held, Level, Opened};
use crate::mvcc::job::Job;
use crate::mvcc::log::{Log, Quorum};
use crate::mvcc::shared::Shared;
use crate::mvcc::wait::{self, Came};

/// Jobs that wait for the thread; openraft sends one at a time, the state machine another.
pub const JOBS: usize = 16;

/// Bytes of entries, roughly, that are appended or read again together.
const APPEND_BYTES_MAX: usize = 1024 * 1024;

/// Between two looks whether a full disk has room.
const ROOM_LOOK: Duration = Duration::from_secs(1);

/// The thread's state.
pub struct Writer {
    pub(super) log: Log,
    pub(super) applier: Applier,
    pub(super) flusher: Flusher,
    compactor: Compactor,
    pub(super) shared: Shared,
}

impl Writer {
    /// Takes over open files, and applies what a member that was alone has in its log.
    ///
    /// Errors: `Corrupt` if log and database do not fit together, `Io`.
    pub fn new(files: Files, shared: Shared) -> Result<Writer, Error> {
        let Files { disk, conn, path, member, journal, bounds } = files;
        let opened = Opened { disk, conn, path, member };
        let (memtable, space) = (Arc::clone(&shared.memtable), Arc::clone(&shared.space));
        let mut flusher = Flusher::new(opened, bounds.behind_bytes_max, memtable, space)?;
        let held = flusher.load()?;
        let revision = held.revision;
        let mut writer = Writer {
            log: Log::new(journal),
            applier: Applier::new(shared.clone()),
            flusher,
            compactor: Compactor::new(Arc::clone(&shared.index)),
            shared,
        };
        writer.take_over(held);
        writer.shared.hub.start_at(revision);
        writer.check_log()?;
        while writer.is_only() && writer.replay()? {}
        writer.shared.applied_index.note(writer.applier.applied.log);
        writer.judge_alone();
        Ok(writer)
    }

    /// Makes the database's content the state in memory.
    pub(super) fn take_over(&mut self, held: Held) {
        self.shared.applied_index.note(held.applied.log);
        self.applier.applied = held.applied;
        *self.shared.leases.lock() = held.leases;
        self.compactor.begin(held.index.floor);
        *self.shared.index.write() = held.index;
        self.shared.cluster_id.store(held.cluster_id, Ordering::Release);
        self.judge_alone();
    }

    /// The log must reach to what is applied, and tell the same story.
    fn check_log(&self) -> Result<(), Error> {
        let corrupt = |why| Err(Error::Corrupt { path: self.flusher.path.clone(), why });
        let (purged, applied) = (self.log.purged(), self.applier.applied.log);
        if self.log.last().is_some() && next_index(purged) > next_index(applied) {
            let (have, from) = (next_index(applied), next_index(purged));
            return corrupt(format!("it has the entries before {have}, and the log beside it begins at {from}"));
        }
        let Some(applied) = applied else { return Ok(()) };
        match self.log.id_of(applied.index)? {
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
        let mut entries = self.log.entries(next_index(self.applier.applied.log), u64::MAX >> 1, APPEND_BYTES_MAX)?;
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
            let entries = self.log.entries(next_index(self.applier.applied.log), u64::MAX >> 1, APPEND_BYTES_MAX)?;
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
        self.log.clear()
    }

    fn is_only(&self) -> bool {
        self.applier.is_only(self.flusher.member)
    }

    /// Alone: the only member as of the applied entries, with nothing in the log behind them.
    fn judge_alone(&mut self) {
        let is_alone = self.is_only() && self.log.last() <= self.applier.applied.log;
        self.log.judge(if is_alone { Quorum::Alone } else { Quorum::Several });
        self.shared.alone.store(is_alone, Ordering::Release);
    }

    fn flush(&mut self, level: Level) -> Result<(), Error> {
        self.flusher.flush(&mut self.log, &self.applier.applied, level)
    }

    fn flush_if_due(&mut self) {
        self.flusher.flush_if_due(&mut self.log, &self.applier.applied);
    }

    /// Works until told to stop, or until something fails that cannot be taken back.
    pub fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        let mut put_back = None;
        loop {
            base::sys::give_back_if_asked();
            self.flush_if_due();
            if self.flusher.is_broken() {
                // Who waits for the thread ends the process; nothing is written any more, and the log is let go by
                // nobody.
                error!("the store ends: only a new start can tell what is on its disk");
                self.shared.hub.close();
                return;
            }
            let job = match put_back.take() {
                Some(job) => Some(job),
                None if self.compactor.is_at_work() && self.compactor.lets_jobs_go_first() => jobs.try_recv().ok(),
                None => None,
            };
            let job = match job {
                Some(job) => job,
                None if self.compactor.is_at_work() => {
                    let Writer { log, applier, flusher, compactor, .. } = &mut self;
                    compactor.slice(|ids| flusher.delete_rows(log, &applier.applied, ids));
                    continue;
                }
                None => match wait::recv(&mut jobs, self.flusher.due_in()) {
                    Came::Job(job) => job,
                    Came::Nothing => continue,
                    Came::End => break,
                },
            };
            self.compactor.note_job();
            match job {
                Job::Stop => break,
                Job::Append { entries, callback } => put_back = self.append_all(entries, callback, &mut jobs),
                job => self.job(job),
            }
        }
        self.shared.hub.close();
        // Leaves one file behind that holds everything and that any sqlite3 opens, and a short start.
        if let Err(err) = self.flush(Level::Durable) {
            error!(err = %Chain(&err), "cannot write the database, the log has what it lacks");
        }
        if let Err(err) = self.flusher.close() {
            debug!(err = %Chain(&err), "last checkpoint left to the next start");
        }
    }

    fn job(&mut self, job: Job) {
        // A receiver that is gone is a Raft that stopped.
        match job {
            // Taken by `run`.
            Job::Append { entries, callback } => self.append(entries, vec![callback]),
            Job::Apply { entries, reply } => drop(reply.send(self.apply_committed(entries))),
            Job::Entries { from, to, bytes_max, reply } => drop(reply.send(self.log.entries(from, to, bytes_max))),
            Job::Truncate { since, reply } => {
                let truncated = self.with_room(|writer| writer.log.truncate(since));
                drop(reply.send(truncated));
            }
            Job::Purge { upto, reply } => {
                self.log.purge(upto);
                drop(reply.send(Ok(())));
            }
            Job::LogState { reply } => drop(reply.send(Ok(self.log.state(self.applier.applied.log)))),
            Job::Applied { reply } => {
                let membership = self.applier.applied.membership.clone();
                drop(reply.send(Ok((self.shared.applied_index.acknowledged(), membership))));
            }
            Job::KeepLog { reply } => {
                self.log.grow();
                drop(reply.send(Ok(self.applier.applied.log)));
            }
            Job::Install { last, file, reply } => drop(reply.send(self.install(last, &file))),
            Job::SaveVote { vote, reply } => {
                let saved = self.with_room(|writer| writer.flusher.save_vote(&vote));
                drop(reply.send(saved));
            }
            Job::ReadVote { reply } => {
                let alone = self.shared.alone.load(Ordering::Acquire);
                let Flusher { conn, path, member, .. } = &self.flusher;
                drop(reply.send(database::vote(conn, path, *member, alone)));
            }
            Job::Flush { reply } => drop(reply.send(self.flush(Level::Relaxed))),
            Job::Defragment { reply } => {
                drop(reply.send(self.flusher.defragment(&mut self.log, &self.applier.applied)));
            }
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
        if entries.iter().any(Entry::is_membership) && self.applier.has_members() {
            self.log.leave_alone();
        }
        let follows = entries.first().is_some_and(|e| e.log_id.index == next_index(self.applier.applied.log));
        // Alone, durable is agreed upon: apply at once.
        let result = self.with_room(|writer| {
            if writer.log.is_alone() && follows { writer.append_alone(&entries) } else { writer.make_durable(&entries) }
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
        let room = if self.flusher.is_full() { self.flush(Level::Relaxed) } else { Ok(()) };
        let Err(err) = room.and_then(|()| self.make_durable(entries)) else { return self.apply(entries) };
        self.applier.fail(entries, &err);
        let lossless = entries.iter().all(|e| matches!(e.payload, Payload::Normal(_)));
        if !matches!(err, Error::NoSpace { .. }) || !lossless {
            return Err(err);
        }
        // A full disk is the callers' error, not the end: as nothing of the entry is kept, it counts as one that
        // changed nothing. Other members could not know, so this holds for a Raft of one only.
        warn!(err = %Chain(&err), "write refused");
        self.log.refuse(entries);
        self.applier.pass_over(entries);
        Ok(())
    }

    fn make_durable(&mut self, entries: &[Entry]) -> Result<(), Error> {
        self.flusher.check()?;
        let Some(record) = self.log.record(entries, self.applier.applied.log)? else { return Ok(()) };
        if self.log.leaps(&record) && !self.flusher.has_durably(record.prev.map(|log| log.index)) {
            // The record says that the database has all before it. So it must, also after a power cut.
            self.flush(Level::Durable)?;
        }
        let appended = self.log.append(&record);
        appended.map_err(|err| if matches!(err, Error::NoSpace { .. }) { err } else { self.flusher.broken(err) })
    }

    fn apply_committed(&mut self, entries: Vec<Entry>) -> Result<(), Error> {
        let next = next_index(self.applier.applied.log);
        self.shared.applied_index.note(entries.last().map(|e| e.log_id));
        let fresh: Vec<_> = entries.into_iter().filter(|e| e.log_id.index >= next).collect();
        if fresh.is_empty() {
            return Ok(());
        }
        let room = self.with_room(|writer| writer.flusher.check_behind(&mut writer.log, &writer.applier.applied));
        let result = room.and_then(|()| self.apply(&fresh));
        if fresh.iter().any(Entry::is_membership) {
            self.log.has_grown();
        }
        self.judge_alone();
        result
    }

    /// Applies entries that are durable, tells the watchers, answers those who wait.
    fn apply(&mut self, entries: &[Entry]) -> Result<(), Error> {
        self.flusher.check()?;
        let passed = match self.applier.pass(&mut self.flusher, entries) {
            Ok(passed) => passed,
            Err(err) => {
                let err = database::sqlite(&self.flusher.path, "cannot apply", err);
                let err = self.flusher.broken(err);
                self.applier.fail(entries, &err);
                return Err(err);
            }
        };
        if let Some(floor) = passed.floor {
            self.compactor.begin(floor);
        }
        // Who the members are is on the disk before anything else is answered: it says what this store is.
        if entries.iter().any(Entry::is_membership)
            && let Err(err) = self.with_room(|writer| writer.flush(Level::Durable))
        {
            self.applier.fail(entries, &err);
            return Err(err);
        }
        self.applier.tell(&self.flusher, entries, passed);
        Ok(())
    }

    /// Tries until the disk has room, or the store closes: what Raft asks for is done or is its end, and a full disk is
    /// no end. Meanwhile this member answers nobody, as one that cannot be reached.
    pub(super) fn with_room<T>(&mut self, mut work: impl FnMut(&mut Writer) -> Result<T, Error>) -> Result<T, Error> {
        let mut was_full = false;
        loop {
            match work(self) {
                Err(err @ Error::NoSpace { .. }) if !self.shared.space.is_closing() && !self.flusher.is_broken() => {
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
                        self.flusher.judge_space();
                    }
                    return done;
                }
            }
        }
    }
}
