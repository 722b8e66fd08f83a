//! Gathers the writes that wait into one Raft entry, so that they share one fsync, and carries it to the leader
//! wherever that is, also over a change of leaders.

use std::time::Duration;

use base::limits;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::command::{Command, Outcome};
use crate::error::Error;
use crate::pending::PendingBatch;
use crate::raft::node::Node;
use crate::raft::rpc::ProposeReply;

/// Commands in one entry at most, so that one entry stays short to apply.
const BATCH_COMMANDS_MAX: usize = 512;
/// Bytes of one entry, roughly: more go into the next one, so that an entry crosses a slow network in time.
const BATCH_BYTES_MAX: usize = 1024 * 1024;

/// A command and who waits for it.
#[derive(Debug)]
pub struct Proposal {
    /// The command to propose.
    pub command: Command,
    /// Where the answer goes.
    pub waiter: oneshot::Sender<Outcome>,
}

/// The queue of proposals: its two ends. Full means the callers wait.
pub fn queue() -> (mpsc::Sender<Proposal>, mpsc::Receiver<Proposal>) {
    mpsc::channel(limits::STORE_WRITE_QUEUE)
}

/// Proposes what comes out of the queue until the group stops. Ends early, which is fatal for the process, if Raft has
/// failed.
pub async fn run(node: std::sync::Arc<Node>, mut proposals: mpsc::Receiver<Proposal>) {
    let (mut waiting, mut seq) = (Vec::with_capacity(BATCH_COMMANDS_MAX), 0);
    // While one entry is on its way to the disk, the next gathers in the queue: that is the group commit.
    while proposals.recv_many(&mut waiting, BATCH_COMMANDS_MAX).await > 0 {
        while !waiting.is_empty() {
            let n = fitting(&waiting);
            let (commands, waiters): (Vec<_>, Vec<_>) = waiting.drain(..n).map(|p| (p.command, p.waiter)).unzip();
            seq += 1;
            let pending_batch = node.pending.begin(seq, commands, waiters);
            if carry(&node, pending_batch).await.is_err() {
                // Raft has stopped, e.g. because the disk failed: only a new process can find out what is durable.
                return;
            }
        }
    }
}

/// How many of the commands fit into one entry; at least one.
fn fitting(waiting: &[Proposal]) -> usize {
    let mut bytes = 0;
    let over = |proposal: &Proposal| {
        bytes += match &proposal.command {
            Command::Txn(txn) => txn.bytes(),
            _ => 0,
        };
        bytes > BATCH_BYTES_MAX
    };
    waiting.iter().position(over).map_or(waiting.len(), |n| n.max(1))
}

/// After an attempt without an answer, before the next.
const AGAIN: Duration = Duration::from_millis(200);

/// Outcome of an attempt to propose.
enum Attempt {
    /// It was not taken: nothing happened, it may be proposed anew.
    Refused,
    /// It may be in the log of a leader of this term.
    Sent,
    /// The same, but that leader did not answer: it is proposed again, and a leader takes it once.
    Unanswered,
}

/// Carries one batch until its callers have an answer. `Err` means that Raft has stopped.
async fn carry(node: &Node, mut pending_batch: PendingBatch) -> Result<(), Error> {
    let deadline = Instant::now() + node.bounds.write_timeout;
    // The leader and the term in whose log it may be. Until a later term is seen it must go to nobody else.
    let mut sent = None;
    loop {
        let now = node.leader();
        let attempt = match now {
            _ if sent.is_some_and(|sent| sent != now) => Attempt::Sent,
            (Some(leader), term) if leader == node.id => propose_here(node, &mut pending_batch, term).await?,
            (Some(leader), term) => propose_there(node, &mut pending_batch, leader, term, deadline).await,
            (None, _) => Attempt::Refused,
        };
        if !matches!(attempt, Attempt::Refused) {
            sent.get_or_insert(now);
        }
        let news = async {
            match (&attempt, sent) {
                // Another leader, or the same one in a new term, is worth another try.
                (_, None) => node.leader_changed(now).await,
                (Attempt::Unanswered, Some((_, term))) => {
                    match tokio::time::timeout(AGAIN, node.applied_term_after(term)).await {
                        Ok(later) => later.map(|()| sent = None),
                        Err(_) => Ok(()),
                    }
                }
                (Attempt::Sent | Attempt::Refused, Some((_, term))) => {
                    node.applied_term_after(term).await.map(|()| sent = None)
                }
            }
        };
        let news = tokio::select! {
            biased;
            () = pending_batch.done() => return Ok(()),
            news = timeout_at(deadline, news) => news.unwrap_or(Err(Error::TimedOut)),
        };
        match news {
            Ok(()) if pending_batch.is_done() => return Ok(()),
            Ok(()) => {}
            Err(err) => {
                node.pending.fail(&node.pending.batch(&pending_batch, now.1).origin, &err);
                return if matches!(err, Error::TimedOut) { Ok(()) } else { Err(err) };
            }
        }
    }
}

async fn propose_here(node: &Node, pending_batch: &mut PendingBatch, term: u64) -> Result<Attempt, Error> {
    let batch = node.pending.batch(pending_batch, term);
    let origin = batch.origin;
    let Ok(mut answer) = node.raft.client_write_ff(batch).await else {
        node.pending.fail(&origin, &Error::Closed);
        return Err(Error::Closed);
    };
    tokio::select! {
        biased;
        // The writer answers when the entry is durable and applied; openraft's own answer comes a little later.
        () = pending_batch.done() => {
            node.unread.keep(answer);
            Ok(Attempt::Sent)
        }
        written = &mut answer => match written {
            // Applied without an answer: it was an entry of another term than it was made for, and did nothing.
            Ok(Ok(_)) => Ok(Attempt::Refused),
            // This member stopped leading. The entry may be in its log and may still be agreed upon.
            Ok(Err(_)) => Ok(Attempt::Sent),
            Err(_) => {
                node.pending.fail(&origin, &Error::Closed);
                Err(Error::Closed)
            }
        },
    }
}

async fn propose_there(
    node: &Node,
    pending_batch: &mut PendingBatch,
    leader: u64,
    term: u64,
    deadline: Instant,
) -> Attempt {
    let batch = node.pending.batch(pending_batch, term);
    let answer = tokio::select! {
        answer = timeout_at(deadline, node.peers.propose(leader, &batch)) => answer,
        // A leader that sleeps answers nobody: another one is known long before the call is given up.
        _ = node.leader_changed((Some(leader), term)) => return Attempt::Sent,
    };
    match answer {
        Ok(Ok(ProposeReply::Refused)) => Attempt::Refused,
        Ok(Ok(ProposeReply::Taken)) => Attempt::Sent,
        Ok(Err(_)) | Err(_) => Attempt::Unanswered,
    }
}
