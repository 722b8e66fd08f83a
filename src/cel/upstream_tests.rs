//! Answers of a genuine server about expressions: all that is wrong with them, or their type and value.

use std::cell::Cell;

use serde_json::json;

use super::moment::Moment;
use super::syntax::Dialect;
use super::types::{BOOL, INT, TEXT, Ty};
use super::value::{Key, Val};
use super::{OBJECT_BUDGET, Program, Surroundings};

/// Answers of the environment for new expressions of upstream v1.36.2 (`apiserver/pkg/cel/environment`), run by cel-go
/// itself: `refused` and what is wrong by column, or the type and the value. Where a text comes from Go's library below
/// it, it is not compared.
const ANSWERS: &str = include_str!("answers.txt");

fn shown(value: &Val) -> String {
    match value {
        Val::Null => "null".to_owned(),
        Val::Bool(b) => b.to_string(),
        Val::Int(n) => n.to_string(),
        Val::Uint(n) => format!("{n}u"),
        Val::Double(n) if n.is_infinite() => "+Infd".to_owned(),
        Val::Double(n) => format!("{n}d"),
        Val::Text(text) => format!("{text:?}"),
        Val::Bytes(bytes) => format!("b{:?}", String::from_utf8_lossy(bytes)),
        Val::List(items) => format!("[{}]", items.iter().map(shown).collect::<Vec<_>>().join(", ")),
        Val::Map(map) => {
            let key = |key: &Key| shown(&key.to_val());
            format!(
                "{{{}}}",
                map.iter().map(|(k, v)| format!("{}: {}", key(k), shown(v))).collect::<Vec<_>>().join(", ")
            )
        }
        Val::Optional(None) => "none".to_owned(),
        Val::Optional(Some(inner)) => format!("some {}", shown(inner)),
        Val::Type(name) => name.to_string(),
        Val::Ip(ip) => ip.to_string(),
        Val::Cidr(net) => net.to_string(),
        Val::Time(_) | Val::Duration(_) => value.to_json().unwrap().as_str().unwrap().to_owned(),
        other => other.type_name().to_owned(),
    }
}

fn names() -> Vec<(String, Ty)> {
    let list = |item: Ty| Ty::List(Box::new(item));
    let numbers = Ty::Map(Box::new(TEXT), Box::new(INT));
    [
        ("o", Ty::Dyn),
        ("s", TEXT),
        ("i", INT),
        ("b", BOOL),
        ("l", list(INT)),
        ("m", numbers),
        ("t", Ty::Named("timestamp")),
        ("d", list(Ty::Dyn)),
        ("authorizer", Ty::read("authorizer")),
        ("authorizer.requestResource", Ty::read("resourcecheck")),
    ]
    .map(|(name, ty)| (name.to_owned(), ty))
    .to_vec()
}

fn said(text: &str) -> String {
    let program = match Program::compile(text, &names()) {
        Ok(program) => program,
        Err(err) => {
            let why = err.to_string();
            let lines = why.lines().filter_map(|line| line.strip_prefix("ERROR: <input>:1:"));
            return format!(
                "refused {}",
                lines.map(|line| line.replace(" (in container '')", "")).collect::<Vec<_>>().join(" / ")
            );
        }
    };
    let o = json!({"a": 1, "l": [1, 2, 3], "m": {"k": "v"}, "s": "hello world", "q": "1500m"});
    let values = [
        ("o", Val::from_json(&o)),
        ("s", Val::text("text")),
        ("i", Val::Int(7)),
        ("b", Val::Bool(true)),
        ("l", Val::from_json(&json!([3, 1, 2]))),
        ("m", Val::from_json(&json!({"a": 1}))),
        ("d", Val::from_json(&json!([1, "x"]))),
        ("t", Val::Time(Moment::read("2024-02-29T23:59:58.123456789Z").unwrap())),
    ];
    let values = values.map(|(name, value)| (name.to_owned(), value)).to_vec();
    let value = match program.run(&Surroundings { values, ..Surroundings::default() }, &Cell::new(OBJECT_BUDGET)) {
        Ok(value) => shown(&value),
        Err(fault) => format!("error {fault}"),
    };
    format!("{} | {value}", program.result)
}

#[test]
fn expressions_are_refused_and_computed_as_by_a_genuine_server() {
    let mut wrong = Vec::new();
    for line in ANSWERS.lines().filter(|line| !line.is_empty()) {
        let (text, answer) = line.split_once(" => ").unwrap();
        let said = said(text);
        if said != answer {
            wrong.push(format!("{text}\n      here: {said}\n  upstream: {answer}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_few_functions_and_types_are_there_for_some_only() {
    let compile = |dialect: Dialect, text: &str| Program::compile_in(dialect, text, &names()).is_ok();
    for text in ["jsonpatch.escapeKey('a/b')", "JSONPatch{op: 'add'}", "Object{spec: Object.spec{}}"] {
        assert!(compile(Dialect::Patches, text), "{text}");
        assert!(!compile(Dialect::Common, text) && !compile(Dialect::Devices, text), "{text}");
    }
    let bind = "cel.bind(x, i + 1, x * x) == 64";
    assert!(compile(Dialect::Devices, bind) && !compile(Dialect::Common, bind) && !compile(Dialect::Patches, bind));
}
