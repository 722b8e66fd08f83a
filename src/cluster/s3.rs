//! Snapshots in a bucket of S3: put (large ones in parts), got, listed, deleted; nothing of them is held in memory.
//!
//! [`settings`] says which bucket, [`sign`] signs, [`xml`] reads answers, [`bucket`] asks.

pub mod bucket;
pub mod settings;
pub mod sign;
pub mod xml;

#[cfg(test)]
mod fake;

#[cfg(test)]
mod tests;
