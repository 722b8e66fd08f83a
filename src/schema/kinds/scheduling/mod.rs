//! The kinds of scheduling.k8s.io.

pub(crate) mod pod_group;
pub(crate) mod priority_class;
pub(crate) mod workload;
