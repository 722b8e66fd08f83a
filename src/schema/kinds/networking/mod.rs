//! The kinds of networking.k8s.io.

pub(crate) mod ingress;
pub(crate) mod ingress_class;
pub(crate) mod ip_address;
pub(crate) mod network_policy;
pub(crate) mod service_cidr;
