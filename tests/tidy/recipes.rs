//! The recipes of docs/recipes lead where they say: each file is there, and each word of code stands in a file that the
//! recipe names. Who moves or renames something that a recipe needs, mends the recipe.

use std::collections::BTreeSet;

use crate::{files_below, none, paths_named_in, read, root};

/// Words in backticks that are to be filled in by the reader, or belong to a library.
const NOT_OURS: [&str; 4] = ["NAME", "KEDGE_NAME", "K3S_NAME", "conflicts_with"];

/// Text of a file, or of all files below a folder.
fn text_of(path: &str) -> String {
    let path = path.trim_end_matches('/');
    if root().join(path).is_dir() { files_below(path).iter().map(|file| read(file)).collect() } else { read(path) }
}

/// Names in a piece of code: `Plan::of` has two, `start(&Context)` too. None in a command, a path or a format.
fn names_in(code: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if !code.contains(|c: char| c.is_ascii_alphabetic()) || code.contains([' ', '/', '-', '.', '=', '{']) {
        return Vec::new();
    }
    code.split(|c| !is_word(c)).filter(|name| !name.is_empty()).collect()
}

#[test]
fn recipes_name_what_is_there() {
    let mut missing = Vec::new();
    for recipe in files_below("docs/recipes") {
        let text = read(&recipe);
        let named: BTreeSet<String> =
            paths_named_in(&text).into_iter().filter(|path| root().join(path).exists()).collect();
        assert!(named.len() > 1, "{recipe} names no files");
        let code: String = named.iter().map(|path| text_of(path)).collect();
        let words: BTreeSet<&str> = code.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).collect();
        for name in text.split('`').skip(1).step_by(2).flat_map(names_in) {
            if !words.contains(name) && !NOT_OURS.contains(&name) {
                missing.push(format!("{recipe}: {name}"));
            }
        }
    }
    none("words of a recipe that stand in no file which it names: follow the recipe, and mend it", &missing);
}

#[test]
fn recipes_call_targets_of_make() {
    let makefile = read("Makefile");
    let mut missing = Vec::new();
    for recipe in files_below("docs/recipes").into_iter().chain(["CONTRIBUTING.md".to_owned()]) {
        for code in read(&recipe).split('`').skip(1).step_by(2) {
            let Some(target) = code.strip_prefix("make ").and_then(|rest| rest.split_whitespace().next()) else {
                continue;
            };
            if !makefile.lines().any(|line| line.strip_prefix(target).is_some_and(|rest| rest.starts_with(':'))) {
                missing.push(format!("{recipe}: {code}"));
            }
        }
    }
    none("targets of make that a document calls and nobody has", &missing);
}
