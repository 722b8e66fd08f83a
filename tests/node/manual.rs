//! The commands of the user's manual: every `sh` block of its pages is run as it stands, on a node that has its things
//! in the places that the pages name.
//!
//! A block whose first line is `sh held=FILE` needs another machine, a service manager or a registry; FILE is the test
//! that does the same there (`tests/tidy/manual.rs` looks after that).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::harness::{Running, run_with, wait_for};
use crate::namespaces::NODE_IP;

/// Pages of the manual in reading order; each is a story of its own.
const PAGES: &[&str] = &[
    "quick-start",
    "networking",
    "storage",
    "registries",
    "backup",
    "certificates",
    "upgrade",
    "from-k3s",
    "troubleshooting",
    "networking-dataplane",
];

/// Folders that a node fills. Each is an empty one of its own, so that nothing of the machine is seen or changed.
const FOLDERS: &[&str] = &[
    "/etc/kedge",
    "/etc/rancher",
    "/usr/local/bin",
    "/var/lib/kedge",
    "/var/lib/kubelet",
    "/var/lib/cni",
    "/var/lib/rancher",
    "/var/log/pods",
    "/var/log/containers",
];

/// A node is ready, on a busy machine.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// Runs all pages on one node.
pub(crate) fn run(program: &Path) {
    for folder in FOLDERS {
        fs::create_dir_all(folder).unwrap();
        let said = run_with(Command::new("mount").args(["-t", "tmpfs", "tmpfs", folder]), "");
        assert_eq!(said.code, 0, "{said:?}");
    }
    std::os::unix::fs::symlink(program, "/usr/local/bin/kedge").unwrap();
    let home = tempfile::Builder::new().prefix("kedge-manual-").tempdir().unwrap();
    images(home.path());
    let log = fs::File::create(home.path().join("log")).unwrap();
    let mut server = Command::new("kedge");
    server.args(["server", "--node-name=n1"]).arg(format!("--node-ip={NODE_IP}")).env_remove("KUBECONFIG");
    server.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let server = Running(server.spawn().unwrap());
    let kubectl =
        |args: &[&str]| run_with(Command::new("kubectl").args(args).env("KUBECONFIG", "/etc/kedge/kedge.yaml"), "");
    wait_for("the node of the manual", READY_LIMIT, || {
        let said = kubectl(&["wait", "node/n1", "--for=condition=Ready", "--timeout=5s"]);
        if said.code == 0 {
            Ok(())
        } else {
            Err(format!("{}\n{}", said.err, fs::read_to_string(home.path().join("log")).unwrap()))
        }
    });
    // One page that fails does not hide the next.
    let failed: Vec<String> = PAGES.iter().filter_map(|page| story(page, home.path()).err()).collect();
    drop(server);
    assert!(failed.is_empty(), "pages of the manual whose commands fail:\n{}", failed.join("\n"));
}

/// Images that the pages name, made here: no registry is asked.
fn images(home: &Path) {
    let folder = Path::new("/var/lib/kedge/agent/images");
    fs::create_dir_all(folder).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/manual-images.sh");
    let said = run_with(Command::new("sh").arg(script).arg(folder).current_dir(home), "");
    assert_eq!(said.code, 0, "{said:?}");
}

/// Runs the blocks of one page in one shell. The error is the end of what they said.
fn story(page: &str, home: &Path) -> Result<(), String> {
    let text = fs::read_to_string(manual().join(format!("{page}.md"))).unwrap();
    let script = script_of(&text);
    assert!(!script.is_empty(), "{page}.md has no commands to run");
    let folder = home.join(page);
    fs::create_dir_all(&folder).unwrap();
    let mut shell = Command::new("timeout");
    shell.args(["300", "sh", "-eux", "-c", &script]).current_dir(&folder);
    shell.env("HOME", &folder).env_remove("KUBECONFIG").env_remove("KEDGE_CONFIG_FILE");
    let said = run_with(&mut shell, "");
    println!("   docs/{page}.md: {} lines of commands", script.lines().count());
    if said.code == 0 {
        return Ok(());
    }
    let lines: Vec<&str> = said.err.lines().collect();
    Err(format!("docs/{page}.md ended with {}:\n{}", said.code, lines[lines.len().saturating_sub(25)..].join("\n")))
}

fn manual() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs")
}

/// The lines of all blocks that open with "```sh" and nothing else.
fn script_of(page: &str) -> String {
    let mut script = String::new();
    let mut inside = false;
    for line in page.lines() {
        match (inside, line) {
            (false, "```sh") => inside = true,
            (true, "```") => inside = false,
            (true, line) => script.extend([line, "\n"]),
            (false, _) => {}
        }
    }
    script
}
