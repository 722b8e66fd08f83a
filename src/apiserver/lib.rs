//! This room serves the Kubernetes API: it takes HTTP requests, decides who asks and whether they may, and turns
//! them into reads, writes and watches of the store.
//!
//! In: requests from `wire` (network) and `client` (same process). Out: `store::Txn`, responses, watch streams.
//! It never knows what a kind means beyond what `schema`'s table says, and it never touches a node.
//!
//! The road of a request: [`serve`] → [`pipeline`] (stages) → `dispatch` → [`verbs`] (one file each) → [`objects`] →
//! [`cache`] and the store.

pub mod access;
pub mod admission;
pub mod aggregate;
pub mod arguments;
pub mod attributes;
pub mod audit;
pub mod authn;
pub mod authz;
pub mod bootstrap;
pub mod cache;
pub mod capabilities;
mod certificates;
mod compaction;
mod component_status;
pub mod config;
pub mod connect;
pub mod crypt;
pub mod custom;
mod dispatch;
mod documents;
mod endpoints;
pub mod exchange;
pub mod flow;
pub mod forms;
pub mod guards;
pub mod health;
pub mod heavy;
mod held;
pub mod impersonate;
pub mod info;
pub mod keys;
mod kinds;
pub mod lookup;
pub mod metrics;
mod narrow;
pub mod negotiate;
pub mod objects;
mod pages;
pub mod paths;
pub mod pipeline;
mod registrar;
pub mod respond;
pub mod serve;
mod server_leases;
pub mod services;
pub mod status;
pub mod stream;
mod strict;
pub mod trusted;
pub mod usage;
pub mod user;
pub mod verbs;
pub mod version;
pub mod virtuals;
mod warnings;
pub mod webhook;

#[cfg(test)]
mod fuzz_tests;

pub use config::Config;
pub use serve::ApiServer;
