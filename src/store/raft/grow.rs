//! Growing and shrinking: a member comes in as a learner, is brought up to date, and becomes a voter by itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use openraft::error::{ChangeMembershipError, ClientWriteError, RaftError};
use openraft::raft::AppendEntriesRequest;
use openraft::{ChangeMembers, CommittedLeaderId, LogId, LogIdOptionExt as _, Vote};
use tracing::{debug, info, warn};

use crate::error::Error;
use crate::member::{Change, Peer};
use crate::mvcc::job::Job;
use crate::raft::node::Node;
use crate::raft::rpc::{Stand, Status, Yield};
use crate::raft::types::TypeConfig;

/// A learner that lacks fewer entries than this is up to date enough to vote.
const VOTER_LAG_MAX: u64 = 200;
/// A change that is already under way is waited for.
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// Waiting for the log to begin, and for a candidate to catch up.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a member that leaves waits to see another leader.
const HAND_OVER_TIMEOUT: Duration = Duration::from_secs(3);

type Members = ChangeMembers<u64, Peer>;

impl Node {
    /// As the leader: makes a change of the group.
    pub async fn reshape(&self, change: &Change) -> Result<(), Error> {
        let _turn = self.shaping.lock().await;
        match change {
            Change::Add { id, peer } => self.add(*id, peer).await,
            Change::Promote { id } => self.promote(*id).await,
            Change::Remove { id } => self.remove(*id).await,
        }
    }

    fn nodes(&self) -> (BTreeMap<u64, Peer>, BTreeSet<u64>) {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow();
        let membership = metrics.membership_config.membership();
        (membership.nodes().map(|(id, peer)| (*id, peer.clone())).collect(), membership.voter_ids().collect())
    }

    async fn change_membership(&self, members: Members) -> Result<(), Error> {
        loop {
            return match self.raft.change_membership(members.clone(), false).await {
                Ok(_) => Ok(()),
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {
                    Err(Error::NotLeader { leader: None })
                }
                Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(
                    ChangeMembershipError::InProgress(_),
                ))) => {
                    tokio::time::sleep(BUSY_PAUSE).await;
                    continue;
                }
                Err(RaftError::APIError(ClientWriteError::ChangeMembershipError(err))) => {
                    Err(Error::io("cannot change the members")(err))
                }
                Err(RaftError::Fatal(_)) => Err(Error::Closed),
            };
        }
    }

    async fn add(&self, id: u64, peer: &Peer) -> Result<(), Error> {
        let own = self.peers.own().ok_or(Error::NoNetwork)?;
        let (nodes, _) = self.nodes();
        if nodes.get(&id) == Some(peer) {
            return Ok(());
        }
        if id != self.id {
            self.peers.learn(id, &peer.addr);
            // An address at which nobody answers would only be found out by nothing happening.
            self.peers
                .ask(id, &Status(()))
                .await
                .map_err(|_| Error::MemberUnreachable { address: peer.addr.clone() })?;
        }
        if nodes.contains_key(&id) {
            info!(peer = id, addr = %peer.addr, "member's address changes");
            return self.change_membership(Members::SetNodes(BTreeMap::from([(id, peer.clone())]))).await;
        }
        if nodes.len() == 1 {
            self.begin_log().await?;
        }
        if nodes.get(&self.id).is_some_and(|seen| *seen != own) {
            self.change_membership(Members::SetNodes(BTreeMap::from([(self.id, own)]))).await?;
        }
        info!(peer = id, addr = %peer.addr, "member joins as a learner");
        self.change_membership(Members::AddNodes(BTreeMap::from([(id, peer.clone())]))).await
    }

    /// Alone there are no log rows. Before others come, rows are kept, and Raft learns that nothing older can be sent
    /// as entries.
    async fn begin_log(&self) -> Result<(), Error> {
        let asked = self.log.ask(openraft::ErrorVerb::Write, |reply| Job::KeepLog { reply }).await;
        let kept_from = asked.map_err(Error::io("cannot begin the log"))?.map(|id| id.index);
        let closed = |_| Error::Closed;
        let mut metrics = self.raft.data_metrics();
        let reached = metrics.wait_for(|m| m.last_applied.index() >= kept_from);
        tokio::time::timeout(STEP_TIMEOUT, reached).await.map_err(|_| Error::TimedOut)?.map_err(closed)?;
        self.raft.trigger().snapshot().await.map_err(|_| Error::Closed)?;
        let covered = metrics.wait_for(|m| m.snapshot.index() >= kept_from);
        let upto = tokio::time::timeout(STEP_TIMEOUT, covered)
            .await
            .map_err(|_| Error::TimedOut)?
            .map_err(closed)?
            .snapshot
            .index();
        let Some(upto) = upto else { return Ok(()) };
        self.raft.trigger().purge_log(upto).await.map_err(|_| Error::Closed)?;
        let purged = metrics.wait_for(|m| m.purged.index() >= Some(upto));
        tokio::time::timeout(STEP_TIMEOUT, purged).await.map_err(|_| Error::TimedOut)?.map(drop).map_err(closed)
    }

    async fn promote(&self, id: u64) -> Result<(), Error> {
        let (nodes, voters) = self.nodes();
        if !nodes.contains_key(&id) {
            return Err(Error::MemberNotFound { id });
        }
        if voters.contains(&id) {
            return Ok(());
        }
        let lag = self.members_seen().into_iter().find(|member| member.id == id).and_then(|member| member.lag_entries);
        if lag.is_none_or(|lag| lag > VOTER_LAG_MAX) {
            return Err(Error::NotCaughtUp { id });
        }
        self.change_membership(Members::AddVoterIds(BTreeSet::from([id]))).await?;
        let n_voters = voters.len() + 1;
        info!(peer = id, n = n_voters, "member votes now");
        if n_voters == 2 {
            warn!("the store has two voters: if either is down, nothing can be written; add a third server");
        }
        Ok(())
    }

    async fn remove(&self, id: u64) -> Result<(), Error> {
        let (nodes, voters) = self.nodes();
        if !nodes.contains_key(&id) {
            return Err(Error::MemberNotFound { id });
        }
        if voters.len() == 1 && voters.contains(&id) {
            return Err(Error::LastMember);
        }
        if id == self.id {
            // The next leader removes this member: the caller finds it and asks again.
            self.hand_over().await?;
            return Err(Error::NotLeader { leader: None });
        }
        if voters.contains(&id) {
            self.change_membership(Members::RemoveVoters(BTreeSet::from([id]))).await?;
        } else {
            self.change_membership(Members::RemoveNodes(BTreeSet::from([id]))).await?;
        }
        self.peers.forget(id);
        info!(peer = id, n = nodes.len() - 1, "member removed");
        Ok(())
    }

    /// As the leader: makes the voter that lacks least the next leader, without the pause of an election that nobody
    /// planned.
    ///
    /// Errors: `LastMember` if there is no other voter, `TimedOut` if nobody else leads after a while.
    pub async fn hand_over(&self) -> Result<(), Error> {
        let members = self.members_seen();
        let others: Vec<_> = members.iter().filter(|m| m.voter && m.id != self.id).collect();
        let candidate = others
            .iter()
            .filter(|m| m.lag_entries.is_some())
            .min_by_key(|m| m.lag_entries)
            .ok_or(Error::LastMember)?
            .id;
        self.hand_over_to(candidate).await
    }

    /// The same for a voter of the caller's choice. One that lacks entries is not elected: then the others elect.
    pub async fn hand_over_to(&self, candidate: u64) -> Result<(), Error> {
        let members = self.members_seen();
        let others: Vec<_> = members.iter().filter(|m| m.voter && m.id != self.id).collect();
        let (leader, term) = self.leader();
        if leader != Some(self.id) {
            return Ok(());
        }
        // Voters keep to a leader that they heard lately and would refuse the candidate: this vote releases them.
        let vote = Vote::new(term + 1, candidate);
        for other in others.iter().filter(|m| m.id != candidate) {
            if let Err(err) = self.peers.ask(other.id, &Yield(vote)).await {
                debug!(peer = other.id, err = %Chain(&err), "a member was not told of the hand-over");
            }
        }
        self.yield_to(vote).await?;
        self.peers.ask(candidate, &Stand(())).await?;
        let mut metrics = self.raft.server_metrics();
        let led = metrics.wait_for(|m| m.current_leader.is_some_and(|leader| leader != self.id));
        tokio::time::timeout(HAND_OVER_TIMEOUT, led).await.map_err(|_| Error::TimedOut)?.map_err(|_| Error::Closed)?;
        info!(peer = candidate, "leadership handed over");
        Ok(())
    }

    /// Votes for the candidate of a hand-over, although the leader was heard a moment ago. An append carries the vote:
    /// one that no log can take, so that it changes nothing else. It grants no more than RequestVote would, as the
    /// candidate still has to ask, and its log is judged then.
    pub async fn yield_to(&self, vote: Vote<u64>) -> Result<(), Error> {
        let nowhere =
            LogId::new(CommittedLeaderId::new(vote.leader_id().term, vote.leader_id().node_id), u64::MAX >> 1);
        let request = AppendEntriesRequest::<TypeConfig> {
            vote,
            prev_log_id: Some(nowhere),
            entries: Vec::new(),
            leader_commit: None,
        };
        self.raft.append_entries(request).await.map(drop).map_err(|_| Error::Closed)
    }
}

/// Keeps the group in shape until it stops: promotes learners that are up to date, ticks only while there are others.
pub async fn tend(node: Arc<Node>) {
    let mut metrics = node.raft.metrics();
    loop {
        let (several, promotable) = {
            let seen = metrics.borrow_and_update();
            let membership = seen.membership_config.membership();
            for (id, peer) in membership.nodes() {
                node.peers.suggest(*id, &peer.addr);
            }
            let voters: BTreeSet<u64> = membership.voter_ids().collect();
            let last = seen.last_log_index.unwrap_or(0);
            let close = |log: &Option<openraft::LogId<u64>>| {
                log.index().is_some_and(|index| last.saturating_sub(index) <= VOTER_LAG_MAX / 2)
            };
            let promotable = seen
                .replication
                .as_ref()
                .and_then(|all| all.iter().find(|(id, log)| !voters.contains(id) && close(log)).map(|(id, _)| *id));
            (membership.nodes().any(|(id, _)| *id != node.id), promotable)
        };
        // Alone there is nobody to hear a heartbeat or to win an election: no ticks, so that an idle store sleeps.
        node.raft.runtime_config().tick(several);
        if let Some(id) = promotable
            && let Err(err) = node.reshape(&Change::Promote { id }).await
        {
            debug!(peer = id, err = %Chain(&err), "learner not promoted");
            tokio::time::sleep(BUSY_PAUSE).await;
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}

/// Tells the leader where this member is, if the membership says something else; an address that changed is no event.
pub async fn announce(node: Arc<Node>) {
    let (mut metrics, mut moves) = (node.raft.server_metrics(), node.peers.moves());
    loop {
        let Some(own) = node.peers.own() else { return };
        let stale = {
            let seen = metrics.borrow_and_update();
            let nodes = seen.membership_config.membership();
            nodes.get_node(&node.id).is_some_and(|peer| *peer != own) && nodes.nodes().count() > 1
        };
        if stale {
            if let Err(err) = node.change(Change::Add { id: node.id, peer: own.clone() }).await {
                debug!(err = %Chain(&err), "this member's address is not told yet");
                tokio::time::sleep(STEP_TIMEOUT).await;
            }
            continue;
        }
        // Cancel safe: both are looked at anew.
        let changed = tokio::select! {
            changed = metrics.changed() => changed,
            changed = moves.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
