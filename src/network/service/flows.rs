//! Which UDP flows conntrack would go on sending to the wrong place after a change.
//!
//! A flow stays as long as its endpoint serves, also when new clients are sent elsewhere: one that drains, or is farther away now.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use crate::service::rules::{ServiceRules, UdpTarget};

/// What conntrack must forget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stale {
    /// To this destination, answered by this endpoint, which is gone.
    pub(crate) endpoints: BTreeSet<(UdpTarget, SocketAddr)>,
    /// To this destination, translated by nobody: it had no endpoints when the flow began.
    pub(crate) untranslated: BTreeSet<UdpTarget>,
    /// To this destination, answered by anybody but these.
    pub(crate) strangers: BTreeMap<UdpTarget, BTreeSet<SocketAddr>>,
}

impl Stale {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Stale::default()
    }
}

/// After an update.
pub(crate) fn after_change(old: &ServiceRules, new: &ServiceRules) -> Stale {
    let (none, mut stale) = (BTreeSet::new(), Stale::default());
    for (target, before) in &old.udp {
        let serving = new.udp.get(target).map_or(&none, |answering| &answering.serving);
        stale.endpoints.extend(before.serving.difference(serving).map(|endpoint| (*target, *endpoint)));
    }
    for (target, after) in &new.udp {
        if !after.usable.is_empty() && old.udp.get(target).is_none_or(|before| before.usable.is_empty()) {
            stale.untranslated.insert(*target);
        }
    }
    stale
}

/// When nothing is known of what was before.
pub(crate) fn at_start(now: &ServiceRules) -> Stale {
    Stale { strangers: now.udp.iter().map(|(target, answering)| (*target, answering.serving.clone())).collect(), ..Stale::default() }
}
