//! Lists, sets and numbers.

use std::cmp::Ordering;
use std::sync::Arc;

use super::eval::{Fault, Outcome, Run, error};
use super::operators;
use super::strings;
use super::value::Val;

/// A method of a list.
pub(super) fn method(run: &Run<'_>, list: &Arc<Vec<Val>>, name: &str, args: &[Val]) -> Outcome {
    let place = |at: Option<usize>| Ok(Val::Int(at.map_or(-1, |i| i as i64)));
    let order = |a: &Val, b: &Val| a.order(b).unwrap_or(Ordering::Equal);
    match (name, args) {
        ("isSorted", []) => Ok(Val::Bool(list.windows(2).all(|w| order(&w[0], &w[1]) != Ordering::Greater))),
        ("sum", []) => {
            let Some(first) = list.first() else { return Ok(Val::Int(0)) };
            list[1..].iter().try_fold(first.clone(), |sum, x| {
                operators::apply(run, "_+_", &[sum, x.clone()]).unwrap_or_else(|| error("no such overload"))
            })
        }
        ("min", []) => list.iter().min_by(|a, b| order(a, b)).cloned().ok_or_else(|| Fault::Error("min called on empty list".into())),
        ("max", []) => list.iter().max_by(|a, b| order(a, b)).cloned().ok_or_else(|| Fault::Error("max called on empty list".into())),
        ("indexOf", [wanted]) => place(list.iter().position(|x| x.same(wanted))),
        ("lastIndexOf", [wanted]) => place(list.iter().rposition(|x| x.same(wanted))),
        ("join", rest) => strings::join(list, rest),
        ("reverse", []) => Ok(Val::list(list.iter().rev().cloned().collect())),
        ("sort", []) => {
            let mut sorted = list.to_vec();
            sorted.sort_by(order);
            Ok(Val::list(sorted))
        }
        ("distinct", []) => {
            run.pay(list.len().saturating_mul(list.len()))?;
            let mut out: Vec<Val> = Vec::new();
            for item in list.iter() {
                if !out.iter().any(|x| x.same(item)) {
                    out.push(item.clone());
                }
            }
            Ok(Val::list(out))
        }
        ("first", []) => Ok(Val::Optional(list.first().cloned().map(Arc::new))),
        ("last", []) => Ok(Val::Optional(list.last().cloned().map(Arc::new))),
        ("slice", [Val::Int(from), Val::Int(to)]) => {
            let found = usize::try_from(*from).ok().zip(usize::try_from(*to).ok()).and_then(|(from, to)| list.get(from..to));
            found
                .map(|s| Val::list(s.to_vec()))
                .ok_or_else(|| Fault::Error(format!("cannot slice({from}, {to}), list is length {}", list.len())))
        }
        ("flatten", []) => flatten(run, list, 1).map(Val::list),
        ("flatten", [Val::Int(depth)]) if *depth >= 0 => flatten(run, list, *depth).map(Val::list),
        _ => error(format!("no such overload: list.{name}")),
    }
}

fn flatten(run: &Run<'_>, list: &[Val], depth: i64) -> Result<Vec<Val>, Fault> {
    run.pay(list.len())?;
    let mut out = Vec::new();
    for item in list {
        match item {
            Val::List(inner) if depth > 0 => out.extend(flatten(run, inner, depth - 1)?),
            other => out.push(other.clone()),
        }
    }
    Ok(out)
}

/// `sets.contains` and its like.
pub(super) fn sets(run: &Run<'_>, name: &str, args: &[Val]) -> Outcome {
    let [Val::List(a), Val::List(b)] = args else { return error("no such overload") };
    run.pay(a.len().saturating_mul(b.len()))?;
    let has = |list: &[Val], item: &Val| list.iter().any(|x| x.same(item));
    Ok(Val::Bool(match name {
        "sets.contains" => b.iter().all(|x| has(a, x)),
        "sets.intersects" => b.iter().any(|x| has(a, x)),
        "sets.equivalent" => b.iter().all(|x| has(a, x)) && a.iter().all(|x| has(b, x)),
        _ => return error("no such overload"),
    }))
}

/// `math.greatest` and its like.
pub(super) fn math(name: &str, args: &[Val]) -> Outcome {
    let all: Vec<Val> = match args {
        [Val::List(list)] => list.to_vec(),
        other => other.to_vec(),
    };
    let order = |a: &&Val, b: &&Val| a.order(b).unwrap_or(Ordering::Equal);
    match (name, args) {
        ("math.greatest", _) => {
            all.iter().max_by(order).cloned().ok_or_else(|| Fault::Error("math.@max(list) argument must not be empty".into()))
        }
        ("math.least", _) => {
            all.iter().min_by(order).cloned().ok_or_else(|| Fault::Error("math.@min(list) argument must not be empty".into()))
        }
        ("math.abs", [Val::Int(n)]) => n.checked_abs().map(Val::Int).ok_or_else(|| Fault::Error("integer overflow".into())),
        ("math.abs" | "math.sign", [Val::Uint(n)]) => Ok(Val::Uint(if name == "math.abs" { *n } else { u64::from(*n > 0) })),
        ("math.sign", [Val::Int(n)]) => Ok(Val::Int(n.signum())),
        ("math.sqrt", [n]) => n.double().map(|n| Val::Double(n.sqrt())).ok_or_else(|| Fault::Error("no such overload".into())),
        (_, [Val::Double(n)]) => Ok(match name {
            "math.abs" => Val::Double(n.abs()),
            "math.sign" => Val::Double(if *n == 0.0 || n.is_nan() { *n } else { n.signum() }),
            "math.ceil" => Val::Double(n.ceil()),
            "math.floor" => Val::Double(n.floor()),
            "math.round" => Val::Double(n.round()),
            "math.trunc" => Val::Double(n.trunc()),
            "math.isNaN" => Val::Bool(n.is_nan()),
            "math.isInf" => Val::Bool(n.is_infinite()),
            "math.isFinite" => Val::Bool(n.is_finite()),
            _ => return error("no such overload"),
        }),
        (_, [Val::Int(a), Val::Int(b)]) => bits(name, *a as u64, *b).map(|n| Val::Int(n as i64)),
        (_, [Val::Uint(a), Val::Uint(b)]) => bits(name, *a, *b as i64).map(Val::Uint),
        (_, [Val::Uint(a), Val::Int(b)]) => bits(name, *a, *b).map(Val::Uint),
        ("math.bitNot", [Val::Int(n)]) => Ok(Val::Int(!n)),
        ("math.bitNot", [Val::Uint(n)]) => Ok(Val::Uint(!n)),
        _ => error("no such overload"),
    }
}

fn bits(name: &str, a: u64, b: i64) -> Result<u64, Fault> {
    let shift = u32::try_from(b).ok();
    match (name, shift) {
        ("math.bitAnd", _) => Ok(a & b as u64),
        ("math.bitOr", _) => Ok(a | b as u64),
        ("math.bitXor", _) => Ok(a ^ b as u64),
        ("math.bitShiftLeft" | "math.bitShiftRight", None) => {
            error(format!("math.{}() negative offset: {b}", name.trim_start_matches("math.")))
        }
        ("math.bitShiftLeft", Some(n)) => Ok(a.checked_shl(n).unwrap_or(0)),
        ("math.bitShiftRight", Some(n)) => Ok(a.checked_shr(n).unwrap_or(0)),
        _ => error("no such overload"),
    }
}
