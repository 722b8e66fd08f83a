//! See ARCHITECTURE.md.

pub mod snapshot;
