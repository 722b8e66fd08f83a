//! This room keeps promises: each controller compares what is with what should be and takes the next step.
//!
//! In: objects from shared informers. Out: API requests, each as the controller's own service account. It never knows
//! how the API server stores anything, and no controller knows another.

pub mod registry;
pub mod settings;
pub mod signer;

mod adoption;

mod driver;
/// Which controllers run, by upstream's names.
mod names;

mod expectations;

mod history;

mod deployment;

mod replicaset;

mod endpointslice;

mod endpointslice_mirroring;

mod service_account;
mod service_cidr;
mod service_lb;

mod node;

mod discovery;

mod namespace;

mod pod_gc;

mod garbage;

mod job;

mod daemonset;

mod statefulset;

mod cronjob;

mod disruption;

mod quota;

mod hpa;

mod certificates;

mod secrets;

mod volume;

mod attach;
