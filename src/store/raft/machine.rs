//! openraft's state machine: what the writer applied already is only acknowledged.

use std::path::PathBuf;
use std::sync::PoisonError;

use openraft::storage::RaftStateMachine;
use openraft::{
    BasicNode, Entry, ErrorSubject, ErrorVerb, LogId, OptionalSend, RaftLogId as _, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    StorageError, StoredMembership,
};

use crate::error::Error;
use crate::mvcc::writer::Job;
use crate::raft::TypeConfig;
use crate::raft::log::{Log, storage_error};

/// The state machine as openraft sees it.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The way to the writer, shared with the log.
    pub log: Log,
    /// The database.
    pub path: PathBuf,
}

fn no_snapshots() -> StorageError<u64> {
    // The group has one member until joining is built, so nobody can need one.
    storage_error(ErrorSubject::Snapshot(None), ErrorVerb::Write, &Error::Invalid { why: "snapshots need several members" })
}

impl RaftSnapshotBuilder<TypeConfig> for Machine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<TypeConfig>, StorageError<u64>> {
        self.snapshot().await?.ok_or_else(no_snapshots)
    }
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotBuilder = Machine;

    async fn applied_state(&mut self) -> Result<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>), StorageError<u64>> {
        self.log.ask(ErrorVerb::Read, |reply| Job::Applied { reply }).await
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, StorageError<u64>>
    where
        I: IntoIterator<Item = Entry<TypeConfig>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries: Vec<_> = entries.into_iter().collect();
        let n = entries.len();
        let last = entries.last().map(|e| e.get_log_id().index);
        self.log.ask(ErrorVerb::Write, |reply| Job::Apply { entries, reply }).await?;
        if let Some(last) = last {
            let mut recent = self.log.recent.lock().unwrap_or_else(PoisonError::into_inner);
            *recent = recent.split_off(&(last + 1));
        }
        Ok(vec![(); n])
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<tokio::fs::File>, StorageError<u64>> {
        Err(no_snapshots())
    }

    async fn install_snapshot(
        &mut self,
        _meta: &SnapshotMeta<u64, BasicNode>,
        _snapshot: Box<tokio::fs::File>,
    ) -> Result<(), StorageError<u64>> {
        Err(no_snapshots())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<TypeConfig>>, StorageError<u64>> {
        self.snapshot().await
    }
}

impl Machine {
    /// openraft wants a snapshot that covers what the log no longer holds. The database itself is it: the state is always as
    /// new as the last applied entry. Its bytes are never read, as a member that is alone has nobody to send them to.
    async fn snapshot(&self) -> Result<Option<Snapshot<TypeConfig>>, StorageError<u64>> {
        let (last_log_id, last_membership) = self.log.ask(ErrorVerb::Read, |reply| Job::Applied { reply }).await?;
        let Some(last) = last_log_id else { return Ok(None) };
        if last_membership.nodes().count() != 1 {
            return Err(no_snapshots());
        }
        let file = tokio::fs::File::open(&self.path)
            .await
            .map_err(|err| storage_error(ErrorSubject::Snapshot(None), ErrorVerb::Read, &Error::io("cannot open the database")(err)))?;
        let meta = SnapshotMeta { last_log_id, last_membership, snapshot_id: last.to_string() };
        Ok(Some(Snapshot { meta, snapshot: Box::new(file) }))
    }
}
