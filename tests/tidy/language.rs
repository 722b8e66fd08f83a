//! Language: what a document or a comment begins with, and how many words of our own there are.

use std::collections::BTreeMap;

use crate::{none, read, room_of, rust_files};

/// Words of our own in the glossary of ARCHITECTURE.md, at most.
const GLOSSARY_MAX: usize = 20;

/// Doc comments that begin with a free "who" or "what", by room, at most. They may only shrink, and this table with
/// them.
const FREE_SUBJECTS: &[(&str, usize)] = &[("tests", 54)];

/// Words that begin a sentence whose subject has no noun.
const FREE: [&str; 4] = ["Who ", "What ", "Whoever ", "Whatever "];

/// The first lines of the doc comments of a file, with their numbers.
fn openings(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut is_within = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let doc = line.strip_prefix("/// ").or_else(|| line.strip_prefix("//! "));
        found.extend(doc.filter(|_| !is_within).map(|doc| (at + 1, doc)));
        is_within = line.starts_with("///") || line.starts_with("//!");
    }
    found
}

#[test]
fn doc_comments_begin_with_a_noun_or_a_verb() {
    let mut by_room: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for path in rust_files() {
        let text = read(&path);
        let free = openings(&text).into_iter().filter(|(_, doc)| FREE.iter().any(|word| doc.starts_with(word)));
        by_room.entry(room_of(&path)).or_default().extend(free.map(|(line, _)| format!("{path}:{line}")));
    }
    let most: BTreeMap<&str, usize> = FREE_SUBJECTS.iter().copied().collect();
    let mut found = Vec::new();
    for (room, places) in &by_room {
        let most = most.get(room.as_str()).copied().unwrap_or_default();
        if places.len() > most {
            found.push(format!("{room}: {}, at most {most}: {}", places.len(), places.join(" ")));
        }
    }
    none(
        "doc comments whose subject is a free \"who\" or \"what\": begin with the field's term, as in \"The members that \
         vote\" for \"Who votes\", \"Arguments of the command\" for \"What the command is given\"",
        &found,
    );
}

#[test]
fn the_glossary_stays_short() {
    let text = read("ARCHITECTURE.md");
    let glossary = text.split("## Glossary").nth(1).unwrap_or_default().split("\n## ").next().unwrap_or_default();
    let words: Vec<&str> = glossary.lines().filter(|line| line.starts_with("- **")).collect();
    assert!(!words.is_empty(), "ARCHITECTURE.md has a glossary");
    let n = words.iter().map(|line| line.matches("**").count() / 2).sum::<usize>();
    assert!(n <= GLOSSARY_MAX, "{n} words of our own, at most {GLOSSARY_MAX}: use the field's term for the next one");
}
