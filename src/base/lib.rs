//! The ground floor: time, chance, tasks, bounds, files, secrets. Everything stands on it.
//!
//! In: nothing. Out: small values and handles. It never knows what Kubernetes is.

pub mod backoff;
pub mod chain;
pub mod clock_set;
pub mod confined;
pub mod cron;
pub mod exposition;
pub mod files;
pub mod flags;
pub mod fnv;
pub mod folder;
pub mod fuzz;
pub mod hex;
pub mod layout;
pub mod limits;
pub mod metrics;
pub mod mounts;
pub mod owner;
pub mod permits;
pub mod ports;
pub mod program;
pub mod rng;
pub mod secret;
pub mod skips;
pub mod sync;
pub mod sys;
pub mod task;
pub mod time;
pub mod traces;
pub mod unicast;
pub mod unshared;
pub mod url;
pub mod version;

#[cfg(test)]
mod fuzz_tests;
