//! Proposing commands: checked, and refused where a disk has no room for them.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use crate::command::Command;
use crate::error::Error;
use crate::mvcc::apply::check_command;
use crate::mvcc::database;
use crate::mvcc::space::{self, Space};
use crate::raft::batch::Proposal;
use crate::txn::TxnReply;

/// The way of a command into the log.
#[derive(Clone, Debug)]
pub struct Proposer {
    /// The queue of those that wait for a batch.
    pub queue: mpsc::Sender<Proposal>,
    /// Whether there is room.
    pub space: Arc<Space>,
    /// The folder of the store.
    pub dir: PathBuf,
}

impl Proposer {
    /// Proposes a command, and answers when it is durable and applied here.
    ///
    /// Errors: `Invalid`, `NoSpace`, `Closed`, and those of the command.
    /// Cancel safety: a dropped future may or may not have happened, wholly.
    pub async fn propose(&self, command: Command) -> Result<TxnReply, Error> {
        check_command(&command)?;
        if self.space.is_low() && space::adds(&command) {
            return Err(Error::NoSpace { path: database::path_in(&self.dir) });
        }
        let (waiter, answer) = oneshot::channel();
        self.queue.send(Proposal { command, waiter }).await.map_err(|_| Error::Closed)?;
        answer.await.map_err(|_| Error::Closed)?
    }
}
