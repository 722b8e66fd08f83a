//! This room serves the Kubernetes API: it takes HTTP requests, decides who asks and whether they may, and turns
//! them into reads, writes and watches of the store.
//!
//! In: requests from `wire` (network) and `client` (same process). Out: `store::Txn`, responses, watch streams.
//! It never knows what a kind means beyond what `schema`'s table says, and it never touches a node.

pub mod admission;
pub mod attributes;
pub mod authn;
pub mod authz;
pub mod lookup;
pub mod status;
pub mod user;
