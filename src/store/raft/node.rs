//! This member in its group: who leads, what is applied, and reads that see every write acknowledged before them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use openraft::{LogIdOptionExt as _, Raft};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::bounds::Bounds;
use crate::error::Error;
use crate::member::{Change, Leadership, Member};
use crate::pending::{Pending, Proposed};
use crate::raft::last_contact::LastContact;
use crate::raft::log::Log;
use crate::raft::peers::Peers;
use crate::raft::rpc::{Members, ReadIndex, Reshape};
use crate::raft::types::TypeConfig;

/// Between tries with a leader that was just found to lead no more.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// For so long a member that is to join may not answer yet; then nobody can reach it.
const UNHEARD_PATIENCE: Duration = Duration::from_secs(5);

/// The member.
pub struct Node {
    /// Its number.
    pub id: u64,
    /// Raft.
    pub raft: Raft<TypeConfig>,
    /// Its log, for what openraft does not do.
    pub log: Log,
    /// Its callers whose writes are on their way.
    pub pending: Arc<Pending>,
    /// Proposals that others forwarded to it.
    pub proposed: Proposed,
    /// The others.
    pub peers: Arc<Peers>,
    /// Times at which members were last heard.
    pub last_contact: Arc<LastContact>,
    /// Whether it is the only one, so that it need not ask anybody.
    pub alone: Arc<AtomicBool>,
    /// Rounds of asking, shared by the reads that wait.
    pub gate: Gate,
    /// Raft's own answers, which nobody needs.
    pub unread: Unread,
    /// One change of the group at a time.
    pub shaping: Mutex<()>,
    /// How long callers wait.
    pub bounds: Bounds,
}

type Answer = tokio::sync::oneshot::Receiver<openraft::raft::ClientWriteResult<TypeConfig>>;

/// Answers of Raft that come after the writer's own: held until they are there, as Raft warns about those that nobody
/// can take.
#[derive(Debug, Default)]
pub struct Unread(base::sync::Mutex<Vec<Answer>>);

impl Unread {
    /// Holds an answer; lets those go that have come.
    pub fn keep(&self, answer: Answer) {
        use tokio::sync::oneshot::error::TryRecvError;
        let mut held = self.0.lock();
        held.retain_mut(|answer| matches!(answer.try_recv(), Err(TryRecvError::Empty)));
        held.push(answer);
    }
}

/// Lets reads share a round: a read may use any round that began after it came.
#[derive(Debug, Default)]
pub struct Gate {
    begun: AtomicU64,
    /// The round that ended well last, and the entry it found.
    ended: Mutex<(u64, Option<u64>)>,
}

impl Node {
    /// The leader and the term, as far as this member knows.
    pub fn leader(&self) -> (Option<u64>, u64) {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow();
        (metrics.current_leader, metrics.vote.leader_id().term)
    }

    /// The leader, and whether this member may act as the leader now.
    pub fn leadership(&self) -> Leadership {
        let (leader, term) = self.leader();
        let certain = || self.last_contact.is_certain(self.id, term, &self.voters());
        let is_me = leader == Some(self.id) && (self.alone.load(Ordering::Acquire) || certain());
        Leadership { leader, is_me, term }
    }

    /// Whether the membership holds this member.
    pub fn knows(&self, id: u64) -> bool {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.membership().get_node(&id).is_some()
    }

    /// Waits until leader or term differ from these. Errors: `Closed` if Raft has stopped.
    pub async fn leader_changed(&self, seen: (Option<u64>, u64)) -> Result<(), Error> {
        let mut metrics = self.raft.server_metrics();
        metrics
            .wait_for(|m| (m.current_leader, m.vote.leader_id().term) != seen)
            .await
            .map(drop)
            .map_err(|_| Error::Closed)
    }

    /// Waits until an entry of a later term than `term` is applied here. Errors: `Closed` if Raft has stopped.
    pub async fn applied_term_after(&self, term: u64) -> Result<(), Error> {
        let mut metrics = self.raft.data_metrics();
        let later = |log: &Option<openraft::LogId<u64>>| log.is_some_and(|log| log.leader_id.term > term);
        metrics.wait_for(|m| later(&m.last_applied)).await.map(drop).map_err(|_| Error::Closed)
    }

    /// Waits until everything that was acknowledged anywhere before the call is applied here.
    ///
    /// Errors: `TimedOut` if no leader and majority are found in time, `Closed`.
    pub async fn catch_up(&self) -> Result<(), Error> {
        if self.alone.load(Ordering::Acquire) {
            // A leader that is alone has applied everything that was ever acknowledged.
            return Ok(());
        }
        let deadline = Instant::now() + self.bounds.read_timeout;
        let index = self.read_index(deadline).await?;
        let mut metrics = self.raft.data_metrics();
        let applied = metrics.wait_for(|m| m.last_applied.index() >= index);
        timeout_at(deadline, applied).await.map_err(|_| Error::TimedOut)?.map(drop).map_err(|_| Error::Closed)
    }

    /// The entry that a linearizable read must wait for.
    async fn read_index(&self, deadline: Instant) -> Result<Option<u64>, Error> {
        let came = self.gate.begun.load(Ordering::Acquire);
        let mut ended = timeout_at(deadline, self.gate.ended.lock()).await.map_err(|_| Error::TimedOut)?;
        if ended.0 > came {
            return Ok(ended.1);
        }
        let round = self.gate.begun.fetch_add(1, Ordering::AcqRel) + 1;
        let index = self.by_leader(deadline, || async {
            match self.leader() {
                (Some(leader), _) if leader == self.id => self.confirmed_index().await,
                (Some(leader), term) => tokio::select! {
                    answer = self.peers.ask(leader, &ReadIndex(())) => answer?.map_err(Error::from),
                    // A leader that sleeps answers nobody: another one is known long before the call is given up.
                    _ = self.leader_changed((Some(leader), term)) => Err(Error::NotLeader { leader: None }),
                },
                (None, _) => Err(Error::NotLeader { leader: None }),
            }
        });
        let index = index.await?;
        *ended = (round, index);
        Ok(index)
    }

    /// As the leader: the last entry that a linearizable read must see, after a majority said that this member still
    /// leads.
    pub async fn confirmed_index(&self) -> Result<Option<u64>, Error> {
        if self.alone.load(Ordering::Acquire) {
            return Ok(self.raft.data_metrics().borrow().last_applied.index());
        }
        match self.raft.get_read_log_id().await {
            Ok((read, _)) => Ok(read.index()),
            Err(openraft::error::RaftError::APIError(_)) => Err(Error::NotLeader { leader: None }),
            Err(openraft::error::RaftError::Fatal(_)) => Err(Error::Closed),
        }
    }

    /// Asks again and again, while the answer is that somebody else leads or cannot be reached.
    async fn by_leader<T, F: Future<Output = Result<T, Error>>>(
        &self,
        deadline: Instant,
        ask: impl Fn() -> F,
    ) -> Result<T, Error> {
        loop {
            match timeout_at(deadline, ask()).await {
                Err(_) => return Err(Error::TimedOut),
                Ok(Err(Error::NotLeader { .. } | Error::MemberUnreachable { .. } | Error::TimedOut))
                    if Instant::now() < deadline =>
                {
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
                Ok(Err(Error::NotLeader { .. })) => return Err(Error::TimedOut),
                Ok(answer) => return answer,
            }
        }
    }

    /// Has the leader change the group.
    pub async fn change(&self, change: Change) -> Result<(), Error> {
        let limit = self.bounds.change_timeout;
        let (deadline, patience_ends) = (Instant::now() + limit, Instant::now() + UNHEARD_PATIENCE);
        // That the leader does not reach who is to join is a verdict; that nobody reaches the leader is not.
        let verdict = |answer| match answer {
            Err(unheard @ Error::MemberUnreachable { .. }) if Instant::now() >= patience_ends => Ok(Err(unheard)),
            other => other.map(Ok),
        };
        let answer = self.by_leader(deadline, || async {
            match self.leader() {
                (Some(leader), _) if leader == self.id => verdict(self.reshape(&change).await),
                (Some(leader), _) => {
                    match tokio::time::timeout(limit, self.peers.call(leader, &Reshape(change.clone()))).await {
                        Ok(answer) => verdict(answer?.map_err(Error::from)),
                        Err(_) => Err(Error::TimedOut),
                    }
                }
                (None, _) => Err(Error::NotLeader { leader: None }),
            }
        });
        answer.await?
    }

    /// The members as the leader sees them.
    pub async fn members(&self) -> Result<Vec<Member>, Error> {
        match self.leader() {
            (Some(leader), _) if leader != self.id => match self.peers.ask(leader, &Members(())).await {
                Ok(Ok(members)) => Ok(members),
                // Nobody to ask: what this member knows itself.
                Ok(Err(_)) | Err(_) => Ok(self.members_seen()),
            },
            _ => Ok(self.members_seen()),
        }
    }

    /// The members as this member sees them.
    pub fn members_seen(&self) -> Vec<Member> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow();
        let membership = metrics.membership_config.membership();
        // While the voters change there are two sets, and one that is new in the second cannot stand in for an old one
        // yet.
        let votes = |id: &u64| membership.get_joint_config().iter().all(|set| set.contains(id));
        let last = metrics.last_log_index.unwrap_or(0);
        let matched = |id: &u64| {
            metrics
                .replication
                .as_ref()
                .and_then(|all| all.get(id))
                .map(|log| last.saturating_sub(log.index().unwrap_or(0)))
        };
        membership
            .nodes()
            .map(|(id, peer)| Member {
                id: *id,
                name: peer.name.clone(),
                address: self.peers.address(*id).filter(|_| *id != self.id).unwrap_or_else(|| peer.addr.clone()),
                voter: votes(id),
                lag_entries: if *id == self.id { Some(0) } else { matched(id) },
            })
            .collect()
    }
}
