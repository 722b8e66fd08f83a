//! The rows of the table of settings, by what they are about.

pub(super) mod eviction;
pub(super) mod images;
pub(super) mod logging;
pub(super) mod naming;
pub(super) mod pods;
pub(super) mod resources;
pub(super) mod serving;
