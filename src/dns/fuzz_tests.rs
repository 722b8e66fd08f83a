//! Seeded fuzzing of the files that the name server reads: Corefiles and hosts files. An administrator's mistakes and a
//! tenant's ConfigMap end no process.

use std::fs;

use base::fuzz::{self, mutated_text, rounds};

use crate::config::{Context, understand};
use crate::corefile::parse;

const WHOLE: &str = "(snip) {\n cache 30\n}\n\
                     .:53 example.org, {\n errors\n import snip\n kubernetes {$ZONE} 10.0.0.0/8 {\n \
                     pods insecure \"a b\\\" c\"\n }\n \
                     forward . 192.0.2.1 {\n max_fails 2\n health_check 1m0.5s\n }\n import *file\n}\n";
const WORDS: &[&str] =
    &["{", "}", "\n", "import", "*file", "\"", "#", "{$", "{%", "%}", ".:", "é", "snip", "(x) {", ",", "1h", " "];

#[test]
fn corefiles_of_any_words_are_understood_or_refused() {
    let (rng, dir) = (fuzz::rng(12), tempfile::tempdir().unwrap());
    let path = dir.path().join("Corefile");
    fs::write(&path, "import *file\n import *file\n").unwrap();
    let context = Context { file: "Corefile", port: 53, resolv: &|_| Ok("nameserver 192.0.2.53\n".to_owned()) };
    for _ in rounds(2_000) {
        if let Ok(blocks) = parse(&path, &mutated_text(&rng, WHOLE, WORDS), &|_| Some("{$X} {$".to_owned())) {
            // It must only end.
            let _any = understand(&blocks, &context);
        }
    }
}

#[test]
fn hosts_files_of_any_words_are_read() {
    let rng = fuzz::rng(14);
    let whole = "10.0.0.1 a.example.org b\n::1%lo localhost\n# nothing\n192.0.2.7\txn--mnchen-3ya.de \n";
    for _ in rounds(4_000) {
        let _any =
            crate::hosts::Table::parse(mutated_text(&rng, whole, &["\n", "#", "%", "::", "..", "1.2.3.4", " ", "*."]));
    }
}
