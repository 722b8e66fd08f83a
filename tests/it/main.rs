//! Black-box tests of the half that needs no containers: the real program, driven by the real kubectl.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may fail; it measures real time and reads its environment"
)]

mod access;
mod agents;
mod charts;
mod crash;
mod dns;
mod edits;
mod eio;
mod full_disk;
mod hardened;
mod harness;
mod kms;
mod objects;
mod outside;
mod people;
mod refusals;
mod settings;
mod snapshots;
mod status;
mod watching;
mod why;
mod workloads;
