//! openraft's log: every write becomes a job of the writer thread; entries not yet applied are kept in memory.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, PoisonError};

use openraft::storage::{LogFlushed, LogState, RaftLogStorage};
use openraft::{
    AnyError, Entry, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftLogId as _, RaftLogReader, StorageError, StorageIOError, Vote,
};
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;
use crate::mvcc::writer::Job;
use crate::raft::TypeConfig;

/// Entries that are appended and not yet applied.
pub type Recent = Arc<Mutex<BTreeMap<u64, Entry<TypeConfig>>>>;

/// The log as openraft sees it.
#[derive(Clone, Debug)]
pub struct Log {
    /// Jobs for the writer.
    pub jobs: mpsc::Sender<Job>,
    /// What apply will ask for.
    pub recent: Recent,
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

impl RaftLogReader<TypeConfig> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<TypeConfig>>, StorageError<u64>> {
        let (from, to) = (range.start_bound().cloned(), range.end_bound().cloned());
        let recent: Vec<_> = self.recent.lock().unwrap_or_else(PoisonError::into_inner).range((from, to)).map(|(_, e)| e.clone()).collect();
        let wanted = match (from, to) {
            (std::ops::Bound::Included(from), std::ops::Bound::Excluded(to)) => to.saturating_sub(from),
            _ => u64::MAX,
        };
        if recent.len() as u64 == wanted {
            return Ok(recent);
        }
        self.ask(ErrorVerb::Read, |reply| Job::Entries { from, to, reply }).await
    }
}

impl RaftLogStorage<TypeConfig> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<TypeConfig>, StorageError<u64>> {
        self.ask(ErrorVerb::Read, |reply| Job::LogState { reply }).await
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<(), StorageError<u64>> {
        let vote = *vote;
        self.ask(ErrorVerb::Write, |reply| Job::SaveVote { vote, reply }).await
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>, StorageError<u64>> {
        self.ask(ErrorVerb::Read, |reply| Job::ReadVote { reply }).await
    }

    async fn append<I>(&mut self, entries: I, callback: LogFlushed<TypeConfig>) -> Result<(), StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            recent.extend(entries.iter().map(|e| (e.get_log_id().index, e.clone())));
        }
        let job = Job::Append { entries, callback };
        self.jobs.send(job).await.map_err(|_| storage_error(ErrorSubject::Logs, ErrorVerb::Write, &Error::Closed))
    }

    async fn truncate(&mut self, log_id: LogId<u64>) -> Result<(), StorageError<u64>> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).split_off(&log_id.index);
        self.ask(ErrorVerb::Delete, |reply| Job::Truncate { since: log_id.index, reply }).await
    }

    async fn purge(&mut self, log_id: LogId<u64>) -> Result<(), StorageError<u64>> {
        self.ask(ErrorVerb::Delete, |reply| Job::Purge { upto: log_id, reply }).await
    }
}
