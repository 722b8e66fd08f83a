//! A pod as its worker saw it last, for all other parts.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use crate::pods::observed::Observed;

/// The state of a pod that others may look at.
#[derive(Clone, Default)]
pub(crate) struct Snapshot {
    pub(crate) observed: Observed,
    pub(crate) status: PodStatus,
    /// Where its volumes lie.
    pub(crate) volumes: BTreeMap<String, std::path::PathBuf>,
    /// It was admitted, or something of it runs: its resources, ports and devices are no other's.
    pub(crate) holds: bool,
    /// The pod with the resources that it was granted; nothing before it was admitted.
    pub(crate) granted: Option<Arc<Pod>>,
    /// Since when a wish for more resources is deferred.
    pub(crate) deferred: Option<Timestamp>,
}
