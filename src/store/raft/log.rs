//! openraft's log: every write becomes a job of the writer thread; entries not yet applied are kept in memory.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use base::sync::Mutex;
use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{
    AnyError, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftLogReader, StorageError, StorageIOError, Vote,
};
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;
use crate::mvcc::applied_index::AppliedIndex;
use crate::mvcc::entry::Entry;
use crate::mvcc::job::Job;
use crate::raft::types::{TypeConfig, entry_id, entry_of, log_id, raft_entry, raft_vote, vote_of};

/// Entries that are appended and not yet applied.
pub type Recent = Arc<Mutex<BTreeMap<u64, Entry>>>;

/// The log as openraft sees it.
#[derive(Clone, Debug)]
pub struct Log {
    /// Jobs for the writer.
    pub jobs: mpsc::Sender<Job>,
    /// Entries that apply will ask for.
    pub recent: Recent,
    /// The position that is applied already.
    pub applied_index: Arc<AppliedIndex>,
}

/// A storage error in openraft's words.
pub fn storage_error(subject: ErrorSubject<u64>, verb: ErrorVerb, err: &Error) -> StorageError<u64> {
    StorageError::from(StorageIOError::new(subject, verb, AnyError::new(err)))
}

impl Log {
    /// Runs a job that answers.
    pub async fn ask<T>(
        &self,
        verb: ErrorVerb,
        job: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Job,
    ) -> Result<T, StorageError<u64>> {
        let (tx, rx) = oneshot::channel();
        let result = match self.jobs.send(job(tx)).await {
            Ok(()) => rx.await.unwrap_or(Err(Error::Closed)),
            Err(_) => Err(Error::Closed),
        };
        result.map_err(|err| storage_error(ErrorSubject::Logs, verb, &err))
    }
}

impl Log {
    /// Waits until all that is applied is in the database, for who reads it with a connection of its own.
    ///
    /// Errors: `NoSpace`, `Io`, `Closed`.
    pub async fn flush(&self) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job::Flush { reply }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}

/// Bytes of entries sent to a member in one call: more go into the next one.
const SEND_BYTES_MAX: usize = 1024 * 1024;

impl Log {
    /// The entries `from..to`, cut short after `bytes_max`, but never to none.
    async fn read(
        &self,
        from: u64,
        to: u64,
        bytes_max: usize,
    ) -> Result<Vec<openraft::Entry<TypeConfig>>, StorageError<u64>> {
        let recent: Vec<_> = {
            let recent = self.recent.lock();
            let mut bytes = 0;
            // The entry that passes the bound is still taken.
            let fits = |entry: &&Entry| {
                let before = bytes;
                bytes += entry.weight();
                before < bytes_max
            };
            recent.range(from..to).map(|(_, entry)| entry).take_while(fits).cloned().collect()
        };
        let complete = recent.first().is_some_and(|e| e.log_id.index == from)
            && (recent.len() as u64 == to.saturating_sub(from) || bytes_max != usize::MAX);
        if complete || from >= to {
            return Ok(recent.into_iter().map(raft_entry).collect());
        }
        let read = self.ask(ErrorVerb::Read, |reply| Job::Entries { from, to, bytes_max, reply }).await?;
        Ok(read.into_iter().map(raft_entry).collect())
    }
}

impl RaftLogReader<TypeConfig> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<openraft::Entry<TypeConfig>>, StorageError<u64>> {
        let from = match range.start_bound() {
            Bound::Included(from) => *from,
            Bound::Excluded(from) => from + 1,
            Bound::Unbounded => 0,
        };
        let to = match range.end_bound() {
            Bound::Included(to) => to + 1,
            Bound::Excluded(to) => *to,
            Bound::Unbounded => u64::MAX >> 1,
        };
        self.read(from, to, usize::MAX).await
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<openraft::Entry<TypeConfig>>, StorageError<u64>> {
        self.read(start, end, SEND_BYTES_MAX).await
    }
}

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError<u64>> {
        let state = self.ask(ErrorVerb::Read, |reply| Job::LogState { reply }).await?;
        Ok(LogState { last_purged_log_id: state.purged.map(log_id), last_log_id: state.last.map(log_id) })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), StorageError<u64>> {
        let vote = vote_of(vote);
        self.ask(ErrorVerb::Write, |reply| Job::SaveVote { vote, reply }).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, StorageError<u64>> {
        Ok(self.ask(ErrorVerb::Read, |reply| Job::ReadVote { reply }).await?.map(raft_vote))
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<TypeConfig>) -> Result<(), StorageError<u64>>
    where
        I: IntoIterator<Item = openraft::Entry<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().map(entry_of).collect();
        {
            let mut recent = self.recent.lock();
            recent.extend(entries.iter().map(|e| (e.log_id.index, e.clone())));
        }
        let callback = Box::new(move |done| callback.log_io_completed(done));
        let job = Job::Append { entries, callback };
        self.jobs.send(job).await.map_err(|_| storage_error(ErrorSubject::Logs, ErrorVerb::Write, &Error::Closed))
    }

    async fn truncate(&mut self, since: LogId<u64>) -> Result<(), StorageError<u64>> {
        self.recent.lock().split_off(&since.index);
        self.ask(ErrorVerb::Delete, |reply| Job::Truncate { since: since.index, reply }).await
    }

    async fn purge(&mut self, purged: LogId<u64>) -> Result<(), StorageError<u64>> {
        self.ask(ErrorVerb::Delete, |reply| Job::Purge { upto: entry_id(purged), reply }).await
    }
}
