//! Several machines on one: servers and agents, each in namespaces of its own, on one bridge.
//!
//! Needs root, containerd and the static program that KEDGE_BIN names; without them it says so and does nothing.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test may fail; it measures real time and reads its environment"
)]

#[allow(dead_code, reason = "shared with tests/node, which uses all of it")]
#[path = "../node/namespaces.rs"]
mod namespaces;

mod agents;
mod asked;
mod dual;
mod history;
mod hosts;
mod life;
mod lost;
mod network;
mod quota;
mod servers;
mod six;

use base::sync::Mutex;
use std::path::{Path, PathBuf};

/// One after the other: each is many processes on two cores.
static TURN: Mutex<()> = Mutex::new(());

fn inside(test: &str, story: impl FnOnce(&Path)) {
    if std::env::var_os(namespaces::INSIDE).is_some() {
        story(&PathBuf::from(std::env::var_os("KEDGE_BIN").unwrap()));
        return;
    }
    let _turn = TURN.lock();
    match namespaces::what_is_missing() {
        Some(missing) => base::skips::say(&missing),
        None => namespaces::enter(test),
    }
}

#[test]
fn a_server_and_agents_behind_a_firewall() {
    inside("a_server_and_agents_behind_a_firewall", agents::run);
}

#[test]
fn a_cluster_of_ipv4_gets_ipv6() {
    inside("a_cluster_of_ipv4_gets_ipv6", dual::run);
}

#[test]
fn machines_with_ipv6_alone_need_no_tunnel() {
    inside("machines_with_ipv6_alone_need_no_tunnel", six::run);
}

#[test]
fn servers_lose_their_leaders_and_nothing_else() {
    inside("servers_lose_their_leaders_and_nothing_else", servers::run);
}

#[test]
fn the_last_of_three_servers_goes_on_alone_after_a_reset() {
    inside("the_last_of_three_servers_goes_on_alone_after_a_reset", lost::reset);
}

#[test]
fn two_servers_over_an_external_etcd_have_one_leader() {
    inside("two_servers_over_an_external_etcd_have_one_leader", lost::election);
}

#[test]
fn a_quota_is_not_passed_through_three_servers_at_once() {
    inside("a_quota_is_not_passed_through_three_servers_at_once", quota::run);
}
