//! The last contact with the leader and with each follower: what leader lease and election timeout go by.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use base::sync::Mutex;
use tokio::time::Instant;

/// A member that heard its leader keeps to it for so long, and votes for nobody else.
pub const LEASE: Duration = Duration::from_millis(2000);

/// A leader that heard no majority for so long counts as none: shorter than [`LEASE`], as then another may lead.
pub(super) const CERTAIN: Duration = Duration::from_millis(1750);

/// When the leader and the followers were heard last.
#[derive(Debug)]
pub struct LastContact {
    /// When a leader was heard, or this process began: it may have heard one just before.
    leader: Mutex<Instant>,
    /// When each follower was sent what it then answered well, and in which term.
    acks: Mutex<BTreeMap<u64, (u64, Instant)>>,
}

impl Default for LastContact {
    fn default() -> LastContact {
        LastContact { leader: Mutex::new(Instant::now()), acks: Mutex::default() }
    }
}

impl LastContact {
    /// Notes that a leader was heard.
    pub fn heard_leader(&self) {
        *self.leader.lock() = Instant::now();
    }

    /// How long no leader was heard.
    pub fn silence(&self) -> Duration {
        self.leader.lock().elapsed()
    }

    /// Notes that a follower took what the leader of `term` sent at `sent`.
    pub fn acknowledged(&self, by: u64, term: u64, sent: Instant) {
        let mut acks = self.acks.lock();
        let ack = acks.entry(by).or_insert((term, sent));
        *ack = (*ack).max((term, sent));
    }

    /// Whether a majority of the voters (of each of the two sets while they change) said lately that `own` leads in
    /// `term`.
    pub fn is_certain(&self, own: u64, term: u64, voters: &[BTreeSet<u64>]) -> bool {
        let acks = self.acks.lock();
        let fresh = |id: &u64| *id == own || acks.get(id).is_some_and(|ack| ack.0 == term && ack.1.elapsed() < CERTAIN);
        majority(voters, fresh)
    }
}

/// Whether more than half of each set say yes.
pub(super) fn majority(sets: &[BTreeSet<u64>], yes: impl Fn(&u64) -> bool) -> bool {
    !sets.is_empty() && sets.iter().all(|set| set.iter().filter(|id| yes(id)).count() * 2 > set.len())
}
