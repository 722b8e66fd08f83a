//! The callers of this member whose batches are on their way. The writer answers them when it applies the batch.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::sync::Mutex;
use tokio::sync::oneshot;

use crate::command::{Batch, Command, Origin, Outcome};
use crate::error::Error;

#[derive(Debug)]
struct Waiting {
    waiters: Vec<oneshot::Sender<Outcome>>,
    done: oneshot::Sender<()>,
}

/// Batches of this process that are not applied yet.
#[derive(Debug)]
pub struct Pending {
    member: u64,
    boot: u64,
    waiting: Mutex<BTreeMap<u64, Waiting>>,
}

/// A batch on its way, held by the one who carries it.
#[derive(Debug)]
pub struct PendingBatch {
    /// Its number.
    pub seq: u64,
    /// The commands of the batch.
    pub commands: Arc<Vec<Command>>,
    done: Option<oneshot::Receiver<()>>,
}

impl PendingBatch {
    /// Resolves when its callers have their answer.
    ///
    /// Cancel safety: asked again, it goes on waiting.
    pub async fn done(&mut self) {
        if let Some(done) = &mut self.done {
            // A sender that is gone was the answer too.
            let _answered = done.await;
            self.done = None;
        }
    }

    /// Whether its callers have their answer.
    pub fn is_done(&mut self) -> bool {
        if self.done.as_mut().is_some_and(|done| !matches!(done.try_recv(), Err(oneshot::error::TryRecvError::Empty))) {
            self.done = None;
        }
        self.done.is_none()
    }
}

/// As the leader: the newest batch of each member in the log, so that one whose answer was lost is proposed again and
/// appended once.
///
/// It is memory of one term only: a leader that starts again leads in another term or not at all (`Writer` sees to
/// that).
#[derive(Debug, Default)]
pub struct Proposed(Mutex<BTreeMap<u64, Origin>>);

impl Proposed {
    /// Whether this batch was not here before in its term. A member's batches come in the order of their numbers.
    pub fn is_first(&self, origin: &Origin) -> bool {
        let mut newest = self.0.lock();
        let same =
            |before: &Origin| before.boot == origin.boot && before.term == origin.term && before.seq >= origin.seq;
        if newest.get(&origin.member).is_some_and(same) {
            return false;
        }
        newest.insert(origin.member, *origin);
        true
    }
}

impl Pending {
    /// Of this member; `boot` tells its processes apart.
    pub fn new(member: u64, boot: u64) -> Pending {
        Pending { member, boot, waiting: Mutex::default() }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Waiting>> {
        self.waiting.lock()
    }

    /// Notes who waits for these commands.
    pub fn begin(&self, seq: u64, commands: Vec<Command>, waiters: Vec<oneshot::Sender<Outcome>>) -> PendingBatch {
        let (done, finished) = oneshot::channel();
        self.waiting().insert(seq, Waiting { waiters, done });
        PendingBatch { seq, commands: Arc::new(commands), done: Some(finished) }
    }

    /// The batch as an entry of `term`.
    pub fn batch(&self, pending_batch: &PendingBatch, term: u64) -> Batch {
        let origin = Origin { member: self.member, boot: self.boot, seq: pending_batch.seq, term };
        Batch { origin, commands: Arc::clone(&pending_batch.commands) }
    }

    fn take(&self, origin: &Origin) -> Option<Waiting> {
        if origin.member != self.member || origin.boot != self.boot {
            return None;
        }
        self.waiting().remove(&origin.seq)
    }

    /// Whether the callers of a batch wait here.
    pub fn is_ours(&self, origin: &Origin) -> bool {
        origin.member == self.member && origin.boot == self.boot
    }

    /// Answers the callers of an applied batch, if they are here.
    pub fn answer(&self, origin: &Origin, outcomes: Vec<Outcome>) {
        let Some(waiting) = self.take(origin) else { return };
        for (waiter, outcome) in waiting.waiters.into_iter().zip(outcomes) {
            // A caller that is gone does not need its answer.
            let _gone = waiter.send(outcome);
        }
        let _gone = waiting.done.send(());
    }

    /// Tells the callers of a batch the same error, if they are here and still wait.
    pub fn fail(&self, origin: &Origin, error: &Error) {
        let Some(waiting) = self.take(origin) else { return };
        for waiter in waiting.waiters {
            let _gone = waiter.send(Err(error.clone()));
        }
        let _gone = waiting.done.send(());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_that_comes_again_in_its_term_is_not_the_first() {
        let proposed = Proposed::default();
        let batch = |seq, term| Origin { member: 2, boot: 9, seq, term };
        assert!(proposed.is_first(&batch(1, 4)));
        assert!(!proposed.is_first(&batch(1, 4)));
        assert!(proposed.is_first(&batch(2, 4)));
        assert!(!proposed.is_first(&batch(1, 4)), "it was late");
        assert!(proposed.is_first(&batch(2, 5)), "a new term: it did not count in the old one");
        assert!(proposed.is_first(&Origin { boot: 10, ..batch(1, 5) }));
    }

    fn waits() -> (Pending, PendingBatch, oneshot::Receiver<Outcome>, Origin) {
        let pending = Pending::new(2, 9);
        let (waiter, answer) = oneshot::channel();
        let batch = pending.begin(1, vec![Command::LeaseRevoke { id: 1 }], vec![waiter]);
        let origin = pending.batch(&batch, 4).origin;
        (pending, batch, answer, origin)
    }

    #[tokio::test]
    async fn an_answer_reaches_the_caller_of_its_batch_and_no_other() {
        let (pending, mut batch, mut answer, origin) = waits();
        assert_eq!(origin, Origin { member: 2, boot: 9, seq: 1, term: 4 });
        for foreign in [Origin { member: 3, ..origin }, Origin { boot: 8, ..origin }, Origin { seq: 2, ..origin }] {
            pending.answer(&foreign, vec![Ok(Default::default())]);
            assert!(answer.try_recv().is_err() && !batch.is_done(), "{foreign:?}");
        }
        assert!(pending.is_ours(&origin) && !pending.is_ours(&Origin { boot: 8, ..origin }));
        // The term counts not: it was proposed again under another leader.
        pending.answer(&Origin { term: 5, ..origin }, vec![Ok(Default::default())]);
        assert!(answer.await.unwrap().is_ok());
        batch.done().await;
        assert!(batch.is_done());
    }

    #[tokio::test]
    async fn a_batch_that_fails_tells_all_who_still_wait() {
        let (pending, mut batch, answer, origin) = waits();
        pending.fail(&origin, &Error::TimedOut);
        assert!(matches!(answer.await.unwrap(), Err(Error::TimedOut)));
        assert!(batch.is_done());
        pending.fail(&origin, &Error::Closed);
    }
}
