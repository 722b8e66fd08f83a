//! Messages of wire protocols that no crate offers in the form needed here: etcd's v3 API, key management plugins,
//! and what a node's plugins (drivers of volumes, device plugins) speak.
//!
//! In: nothing. Out: prost structs and the paths of the calls. It never knows what Kubernetes is.

pub mod csi;
pub mod etcd;
mod etcd_cluster;
pub mod kms;
pub mod plugins;

#[cfg(test)]
mod spec_tests;
#[cfg(test)]
mod tests;
