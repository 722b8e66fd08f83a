//! The data folder's paths have one owner: `base::layout`.

use super::{files_below, is_test, none, read};

/// The owner, whose literals these are.
const OWNER: &str = "src/base/layout.rs";

/// How a literal part of the layout begins.
const PARTS: [&str; 9] = [
    "\"/var/lib/kedge",
    "\"/run/kedge",
    "\"/etc/kedge",
    "\"server/",
    "\"agent/",
    "join(\"server",
    "join(\"agent",
    "join(\"tls",
    "\"state.db",
];

/// Files that may have one of them: path and why.
const ALLOWED: &[(&str, &str)] = &[("src/store/mvcc/database.rs", "the store knows its files")];

#[test]
fn the_data_folder_is_known_to_its_layout_alone() {
    let mut found = Vec::new();
    for path in files_below("src").into_iter().filter(|path| path.ends_with(".rs") && !is_test(path) && path != OWNER) {
        if ALLOWED.iter().any(|(allowed, _)| *allowed == path) {
            continue;
        }
        let text = read(&path);
        let code = text.split("\nmod tests {").next().unwrap_or_default();
        for (at, line) in code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//")) {
            let part = PARTS.iter().find(|part| line.contains(**part));
            found.extend(part.map(|part| format!("{path}:{}: {part}", at + 1)));
        }
    }
    none("literal parts of the data folder: ask base::layout::Layout for the path, or give it a method", &found);
}
