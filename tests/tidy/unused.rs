//! Nothing is there that nobody uses: dependencies that no file of their crate names.

use std::collections::BTreeSet;

use crate::{files_below, none, read, rooms};

/// Dependencies that no file names, and why they are there: crate, dependency, reason.
const SILENT: &[(&str, &str, &str)] = &[];

/// The names that one section of a manifest lists.
fn listed(manifest: &str, wanted: &[&str]) -> BTreeSet<String> {
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line.trim();
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if wanted.contains(&section) && !name.is_empty() && !name.starts_with(['#', '[']) {
            found.insert(name.to_owned());
        }
    }
    found
}

/// Every crate of the workspace: its manifest, and the folders and files that are compiled with it.
fn crates() -> Vec<(String, Vec<String>)> {
    let rooms = rooms();
    let of_rooms = rooms.iter().map(|room| (format!("src/{room}/Cargo.toml"), files_below(&format!("src/{room}"))));
    let bench = "tests/bench/".to_owned();
    let in_a_room = |path: &str| rooms.iter().any(|room| path.starts_with(&format!("src/{room}/")));
    let of_root = files_below("src").into_iter().filter(|path| !in_a_room(path));
    let of_tests = files_below("tests").into_iter().filter(|path| !path.starts_with(&bench));
    let own = of_root.chain(of_tests).collect();
    let more = [(format!("{bench}Cargo.toml"), files_below(&bench)), ("Cargo.toml".to_owned(), own)];
    of_rooms.chain(more).collect()
}

/// Code names a crate by a path, a `use` or an `extern crate`; comments do not count.
fn names(code: &str, dependency: &str) -> bool {
    let name = dependency.replace('-', "_");
    code.lines().map(|line| line.split("//").next().unwrap_or_default()).any(|line| {
        line.match_indices(&name).any(|(at, _)| {
            let before = line[..at].trim_end_matches(' ');
            let whole = !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            let after = line[at + name.len()..].trim_start();
            whole && (after.starts_with("::") || (before.ends_with("use") && after.starts_with([';', ' '])))
        })
    })
}

#[test]
fn every_dependency_is_used() {
    let sections = ["[dependencies]", "[dev-dependencies]", "[build-dependencies]"];
    let (mut unused, mut asked) = (Vec::new(), BTreeSet::new());
    for (manifest, files) in crates() {
        let code: Vec<String> = files.iter().filter(|path| path.ends_with(".rs")).map(|path| read(path)).collect();
        for dependency in listed(&read(&manifest), &sections) {
            let silent = SILENT.iter().any(|(of, name, _)| *of == manifest && *name == dependency);
            let used = code.iter().any(|code| names(code, &dependency));
            if used == silent {
                unused.push(format!("{manifest}: {dependency}"));
            }
            asked.insert(dependency);
        }
    }
    none("dependencies that no file names (or that need no exception any more)", &unused);
    let all = listed(&read("Cargo.toml"), &["[workspace.dependencies]"]);
    let nobody: Vec<String> = all.into_iter().filter(|name| !asked.contains(name)).collect();
    none("dependencies of the workspace that no crate asks for", &nobody);
}
