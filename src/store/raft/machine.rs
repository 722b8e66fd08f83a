//! openraft's state machine: what the writer applied already is only acknowledged.

use openraft::storage::RaftStateMachine;
use openraft::{
    Entry, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError,
    StoredMembership,
};

use crate::error::Error;
use crate::member::Peer;
use crate::mvcc::job::Job;
use crate::raft::log::{Log, storage_error};
use crate::raft::types::{Image, TypeConfig, entry_id, entry_of, log_id, raft_members, snapshot_meta};

/// The state machine as openraft sees it.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The way to the writer, shared with the log.
    pub log: Log,
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, StorageError<u64>> {
        let none = || {
            storage_error(
                ErrorSubject::Snapshot(None),
                ErrorVerb::Read,
                &Error::Invalid { why: "nothing is applied yet" },
            )
        };
        self.snapshot().await?.ok_or_else(none)
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<LogId<u64>>, StoredMembership<u64, Peer>), StorageError<u64>> {
        let (last, members) = self.log.ask(ErrorVerb::Read, |reply| Job::Applied { reply }).await?;
        Ok((last.map(log_id), raft_members(members)))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().map(entry_of).collect();
        let n = entries.len();
        let last = entries.last().map(|e| e.log_id);
        if !last.is_some_and(|last| self.log.applied_index.acknowledge(last)) {
            self.log.ask(ErrorVerb::Write, |reply| Job::Apply { entries, reply }).await?;
        }
        if let Some(last) = last {
            let mut recent = self.log.recent.lock();
            *recent = recent.split_off(&(last.index + 1));
        }
        Ok(vec![(); n])
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Image>, StorageError<u64>> {
        // `raft/serve` receives snapshots and hands them over whole.
        Ok(Box::new(Image { received: None }))
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, Peer>,
        snapshot: Box<Image>,
    ) -> Result<(), StorageError<u64>> {
        let Some(file) = snapshot.received else {
            let err = Error::Invalid { why: "this snapshot was never received" };
            return Err(storage_error(ErrorSubject::Snapshot(None), ErrorVerb::Write, &err));
        };
        self.log.recent.lock().clear();
        let last = meta.last_log_id.map(entry_id);
        self.log.ask(ErrorVerb::Write, |reply| Job::Install { last, file, reply }).await
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<TypeConfig>>, StorageError<u64>> {
        self.snapshot().await
    }
}

impl Machine {
    /// openraft wants a snapshot that covers what the log no longer holds. The database itself is it: the state is
    /// always as new as the last applied entry, and it is copied only when it is sent.
    async fn snapshot(&self) -> Result<Option<Snapshot<TypeConfig>>, StorageError<u64>> {
        let (last, members) = self.log.ask(ErrorVerb::Read, |reply| Job::Applied { reply }).await?;
        if last.is_none() {
            return Ok(None);
        }
        Ok(Some(Snapshot { meta: snapshot_meta(last, members), snapshot: Box::new(Image { received: None }) }))
    }
}
