//! Which UDP flows conntrack would go on sending to the wrong place after a change.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use crate::service::rules::{ServiceRules, UdpTarget};

/// A kind of flow to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StaleFlow {
    /// To this destination, answered by this endpoint, which is gone.
    Endpoint { target: UdpTarget, endpoint: SocketAddr },
    /// To this destination, translated by nobody: it had no endpoints when the flow began.
    Untranslated { target: UdpTarget },
}

/// What conntrack must forget after an update.
pub(crate) fn stale_flows(old: &ServiceRules, new: &ServiceRules) -> BTreeSet<StaleFlow> {
    let (none, mut stale) = (BTreeSet::new(), BTreeSet::new());
    for (target, before) in &old.udp {
        let after = new.udp.get(target).unwrap_or(&none);
        stale.extend(before.difference(after).map(|endpoint| StaleFlow::Endpoint { target: *target, endpoint: *endpoint }));
    }
    for (target, after) in &new.udp {
        if !after.is_empty() && old.udp.get(target).is_none_or(BTreeSet::is_empty) {
            stale.insert(StaleFlow::Untranslated { target: *target });
        }
    }
    stale
}
