//! Enemies, black-box: clients, nodes, joining machines and pods that want what is not theirs. One file per kind of
//! enemy.
//!
//! A test here stands for an entry of a review; its name says what must hold. Needs what tests/it and tests/node need.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may fail; it measures real time and reads its environment"
)]

#[allow(dead_code, reason = "shared with tests/it, which uses all of it")]
#[path = "../it/harness.rs"]
mod harness;
#[path = "../node/namespaces.rs"]
mod namespaces;
#[allow(dead_code, reason = "shared with tests/node, which uses all of it")]
#[path = "../node/node.rs"]
mod node;

mod clients;
mod connections;
mod fields;
mod install;
mod joining;
mod network;
mod pods;
mod rights;
mod roles;
mod volumes;
mod workloads;

use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use harness::{Place, Server};

/// Containers start and end within this on a busy machine.
pub(crate) const POD_LIMIT: Duration = Duration::from_secs(90);
/// The image that pods of these tests are made of.
pub(crate) const BUSYBOX: &str = "kedge.local/busybox:1";

/// The try of one enemy on a whole node: its name, and the function.
pub(crate) type Chapter = (&'static str, fn(&Server));

/// One node for all enemies that are pods: a node is too dear to start for each.
#[test]
fn pods_on_a_node_harm_nothing_but_themselves() {
    if std::env::var_os(namespaces::INSIDE).is_none() {
        match namespaces::what_is_missing() {
            Some(missing) => base::skips::say(&missing),
            None => namespaces::enter("pods_on_a_node_harm_nothing_but_themselves"),
        }
        return;
    }
    let program = PathBuf::from(std::env::var_os("KEDGE_BIN").unwrap());
    let flags = [format!("--node-ip={}", namespaces::NODE_IP), "--node-name=n1".to_owned()];
    let server = Server::start_in(Place::of_program(&program, &flags));
    server.until(&["get", "nodes", "-o", "name"], POD_LIMIT, |out| out == "node/n1\n");
    server.ok(&["wait", "node/n1", "--for=condition=Ready", "--timeout=90s"]);
    node::import_busybox(&server.place);
    // KEDGE_CHAPTER names the only chapters to tell, by a part of their names: for whoever works on one.
    let only = std::env::var("KEDGE_CHAPTER").unwrap_or_default();
    // A chapter that fails does not hide the next ones.
    let mut failed = Vec::new();
    for &(name, tell) in [volumes::CHAPTERS, pods::CHAPTERS, network::CHAPTERS, joining::CHAPTERS]
        .concat()
        .iter()
        .filter(|(name, _)| name.contains(&only))
    {
        let began = Instant::now();
        if std::panic::catch_unwind(AssertUnwindSafe(|| tell(&server))).is_err() {
            failed.push(name);
        }
        println!("-- {name}: {:.1} s", began.elapsed().as_secs_f32());
    }
    assert!(failed.is_empty(), "failed chapters: {failed:?}");
}
