//! The tree keeps its own rules: what ARCHITECTURE.md and the style promise is read off the files here, so that it
//! stays true.
#![allow(clippy::unwrap_used, reason = "a test that cannot read the tree has failed")]

#[path = "tidy/deny.rs"]
mod deny;
#[path = "tidy/floors.rs"]
mod floors;
#[path = "tidy/imports.rs"]
mod imports;
#[path = "tidy/language.rs"]
mod language;
#[path = "tidy/layout.rs"]
mod layout;
#[path = "tidy/manual.rs"]
mod manual;
#[path = "tidy/promises.rs"]
mod promises;
#[path = "tidy/recipes.rs"]
mod recipes;
#[path = "tidy/signatures.rs"]
mod signatures;
#[path = "tidy/unused.rs"]
mod unused;
#[path = "tidy/width.rs"]
mod width;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Lines of a file, tests and generated ones not counted.
const FILE_LINES_MAX: usize = 640;

/// Files that may be longer: path, day, why. Take a line away when its file is short again.
const LONG_FILES: &[(&str, &str, &str)] = &[];

/// Folders that say nothing about what is in them.
const EMPTY_NAMES: [&str; 4] = ["util", "common", "helpers", "types"];

/// Words that never land, split so that this file may be read by its own rule. The last three are where packages come
/// from: a build must not name a machine's mirror, nor its paths. The YAML parser's error shows its causes itself: as a
/// source it would be printed twice, so it is mapped by name.
const BANNED: [(&str, &str); 12] = [
    ("#[from] serde_sa", "phyr::Error"),
    ("todo", "!("),
    ("unimplemented", "!("),
    ("FIX", "ME"),
    ("#[ig", "nore"),
    ("unbounded", "_channel("),
    ("/wo", "rk/"),
    ("/ro", "ot/."),
    ("/ho", "me/"),
    ("crates", ".io/"),
    ("pypi", ".org"),
    ("npmjs", ".org"),
];

/// Files that may use kube's watcher itself: everybody else reads an informer. Path and why.
const WATCHERS: &[(&str, &str)] = &[
    ("tests/node/clients.rs", "drives kube-rs as its users do"),
    ("tests/cluster/history.rs", "checks what one watch brings, connection by connection"),
];

/// Rooms that work in folders which others can change: there, files are touched through `base::confined` alone.
const CONFINED: [&str; 7] = [
    "src/kubelet",
    "src/cni",
    "src/commands/cleanup",
    "src/commands/snapshot",
    "src/server/away.rs",
    "src/cluster/snapshot",
    "src/commands/local_path.rs",
];

/// Calls that go by a path: whoever can rename a part of it chooses what they touch.
const BY_PATH: [&str; 17] = [
    "fs::read(",
    "fs::read_to_string(",
    "fs::write(",
    "fs::remove_dir_all(",
    "fs::read_dir(",
    "fs::set_permissions(",
    "fs::rename(",
    "fs::copy(",
    "fs::create_dir_all(",
    "fs::remove_file(",
    "fs::remove_dir(",
    "fs::hard_link(",
    "File::open(",
    "File::create(",
    "OpenOptions::",
    "fs::chown(",
    "fs::lchown(",
];

/// Calls of those rooms that may go by a path, by file, and why nobody else can change it.
const TRUSTED_PATHS: &[(&str, &[&str], &str)] = &[
    ("src/commands/cleanup/mod.rs", &["fs::read(", "fs::read_to_string(", "fs::read_dir("], "/proc of the kernel"),
    (
        "src/commands/cleanup/attachments.rs",
        &["fs::read_to_string(", "fs::read_dir(", "fs::remove_file("],
        "/proc, /var/lib/cni of root, and what root's runtimes have in /run",
    ),
    (
        "src/commands/cleanup/owned.rs",
        &["fs::read_to_string(", "fs::read_dir("],
        "/proc and /etc of root; names only, removed by descriptors",
    ),
    (
        "src/commands/cleanup/uninstall.rs",
        &["fs::read_to_string(", "fs::read_dir(", "fs::remove_file(", "fs::remove_dir(", "fs::remove_dir_all("],
        "/etc, the record of install.sh, control groups, systemd's notes in /run; names only, removed by descriptors",
    ),
    (
        "src/cluster/snapshot.rs",
        &[
            "fs::read(",
            "fs::read_dir(",
            "fs::set_permissions(",
            "fs::rename(",
            "fs::remove_file(",
            "File::open(",
            "OpenOptions::",
        ],
        "the data folder and its snapshots, root's alone (0700)",
    ),
    (
        "src/cni/host_local.rs",
        &[
            "fs::read_to_string(",
            "fs::write(",
            "fs::read_dir(",
            "fs::rename(",
            "fs::create_dir_all(",
            "fs::remove_file(",
        ],
        "addresses given, in the data folder",
    ),
    ("src/cni/netlink.rs", &["fs::write(", "File::open("], "/proc/sys, and network namespaces that containerd names"),
    ("src/cni/portmap.rs", &["fs::write("], "/proc/sys"),
    (
        "src/kubelet/admin_file.rs",
        &["OpenOptions::"],
        "the door for files of the administrator: it refuses what lies where containers write",
    ),
    ("src/kubelet/alarm.rs", &["fs::write(", "File::open(", "OpenOptions::"], "/proc/pressure and /sys/fs/cgroup"),
    (
        "src/kubelet/cgroups.rs",
        &["fs::read_to_string(", "fs::write(", "fs::read_dir(", "fs::create_dir_all(", "fs::remove_dir("],
        "/sys/fs/cgroup",
    ),
    (
        "src/kubelet/cgroups/slices.rs",
        &["fs::remove_dir_all("],
        "systemd's notes of slices that are gone, in a folder of root's below /run",
    ),
    ("src/kubelet/config.rs", &["fs::create_dir_all("], "folders made at the start, before any pod"),
    (
        "src/kubelet/csi/data.rs",
        &["fs::read_dir(", "fs::create_dir_all(", "fs::remove_file(", "fs::remove_dir("],
        "folders that the kubelet makes for drivers, which are root",
    ),
    (
        "src/kubelet/csi/mount.rs",
        &["fs::create_dir_all(", "fs::remove_file("],
        "folders that the kubelet makes for drivers, which are root",
    ),
    (
        "src/kubelet/csi/unmount.rs",
        &["fs::read_dir(", "fs::remove_file(", "fs::remove_dir("],
        "folders that the kubelet makes for drivers, which are root",
    ),
    ("src/kubelet/devices/mod.rs", &["fs::read_dir(", "fs::remove_file("], "sockets of plugins, names only"),
    ("src/kubelet/kernel.rs", &["fs::read_to_string("], "/proc/sys"),
    ("src/kubelet/machine.rs", &["fs::read_to_string(", "fs::read_dir("], "/proc and /sys"),
    ("src/kubelet/manager.rs", &["fs::read_dir("], "names in the kubelet's folder of pods"),
    ("src/kubelet/plugins/mod.rs", &["fs::read_dir("], "sockets of plugins, names only"),
    (
        "src/kubelet/preload.rs",
        &["fs::read_to_string(", "fs::read_dir(", "File::open("],
        "archives that the administrator puts into the data folder",
    ),
    ("src/kubelet/providers.rs", &["fs::read_to_string(", "fs::read_dir("], "configuration of the administrator"),
    ("src/kubelet/register.rs", &["fs::read_to_string("], "/proc, /sys and /etc/os-release"),
    ("src/kubelet/registries/follow.rs", &["fs::create_dir_all("], "configuration in the data folder"),
    (
        "src/kubelet/registries/hosts.rs",
        &["fs::read_to_string(", "fs::read_dir(", "fs::remove_file(", "fs::remove_dir("],
        "configuration in the data folder",
    ),
    ("src/kubelet/resolv.rs", &["fs::read_to_string("], "the node's resolv.conf"),
    (
        "src/kubelet/runtime/attachments.rs",
        &["fs::read(", "fs::read_dir(", "fs::read_to_string(", "fs::remove_file("],
        "/var/lib/cni, /run/netns and our own folders: root alone writes there",
    ),
    (
        "src/kubelet/runtime/cni_results.rs",
        &["fs::read(", "fs::read_dir(", "fs::remove_file("],
        "results that containerd keeps, root's alone",
    ),
    (
        "src/kubelet/runtime/containerd.rs",
        &[
            "fs::read(",
            "fs::read_to_string(",
            "fs::remove_dir_all(",
            "fs::create_dir_all(",
            "fs::remove_file(",
            "OpenOptions::",
        ],
        "containerd's folders and /proc",
    ),
    ("src/kubelet/runtime/drop_ins.rs", &["fs::read_dir("], "names in a folder of the administrator's"),
    ("src/kubelet/settings/file.rs", &["fs::read_dir("], "names in folders of the administrator's"),
    ("src/kubelet/runtime/settle.rs", &["fs::read(", "fs::read_dir("], "/proc"),
    (
        "src/kubelet/shelter.rs",
        &["fs::read_to_string(", "fs::write(", "fs::create_dir_all("],
        "/proc and /sys/fs/cgroup",
    ),
    (
        "src/kubelet/sources/manifests.rs",
        &["fs::read_dir(", "fs::create_dir_all(", "File::open("],
        "manifests of the administrator",
    ),
    ("src/kubelet/stats/metrics.rs", &["fs::read_to_string(", "fs::read_dir("], "/proc"),
    ("src/kubelet/stats/mod.rs", &["fs::read_to_string("], "/proc"),
    ("src/kubelet/stats/system.rs", &["fs::read_to_string("], "/proc"),
    ("src/kubelet/stats/read.rs", &["fs::read_to_string(", "fs::read_dir("], "/proc and /sys/fs/cgroup"),
    (
        "src/kubelet/volumes/host_path.rs",
        &["fs::create_dir_all(", "OpenOptions::"],
        "a path of the host that the pod's author may name with all its links",
    ),
    (
        "src/kubelet/volumes/image.rs",
        &["fs::create_dir_all("],
        "the volume's folder, in a pod's folder, before it is mounted",
    ),
    (
        "src/kubelet/worker/act.rs",
        &["fs::read_to_string(", "fs::write(", "fs::set_permissions(", "fs::create_dir_all("],
        "files in a pod's folder beside its volumes, bound one by one; names of links to logs",
    ),
    (
        "src/kubelet/worker/isolation.rs",
        &["fs::read(", "fs::read_dir(", "fs::create_dir_all("],
        "ranges of users, in a pod's folder beside its volumes",
    ),
    (
        "src/commands/local_path.rs",
        &["fs::set_permissions(", "fs::create_dir_all("],
        "a new volume's folder, before any pod has it",
    ),
    (
        "src/server/away.rs",
        &["fs::read_to_string(", "fs::remove_file("],
        "certificates of the administrator, and kedge's own temporary file",
    ),
];

/// Files that wait for programs by themselves, and why nothing waits for ever.
const WAITING: &[(&str, &str)] = &[
    ("src/base/program.rs", "the place itself"),
    ("src/kubelet/preload.rs", "ctr has a time limit of its own"),
    ("src/commands/containers.rs", "a person waits, and ends it"),
    ("src/schema/build.rs", "while the program is built"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file of ours below `dir`, by its path from the root.
fn files_below(dir: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut dirs = vec![root().join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                let not_ours = matches!(name.as_str(), ".git" | "target");
                dirs.extend((!not_ours).then_some(path));
            } else {
                found.push(path.strip_prefix(root()).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no files below {dir}");
    found
}

fn rust_files() -> Vec<String> {
    ["src", "tests"].iter().flat_map(|dir| files_below(dir)).filter(|path| path.ends_with(".rs")).collect()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|err| panic!("{path}: {err}"))
}

fn is_test(path: &str) -> bool {
    path.starts_with("tests/") || path.ends_with("tests.rs")
}

/// The room or folder that a file belongs to: `src/NAME`, `tests`, `docs` and so on; the root's own files are `.`.
fn room_of(path: &str) -> String {
    let mut parts = path.split('/');
    match (parts.next(), parts.next(), parts.next()) {
        (Some("src"), Some(room), Some(_)) => format!("src/{room}"),
        (Some(dir), Some(_), _) => dir.to_owned(),
        _ => ".".to_owned(),
    }
}

/// Fails with one line per finding.
fn none(rule: &str, found: &[String]) {
    assert!(found.is_empty(), "{rule}:\n  {}\n", found.join("\n  "));
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent: Vec<String> = rust_files().into_iter().filter(|path| !read(path).starts_with("//! ")).collect();
    none("files that do not open with `//! ` and a sentence", &silent);
}

#[test]
fn files_stay_short() {
    let allowed: BTreeSet<&str> = LONG_FILES.iter().map(|(path, ..)| *path).collect();
    let (mut long, mut short_again) = (Vec::new(), Vec::new());
    for path in rust_files().into_iter().filter(|path| !is_test(path) && !path.contains("/generated/")) {
        let lines = read(&path).lines().count();
        match (lines > FILE_LINES_MAX, allowed.contains(path.as_str())) {
            (true, false) => long.push(format!("{path}: {lines} lines, at most {FILE_LINES_MAX}")),
            (false, true) => short_again.push(path),
            _ => {}
        }
    }
    none("files over the budget", &long);
    none("files that need no exception any more", &short_again);
}

#[test]
fn folders_have_names_that_mean_something() {
    let bad = |path: &&String| {
        Path::new(path.as_str()).parent().unwrap().iter().any(|part| EMPTY_NAMES.iter().any(|name| part == *name))
    };
    let found: Vec<String> = files_below("src").iter().filter(bad).cloned().collect();
    none("folders called util, common, helpers or types", &found);
}

#[test]
fn no_folder_of_a_room_is_one_that_cargo_builds_by_itself() {
    // A room's library stands in its own folder, so files in these beside it are crates of their own, built with all
    // targets alone.
    let built = |path: &&String| {
        let mut parts = path.split('/').skip(2);
        matches!(parts.next(), Some("tests" | "benches")) && parts.next().is_some()
    };
    let found: Vec<String> = files_below("src").iter().filter(built).cloned().collect();
    none("files of a room that cargo takes for a crate of their own", &found);
}

#[test]
fn folders_of_others_are_touched_through_one_door() {
    // Not at the first `#[cfg(test)]`: an early one would leave the rest unread.
    let code = |path: &String| read(path).split("\nmod tests {").next().unwrap_or_default().to_owned();
    let calls = |path: String| {
        let code = code(&path);
        let found = BY_PATH.iter().filter(move |call| code.contains(**call));
        found.map(|call| format!("{path}: {call}")).collect::<Vec<_>>()
    };
    let in_rooms = |path: &String| CONFINED.iter().any(|room| path.starts_with(room)) && !is_test(path);
    let found: BTreeSet<String> = rust_files().into_iter().filter(in_rooms).flat_map(calls).collect();
    let allowed =
        TRUSTED_PATHS.iter().flat_map(|(path, calls, _)| calls.iter().map(move |call| format!("{path}: {call}")));
    let allowed: BTreeSet<String> = allowed.collect();
    none(
        "calls that go by paths: use base::confined, or say why nobody can change them",
        &(&found - &allowed).into_iter().collect::<Vec<_>>(),
    );
    none("calls that need no exception any more", &(&allowed - &found).into_iter().collect::<Vec<_>>());
}

#[test]
fn programs_that_are_called_have_a_deadline() {
    let waits = |path: &String| {
        let text = read(path);
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        let of_std =
            code.contains("std::process::Command") || code.contains("std::process::{") && code.contains("Command");
        of_std && [".output()", ".status()", ".wait_with_output()", ".wait()"].iter().any(|call| code.contains(call))
    };
    let found: BTreeSet<String> =
        files_below("src").into_iter().filter(|p| p.ends_with(".rs") && !is_test(p)).filter(waits).collect();
    let allowed: BTreeSet<String> = WAITING.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(
        found, allowed,
        "files that wait for a program without base::program (left), and those that may (right)"
    );
}

/// `make fuzz` runs what stands in modules of this name.
#[test]
fn every_fuzzer_stands_where_make_fuzz_finds_it() {
    let fuzzes = |path: &String| {
        let text = read(path);
        let named = path.ends_with("/fuzz_tests.rs") || path == "src/base/fuzz.rs" || text.contains("mod fuzz_tests {");
        !named && (text.contains("fuzz::rounds") || text.contains("rounds(ROUNDS"))
    };
    let lost: Vec<String> =
        files_below("src").into_iter().filter(|path| path.ends_with(".rs")).filter(fuzzes).collect();
    none("fuzzers that no long run finds: call their module fuzz_tests", &lost);
}

#[test]
fn banned_words_never_land() {
    let text = |path: &String| {
        [".rs", ".toml", ".sh", ".md", ".yaml", "Makefile", "run"].iter().any(|end| path.ends_with(end))
            && !path.contains("/generated/")
    };
    let mut found = Vec::new();
    for path in files_below(".").iter().filter(|path| text(path)) {
        let Ok(content) = fs::read_to_string(root().join(path)) else { continue };
        for (n, line) in content.lines().enumerate() {
            let hit = BANNED.iter().map(|(a, b)| format!("{a}{b}")).find(|word| line.contains(word.as_str()));
            found.extend(hit.map(|word| format!("{path}:{}: {word}", n + 1)));
        }
    }
    none("words that never land", &found);
}

/// A lock that knows no poison is `base::sync`'s; clippy refuses std's own by type.
#[test]
fn locks_are_those_of_base() {
    let own = |path: &String| path.starts_with("src/") && path != "src/base/sync.rs";
    let poison = |path: &String| read(path).contains("PoisonError");
    let found: Vec<String> = rust_files().into_iter().filter(own).filter(poison).collect();
    none("files that handle a poisoned lock themselves: use base::sync", &found);
}

/// The code that a test runs is the code that is shipped: a size or a time that tests want otherwise is a parameter.
#[test]
fn shipped_code_does_not_know_that_it_is_tested() {
    let mut found = Vec::new();
    for path in rust_files().iter().filter(|path| path.starts_with("src/") && !is_test(path)) {
        for (at, line) in read(path).lines().enumerate() {
            let word = line.trim_start();
            let indent = line.len() - word.len();
            let asks = (line.contains("cfg!(") && line.contains("test)"))
                || line.contains("cfg(not(test")
                || line.contains("cfg_attr(test");
            // A module, or one method of a type, that is there for tests is no part of what runs without them.
            let within = word.starts_with("#[cfg(test)]") && indent > 4;
            if asks || within {
                found.push(format!("{path}:{}: {word}", at + 1));
            }
        }
    }
    none("code that is another one in tests", &found);
}

#[test]
fn only_the_client_room_lists_and_watches() {
    let watches = |path: &String| {
        let text = read(path);
        text.contains("watcher::watch") || text.contains("runtime::watcher") || text.contains("WatchParams")
    };
    let expected: BTreeSet<String> = WATCHERS.iter().map(|(path, _)| (*path).to_owned()).collect();
    let found: BTreeSet<String> =
        rust_files().into_iter().filter(|path| path != "tests/tidy.rs").filter(watches).collect();
    assert_eq!(found, expected, "files that use kube's watcher (left), and those that may (right)");
    let query = |path: &String| ["client/", "apiserver/"].iter().all(|room| !path.starts_with(&format!("src/{room}")));
    let by_hand: Vec<String> = files_below("src")
        .into_iter()
        .filter(|path| path.ends_with(".rs") && query(path))
        .filter(|path| ["watch=true", "watch=1"].iter().any(|word| read(path).contains(word)))
        .collect();
    none("a list/watch written by hand", &by_hand);
}

/// The rooms that a manifest's `[dependencies]` names.
fn imports_of(manifest: &str, rooms: &BTreeSet<String>) -> BTreeSet<String> {
    let mut section = "";
    let mut found = BTreeSet::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            section = line;
        }
        let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
        if section == "[dependencies]" && rooms.contains(name) {
            found.insert(name.to_owned());
        }
    }
    found
}

fn rooms() -> BTreeSet<String> {
    let manifest = read("Cargo.toml");
    let members = manifest.split("members = [").nth(1).unwrap().split(']').next().unwrap();
    members.split('"').filter_map(|word| word.strip_prefix("src/")).map(str::to_owned).collect()
}

/// The import table of ARCHITECTURE.md: `| room | imports | must never know |`.
fn import_table() -> BTreeMap<String, BTreeSet<String>> {
    let text = read("ARCHITECTURE.md");
    let rows = text.lines().filter(|line| line.starts_with("| `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let imports =
            cells[2].split(',').map(|name| name.trim().trim_matches('`').to_owned()).filter(|name| name != "–");
        (cells[1].trim_matches('`').to_owned(), imports.collect())
    })
    .collect()
}

#[test]
fn the_import_table_is_what_the_manifests_say() {
    let rooms = rooms();
    let real: BTreeMap<String, BTreeSet<String>> =
        rooms.iter().map(|room| (room.clone(), imports_of(&read(&format!("src/{room}/Cargo.toml")), &rooms))).collect();
    assert_eq!(import_table(), real, "ARCHITECTURE.md (left) and [dependencies] (right)");
}

#[test]
fn every_member_is_a_room_with_a_face() {
    for room in rooms() {
        assert!(root().join(format!("src/{room}/lib.rs")).exists(), "src/{room}/lib.rs");
    }
}

/// Paths in backticks, relative to the root or to src/.
fn paths_named_in(text: &str) -> BTreeSet<String> {
    let ends = [".rs", ".toml", ".sh", ".md", ".yaml", ".tsv"];
    let in_ticks = text.split('`').skip(1).step_by(2);
    let words = in_ticks.flat_map(str::split_whitespace);
    // A bare name such as plan.rs is an example, not a place.
    let path = |word: &&str| {
        word.contains('/')
            && !word.starts_with('/')
            && !word.contains(['<', '*', '{'])
            && ends.iter().any(|end| word.ends_with(end))
    };
    // In commands of a shell, and in the mark of a block, a path stands behind one of these.
    let bare = words.filter_map(|word| word.rsplit(['=', '>']).next());
    bare.filter(path).map(str::to_owned).collect()
}

#[test]
fn files_named_in_the_documents_exist() {
    let documents = files_below("docs").into_iter().chain(["ARCHITECTURE.md", "CONTRIBUTING.md"].map(str::to_owned));
    let mut missing = Vec::new();
    for document in documents {
        let here: PathBuf = Path::new(&document).parent().unwrap().to_owned();
        for path in paths_named_in(&read(&document)) {
            let exists = [Path::new(""), Path::new("src"), here.as_path()]
                .iter()
                .any(|base| root().join(base).join(&path).exists());
            missing.extend((!exists).then(|| format!("{document}: {path}")));
        }
    }
    none("files that a document names and nobody has", &missing);
}

#[test]
fn tests_named_in_the_documents_exist() {
    let mut missing = Vec::new();
    for document in files_below("docs") {
        for word in read(&document).split('`').skip(1).step_by(2) {
            let of_the_tree = ["src/", "tests/"].iter().any(|dir| word.starts_with(dir));
            let Some((file, name)) = word.split_once(".rs::").filter(|_| of_the_tree) else { continue };
            let text = fs::read_to_string(root().join(format!("{file}.rs"))).unwrap_or_default();
            missing.extend((!text.contains(&format!("fn {name}("))).then(|| format!("{document}: {word}")));
        }
    }
    none("tests that a document names and nobody has", &missing);
}

/// Findings of reviews that a text names, as the table of docs/reviews.md writes them: `security C1`.
fn findings_in(text: &str) -> BTreeSet<String> {
    let is_finding =
        |word: &&str| word.starts_with(|c: char| "CHMLNSEF".contains(c)) && word[1..].parse::<u8>().is_ok();
    let mut found = BTreeSet::new();
    let mut words = text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let review = word.trim_start_matches(['(', '/']).to_lowercase();
        let review = review.trim_end_matches(".md");
        if !matches!(review, "security" | "security-2" | "security-3" | "node" | "semantics") {
            continue;
        }
        while let Some(next) = words.peek() {
            let finding = next.trim_end_matches([',', '.', ':', ';', ')']);
            found.extend(is_finding(&finding).then(|| format!("{review} {finding}")));
            if *next != "and" && !is_finding(&finding) {
                break;
            }
            words.next();
        }
    }
    found
}

#[test]
fn every_finding_that_a_comment_names_is_in_the_table_of_reviews() {
    let comments = |path: String| {
        read(&path).lines().filter_map(|line| line.split_once("//")).map(|(_, c)| findings_in(c)).collect::<Vec<_>>()
    };
    let named: BTreeSet<String> = rust_files().into_iter().flat_map(comments).flatten().collect();
    let table = read("docs/reviews.md");
    let rows: BTreeSet<String> =
        table.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next().map(str::to_owned)).collect();
    assert!(named.len() > 50, "comments are read: {named:?}");
    none("findings without a row in docs/reviews.md", &(&named - &rows).into_iter().collect::<Vec<_>>());
}

#[test]
fn features_of_dependencies_are_chosen_in_one_place() {
    let mut found = Vec::new();
    for room in rooms() {
        let path = format!("src/{room}/Cargo.toml");
        found
            .extend(read(&path).lines().filter(|line| line.contains("features")).map(|line| format!("{path}: {line}")));
    }
    none("features outside the root Cargo.toml", &found);
}
