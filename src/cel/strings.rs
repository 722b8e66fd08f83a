//! Texts: the standard methods, the strings extension, patterns, formats.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::sync::Mutex;
use model::names::{self, NameUse};
use regex::Regex;

use super::run::{Fault, Outcome, Run, error};
use super::value::Val;
use super::{formats, patterns, templates, time};

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
        ("replace", [Val::Text(a), Val::Text(b), rest @ ..]) => {
            let growth = (text.len() / a.len().max(1) + 1).saturating_mul(b.len());
            run.pay(growth / 10)?;
            let n = match rest {
                [Val::Int(n)] if *n >= 0 => Some(usize::try_from(*n).unwrap_or(usize::MAX)),
                _ => None,
            };
            Ok(Val::text(&n.map_or_else(|| text.replace(a.as_ref(), b), |n| text.replacen(a.as_ref(), b, n))))
        }
        ("split", [Val::Text(sep), rest @ ..]) => {
            Ok(Val::list(split(text, sep, rest).iter().map(|t| Val::text(t)).collect()))
        }
        ("substring", [Val::Int(from), rest @ ..]) => {
            let all = chars();
            let to = if let [Val::Int(to)] = rest { *to } else { all.len() as i64 };
            if matches!(rest, [_]) && from > &to {
                return error(format!("invalid substring range. start: {from}, end: {to}"));
            }
            let within = |at: i64| usize::try_from(at).ok().filter(|at| *at <= all.len());
            let (Some(start), Some(end)) = (within(*from), within(to)) else {
                let bad = if within(*from).is_none() { *from } else { to };
                return error(format!("index out of range: {bad}"));
            };
            Ok(Val::text(&all[start..end].iter().collect::<String>()))
        }
        ("find", [Val::Text(pattern)]) => Ok(Val::text(compile(run, pattern)?.find(text).map_or("", |m| m.as_str()))),
        ("findAll", [Val::Text(pattern), rest @ ..]) => {
            let most = match rest {
                [Val::Int(n)] if *n >= 0 => usize::try_from(*n).unwrap_or(usize::MAX),
                _ => usize::MAX,
            };
            Ok(Val::list(compile(run, pattern)?.find_iter(text).take(most).map(|m| Val::text(m.as_str())).collect()))
        }
        ("format", [Val::List(values)]) => templates::fill(run, text, values),
        _ => error("no such overload"),
    }
}

/// The cost of compiling a pattern, of a run's budget: a short one may be a large program, `((x{100}){100})`, and
/// nobody knows before.
const COMPILE_COST: usize = 20_000;
/// The largest program of a pattern. One of this size takes about a millisecond to make.
const PROGRAM_BYTES_MAX: usize = 512 * 1024;
/// Programs that are kept for the next object; when they are as many, all go.
const PROGRAMS_MAX: usize = 64;

static PROGRAMS: Mutex<BTreeMap<String, Regex>> = Mutex::new(BTreeMap::new());

/// The program of a pattern, made once and paid by whoever needs it first.
fn compile(run: &Run<'_>, pattern: &str) -> Result<Regex, Fault> {
    let mut programs = PROGRAMS.lock();
    if let Some(made) = programs.get(pattern) {
        return Ok(made.clone());
    }
    run.pay(COMPILE_COST)?;
    let made = patterns::compile(pattern, PROGRAM_BYTES_MAX)
        .map_err(|err| Fault::Error(format!("error parsing regexp: {err}")))?;
    if programs.len() >= PROGRAMS_MAX {
        programs.clear();
    }
    programs.insert(pattern.to_owned(), made.clone());
    Ok(made)
}

/// Whether a text matches a pattern.
pub(super) fn matches(run: &Run<'_>, text: &str, pattern: &str) -> Outcome {
    Ok(Val::Bool(compile(run, pattern)?.is_match(text)))
}

/// Spec: `indexOfOffset` and `lastIndexOfOffset` of cel-go's `ext/strings.go`: nothing is found in place of nothing
/// wherever one looks.
fn place(text: &[char], wanted: &[char], last: bool, rest: &[Val]) -> Outcome {
    let asked = if let [Val::Int(from)] = rest { Some(*from) } else { None };
    if let (Some(from), true) = (asked, wanted.is_empty()) {
        return Ok(Val::Int(from));
    }
    let from = match asked {
        Some(from) if from < 0 => return error(format!("index out of range: {from}")),
        Some(from) => usize::try_from(from).unwrap_or(usize::MAX),
        None if last => text.len(),
        None => 0,
    };
    // One that begins behind the end is not there.
    if asked.is_some() && from >= text.len() {
        return Ok(Val::Int(-1));
    }
    let fits = |at: &usize| text.get(*at..*at + wanted.len()) == Some(wanted);
    let found = if last { (0..=from).rev().find(fits) } else { (from..=text.len()).find(fits) };
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

/// `strings.quote()`: as a literal of CEL.
pub(super) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}

/// `list.join()`.
pub(super) fn join(list: &[Val], rest: &[Val]) -> Outcome {
    let separator = if let [Val::Text(s)] = rest { s.as_ref() } else { "" };
    let texts: Option<Vec<&str>> =
        list.iter().map(|v| if let Val::Text(t) = v { Some(t.as_ref()) } else { None }).collect();
    texts.map(|t| Val::text(&t.join(separator))).ok_or_else(|| Fault::Error("no such overload".into()))
}

/// The text that `string()` makes of a value.
pub(super) fn show(of: &Val) -> Option<String> {
    Some(match of {
        Val::Bool(b) => b.to_string(),
        Val::Int(n) => n.to_string(),
        Val::Uint(n) => n.to_string(),
        Val::Double(n) => show_double(*n),
        Val::Text(s) => s.to_string(),
        Val::Bytes(b) => String::from_utf8(b.to_vec()).ok()?,
        Val::Time(t) => t.to_string(),
        Val::Duration(nanos) => time::show_duration(*nanos),
        Val::Ip(ip) => ip.to_string(),
        Val::Cidr(net) => net.to_string(),
        _ => return None,
    })
}

/// As Go's `strconv` writes it with `'g'` and the fewest digits.
fn show_double(n: f64) -> String {
    if n.is_nan() {
        return "NaN".to_owned();
    }
    if n.is_infinite() {
        return if n > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let text = format!("{n:e}");
    let (digits, power) = text.split_once('e').unwrap_or((&text, "0"));
    match power.parse::<i32>().unwrap_or(0) {
        power if !(-4..6).contains(&power) => {
            format!("{digits}e{}{:02}", if power < 0 { '-' } else { '+' }, power.unsigned_abs())
        }
        _ => n.to_string(),
    }
}

/// Whether `format.named()` knows it.
pub(super) fn known_format(name: &str) -> bool {
    super::signatures::FORMATS.contains(&name)
}

/// Problems of a text that should have a named format.
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
