//! The program `nft` as the oracle of this room, in tests: it gets the same script in another network namespace, and
//! lists what the kernel holds in both.
//!
//! Rooms that write scripts have this file in their tests by its path.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// Why nothing can be compared here: namespaces need root, and the oracle must be installed.
pub(crate) fn lacks() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("network namespaces need root");
    }
    let version = base::program::output(Command::new("nft").arg("--version"), b"", LIMIT);
    if !version.is_ok_and(|output| output.status.success()) {
        return Some("no nft on PATH");
    }
    let unshared = std::thread::spawn(|| nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).is_ok());
    if unshared.join().unwrap() { None } else { Some("no network namespaces here") }
}

/// Looked at once.
static LACKS: std::sync::LazyLock<Option<&str>> = std::sync::LazyLock::new(lacks);

/// Runs something in a network namespace of its own.
pub(crate) fn apart<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> T {
    let inside = move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        run()
    };
    std::thread::spawn(inside).join().unwrap()
}

/// Output of nft in this namespace.
pub(crate) fn nft(args: &[&str], script: &str) -> String {
    let output = base::program::output(Command::new("nft").args(args), script.as_bytes(), LIMIT).unwrap();
    assert!(output.status.success(), "nft {args:?}: {}\n{script}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The objects of this namespace's tables, without what is different each time.
pub(crate) fn listed() -> Vec<String> {
    let mut document: Value = serde_json::from_str(&nft(&["-j", "list", "ruleset"], "")).unwrap();
    let objects = document["nftables"].as_array_mut().unwrap();
    objects.iter_mut().for_each(strip);
    objects.iter().filter(|object| object.get("metainfo").is_none()).map(Value::to_string).collect()
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("handle");
            fields.remove("expires");
            fields.values_mut().for_each(strip);
        }
        // The order of a set's elements is that of a hash with a seed.
        Value::Array(all) => {
            all.iter_mut().for_each(strip);
        }
        _ => {}
    }
    for field in ["elem", "set"] {
        if let Some(Value::Array(all)) = value.get_mut(field) {
            all.sort_by_key(Value::to_string);
        }
    }
}

/// Has the oracle and `apply` each put these scripts into a namespace, one after the other, and holds what is there
/// then against each other.
pub(crate) fn compare(scripts: &[String], apply: impl Fn(&str) + Send + 'static) {
    if let Some(why) = *LACKS {
        println!("not held against nft: {why}");
        return;
    }
    let (theirs, ours) = (scripts.to_vec(), scripts.to_vec());
    let wanted = apart(move || {
        theirs.iter().for_each(|script| drop(nft(&["-f", "-"], script)));
        listed()
    });
    let have = apart(move || {
        ours.iter().for_each(|script| apply(script));
        listed()
    });
    assert_eq!(wanted.len(), have.len(), "as many objects:\n{}\n\n{}", wanted.join("\n"), have.join("\n"));
    for (wanted, have) in wanted.iter().zip(&have) {
        assert_eq!(have, wanted, "of\n{}", scripts.concat());
    }
}
