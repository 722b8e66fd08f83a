//! Seeded fuzzing of expressions: whatever the text, it is refused or runs within its budget.
//!
//! Each run is the same: see `base::fuzz`.

use std::cell::Cell;

use base::fuzz::{self, mutated, pick, rounds};
use serde_json::json;

use super::syntax::Dialect;
use super::types::Ty;
use super::value::Val;
use super::{CALL_BUDGET, Program, Surroundings};

const ROUNDS: u64 = 400;

#[test]
fn expressions_run_within_their_budget_or_fail() {
    let rng = fuzz::rng(5);
    let seeds = [
        "self.l.all(x, x > 0) && self.s.startsWith('h') ? 1 + 2 * 3 : size(self.m)",
        "self.l.map(x, self.l.map(y, x * y)).exists(z, z == [1, 2])",
        "cel.bind(x, self.a + 1, x * x) in [1, 2, 4u, 3.5, 'a', b'c', null]",
        "self.?b[?'k'].orValue({'a': [1, {2: 3}]})['a'][0]",
        "'%s is %d'.format([self.s, self.a]).replace('h', 'j').split(' ')[1].matches('^[a-z]+$')",
        "quantity('1.5Gi').add(quantity('1')).isGreaterThan(quantity('1G')) || ip('::1').isLoopback()",
        "timestamp('2026-01-01T00:00:00Z') + duration('1h') > timestamp('2025-01-01T00:00:00Z')",
        "Object{spec: Object.spec{x: [1]}}.spec.x[0] == 1 && JSONPatch{op: 'add'}.op == 'add'",
    ];
    let object = Val::from_json(&json!({"a": 1, "l": [1, 2, 3], "m": {"k": "v"}, "s": "hello"}));
    for _ in rounds(ROUNDS * 4) {
        let mut text = String::from_utf8_lossy(&mutated(&rng, pick(&rng, &seeds).as_bytes())).into_owned();
        if rng.below(4) == 0 {
            text = format!("({text}) {} ({})", pick(&rng, &["+", "&&", "==", "in", "?:", "."]), pick(&rng, &seeds));
        }
        let dialect = *pick(&rng, &[Dialect::Common, Dialect::Patches, Dialect::Devices]);
        let Ok(program) = Program::compile_in(dialect, &text, &[("self".to_owned(), Ty::Dyn)]) else { continue };
        let surroundings =
            Surroundings { values: vec![("self".to_owned(), object.clone())], ..Surroundings::default() };
        if let Ok(value) = program.run(&surroundings, &Cell::new(CALL_BUDGET)) {
            let _any = value.to_json();
        }
    }
}
