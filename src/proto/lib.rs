//! Messages of wire protocols that no crate offers in the form needed here: etcd's v3 API, and key management plugins.
//!
//! In: nothing. Out: prost structs and the paths of the calls. It never knows what Kubernetes is.

pub mod etcd;
mod etcd_cluster;
pub mod kms;
