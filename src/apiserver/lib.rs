//! This room serves the Kubernetes API: it takes HTTP requests, asks `authn`, `authz` and `admission`, and turns them
//! into reads, writes and watches of `registry`'s objects.
//!
//! In: requests from `wire` (network) and `client` (same process). Out: `store::Txn`, responses, watch streams.
//! It never knows what a kind means beyond what `schema`'s table says, and it never touches a node.
//!
//! The road of a request: [`serve`] → [`pipeline`] (stages) → `dispatch` → [`verbs`] (one file each) →
//! `registry` and the store.

pub mod access;
pub mod aggregate;
pub mod arguments;
pub mod audit;
pub mod bootstrap;
pub mod capabilities;
mod certificates;
mod compaction;
mod component_status;
pub mod config;
pub mod crypt;
pub mod custom;
mod dispatch;
mod documents;
mod endpoints;
pub mod exchange;
pub mod flow;
pub mod guards;
pub mod health;
pub mod heavy;
mod held;
pub mod impersonate;
pub mod info;
mod kinds;
mod narrow;
mod pages;
pub mod paths;
pub mod pipeline;
pub mod respond;
pub mod serve;
mod server_leases;
pub mod stream;
pub mod usage;
pub mod verbs;
mod warnings;

#[cfg(test)]
mod fuzz_tests;

pub use config::Config;
pub use serve::ApiServer;
