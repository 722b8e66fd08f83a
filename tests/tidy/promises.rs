//! Promises of ARCHITECTURE.md, "Absent on purpose", that the files themselves show.

use crate::{files_below, is_test, none, read, rooms};

/// Places of unsafe code: the one of the program, and the disk of tests.
const UNSAFE: [&str; 2] = ["src/base/sys.rs", "src/store/faults/vfs.rs"];

/// Its channel carries nothing: its end is what is heard.
const NOTHING_IS_SENT: &str = "src/base/program.rs";

/// Rooms that make their own clock and seed: the group of all tasks does so for all others, and CNI plugins are
/// processes of their own.
const MAKES_TIME: [&str; 2] = ["src/base/", "src/cni/"];

/// Code of a file without the tests at its end.
fn code(path: &str) -> String {
    let text = read(path);
    text.split("\nmod tests {").next().unwrap_or_default().to_owned()
}

/// Each shipped Rust file below `dirs` that has one of `words`, with the word.
fn having(dirs: &[&str], words: &[&str]) -> Vec<String> {
    let files = dirs.iter().flat_map(|dir| match dir.ends_with(".rs") {
        true => vec![(*dir).to_owned()],
        false => files_below(dir),
    });
    let files = files.filter(|path| path.ends_with(".rs") && !is_test(path));
    let mut found = Vec::new();
    for path in files {
        let code = code(&path);
        found.extend(words.iter().filter(|word| code.contains(**word)).map(|word| format!("{path}: {word}")));
    }
    found
}

#[test]
fn unsafe_code_stands_in_one_file() {
    let mut found = having(&["src"], &["allow(unsafe_code", "    unsafe_code,"]);
    found.retain(|finding| UNSAFE.iter().all(|path| !finding.starts_with(path)));
    none("files that allow unsafe code: base::sys is the place, or a crate that has done it", &found);
    assert!(read("src/store/lib.rs").contains("#[cfg(test)]\nmod faults;"), "the disk of tests is in tests alone");
}

#[test]
fn rooms_are_handed_time_and_chance() {
    let rooms: Vec<String> = rooms().iter().map(|room| format!("src/{room}/")).collect();
    let handed: Vec<&str> = rooms.iter().map(String::as_str).filter(|room| !MAKES_TIME.contains(room)).collect();
    let mut found = having(&handed, &["Clock::system()", "Rng::from_os()"]);
    found.retain(|path| !path.contains("/examples/"));
    none("a room that makes its own clock or seed: take it from the group of its tasks, or as an argument", &found);
}

#[test]
fn queues_have_a_bound() {
    // clippy bans tokio's; the standard library's has no bound by default.
    let mut found = having(&["src"], &["std::sync::mpsc", "unbounded_channel"]);
    found.retain(|finding| !finding.starts_with(NOTHING_IS_SENT));
    none("channels without a bound: use tokio's with a constant that says what happens when it is full", &found);
}

#[test]
fn the_serving_path_has_no_typed_structs() {
    for room in ["schema", "registry", "authn", "authz", "admission", "apiserver", "store", "wire"] {
        let manifest = read(&format!("src/{room}/Cargo.toml"));
        assert!(!manifest.contains("k8s-openapi"), "{room} imports k8s-openapi: objects are data there");
    }
}

/// Files that serve every kind alike: a kind's own needs stand in its row.
const FOR_EVERY_KIND: [&str; 8] = [
    "src/apiserver/verbs/",
    "src/schema/behaviour.rs",
    "src/schema/convert/mod.rs",
    "src/schema/defaults/mod.rs",
    "src/schema/print/mod.rs",
    "src/schema/rows/",
    "src/schema/strategy/mod.rs",
    "src/schema/validate/mod.rs",
];

#[test]
fn a_kind_is_named_in_its_row_alone() {
    let table = read("src/schema/generated/table.tsv");
    let rows = table.lines().filter(|line| line.starts_with("R\t"));
    // Fields of objects are called like these, too.
    let fields = ["\"endpoints\"", "\"nodes\""];
    let names: Vec<String> = rows
        .flat_map(|line| line.split('\t').skip(3).take(2))
        .map(|name| format!("{name:?}"))
        .filter(|name| !fields.contains(&name.as_str()))
        .collect();
    assert!(names.len() > 150, "the table of resources was not read");
    let words: Vec<&str> = names.iter().map(String::as_str).collect();
    none(
        "code for every kind that names one: give the row (src/schema/behaviour.rs) a field",
        &having(&FOR_EVERY_KIND, &words),
    );
}

#[test]
fn raft_alone_knows_openraft() {
    let found = having(&["src/"], &["openraft::", "use openraft"]);
    let elsewhere: Vec<String> = found.into_iter().filter(|place| !place.starts_with("src/store/raft/")).collect();
    none("openraft's types outside of src/store/raft: journal and versions have types of their own", &elsewhere);
}
