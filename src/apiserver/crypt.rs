//! Encryption at rest: chosen resources are sealed on their way to the store and opened on their way back.

pub mod config;
pub mod kms;
pub mod rotate;
pub mod sealed;
pub mod shared;
