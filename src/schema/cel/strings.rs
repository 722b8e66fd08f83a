//! Texts: the standard methods, the strings extension, patterns, formats.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use regex::{Regex, RegexBuilder};

use super::eval::{Fault, Outcome, Run, error};
use super::time;
use super::value::Val;
use crate::custom::formats;
use crate::validate::names::{self, NameUse};

/// A method of a text.
pub(super) fn method(run: &Run<'_>, text: &Arc<str>, name: &str, args: &[Val]) -> Outcome {
    let chars = || text.chars().collect::<Vec<char>>();
    match (name, args) {
        ("contains", [Val::Text(x)]) => Ok(Val::Bool(text.contains(x.as_ref()))),
        ("startsWith", [Val::Text(x)]) => Ok(Val::Bool(text.starts_with(x.as_ref()))),
        ("endsWith", [Val::Text(x)]) => Ok(Val::Bool(text.ends_with(x.as_ref()))),
        ("matches", [Val::Text(pattern)]) => matches(run, text, pattern),
        ("charAt", [Val::Int(at)]) => match usize::try_from(*at).ok().filter(|at| *at <= text.chars().count()) {
            Some(at) => Ok(Val::text(&text.chars().nth(at).map(String::from).unwrap_or_default())),
            None => error(format!("index out of range: {at}")),
        },
        ("indexOf" | "lastIndexOf", [Val::Text(x), rest @ ..]) => {
            place(&chars(), &x.chars().collect::<Vec<_>>(), name == "lastIndexOf", rest)
        }
        ("lowerAscii", []) => Ok(Val::text(&text.to_ascii_lowercase())),
        ("upperAscii", []) => Ok(Val::text(&text.to_ascii_uppercase())),
        ("trim", []) => Ok(Val::text(text.trim())),
        ("reverse", []) => Ok(Val::text(&text.chars().rev().collect::<String>())),
        ("replace", [Val::Text(a), Val::Text(b), rest @ ..]) => {
            let growth = (text.len() / a.len().max(1) + 1).saturating_mul(b.len());
            run.pay(growth / 10)?;
            let n = match rest {
                [Val::Int(n)] if *n >= 0 => Some(usize::try_from(*n).unwrap_or(usize::MAX)),
                _ => None,
            };
            Ok(Val::text(&n.map_or_else(|| text.replace(a.as_ref(), b), |n| text.replacen(a.as_ref(), b, n))))
        }
        ("split", [Val::Text(sep), rest @ ..]) => Ok(Val::list(split(text, sep, rest).iter().map(|t| Val::text(t)).collect())),
        ("substring", [Val::Int(from), rest @ ..]) => {
            let all = chars();
            let to = if let [Val::Int(to)] = rest { *to } else { all.len() as i64 };
            let found = usize::try_from(*from).ok().zip(usize::try_from(to).ok()).and_then(|(from, to)| all.get(from..to));
            found
                .map(|c| Val::text(&c.iter().collect::<String>()))
                .ok_or_else(|| Fault::Error(format!("invalid substring range. start: {from}, end: {to}")))
        }
        ("find", [Val::Text(pattern)]) => Ok(Val::text(compile(run, pattern)?.find(text).map_or("", |m| m.as_str()))),
        ("findAll", [Val::Text(pattern), rest @ ..]) => {
            let most = match rest {
                [Val::Int(n)] if *n >= 0 => usize::try_from(*n).unwrap_or(usize::MAX),
                _ => usize::MAX,
            };
            Ok(Val::list(compile(run, pattern)?.find_iter(text).take(most).map(|m| Val::text(m.as_str())).collect()))
        }
        ("format", [Val::List(values)]) => template(run, text, values),
        _ => error(format!("no such overload: string.{name}")),
    }
}

/// What compiling a pattern costs of a run's budget: a short one may be a large program, `((x{100}){100})`, and nobody knows before.
const COMPILE_COST: usize = 20_000;
/// The largest program of a pattern. One of this size takes about a millisecond to make.
const PROGRAM_BYTES_MAX: usize = 512 * 1024;
/// Programs that are kept for the next object; when they are as many, all go.
const PROGRAMS_MAX: usize = 64;

static PROGRAMS: Mutex<BTreeMap<String, Regex>> = Mutex::new(BTreeMap::new());

/// The program of a pattern, made once and paid by whoever needs it first.
fn compile(run: &Run<'_>, pattern: &str) -> Result<Regex, Fault> {
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(made) = programs.get(pattern) {
        return Ok(made.clone());
    }
    run.pay(COMPILE_COST)?;
    let made = RegexBuilder::new(pattern).size_limit(PROGRAM_BYTES_MAX).dfa_size_limit(PROGRAM_BYTES_MAX).build();
    let made = made.map_err(|_| Fault::Error(format!("error parsing regexp: {pattern}")))?;
    if programs.len() >= PROGRAMS_MAX {
        programs.clear();
    }
    programs.insert(pattern.to_owned(), made.clone());
    Ok(made)
}

/// Whether a text is a pattern at all.
pub(super) fn is_pattern(text: &str) -> bool {
    // Its program is not wanted: a pattern that has a large one is a pattern, too.
    !matches!(RegexBuilder::new(text).size_limit(1).build(), Err(regex::Error::Syntax(_)))
}

/// Whether a text matches a pattern.
pub(super) fn matches(run: &Run<'_>, text: &str, pattern: &str) -> Outcome {
    Ok(Val::Bool(compile(run, pattern)?.is_match(text)))
}

fn place(text: &[char], wanted: &[char], last: bool, rest: &[Val]) -> Outcome {
    let from = match rest {
        [Val::Int(from)] => Some(
            usize::try_from(*from).ok().filter(|f| *f <= text.len()).ok_or_else(|| Fault::Error(format!("index out of range: {from}")))?,
        ),
        _ => None,
    };
    let fits = |at: &usize| text.get(*at..*at + wanted.len()) == Some(wanted);
    let found = if last { (0..=from.unwrap_or(text.len())).rev().find(fits) } else { (from.unwrap_or(0)..=text.len()).find(fits) };
    Ok(Val::Int(found.map_or(-1, |i| i as i64)))
}

fn split(text: &str, separator: &str, rest: &[Val]) -> Vec<String> {
    let most = match rest {
        [Val::Int(n)] if *n >= 0 => usize::try_from(*n).unwrap_or(usize::MAX),
        _ => usize::MAX,
    };
    if most == 0 {
        return Vec::new();
    }
    if separator.is_empty() {
        let mut all: Vec<String> = text.chars().map(String::from).collect();
        if all.len() > most {
            let tail = all.split_off(most - 1).concat();
            all.push(tail);
        }
        return all;
    }
    text.splitn(most, separator).map(str::to_owned).collect()
}

/// `list.join()`.
pub(super) fn join(list: &[Val], rest: &[Val]) -> Outcome {
    let separator = if let [Val::Text(s)] = rest { s.as_ref() } else { "" };
    let texts: Option<Vec<&str>> = list.iter().map(|v| if let Val::Text(t) = v { Some(t.as_ref()) } else { None }).collect();
    texts.map(|t| Val::text(&t.join(separator))).ok_or_else(|| Fault::Error("no such overload".into()))
}

/// What `string()` makes of a value.
pub(super) fn show(of: &Val) -> Option<String> {
    Some(match of {
        Val::Bool(b) => b.to_string(),
        Val::Int(n) => n.to_string(),
        Val::Uint(n) => n.to_string(),
        Val::Double(n) => n.to_string(),
        Val::Text(s) => s.to_string(),
        Val::Bytes(b) => String::from_utf8(b.to_vec()).ok()?,
        Val::Time(t) => t.to_string(),
        Val::Duration(nanos) => time::show_duration(*nanos),
        Val::Ip(ip) => ip.to_string(),
        Val::Cidr(net) => net.to_string(),
        Val::Quantity(q) => q.to_string(),
        _ => return None,
    })
}

fn template(run: &Run<'_>, text: &str, values: &[Val]) -> Outcome {
    let (mut out, mut values, mut chars) = (String::new(), values.iter(), text.chars());
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut spec: String = String::new();
        let verb = loop {
            match chars.next() {
                Some(c) if c == '.' || c.is_ascii_digit() => spec.push(c),
                Some(c) => break c,
                None => return error("unexpected end of string"),
            }
        };
        if verb == '%' {
            out.push('%');
            continue;
        }
        let Some(value) = values.next() else { return error("index out of range") };
        run.pay(super::operators::weight(value))?;
        // A precision beyond all sense would only fill memory.
        let precision: usize = spec.trim_start_matches('.').parse().unwrap_or(6).min(100);
        match (verb, value) {
            ('s', value) => out.push_str(&plain(value)),
            ('d', Val::Int(_) | Val::Uint(_)) => out.push_str(&plain(value)),
            ('f', value) if value.double().is_some() => out.push_str(&format!("{:.*}", precision, value.double().unwrap_or(0.0))),
            ('e', value) if value.double().is_some() => out.push_str(&format!("{:.*e}", precision, value.double().unwrap_or(0.0))),
            ('b', Val::Int(n)) => out.push_str(&format!("{n:b}")),
            ('b', Val::Bool(b)) => out.push_str(if *b { "1" } else { "0" }),
            ('x', Val::Int(n)) => out.push_str(&format!("{n:x}")),
            ('X', Val::Int(n)) => out.push_str(&format!("{n:X}")),
            ('o', Val::Int(n)) => out.push_str(&format!("{n:o}")),
            ('x', Val::Text(s)) => out.push_str(&s.bytes().map(|b| format!("{b:02x}")).collect::<String>()),
            _ => return error(format!("could not parse formatting clause: unrecognized formatting clause {verb:?}")),
        }
    }
    Ok(Val::text(&out))
}

fn plain(value: &Val) -> String {
    match value {
        Val::Null => "null".to_owned(),
        Val::List(list) => format!("[{}]", list.iter().map(plain).collect::<Vec<_>>().join(", ")),
        Val::Map(map) => format!("{{{}}}", map.iter().map(|(k, v)| format!("{k}: {}", plain(v))).collect::<Vec<_>>().join(", ")),
        Val::Type(name) => name.to_string(),
        other => show(other).unwrap_or_default(),
    }
}

/// Whether `format.named()` knows it.
pub(super) fn known_format(name: &str) -> bool {
    super::signatures::FORMATS.contains(&name)
}

/// What is wrong with a text of a named format.
pub(super) fn format_problems(format: &str, text: &str) -> Vec<String> {
    match format {
        "dns1123Label" => names::dns_label_errors(text),
        "dns1123LabelPrefix" => names::dns_label_errors(text.trim_end_matches('-')),
        "dns1123Subdomain" => names::subdomain(text, NameUse::Whole),
        "dns1123SubdomainPrefix" => names::subdomain(text, NameUse::Prefix),
        "dns1035Label" => names::dns_1035_label_errors(text),
        "dns1035LabelPrefix" => names::dns_1035_label_errors(text.trim_end_matches('-')),
        "qualifiedName" => names::qualified_name_errors(text),
        "labelValue" => names::label_value_errors(text),
        "uri" if super::url::Url::read(text).is_none() => vec!["invalid URI".to_owned()],
        "uuid" if !formats::fits("uuid", text) => vec!["does not match the UUID format".to_owned()],
        "byte" if !formats::fits("byte", text) => vec!["invalid base64".to_owned()],
        "date" if !formats::fits("date", text) => vec!["invalid date".to_owned()],
        "datetime" if !formats::fits("date-time", text) => vec!["invalid datetime".to_owned()],
        _ => Vec::new(),
    }
}
