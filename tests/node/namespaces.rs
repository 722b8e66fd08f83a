//! Namespaces for one test: the test program runs itself again inside of them.

use std::path::Path;
use std::process::{Command, Stdio};

/// Set for the program that runs inside.
pub(crate) const INSIDE: &str = "KEDGE_TEST_INSIDE";

/// The node's address inside.
pub(crate) const NODE_IP: &str = "10.200.0.2";

/// Makes the inside, and runs this program there. Not by exec: the first process of the namespace stays a shell, which
/// reaps orphans.
const ENTER: &str = concat!(
    include_str!("../machine.sh"),
    r#"
ip link add uplink type veth peer name uplink-peer
ip link set uplink up
ip link set uplink-peer up
ip address add NODE_IP/24 dev uplink
ip route add default via 10.200.0.1
"$0" "$@"
"#
);

/// The needs of a node that this machine lacks, in words.
pub(crate) fn what_is_missing() -> Option<String> {
    let Some(program) = std::env::var_os("KEDGE_BIN") else {
        return Some("KEDGE_BIN names no static kedge (make test sets it)".to_owned());
    };
    if !Path::new(&program).exists() {
        return Some(format!("KEDGE_BIN names {}, which is not there", Path::new(&program).display()));
    }
    let root = Command::new("id").arg("-u").output().unwrap().stdout == b"0\n";
    if !root {
        return Some("a node needs root".to_owned());
    }
    let lacking = |tool: &&&str| {
        !Command::new(tool)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    };
    ["containerd", "runc", "nft"].iter().find(lacking).map(|tool| format!("no {tool} on PATH"))
}

/// Runs `test` of this program inside, and fails if it fails. Everything inside ends with it.
pub(crate) fn enter(test: &str) {
    let script = ENTER.replace("NODE_IP", NODE_IP);
    let status = Command::new("unshare")
        .args([
            "--mount",
            "--propagation=private",
            "--net",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            &script,
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(INSIDE, "1")
        .env("MACHINE_ID", "1")
        .stdin(Stdio::null())
        .status()
        .unwrap();
    assert!(status.success(), "inside: {status}");
}
