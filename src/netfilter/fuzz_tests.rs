//! Scripts and answers of any bytes are read, refused or passed over, and never end the process.

use base::fuzz;

use crate::script::compile;

const SCRIPTS: [&str; 3] =
    [include_str!("testdata/services.nft"), include_str!("testdata/policies.nft"), include_str!("testdata/bridge.nft")];
const WORDS: [&str; 16] =
    ["{", "}", ",", ";", "\"", " . ", " : ", "@", "/", "-", "0x", "goto", "\n", "65536", "fd00::/129", "add element "];

#[test]
fn a_script_of_any_words_becomes_whole_messages_or_is_refused() {
    let rng = fuzz::rng(14);
    for _ in fuzz::rounds(600) {
        for script in SCRIPTS {
            let text = fuzz::mutated_text(&rng, script, &WORDS);
            let Ok(compiled) = compile(&text) else { continue };
            let bytes = &compiled.batch.bytes;
            let read: usize = crate::wire::messages(bytes).map(|message| 16 + message.body.len()).sum();
            assert_eq!(read, bytes.len(), "{text}");
        }
    }
}

#[test]
fn each_line_of_any_words_is_read_or_refused() {
    let rng = fuzz::rng(15);
    for script in SCRIPTS {
        for line in script.lines() {
            for _ in fuzz::rounds(60) {
                let _read_or_refused = compile(&fuzz::mutated_text(&rng, line, &WORDS));
            }
        }
    }
}

#[test]
fn answers_of_any_bytes_are_read_or_passed_over() {
    let rng = fuzz::rng(16);
    let whole = compile(SCRIPTS[0]).unwrap().batch.bytes;
    for _ in fuzz::rounds(2_000) {
        for message in crate::wire::messages(&fuzz::mutated(&rng, &whole)) {
            let body = message.body.get(4..).unwrap_or_default();
            let _any = (crate::look::held_in(body), crate::conntrack::parse(body));
            let mut out = Vec::new();
            crate::replay::expressions(body, &Default::default(), &mut out);
        }
    }
}
