//! Cluster IPs and node ports: [`allocator`] gives them out one service at a time, by what [`ledger`] says is taken.

mod addresses;
pub mod allocator;
mod assign;
mod families;
pub mod ledger;
mod ranges;
pub mod upgrade;

pub use addresses::nth_address;
