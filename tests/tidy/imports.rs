//! Imports at the head of a file stand in three groups, so that what a file needs is read at a glance.

use super::{none, read, rust_files};

/// The group that an import belongs to: the standard library, other crates, this crate.
fn group_of(import: &str) -> usize {
    match import.split([':', ' ', ';', '{']).next() {
        Some("std" | "core" | "alloc") => 0,
        Some("crate" | "super" | "self") => 2,
        _ => 1,
    }
}

#[test]
fn imports_stand_in_three_groups() {
    let mut found = Vec::new();
    for file in rust_files().into_iter().filter(|file| file.starts_with("src/")) {
        let text = read(&file);
        let mut in_group = 0;
        for (idx, line) in text.lines().enumerate() {
            let Some(import) = line.strip_prefix("use ") else {
                // Lines of a list that was broken, and blank ones, go on; anything else ends the head of the file.
                if in_group > 0 && !line.is_empty() && !line.starts_with([' ', '}']) {
                    break;
                }
                continue;
            };
            // Groups are counted from one, so that the head of the file is told from what stands before it.
            let group = group_of(import) + 1;
            if group < in_group {
                found.push(format!("{file}:{}", idx + 1));
                break;
            }
            in_group = group;
        }
    }
    none("imports out of their group: first the standard library, then other crates, then this crate's own", &found);
}
