//! Everything that a pod's status is made of.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use crate::pods::desired::Cause;
use crate::pods::observed::Observed;
use crate::pods::resizing::Resizing;
use crate::probes::health::Health;

/// All that a status is made of.
pub(crate) struct Facts<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) observed: &'a Observed,
    pub(crate) health: &'a BTreeMap<String, Health>,
    /// Why containers wait, by name.
    pub(crate) waiting: &'a BTreeMap<String, Cause>,
    /// Set when the pod as a whole failed.
    pub(crate) failure: Option<&'a Cause>,
    /// The pod was ended and is about to go: it gets a phase that says so, whatever its restart policy.
    pub(crate) is_terminal: bool,
    pub(crate) resizing: &'a Resizing,
    /// The status published before, for times of transition.
    pub(crate) before: &'a PodStatus,
    pub(crate) host_ips: Vec<String>,
    pub(crate) runtime_name: &'a str,
    /// Whether the runtime makes mounts under a read-only one read-only too.
    pub(crate) recursive_read_only: bool,
    pub(crate) now: Timestamp,
}
