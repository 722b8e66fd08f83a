//! Lists, sets and numbers.

use std::cmp::Ordering;
use std::sync::Arc;

use super::operators;
use super::run::{Fault, Outcome, Run, error};
use super::strings;
use super::value::Val;

/// A method of a list.
pub(super) fn method(run: &Run<'_>, list: &Arc<Vec<Val>>, name: &str, args: &[Val]) -> Outcome {
    let place = |at: Option<usize>| Ok(Val::Int(at.map_or(-1, |i| i as i64)));
    match (name, args) {
        ("isSorted", []) => {
            Ok(Val::Bool(list.windows(2).all(|w| w[0].order(&w[1]).is_none_or(|order| order != Ordering::Greater))))
        }
        ("sum", []) => {
            let Some(first) = list.first() else { return Ok(Val::Int(0)) };
            list[1..].iter().try_fold(first.clone(), |sum, x| {
                operators::apply(run, "_+_", &[sum, x.clone()]).unwrap_or_else(|| error("no such overload"))
            })
        }
        ("min", []) => extreme(list, name, Ordering::Less),
        ("max", []) => extreme(list, name, Ordering::Greater),
        ("indexOf", [wanted]) => place(list.iter().position(|x| x.same(wanted))),
        ("lastIndexOf", [wanted]) => place(list.iter().rposition(|x| x.same(wanted))),
        ("join", rest) => strings::join(list, rest),
        ("reverse", []) => Ok(Val::list(list.iter().rev().cloned().collect())),
        ("sort", []) => sorted(list.iter().map(|item| (item.clone(), item.clone())).collect()),
        ("unwrapOpt", []) => unwrap(list),
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
            let why = match (usize::try_from(*from), usize::try_from(*to)) {
                (Ok(start), Ok(end)) if start > end => "start index must be less than or equal to end index".to_owned(),
                (Ok(start), Ok(end)) => match list.get(start..end) {
                    Some(part) => return Ok(Val::list(part.to_vec())),
                    None => format!("list is length {}", list.len()),
                },
                _ => "negative indexes not supported".to_owned(),
            };
            error(format!("cannot slice({from}, {to}), {why}"))
        }
        ("flatten", []) => flatten(run, list, 1).map(Val::list),
        ("flatten", [Val::Int(depth)]) if *depth < 0 => error("level must be non-negative"),
        ("flatten", [Val::Int(depth)]) => flatten(run, list, *depth).map(Val::list),
        _ => error("no such overload"),
    }
}

/// The least or greatest item, the first of equal ones.
fn extreme(list: &[Val], name: &str, wanted: Ordering) -> Outcome {
    let mut items = list.iter();
    let Some(mut found) = items.next() else { return error(format!("{name} called on empty list")) };
    for item in items {
        if item.order(found) == Some(wanted) {
            found = item;
        }
    }
    Ok(found.clone())
}

/// Items in the order of their keys, which stand first.
pub(super) fn sorted(mut pairs: Vec<(Val, Val)>) -> Outcome {
    let Some((first, _)) = pairs.first() else { return Ok(Val::list(Vec::new())) };
    if first.order(first).is_none() && first.double().is_none() {
        return error("list elements must be comparable");
    }
    if pairs.len() > 1 && pairs.iter().any(|(key, _)| key.type_name() != first.type_name()) {
        return error("list elements must have the same type");
    }
    pairs.sort_by(|a, b| a.0.order(&b.0).unwrap_or(Ordering::Equal));
    Ok(Val::list(pairs.into_iter().map(|(_, item)| item).collect()))
}

/// The values that a list of optional ones has.
pub(super) fn unwrap(list: &[Val]) -> Outcome {
    let mut out = Vec::with_capacity(list.len());
    for item in list {
        match item {
            Val::Optional(inner) => out.extend(inner.as_deref().cloned()),
            other => return error(format!("value {} is not optional", other.type_name())),
        }
    }
    Ok(Val::list(out))
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
