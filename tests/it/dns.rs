//! Kedge's DNS beside genuine CoreDNS, built from its Go module: the same Corefile, the same rights, the same answers.

use std::path::PathBuf;
use std::process::Command;

use crate::harness::{Server, run_with};

/// The first build of CoreDNS takes minutes; Go keeps what it has built.
#[test]
fn genuine_coredns_swaps_in_with_the_same_corefile_and_rights_and_gives_the_same_answers() {
    let scripts = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients"));
    let mut server = Server::start();
    server.announce("will try again");
    // By hand: a build that is not static packages no DNS, since it cannot make its image.
    server.ok_with(&["apply", "-f", "-"], &manifest());
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

/// The packaged manifest with the values of a default cluster.
fn manifest() -> String {
    [
        ("%{CLUSTER_DNS}%", "10.43.0.10"),
        ("%{CLUSTER_DNS_LIST}%", "[10.43.0.10]"),
        ("%{CLUSTER_DNS_IPFAMILYPOLICY}%", "SingleStack"),
        ("%{CLUSTER_DOMAIN}%", "cluster.local"),
        ("%{DNS_IMAGE}%", "kedge.local/coredns:1"),
    ]
    .into_iter()
    .fold(include_str!("../../manifests/coredns.yaml").to_owned(), |text, (name, value)| text.replace(name, value))
}
