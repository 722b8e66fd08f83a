//! The three patches.
