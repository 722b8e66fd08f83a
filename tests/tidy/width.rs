//! Width: lines of code and prose have at most 120 characters. rustfmt breaks code, and nobody breaks strings and prose.

use std::collections::BTreeMap;

use crate::{files_below, none, read, room_of};

/// Characters of a line, at most.
const WIDTH_MAX: usize = 120;

/// Lines that are longer still, by room. They may only shrink, and this table with them.
const LONGER: &[(&str, usize)] = &[
    (".", 35),
    (".cargo", 2),
    ("docs", 3),
    ("scripts", 32),
    ("src/admission", 2),
    ("src/apiserver", 1),
    ("src/cluster", 1),
    ("src/registry", 3),
    ("src/store", 3),
    ("src/wire", 4),
    ("tests", 424),
];

/// Tables of data, a file a line each with the reason: nobody reads them line by line.
const DATA: &[(&str, &str)] =
    &[("src/wire/spdy/dictionary.rs", "the dictionary of SPDY's compression, letter by letter")];

/// A word that no blank breaks (a path of a test, a link) has a line of its own, however long it is.
fn is_one_word(line: &str) -> bool {
    let text = line.trim_start().trim_start_matches(['-', '/', '#', '!', '"']).trim_start();
    text.split(' ').filter(|word| word.len() > 1).count() <= 1
}

fn is_prose(path: &str) -> bool {
    path.ends_with(".md")
}

fn is_measured(path: &str) -> bool {
    let by_hand = [".rs", ".sh", ".py", ".md", ".toml", "Makefile"].iter().any(|end| path.ends_with(end));
    by_hand && !path.contains("/generated/") && DATA.iter().all(|(data, _)| *data != path)
}

/// The numbers of the lines of a file that are too long.
fn too_long(path: &str) -> Vec<usize> {
    let text = read(path);
    let long = |line: &str| line.chars().count() > WIDTH_MAX && !is_one_word(line);
    let table = |line: &str| is_prose(path) && line.trim_start().starts_with('|');
    let lines = text.lines().enumerate();
    lines.filter(|(_, line)| long(line) && !table(line)).map(|(at, _)| at + 1).collect()
}

#[test]
fn lines_stay_narrow() {
    let mut by_room: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in files_below(".").iter().filter(|path| is_measured(path)) {
        let room = by_room.entry(room_of(path)).or_default();
        room.extend(too_long(path).iter().map(|line| format!("{path}:{line}")));
    }
    let allowed: BTreeMap<&str, usize> = LONGER.iter().copied().collect();
    let mut found = Vec::new();
    for (room, lines) in &by_room {
        let most = allowed.get(room.as_str()).copied().unwrap_or_default();
        if lines.len() > most {
            found.push(format!("{room}: {} lines, at most {most}: {}", lines.len(), lines.join(" ")));
        }
    }
    none(
        "lines over 120 characters. Break a string with a backslash at the end of the line (the blanks that begin the \
         next line do not count), and prose after a sentence",
        &found,
    );
}
