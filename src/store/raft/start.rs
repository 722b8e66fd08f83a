//! The start of Raft: its settings, and a member that is alone leads at once.

use std::sync::Arc;

use openraft::{Raft, SnapshotPolicy};

use crate::error::Error;
use crate::member::Bootstrap;
use crate::raft::last_contact;
use crate::raft::log::Log;
use crate::raft::machine::Machine;
use crate::raft::network::Ways;
use crate::raft::node::Node;
use crate::raft::types::TypeConfig;

/// Between signs of life of the leader. A call of a follower's log ends by then too, its fsync included, so a slow card
/// needs it long.
const HEARTBEAT_MILLIS: u64 = 500;
/// Entries between two looks at what may be purged from the log, and entries kept for members that were away for a
/// moment.
const PURGE_ENTRIES: (u64, u64) = (5000, 5000);

/// Starts openraft over the log; a cluster of its own begins with this member.
///
/// Errors: `Closed`, `Io`.
pub async fn raft(member: u64, bootstrap: Bootstrap, log: Log, ways: Ways) -> Result<Raft<TypeConfig>, Error> {
    let lease_millis = u64::try_from(last_contact::LEASE.as_millis()).map_err(Error::io("cannot start raft"))?;
    let config = openraft::Config {
        cluster_name: "kedge".to_owned(),
        // Only with others: `grow::tend` turns it on.
        enable_tick: false,
        heartbeat_interval: HEARTBEAT_MILLIS,
        // `election::keep` calls elections. Raft keeps to a leader for the longer of the two; a call for votes ends
        // after the shorter.
        enable_elect: false,
        election_timeout_min: lease_millis - HEARTBEAT_MILLIS,
        election_timeout_max: lease_millis,
        install_snapshot_timeout: HEARTBEAT_MILLIS * 10,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(PURGE_ENTRIES.0),
        max_in_snapshot_log_to_keep: PURGE_ENTRIES.1,
        replication_lag_threshold: PURGE_ENTRIES.0 * 2,
        ..openraft::Config::default()
    };
    let config = Arc::new(config.validate().map_err(Error::io("cannot start raft"))?);
    let machine = Machine { log: log.clone() };
    let own = ways.peers.own();
    let raft = Raft::new(member, config, ways, log, machine).await.map_err(Error::io("cannot start raft"))?;
    if bootstrap == Bootstrap::First && !raft.is_initialized().await.map_err(|_| Error::Closed)? {
        let members = std::collections::BTreeMap::from([(member, own.unwrap_or_default())]);
        raft.initialize(members).await.map_err(Error::io("cannot start raft"))?;
    }
    Ok(raft)
}

/// Says whether this member is the only one; then it leads when this returns.
pub async fn lead_if_alone(node: &Node) -> Result<bool, Error> {
    if node.raft.is_initialized().await.map_err(Error::io("cannot start raft"))? {
        let known =
            |metrics: &openraft::RaftMetrics<_, _>| metrics.membership_config.membership().nodes().next().is_some();
        node.raft.wait(None).metrics(known, "the membership is known").await.map_err(Error::io("cannot start raft"))?;
    }
    let only = {
        let metrics = node.raft.metrics();
        let metrics = metrics.borrow();
        let membership = metrics.membership_config.membership();
        membership.nodes().count() == 1 && membership.get_node(&node.id).is_some()
    };
    if !only {
        return Ok(false);
    }
    if node.raft.current_leader().await != Some(node.id) {
        node.raft.trigger().elect().await.map_err(Error::io("cannot start raft"))?;
    }
    node.raft
        .wait(None)
        .current_leader(node.id, "alone, this member leads")
        .await
        .map_err(Error::io("cannot start raft"))?;
    // The first entry of its term is applied: so is everything before it.
    let term = node.leader().1;
    node.applied_term_after(term.saturating_sub(1)).await?;
    Ok(true)
}
