//! This room keeps the API's objects between requests and the store: what is asked for (attributes, user), what is
//! answered (status, media types), and reading, writing and watching objects (caches, conversion, webhooks' calls).
//!
//! In: keys and objects of `schema`'s kinds. Out: `store::Txn`, objects in the version that was asked for, `Status`. It
//! never decides who may do what.

pub mod attributes;
pub mod cache;
pub mod catalogs;
pub mod connect;
pub mod conversion;
pub mod forms;
pub mod keys;
pub mod lookup;
pub mod memory;
pub mod metrics;
pub mod negotiate;
pub mod objects;
mod process;
pub mod registrar;
pub mod selection;
pub mod services;
pub mod status;
pub mod strict;
pub mod trail;
pub mod trusted;
pub mod user;
pub mod version;
pub mod virtuals;
pub mod webhook;
