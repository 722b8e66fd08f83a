//! Seeded fuzzing of the files that the name server reads: Corefiles and hosts files. An administrator's mistakes and a
//! tenant's ConfigMap end no process.

use std::fs;

use base::fuzz::{self, mutated_text, rounds};

use crate::config::{Context, understand};
use crate::corefile::parse;

const WHOLE: &str = "(snip) {\n cache 30\n}\n\
                     .:53 example.org, {\n errors\n import snip\n kubernetes {$ZONE} 10.0.0.0/8 {\n \
                     pods insecure \"a b\\\" c\"\n }\n \
                     rewrite continue {\n name regex (.*)-a\\.b {1}.c answer auto\n }\n \
                     template IN A x {\n match ^(?P<a>[0-9]+)\\. \n \
                     answer \"{{ .Name }} 60 IN A 1.2.3.{{ .Group.a }}\"\n }\n \
                     file db a.org {\n reload 5s\n }\n acl {\n block type A net 10.0.0.0/8\n }\n \
                     cache 30 {\n prefetch 2 1m 20%\n serve_stale 1h verify 1s 30s\n }\n \
                     forward . 192.0.2.1 {\n max_fails 2\n health_check 1m0.5s\n }\n import *file\n}\n";
const WORDS: &[&str] =
    &["{", "}", "\n", "import", "*file", "\"", "#", "{$", "{%", "%}", ".:", "é", "snip", "(x) {", ",", "1h", " "];

#[test]
fn corefiles_of_any_words_are_understood_or_refused() {
    let (rng, dir) = (fuzz::rng(12), tempfile::tempdir().unwrap());
    let path = dir.path().join("Corefile");
    fs::write(&path, "import *file\n import *file\n").unwrap();
    let read = |_: &str, _: u64| Ok("nameserver 192.0.2.53\n$TTL 1\n@ SOA a b 1 2 3 4 5\n".to_owned());
    let context = Context { file: "Corefile", port: 53, read: &read };
    for _ in rounds(2_000) {
        if let Ok(blocks) = parse(&path, &mutated_text(&rng, WHOLE, WORDS), &|_| Some("{$X} {$".to_owned())) {
            // It must only end.
            let _any = understand(&blocks, &context);
        }
    }
}

#[test]
fn zone_files_of_any_words_are_read_or_refused() {
    let rng = fuzz::rng(15);
    let whole = "$TTL 1h\n@ IN SOA ns host ( 1 2h 3 ; x\n 4 5 )\n NS ns\n$ORIGIN a\n*.w 5 IN MX 10 m\n\
                 t TXT \"a;b\" c\\032d\ns SRV 0 0 53 @\nn NAPTR 1 2 \"s\" \"x\" \"\" .\nc CAA 0 issue \"x\"\n\
                 h HTTPS 1 . alpn=h2\nl TLSA 3 1 1 aabb\n";
    let words =
        ["(", ")", "\"", ";", "\\", "$ORIGIN", "$TTL", "@", "\n", " ", "*", "..", "SVCB", "4294967296", "\\999"];
    let origin = hickory_proto::rr::Name::from_ascii("example.org.").unwrap();
    for _ in rounds(4_000) {
        let _any = crate::plugin::zone_file::Zone::parse(&mutated_text(&rng, whole, &words), &origin);
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
