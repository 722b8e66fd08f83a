//! This room speaks to the kernel's netfilter by netlink: nftables and the table of connections. No program is run.
//!
//! In: scripts in the language of nftables, of which it knows exactly the part that our rooms write. Out: one
//! transaction a script (all of it is in force, or nothing changed), and contents of the kernel's tables, as bytes. It
//! never knows what a Service or a pod is.
//!
//! The language is kept as our notation because `nft list` shows it, and because the program `nft` can then be the
//! oracle: the same text goes to both, and the kernel must hold the same (`differential_tests.rs`).

pub mod conntrack;
mod declaration;
mod elements;
mod error;
mod expression;
mod kinds;
pub mod look;
pub mod nft;
pub mod replay;
mod rule;
mod script;
mod selector;
mod socket;
mod wire;
mod words;

pub use crate::error::NetfilterError;
pub use crate::socket::is_ours;
pub use crate::wire::{Message, attributes, messages, put};

#[cfg(test)]
mod differential_tests;
#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod oracle;
