//! Election timeout, leader lease and pre-vote. They replace openraft's own timers.
//!
//! Raft's own timer is not used: a member that was cut off would raise its term again and again, and depose the leader
//! when it is back. Here a member that hears no leader first asks the others whether they would vote for it, as etcd's
//! pre-vote does.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use openraft::LogId;
use tokio::time::Instant;
use tracing::{debug, info};

use crate::raft::last_contact::{CERTAIN, LEASE, majority};
use crate::raft::node::Node;
use crate::raft::rpc::Poll;

/// A leader that was not heard for this and a part of the next is missed.
const PATIENCE: Duration = Duration::from_millis(2250);
/// Drawn anew each time, so that two members seldom stand at once.
const PATIENCE_MORE_MILLIS: u64 = 750;
/// After others would not vote for this member, before it asks again.
const AGAIN_MILLIS: (u64, u64) = (200, 400);
/// An election is over by then, one way or the other.
const ELECTION: Duration = Duration::from_millis(1500);
/// How long a member's answer to the question is waited for.
const POLL_TIMEOUT: Duration = Duration::from_millis(1500);

// What every read of `is_me` relies on, and what keeps members from standing when nobody would vote for them.
const _: () = assert!(CERTAIN.as_millis() < LEASE.as_millis() && LEASE.as_millis() < PATIENCE.as_millis());

impl Node {
    /// The voters; two sets while they change.
    pub fn voters(&self) -> Vec<BTreeSet<u64>> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow();
        metrics.membership_config.membership().get_joint_config().clone()
    }

    /// Whether this member would vote for one whose log ends with `last`. It promises nothing.
    pub fn would_vote(&self, last: Option<LogId<u64>>) -> bool {
        let leadership = self.leadership();
        let misses_leader =
            if leadership.leader == Some(self.id) { !leadership.is_me } else { self.last_contact.silence() >= LEASE };
        misses_leader && last >= self.raft.data_metrics().borrow().last_log
    }

    /// Whether a majority would vote for this member. Asks all that it knows: the leader tells one that was let go.
    async fn would_win(&self) -> bool {
        let voters = self.voters();
        let others: BTreeSet<u64> = {
            let metrics = self.raft.server_metrics();
            let metrics = metrics.borrow();
            metrics.membership_config.membership().nodes().map(|(id, _)| *id).filter(|id| *id != self.id).collect()
        };
        let stands = voters.iter().any(|set| set.contains(&self.id));
        let mut for_it = BTreeSet::from([self.id]);
        if stands && majority(&voters, |id| for_it.contains(id)) {
            return true;
        }
        let poll = Poll(self.raft.data_metrics().borrow().last_log);
        let mut answers: FuturesUnordered<_> = others
            .into_iter()
            .map(|id| {
                let asked = tokio::time::timeout(POLL_TIMEOUT, self.peers.call(id, &poll));
                async move { (id, matches!(asked.await, Ok(Ok(true)))) }
            })
            .collect();
        while let Some((id, yes)) = answers.next().await {
            if yes {
                for_it.insert(id);
            }
            if stands && majority(&voters, |id| for_it.contains(id)) {
                return true;
            }
        }
        false
    }
}

/// Stands for election when the leader is missed and a majority would vote for this member; until Raft stops.
pub async fn keep(node: Arc<Node>, rng: Rng) {
    let mut metrics = node.raft.server_metrics();
    let (mut seen, mut moved) = (node.leader().1, Instant::now());
    loop {
        // Alone or in no group yet there is nobody to miss, and nothing to wake up for.
        if metrics.wait_for(|m| m.membership_config.membership().nodes().any(|(id, _)| *id != node.id)).await.is_err() {
            return;
        }
        let (leader, term) = node.leader();
        if leader == Some(node.id) {
            if node.leader_changed((leader, term)).await.is_err() {
                return;
            }
            continue;
        }
        if term != seen {
            // Somebody stands, maybe this member: that takes a moment.
            (seen, moved) = (term, Instant::now());
        }
        let patience = PATIENCE + Duration::from_millis(rng.below(PATIENCE_MORE_MILLIS));
        let sole = node.voters().iter().all(|set| set.len() == 1 && set.contains(&node.id));
        let left = patience.saturating_sub(node.last_contact.silence()).max(ELECTION.saturating_sub(moved.elapsed()));
        if !left.is_zero() && !sole {
            match tokio::time::timeout(left, node.leader_changed((leader, term))).await {
                Ok(Err(_)) => return,
                Ok(Ok(())) | Err(_) => continue,
            }
        }
        if !node.would_win().await {
            debug!(term, "the leader is missed, but no majority would vote for this member");
            tokio::time::sleep(Duration::from_millis(AGAIN_MILLIS.0 + rng.below(AGAIN_MILLIS.1))).await;
            continue;
        }
        info!(term, "the leader is missed: this member stands for election");
        if node.raft.trigger().elect().await.is_err() {
            return;
        }
        // Its own term tells that it stands. If nothing is seen of it, it is asked again.
        if let Ok(Err(_)) = tokio::time::timeout(ELECTION, node.leader_changed((leader, term))).await {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raft::last_contact::LastContact;

    #[test]
    fn a_leader_is_certain_while_a_majority_of_each_set_answered_lately_in_its_term() {
        let last_contact = LastContact::default();
        let (three, joint) =
            (vec![BTreeSet::from([1, 2, 3])], vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([1, 4, 5])]);
        assert!(!last_contact.is_certain(1, 7, &three));
        last_contact.acknowledged(2, 7, Instant::now());
        assert!(last_contact.is_certain(1, 7, &three));
        assert!(!last_contact.is_certain(1, 8, &three), "answers of another term");
        assert!(!last_contact.is_certain(1, 7, &joint));
        last_contact.acknowledged(4, 7, Instant::now());
        assert!(last_contact.is_certain(1, 7, &joint));
        assert!(last_contact.is_certain(9, 7, &[BTreeSet::from([9])]), "a sole voter needs nobody");
        assert!(!last_contact.is_certain(9, 7, &[]));
    }

    #[test]
    fn an_old_answer_counts_no_more_and_does_not_replace_a_newer_one() {
        let last_contact = LastContact::default();
        let voters = vec![BTreeSet::from([1, 2])];
        let Some(old) = Instant::now().checked_sub(CERTAIN) else { return };
        last_contact.acknowledged(2, 7, old);
        assert!(!last_contact.is_certain(1, 7, &voters));
        last_contact.acknowledged(2, 7, Instant::now());
        last_contact.acknowledged(2, 7, old);
        assert!(last_contact.is_certain(1, 7, &voters));
    }

    #[test]
    fn a_majority_is_more_than_half_of_each_set() {
        let sets = |sets: &[&[u64]]| sets.iter().map(|set| set.iter().copied().collect()).collect::<Vec<_>>();
        let yes = BTreeSet::from([1, 2]);
        for (voters, want) in [
            (&[&[1][..]][..], true),
            (&[&[3]], false),
            (&[&[1, 2, 3]], true),
            (&[&[1, 3]], false),
            (&[&[1, 2, 3, 4]], false),
            (&[&[1, 2, 3], &[2, 3]], false),
            (&[&[1, 2, 3], &[2]], true),
            (&[], false),
        ] {
            assert_eq!(majority(&sets(voters), |id| yes.contains(id)), want, "{voters:?}");
        }
    }
}
