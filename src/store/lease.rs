//! The lives of leases. Only the leader keeps their time; a new leader gives each its whole life again, as etcd's does.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::sync::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use tracing::{debug, warn};

use crate::command::Command;
use crate::error::Error;
use crate::mvcc::apply::Leases;
use crate::mvcc::shared::Shared;
use crate::propose::Proposer;
use crate::raft::node::Node;
use crate::raft::rpc::{KeepAlive, LeaseLeft};
use crate::txn::TxnReply;

/// After a lease could not be revoked, before the next try.
const RETRY: Duration = Duration::from_millis(500);

/// The leases of a store, and when they end, kept while this member leads.
pub struct Lessor {
    node: Arc<Node>,
    proposer: Proposer,
    table: Arc<Mutex<Leases>>,
    ends: Mutex<BTreeMap<u64, Instant>>,
    changed: Arc<Notify>,
}

impl Lessor {
    /// Over the leases in `shared`.
    pub fn new(node: Arc<Node>, proposer: Proposer, shared: &Shared) -> Lessor {
        let (table, changed) = (shared.leases.clone(), shared.leases_changed.clone());
        Lessor { node, proposer, table, ends: Mutex::default(), changed }
    }

    fn ends(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Instant>> {
        self.ends.lock()
    }

    /// Makes a lease that lives for `ttl_secs` unless it is kept alive.
    ///
    /// Errors: `LeaseExists`, `TimedOut`.
    pub async fn grant(&self, id: u64, ttl_secs: u64) -> Result<TxnReply, Error> {
        self.proposer.propose(Command::LeaseGrant { id, ttl_secs }).await
    }

    /// Ends a lease and deletes its keys, all at one revision.
    ///
    /// Errors: `LeaseNotFound`, `TimedOut`.
    pub async fn revoke(&self, id: u64) -> Result<TxnReply, Error> {
        self.proposer.propose(Command::LeaseRevoke { id }).await
    }

    /// Gives a lease its whole life again, and says how long that is in seconds.
    ///
    /// Errors: `LeaseNotFound`, `NotLeader` while there is no leader.
    pub async fn keep_alive(&self, id: u64) -> Result<u64, Error> {
        match self.node.leader().0 {
            Some(leader) if leader != self.node.id => {
                self.node.peers.ask(leader, &KeepAlive(id)).await?.map_err(Error::from)
            }
            _ => self.keep_alive_here(id),
        }
    }

    /// Seconds left of a lease's life.
    ///
    /// Errors: `LeaseNotFound`, `NotLeader` while there is no leader.
    pub async fn left(&self, id: u64) -> Result<i64, Error> {
        match self.node.leader().0 {
            Some(leader) if leader != self.node.id => {
                self.node.peers.ask(leader, &LeaseLeft(id)).await?.map_err(Error::from)
            }
            _ => self.left_here(id),
        }
    }

    /// The same as the leader.
    pub fn keep_alive_here(&self, id: u64) -> Result<u64, Error> {
        let ttl_secs = self.led_lease(id)?;
        self.ends().insert(id, Instant::now() + Duration::from_secs(ttl_secs));
        Ok(ttl_secs)
    }

    /// The same as the leader.
    pub fn left_here(&self, id: u64) -> Result<i64, Error> {
        let ttl_secs = self.led_lease(id)?;
        let end = self.ends().get(&id).copied();
        let left = end.map_or(ttl_secs, |end| end.saturating_duration_since(Instant::now()).as_secs());
        Ok(i64::try_from(left).unwrap_or(i64::MAX))
    }

    fn led_lease(&self, id: u64) -> Result<u64, Error> {
        if self.node.leader().0 != Some(self.node.id) {
            return Err(Error::NotLeader { leader: None });
        }
        self.all()
            .into_iter()
            .find(|(lease, _)| *lease == id)
            .map(|(_, ttl_secs)| ttl_secs)
            .ok_or(Error::LeaseNotFound { id })
    }

    /// The keys that hang on a lease.
    ///
    /// Errors: `LeaseNotFound`.
    pub fn keys(&self, id: u64) -> Result<Vec<bytes::Bytes>, Error> {
        let leases = self.table.lock();
        leases.get(&id).map(|lease| lease.keys.iter().cloned().collect()).ok_or(Error::LeaseNotFound { id })
    }

    /// The leases that live: id and whole life in seconds.
    pub fn all(&self) -> Vec<(u64, u64)> {
        self.table.lock().iter().map(|(id, lease)| (*id, lease.ttl_secs)).collect()
    }
}

/// Ends leases whose time is over, for as long as the store lives.
pub async fn keep_time(lessor: Arc<Lessor>) {
    let mut led_term = None;
    loop {
        let (leader, term) = lessor.node.leader();
        if leader != Some(lessor.node.id) {
            led_term = None;
            lessor.ends().clear();
            if lessor.node.leader_changed((leader, term)).await.is_err() {
                return;
            }
            continue;
        }
        if led_term.replace(term) != Some(term) {
            lessor.ends().clear();
        }
        let next = note(&lessor);
        let expire = async {
            match next {
                Some((id, end)) => {
                    tokio::time::sleep_until(end).await;
                    id
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            id = expire => end(&lessor, id).await,
            () = lessor.changed.notified() => {}
            changed = lessor.node.leader_changed((leader, term)) => if changed.is_err() {
                return;
            },
        }
    }
}

/// Gives new leases their end, forgets those that are gone, and says which one ends first.
fn note(lessor: &Lessor) -> Option<(u64, Instant)> {
    let living: BTreeMap<u64, u64> = lessor.all().into_iter().collect();
    let mut ends = lessor.ends();
    ends.retain(|id, _| living.contains_key(id));
    for (id, ttl_secs) in living {
        ends.entry(id).or_insert_with(|| Instant::now() + Duration::from_secs(ttl_secs));
    }
    ends.iter().map(|(id, end)| (*id, *end)).min_by_key(|(_, end)| *end)
}

async fn end(lessor: &Lessor, id: u64) {
    let over = lessor.ends().get(&id).is_some_and(|end| *end <= Instant::now());
    if !over {
        return;
    }
    match lessor.revoke(id).await {
        Ok(_) | Err(Error::LeaseNotFound { .. }) => debug!(id, "lease is over"),
        Err(err) => {
            warn!(id, err = %Chain(&err), "a lease that is over could not be revoked yet");
            tokio::time::sleep(RETRY).await;
        }
    }
}
