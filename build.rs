//! Says from which commit the program is built, for `/version`. The same commit gives the same words, so a build can be
//! repeated: its date is SOURCE_DATE_EPOCH where that is set, else the commit's own.
#![allow(clippy::disallowed_methods, reason = "cargo and its callers speak to a build script by the environment")]

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=SOURCE_DATE_EPOCH");
    // What git writes when another commit is checked out or made.
    for name in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", name]) {
            println!("cargo:rerun-if-changed={path}");
        }
    }
    let commit = git(&["rev-parse", "HEAD"]);
    let tree = match git(&["status", "--porcelain", "--untracked-files=no"]) {
        _ if commit.is_none() => "unknown",
        Some(changes) if changes.is_empty() => "clean",
        _ => "dirty",
    };
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let date = given.or_else(|| git(&["log", "-1", "--format=%ct"])).and_then(|text| text.trim().parse::<u64>().ok());
    println!("cargo:rustc-env=KEDGE_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    println!("cargo:rustc-env=KEDGE_TREE={tree}");
    println!("cargo:rustc-env=KEDGE_BUILD_UNIX={}", date.unwrap_or(0));
}

/// The words of git; `None` without git, or outside of a repository of kedge's own.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
