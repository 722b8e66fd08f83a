//! `metrics.k8s.io/v1beta1`: what nodes and pods use now, measured when somebody asks and never otherwise.
//!
//! [`page`] reads a kubelet's page of counters, [`history`] makes rates of two of them, [`meter`] asks, [`serve`]
//! answers requests,
//! [`document`] says what is served. An APIService that names a service (a genuine metrics-server) takes the group
//! over.

pub mod document;
pub mod history;
pub mod meter;
pub mod page;
pub mod serve;

/// The group.
pub const GROUP: &str = "metrics.k8s.io";
/// Its version.
pub const VERSION: &str = "v1beta1";
/// `groupPriorityMinimum` and `versionPriority`, as metrics-server's own manifest gives them.
pub const PRIORITY: (i64, i64) = (100, 100);
