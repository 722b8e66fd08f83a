//! The container that a probe asks, and where its verdict goes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod};
use tokio::sync::watch;

use super::health::Shared;
use crate::node::Node;
use crate::pods::desired::Desired;
use crate::probes::counts::ProbeKey;
use crate::probes::health::Health;
use crate::probes::verdict::Verdict;

/// Which of the three.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Startup,
    Liveness,
    Readiness,
}

impl What {
    pub(super) fn title(self) -> &'static str {
        match self {
            What::Startup => "Startup",
            What::Liveness => "Liveness",
            What::Readiness => "Readiness",
        }
    }
}

/// The container that is probed.
pub(super) struct Target {
    pub(super) node: Arc<Node>,
    pub(super) pod: Arc<Pod>,
    pub(super) container: Container,
    pub(super) id: String,
    pub(super) ip: String,
    pub(super) field: String,
    pub(super) health: Shared,
    pub(super) wake: watch::Sender<Desired>,
    pub(super) started_at: jiff::Timestamp,
}

impl Target {
    pub(super) fn count(&self, what: What, verdict: &Verdict) {
        let result = match verdict {
            Verdict::Success | Verdict::Warning(_) => "successful",
            Verdict::Failure(_) => "failed",
            Verdict::Error(_) => "unknown",
        };
        let meta = &self.pod.metadata;
        let text = |s: &Option<String>| s.clone().unwrap_or_default();
        self.node.stats.probes.count(ProbeKey {
            namespace: text(&meta.namespace),
            pod: text(&meta.name),
            uid: text(&meta.uid),
            container: self.container.name.clone(),
            kind: what.title(),
            result,
        });
    }

    pub(super) fn health(&self) -> Option<Health> {
        let map = self.health.lock();
        map.get(&self.container.name).filter(|h| h.id == self.id).cloned()
    }

    /// Changes the verdict and wakes the pod's task if it is another one.
    pub(super) fn set(&self, change: impl FnOnce(&mut Health)) {
        let changed = {
            let mut map = self.health.lock();
            let Some(health) = map.get_mut(&self.container.name).filter(|h| h.id == self.id) else { return };
            let before = health.clone();
            change(health);
            *health != before
        };
        if changed {
            self.wake.send_modify(|_| {});
        }
    }
}
