//! Kedge's DNS beside genuine CoreDNS, built from its Go module: the same Corefile, the same rights, the same answers.

use std::path::PathBuf;
use std::process::Command;

use crate::harness::{Place, Server, run_with};

/// The first build of CoreDNS takes minutes; Go keeps what it has built.
#[test]
fn genuine_coredns_swaps_in_with_the_same_corefile_and_rights_and_gives_the_same_answers() {
    let scripts = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients"));
    let mut server = Server::start_in(Place::new(&[]));
    server.announce("will try again");
    server
        .until(&["-n", "kube-system", "get", "serviceaccount", "coredns"], crate::harness::SETTLE_LIMIT * 2, |_| true);
    let mut command = Command::new("sh");
    command
        .arg(scripts.join("coredns.sh"))
        .arg(env!("CARGO_BIN_EXE_kedge"))
        .env("KUBECONFIG", server.place.kubeconfig())
        .env("KUBECACHEDIR", server.place.path("kube-cache"));
    let said = run_with(&mut command, "");
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    match said.out.lines().find_map(|line| line.strip_prefix("skipped: ")) {
        Some(why) => base::skips::say(why),
        None => print!("{}", said.out),
    }
}
