//! Results of expressions, and how they fail.

use std::cell::Cell;

use serde_json::{Value, json};

use super::run::Fault;
use super::types::Ty;
use super::value::Val;
use super::{OBJECT_BUDGET, Program, Surroundings};

/// The value as JSON, or why there is none.
pub(super) fn eval(text: &str) -> String {
    let object = json!({"a": 1, "l": [1, 2, 3], "m": {"k": "v"}, "s": "hello world", "q": "1500m"});
    let names = [("self".to_owned(), Ty::Dyn)];
    let program = match Program::compile(text, &names) {
        Ok(program) => program,
        Err(err) => return format!("compile: {}", err.to_string().lines().next().unwrap_or_default()),
    };
    let surroundings =
        Surroundings { values: vec![("self".into(), Val::from_json(&object))], ..Surroundings::default() };
    match program.run(&surroundings, &Cell::new(OBJECT_BUDGET)) {
        Ok(value) => value.to_json().unwrap_or_else(|| Value::from(value.type_name())).to_string(),
        Err(fault) => format!("error: {fault}"),
    }
}

#[test]
fn the_language_and_the_libraries_compute() {
    for (text, want) in [
        ("1 + 2 * 3 - 4 / 2", "5"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("self.a == 1 && self.s.startsWith('hello')", "true"),
        ("self.l.all(x, x > 0) && self.l.exists_one(x, x == 2) && !self.l.exists(x, x > 3)", "true"),
        ("self.l.map(x, x > 1, x * 2)", "[4,6]"),
        ("self.l.filter(x, x != 2).size()", "2"),
        ("has(self.b) || has(self.m.k)", "true"),
        ("self.?b.orValue(7)", "7"),
        ("self.m[?'z'].hasValue()", "false"),
        ("self.m.transformMap(k, v, v + k)", "{\"k\":\"vk\"}"),
        ("self.l.transformList(i, v, i * v)", "[0,2,6]"),
        ("'a,b,c'.split(',').join('-')", "\"a-b-c\""),
        ("'%s is %d and %.2f'.format(['x', 3, 1.5])", "\"x is 3 and 1.50\""),
        ("'tacocat'.substring(4)", "\"cat\""),
        ("quantity(self.q).isGreaterThan(quantity('1'))", "true"),
        ("quantity('2').add(quantity('500m')).compareTo(quantity('2500m'))", "0"),
        ("ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').containsIP('10.1.1.1')", "true"),
        ("url('https://a.b:8443/c?x=1').getPort()", "\"8443\""),
        ("semver('1.2.3-rc.1').isLessThan(semver('1.2.3'))", "true"),
        ("!format.dns1123Label().validate('a-b').hasValue()", "true"),
        ("'abc123'.find('[0-9]+')", "\"123\""),
        ("sets.equivalent([1, 2], [2, 1, 1])", "true"),
        ("[3, 1, 2].isSorted()", "false"),
        ("[1, 2, 3].sum()", "6"),
        ("duration('1h30m').getMinutes()", "90"),
        ("timestamp('2024-01-02T03:04:05Z').getHours()", "3"),
        ("type(1) == int && type('a') == string", "true"),
        ("self.l[1] in self.l ? 'y' : 'n'", "\"y\""),
        ("b'abc' == bytes('abc')", "true"),
        ("false && self.nope", "false"),
        ("self.nope || true", "true"),
    ] {
        assert_eq!(eval(text), want, "{text}");
    }
}

#[test]
fn faults_have_cel_gos_words() {
    for (text, want) in [
        ("self.nope", "error: no such key: nope"),
        ("self.l[9]", "error: index out of bounds: 9"),
        ("1 / 0", "error: division by zero"),
        ("9223372036854775807 + 1", "error: integer overflow"),
        ("nope", "compile: ERROR: <input>:1:1: undeclared reference to 'nope' (in container '')"),
        ("1 == 'a'", "compile: ERROR: <input>:1:3: found no matching overload for '_==_' applied to '(int, string)'"),
        ("'a'.nope()", "compile: ERROR: <input>:1:9: undeclared reference to 'nope' (in container '')"),
        (
            "1 +",
            "compile: ERROR: <input>:1:4: Syntax error: mismatched input '<EOF>' expecting {'[', '{', '(', '.', '-', \
            '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
        ),
    ] {
        assert_eq!(eval(text), want, "{text}");
    }
}

#[test]
fn what_runs_too_long_is_ended() {
    let text = "lists.range(1000).all(a, lists.range(1000).all(b, lists.range(1000).all(c, true)))";
    let program = Program::compile(text, &[]).unwrap();
    assert_eq!(program.run(&Surroundings::default(), &Cell::new(OBJECT_BUDGET)).err(), Some(Fault::Budget));
}

// security.md L1: a short pattern may be a large program, and expressions compiled as many as they liked.
#[test]
fn patterns_that_are_compiled_are_paid_for_and_have_a_largest_size() {
    let run = |text: &str| {
        let budget = Cell::new(OBJECT_BUDGET);
        let said = Program::compile(text, &[]).unwrap().run(&Surroundings::default(), &budget).map(|_| ());
        (said, OBJECT_BUDGET - budget.get())
    };
    // Patterns of no other test: what was compiled is kept.
    let (said, cost) = run("'a'.matches('paid-for-once' + 's?')");
    assert!(said.is_ok() && (20_000..25_000).contains(&cost), "{said:?} {cost}");
    assert_eq!(run("lists.range(1000).exists(i, 'a'.matches('paid-for-' + string(i)))").0, Err(Fault::Budget));
    let (said, _) = run(r"'a'.matches('\\pL{100' + '}')");
    assert!(matches!(&said, Err(Fault::Error(why)) if why.contains("regexp")), "{said:?}");
}

#[test]
fn no_text_makes_it_panic() {
    const PIECES: [&str; 34] = [
        "self",
        ".",
        "a",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "?",
        ":",
        ",",
        "'x'",
        "\"",
        "1",
        "-",
        "9223372036854775807",
        "2.5",
        "3u",
        "+",
        "*",
        "/",
        "%",
        "in",
        "&&",
        "!",
        "==",
        "<",
        ".all(x,",
        ".map(x,",
        "has(",
        "\\",
        "é",
        "lists.range(99)",
    ];
    let rng = base::rng::Rng::from_seed(20_261_121);
    for _ in 0..20_000 {
        let n = 1 + rng.below(12);
        let text: String = (0..n)
            .map(|_| PIECES[usize::try_from(rng.below(34)).unwrap()])
            .collect::<Vec<_>>()
            .join(if rng.below(2) == 0 { "" } else { " " });
        let _no_panic = eval(&text);
    }
    assert!(eval(&"(".repeat(5000)).starts_with("compile"));
    assert!(eval(&"!".repeat(5000)).starts_with("compile"));
}

#[test]
fn long_expressions_cost_no_stack_and_endless_ones_are_refused() {
    assert_eq!(eval(&vec!["1"; 20_000].join("+")), "20000");
    assert_eq!(eval(&vec!["true"; 10_000].join("&&")), "true");
    assert_eq!(eval("false || self.nope == 1 || true"), "true");
    assert_eq!(eval("10 - 3 - 2 - 1"), "4");
    assert!(eval(&vec!["1"; 60_000].join("+")).contains("expression code point size exceeds limit"));
    assert!(eval(&format!("self{}", ".a".repeat(5_000))).contains("expression recursion limit exceeded"));
    assert!(
        eval(&format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000))).contains("expression recursion limit exceeded")
    );
    let nested = (0..40).fold("self".to_owned(), |inner, _| format!("({inner}.a.a.a.a.a.a.a.a.a.a)"));
    assert!(eval(&nested).contains("expression recursion limit exceeded"));
    assert!(eval(&format!("{}true", "!".repeat(9_000))).contains("expression recursion limit exceeded"));
}
