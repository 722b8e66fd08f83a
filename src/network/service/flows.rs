//! Which UDP flows conntrack would go on sending to the wrong place after a change.
//!
//! A flow stays as long as its endpoint serves, also when new clients are sent elsewhere: one that drains, or is
//! farther away now.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use crate::service::rules::{Answering, ServiceRules, UdpTarget};

/// Flows that conntrack must forget. Many destinations share what answers them: a Service may have thousands of either.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stale {
    /// To this destination, answered by one of these endpoints, which are gone.
    pub(crate) endpoints: BTreeMap<UdpTarget, Arc<BTreeSet<SocketAddr>>>,
    /// To this destination, translated by nobody: it had no endpoints when the flow began.
    pub(crate) untranslated: BTreeSet<UdpTarget>,
    /// To this destination, answered by anybody who does not serve.
    pub(crate) strangers: BTreeMap<UdpTarget, Arc<Answering>>,
}

impl Stale {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Stale::default()
    }
}

/// After an update.
pub(crate) fn after_change(old: &ServiceRules, new: &ServiceRules) -> Stale {
    let (none, mut stale) = (Arc::<Answering>::default(), Stale::default());
    let mut known: BTreeMap<_, Arc<BTreeSet<SocketAddr>>> = BTreeMap::new();
    for (target, before) in &old.udp {
        let after = new.udp.get(target).unwrap_or(&none);
        let gone = || Arc::new(before.serving.difference(&after.serving).copied().collect());
        let gone = known.entry((Arc::as_ptr(before), Arc::as_ptr(after))).or_insert_with(gone);
        if !gone.is_empty() {
            stale.endpoints.insert(*target, Arc::clone(gone));
        }
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
    Stale { strangers: now.udp.clone(), ..Stale::default() }
}
