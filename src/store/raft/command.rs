//! What Raft carries: batches of commands, and the tickets of those who wait for them on this member.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::error::Error;
use crate::{Revision, Txn, TxnReply};

/// One change of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// A transaction.
    Txn(Txn),
    /// Raises the floor.
    Compact {
        /// To where.
        at: Revision,
    },
    /// Makes a lease.
    LeaseGrant {
        /// Its id, not 0.
        id: u64,
        /// How long it lives without a keep-alive.
        ttl_secs: u64,
    },
    /// Ends a lease and deletes its keys.
    LeaseRevoke {
        /// Its id.
        id: u64,
    },
}

/// What a command answered.
pub type Outcome = Result<TxnReply, Error>;

/// Those who wait for the commands of a batch, in its order. Does not travel: other members have nobody waiting.
#[derive(Clone, Default)]
pub struct Tickets(Arc<Mutex<Vec<oneshot::Sender<Outcome>>>>);

impl fmt::Debug for Tickets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tickets(..)")
    }
}

impl Tickets {
    /// Of these waiters.
    pub fn new(waiters: Vec<oneshot::Sender<Outcome>>) -> Tickets {
        Tickets(Arc::new(Mutex::new(waiters)))
    }

    fn take(&self) -> Vec<oneshot::Sender<Outcome>> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Answers everybody.
    pub fn answer(&self, outcomes: Vec<Outcome>) {
        for (waiter, outcome) in self.take().into_iter().zip(outcomes) {
            // A waiter that is gone does not need its answer.
            let _gone = waiter.send(outcome);
        }
    }

    /// Tells everybody who is still waiting the same error.
    pub fn fail(&self, error: &Error) {
        for waiter in self.take() {
            let _gone = waiter.send(Err(error.clone()));
        }
    }
}

/// Commands that become durable together.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    /// In the order in which they are applied.
    pub commands: Arc<Vec<Command>>,
    /// Who waits.
    #[serde(skip)]
    pub tickets: Tickets,
}
