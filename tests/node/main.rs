//! A whole node with real containers, in namespaces of its own: network, mounts, processes. What it leaves behind, the
//! kernel takes away.
//!
//! Needs root, containerd and the static program that KEDGE_BIN names; without them it says so and does nothing.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may fail; it measures real time and reads its environment"
)]

#[allow(dead_code, reason = "shared with tests/it, which uses all of it")]
#[path = "../it/harness.rs"]
mod harness;

mod bare;
mod clients;
mod kills;
mod leftovers;
mod manual;
mod namespaces;
mod node;
mod plugins;
mod story;

use std::path::PathBuf;

/// One test, many chapters: a node is too dear to start for each.
#[test]
fn a_whole_node() {
    if std::env::var_os(namespaces::INSIDE).is_some() {
        story::run(&PathBuf::from(std::env::var_os("KEDGE_BIN").unwrap()));
        return;
    }
    match namespaces::what_is_missing() {
        Some(missing) => base::skips::say(&missing),
        None => namespaces::enter("a_whole_node"),
    }
}

/// The user's manual, on a node of its own.
#[test]
fn the_manual() {
    if std::env::var_os(namespaces::INSIDE).is_some() {
        manual::run(&PathBuf::from(std::env::var_os("KEDGE_BIN").unwrap()));
        return;
    }
    match namespaces::what_is_missing() {
        Some(missing) => base::skips::say(&missing),
        None => namespaces::enter("the_manual"),
    }
}
