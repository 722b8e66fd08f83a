//! This room makes several machines one cluster: joining by token, the tunnels over which servers reach nodes, the
//! balancer over which nodes reach servers, snapshots, and the add-ons in a server's folder.
//!
//! In: tokens, certificates of `pki`, connections of `wire`. Out: a node's credentials and settings, and ways to it. It
//! never knows what a kubelet does with them.

pub mod protocol;

pub mod refusal;

pub mod join;

pub mod secrets;

pub mod members;

pub mod relay;

pub mod credentials;

pub mod identity;

pub mod names;

pub mod node_names;

mod turns;

mod checks;

pub mod supervisor;

pub mod node_files;

pub mod tunnel;

pub mod balancer;

pub mod snapshot;

pub mod s3;

pub mod addons;

pub mod helm;

#[cfg(test)]
mod fuzz_tests;
