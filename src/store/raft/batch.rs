//! Gathers the writes that wait into one Raft entry, so that they share one fsync.

use std::sync::Arc;

use base::limits;
use openraft::Raft;
use openraft::error::{ClientWriteError, RaftError};
use tokio::sync::{mpsc, oneshot};

use crate::error::Error;
use crate::raft::TypeConfig;
use crate::raft::command::{Batch, Command, Outcome, Tickets};

/// Commands in one entry at most, so that one entry stays short to apply.
const BATCH_COMMANDS_MAX: usize = 512;

/// A command and who waits for it.
#[derive(Debug)]
pub struct Proposal {
    /// What to do.
    pub command: Command,
    /// Where the answer goes.
    pub waiter: oneshot::Sender<Outcome>,
}

/// The queue of proposals: its two ends. Full means the callers wait.
pub fn queue() -> (mpsc::Sender<Proposal>, mpsc::Receiver<Proposal>) {
    mpsc::channel(limits::STORE_WRITE_QUEUE)
}

/// Proposes what comes out of the queue until the group stops. Ends early, which is fatal for the process, if Raft has failed.
pub async fn run(raft: Raft<TypeConfig>, mut proposals: mpsc::Receiver<Proposal>) {
    let mut waiting = Vec::with_capacity(BATCH_COMMANDS_MAX);
    // While one entry is on its way to the disk, the next gathers in the queue: that is the group commit.
    while proposals.recv_many(&mut waiting, BATCH_COMMANDS_MAX).await > 0 {
        let (commands, waiters): (Vec<_>, Vec<_>) = waiting.drain(..).map(|p| (p.command, p.waiter)).unzip();
        let batch = Batch { commands: Arc::new(commands), tickets: Tickets::new(waiters) };
        let tickets = batch.tickets.clone();
        if let Err(err) = raft.client_write(batch).await {
            let err = refusal(err);
            tickets.fail(&err);
            if matches!(err, Error::Closed) {
                // Raft has stopped, e.g. because the disk failed: only a new process can find out what is durable.
                return;
            }
        }
    }
}

fn refusal(err: RaftError<u64, ClientWriteError<u64, openraft::BasicNode>>) -> Error {
    match err {
        RaftError::APIError(ClientWriteError::ForwardToLeader(to)) => Error::NotLeader { leader: to.leader_node.map(|node| node.addr) },
        RaftError::APIError(err) => Error::io("cannot write")(err),
        RaftError::Fatal(_) => Error::Closed,
    }
}
