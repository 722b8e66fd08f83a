//! Arithmetic, comparison, indexing.

use std::cmp::Ordering;
use std::sync::Arc;

use super::moment::{self, Moment};
use super::run::{Fault, Outcome, Run, error};
use super::value::Val;

/// An operator's result; `None` if `name` is no operator.
pub(super) fn apply(run: &Run<'_>, name: &str, args: &[Val]) -> Option<Outcome> {
    Some(match (name, args) {
        ("_==_", [a, b]) => run.pay(weight(a).min(weight(b))).map(|()| Val::Bool(a.same(b))),
        ("_!=_", [a, b]) => run.pay(weight(a).min(weight(b))).map(|()| Val::Bool(!a.same(b))),
        ("_<_", [a, b]) => compare(a, b, |o| o == Ordering::Less),
        ("_<=_", [a, b]) => compare(a, b, |o| o != Ordering::Greater),
        ("_>_", [a, b]) => compare(a, b, |o| o == Ordering::Greater),
        ("_>=_", [a, b]) => compare(a, b, |o| o != Ordering::Less),
        ("!_", [Val::Bool(b)]) => Ok(Val::Bool(!b)),
        ("-_", [Val::Int(n)]) => whole(n.checked_neg()),
        ("-_", [Val::Double(n)]) => Ok(Val::Double(-n)),
        ("_+_", [a, b]) => add(run, a, b),
        ("_-_", [a, b]) => subtract(a, b),
        ("_*_", [Val::Int(a), Val::Int(b)]) => whole(a.checked_mul(*b)),
        ("_*_", [Val::Uint(a), Val::Uint(b)]) => natural(a.checked_mul(*b)),
        ("_*_", [Val::Double(a), Val::Double(b)]) => Ok(Val::Double(a * b)),
        ("_/_", [Val::Int(_), Val::Int(0)] | [Val::Uint(_), Val::Uint(0)]) => error("division by zero"),
        ("_/_", [Val::Int(a), Val::Int(b)]) => whole(a.checked_div(*b)),
        ("_/_", [Val::Uint(a), Val::Uint(b)]) => natural(a.checked_div(*b)),
        ("_/_", [Val::Double(a), Val::Double(b)]) => Ok(Val::Double(a / b)),
        ("_%_", [Val::Int(_), Val::Int(0)] | [Val::Uint(_), Val::Uint(0)]) => error("modulus by zero"),
        ("_%_", [Val::Int(a), Val::Int(b)]) => whole(a.checked_rem(*b)),
        ("_%_", [Val::Uint(a), Val::Uint(b)]) => natural(a.checked_rem(*b)),
        ("@in", [item, Val::List(list)]) => run.pay(list.len()).map(|()| Val::Bool(list.iter().any(|x| x.same(item)))),
        ("@in", [key, Val::Map(map)]) => Ok(Val::Bool(key.entry(map).is_some())),
        ("_[_]", [of, index]) => index_of(of, index, false),
        ("_[?_]", [of, index]) => index_of(of, index, true),
        ("!_" | "-_" | "_*_" | "_/_" | "_%_" | "@in", _) => error("no such overload"),
        _ => return None,
    })
}

/// How large a value is, for what walks it.
pub(super) fn weight(value: &Val) -> usize {
    match value {
        Val::Text(s) => 1 + s.len() / 10,
        Val::Bytes(b) => 1 + b.len() / 10,
        Val::List(l) => 1 + l.len(),
        Val::Map(m) => 1 + m.len(),
        _ => 1,
    }
}

fn whole(n: Option<i64>) -> Outcome {
    n.map(Val::Int).ok_or_else(|| Fault::Error("integer overflow".into()))
}

fn natural(n: Option<u64>) -> Outcome {
    n.map(Val::Uint).ok_or_else(|| Fault::Error("unsigned integer overflow".into()))
}

fn compare(a: &Val, b: &Val, fits: fn(Ordering) -> bool) -> Outcome {
    match a.order(b) {
        Some(order) => Ok(Val::Bool(fits(order))),
        None if matches!((a, b), (Val::Double(_), _) | (_, Val::Double(_)))
            && a.double().is_some()
            && b.double().is_some() =>
        {
            Ok(Val::Bool(false))
        }
        None => error("no such overload"),
    }
}

fn add(run: &Run<'_>, a: &Val, b: &Val) -> Outcome {
    match (a, b) {
        (Val::Int(a), Val::Int(b)) => whole(a.checked_add(*b)),
        (Val::Uint(a), Val::Uint(b)) => natural(a.checked_add(*b)),
        (Val::Double(a), Val::Double(b)) => Ok(Val::Double(a + b)),
        (Val::Text(x), Val::Text(y)) => run.pay(weight(a) + weight(b)).map(|()| Val::text(&format!("{x}{y}"))),
        (Val::Bytes(x), Val::Bytes(y)) => {
            run.pay(weight(a) + weight(b)).map(|()| Val::Bytes([&x[..], &y[..]].concat().into()))
        }
        (Val::List(x), Val::List(y)) => {
            run.pay(weight(a) + weight(b)).map(|()| Val::list(x.iter().chain(y.iter()).cloned().collect()))
        }
        (Val::Time(t), Val::Duration(d)) | (Val::Duration(d), Val::Time(t)) => shift(*t, i128::from(*d)),
        (Val::Duration(a), Val::Duration(b)) => {
            a.checked_add(*b).map(Val::Duration).ok_or_else(|| Fault::Error("integer overflow".into()))
        }
        _ => error("no such overload"),
    }
}

fn subtract(a: &Val, b: &Val) -> Outcome {
    match (a, b) {
        (Val::Int(a), Val::Int(b)) => whole(a.checked_sub(*b)),
        (Val::Uint(a), Val::Uint(b)) => natural(a.checked_sub(*b)),
        (Val::Double(a), Val::Double(b)) => Ok(Val::Double(a - b)),
        (Val::Time(t), Val::Duration(d)) => shift(*t, -i128::from(*d)),
        (Val::Time(a), Val::Time(b)) => {
            a.since(*b).map(Val::Duration).ok_or_else(|| Fault::Error("integer overflow".into()))
        }
        (Val::Duration(a), Val::Duration(b)) => {
            a.checked_sub(*b).map(Val::Duration).ok_or_else(|| Fault::Error("integer overflow".into()))
        }
        _ => error("no such overload"),
    }
}

fn shift(at: Moment, nanos: i128) -> Outcome {
    at.shifted(nanos).map(Val::Time).ok_or_else(|| Fault::Error(moment::BEYOND.into()))
}

fn index_of(of: &Val, index: &Val, optional: bool) -> Outcome {
    let (of, optional) = match of {
        Val::Optional(None) => return Ok(Val::Optional(None)),
        Val::Optional(Some(inner)) => (inner.as_ref(), true),
        other => (other, optional),
    };
    let found = match of {
        Val::List(list) => {
            let Some(at) = index.double().filter(|n| n.fract() == 0.0) else {
                return error(format!("unsupported index type '{}' in list", index.type_name()));
            };
            let item = if at < 0.0 { None } else { list.get(at as usize).cloned() };
            item.ok_or_else(|| format!("index out of bounds: {at}"))
        }
        Val::Map(map) => {
            let Some(key) = index.key() else { return error("no such overload") };
            index.entry(map).cloned().ok_or_else(|| format!("no such key: {key}"))
        }
        Val::Struct(fields) => match index {
            Val::Text(key) => fields.1.get(key.as_ref()).cloned().ok_or_else(|| format!("no such key: {key}")),
            _ => return error("no such overload"),
        },
        _ => Err(format!("no such key: {}", index.key().map(|key| key.to_string()).unwrap_or_default())),
    };
    match (found, optional) {
        (Ok(value), true) => Ok(Val::Optional(Some(Arc::new(value)))),
        (Err(_), true) => Ok(Val::Optional(None)),
        (Ok(value), false) => Ok(value),
        (Err(text), false) => error(text),
    }
}
