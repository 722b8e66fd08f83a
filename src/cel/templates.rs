//! `'%s of %d'.format([…])`: reading templates, checking constant ones, filling them in.
//!
//! Spec: `ext/formatting.go` of cel-go v0.26 (strings of version 2), with the locale `en_US`: `%f` groups thousands,
//! and `%e` writes the power as digits above the line and takes its precision for a width.

use super::moment::{NumberError, go_number};
use super::operators::weight;
use super::run::{Fault, Outcome, Run, error};
use super::strings::show;
use super::types::Ty;
use super::value::{Key, Val};

/// A precision beyond all sense would only fill memory.
const DIGITS_MAX: usize = 1_000;
const DIGITS: usize = 6;

/// A part of a template.
enum Piece<'t> {
    Text(&'t str),
    /// `%.2f`: the verb, and how many digits are wanted.
    Clause(char, usize),
}

/// A template that cannot be read, or that does not fit its values.
#[derive(Debug, thiserror::Error)]
pub(super) enum TemplateError {
    #[error("unexpected end of string")]
    End,
    #[error("could not parse formatting clause: unrecognized formatting clause \"{0}\"")]
    Verb(String),
    #[error(
        "could not parse formatting clause: error while parsing precision: could not find end of precision specifier"
    )]
    OpenPrecision,
    #[error(
        "could not parse formatting clause: error while parsing precision: error while converting precision to \
         integer: {0}"
    )]
    Precision(NumberError),
    #[error("index {n_values} out of range")]
    TooFew { n_values: usize },
    #[error("too many arguments supplied to string.format (expected {n_used}, got {n_values})")]
    TooMany { n_used: usize, n_values: usize },
    /// The value at this place does not fit its verb.
    #[error("{text}")]
    Misfit { at: usize, text: String },
}

impl TemplateError {
    /// The place of the value that does not fit; the template is wrong itself otherwise.
    pub(super) fn place(&self) -> Option<usize> {
        if let TemplateError::Misfit { at, .. } = self { Some(*at) } else { None }
    }
}

/// Takes the first piece of a template off.
///
/// Errors: the clause is none.
fn next<'t>(rest: &mut &'t str) -> Result<Piece<'t>, TemplateError> {
    let Some(clause) = rest.strip_prefix('%') else {
        let (text, after) = rest.split_at(rest.find('%').unwrap_or(rest.len()));
        *rest = after;
        return Ok(Piece::Text(text));
    };
    if let Some(after) = clause.strip_prefix('%') {
        *rest = after;
        return Ok(Piece::Text("%"));
    }
    if clause.is_empty() {
        return Err(TemplateError::End);
    }
    let (mut digits, mut clause) = (DIGITS, clause);
    if let Some(after) = clause.strip_prefix('.') {
        let end = after.find(|c: char| !c.is_ascii_digit());
        let end = end.ok_or(TemplateError::OpenPrecision)?;
        let number = go_number(&after[..end]).map_err(TemplateError::Precision)?;
        digits = usize::try_from(number).unwrap_or(DIGITS_MAX).min(DIGITS_MAX);
        clause = &after[end..];
    }
    let Some(verb) = clause.chars().next().filter(|verb| "sdfebxXo".contains(*verb)) else {
        return Err(TemplateError::Verb(clause.chars().take(1).collect()));
    };
    *rest = &clause[1..];
    Ok(Piece::Clause(verb, digits))
}

/// The error about a value that does not fit its verb.
fn misfit(verb: char, ty: &str) -> String {
    let what = match verb {
        's' => {
            "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, durations, \
            and timestamps"
        }
        'd' => "decimal clause can only be used on integers",
        'f' => "fixed-point clause can only be used on doubles",
        'e' => "scientific clause can only be used on doubles",
        'b' => "only integers and bools can be formatted as binary",
        'o' => "octal clause can only be used on integers",
        _ => "only integers, byte buffers, and strings can be formatted as hex",
    };
    format!("error during formatting: {what}, was given {ty}")
}

/// Whether a constant template fits values of these types, each with its place.
///
/// Errors: the template cannot be read, or values do not fit it.
pub(super) fn check(template: &str, values: &[(usize, Ty)]) -> Result<(), TemplateError> {
    let (mut rest, mut n_used) = (template, 0);
    while !rest.is_empty() {
        let starts_clause = rest.starts_with('%') && !rest.starts_with("%%");
        if starts_clause && n_used >= values.len() {
            return Err(TemplateError::TooFew { n_values: n_used });
        }
        if let Piece::Clause(verb, _) = next(&mut rest)? {
            let (at, ty) = &values[n_used];
            n_used += 1;
            if !takes(verb, ty) {
                return Err(TemplateError::Misfit { at: *at, text: misfit(verb, type_name(ty)) });
            }
        }
    }
    if values.len() > n_used {
        return Err(TemplateError::TooMany { n_used, n_values: values.len() });
    }
    Ok(())
}

fn takes(verb: char, ty: &Ty) -> bool {
    let name = type_name(ty);
    match (verb, ty) {
        (_, Ty::Dyn | Ty::Wrong) => true,
        ('s', Ty::List(_) | Ty::Map(..) | Ty::Null) => true,
        ('s', _) => {
            ["int", "uint", "double", "bool", "string", "bytes", "type"].contains(&name) || name.starts_with("google.")
        }
        ('d' | 'o', _) => ["int", "uint"].contains(&name),
        ('b', _) => ["int", "uint", "bool"].contains(&name),
        // Not a number and the two without an end are written as texts.
        ('f' | 'e', _) => ["double", "string"].contains(&name),
        _ => ["int", "uint", "string", "bytes"].contains(&name),
    }
}

/// As `type()` names it.
fn type_name(ty: &Ty) -> &str {
    match ty {
        Ty::Null => "null_type",
        Ty::List(_) => "list",
        Ty::Map(..) => "map",
        Ty::Optional(_) => "optional_type",
        Ty::Named("timestamp") => "google.protobuf.Timestamp",
        Ty::Named("duration") => "google.protobuf.Duration",
        Ty::Named(name) => name,
        Ty::Object(object) => &object.name,
        Ty::Made(name) => name,
        Ty::Dyn | Ty::Wrong | Ty::Param(_) | Ty::Var(_) => "dyn",
    }
}

/// Fills a template in.
pub(super) fn fill(run: &Run<'_>, template: &str, values: &[Val]) -> Outcome {
    let (mut rest, mut n_used, mut out) = (template, 0, String::new());
    while !rest.is_empty() {
        let starts_clause = rest.starts_with('%') && !rest.starts_with("%%");
        if starts_clause && n_used >= values.len() {
            return error(TemplateError::TooFew { n_values: n_used }.to_string());
        }
        match next(&mut rest).map_err(|err| Fault::Error(err.to_string()))? {
            Piece::Text(text) => out.push_str(text),
            Piece::Clause(verb, digits) => {
                let value = &values[n_used];
                n_used += 1;
                run.pay(weight(value) + digits / 10)?;
                let text =
                    written(run, verb, digits, value)?.ok_or_else(|| Fault::Error(misfit(verb, value.type_name())))?;
                out.push_str(&text);
            }
        }
    }
    Ok(Val::text(&out))
}

/// One value; `None` if the verb does not take it.
fn written(run: &Run<'_>, verb: char, digits: usize, value: &Val) -> Result<Option<String>, Fault> {
    let number = match value {
        Val::Double(n) => Some(*n),
        Val::Text(text) => match text.as_ref() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    };
    Ok(match (verb, value) {
        ('s', value) => plain(run, value)?,
        ('d', Val::Int(_) | Val::Uint(_)) => show(value),
        ('f', _) => number.map(|n| fixed(n, digits)),
        ('e', _) => number.map(|n| scientific(n, digits)),
        ('b', Val::Bool(b)) => Some(u8::from(*b).to_string()),
        ('b' | 'o' | 'x' | 'X', Val::Int(n)) => {
            let sign = if *n < 0 { "-" } else { "" };
            Some(format!("{sign}{}", based(verb, n.unsigned_abs())))
        }
        ('b' | 'o' | 'x' | 'X', Val::Uint(n)) => Some(based(verb, *n)),
        ('x', Val::Text(text)) => Some(base::hex::encode(text.as_bytes())),
        ('x', Val::Bytes(bytes)) => Some(base::hex::encode(bytes)),
        ('X', Val::Text(text)) => Some(base::hex::encode(text.as_bytes()).to_uppercase()),
        ('X', Val::Bytes(bytes)) => Some(base::hex::encode(bytes).to_uppercase()),
        _ => None,
    })
}

fn based(verb: char, n: u64) -> String {
    match verb {
        'b' => format!("{n:b}"),
        'o' => format!("{n:o}"),
        'x' => format!("{n:x}"),
        _ => format!("{n:X}"),
    }
}

fn endless(n: f64) -> Option<&'static str> {
    if n.is_nan() {
        return Some("NaN");
    }
    n.is_infinite().then_some(if n > 0.0 { "∞" } else { "-∞" })
}

fn fixed(n: f64, digits: usize) -> String {
    if let Some(text) = endless(n) {
        return text.to_owned();
    }
    let text = format!("{n:.digits$}");
    let (whole, fraction) =
        text.split_once('.').map_or((text.as_str(), None), |(whole, fraction)| (whole, Some(fraction)));
    let (sign, whole) = whole.strip_prefix('-').map_or(("", whole), |whole| ("-", whole));
    let mut out = sign.to_owned();
    for (idx, digit) in whole.chars().enumerate() {
        if idx > 0 && (whole.len() - idx) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    if let Some(fraction) = fraction {
        out.push('.');
        out.push_str(fraction);
    }
    out
}

fn scientific(n: f64, width: usize) -> String {
    let text = match endless(n) {
        Some(text) => text.to_owned(),
        None => {
            let text = format!("{n:.DIGITS$e}");
            let (number, power) = text.split_once('e').unwrap_or((&text, "0"));
            let (sign, power) = power.strip_prefix('-').map_or(("", power), |power| ("⁻", power));
            let above = |digit: u8| {
                ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'][usize::from(digit.saturating_sub(b'0')).min(9)]
            };
            let power: String = format!("{power:0>2}").bytes().map(above).collect();
            format!("{number}×10{sign}{power}")
        }
    };
    format!("{text:>width$}")
}

/// The text that `%s` makes of a value; `None` if it has no such form.
fn plain(run: &Run<'_>, value: &Val) -> Result<Option<String>, Fault> {
    Ok(match value {
        Val::Null => Some("null".to_owned()),
        Val::Type(name) => Some(name.to_string()),
        Val::List(_) | Val::Map(_) => Some(nested(run, value)?),
        Val::Bool(_)
        | Val::Int(_)
        | Val::Uint(_)
        | Val::Double(_)
        | Val::Text(_)
        | Val::Bytes(_)
        | Val::Time(_)
        | Val::Duration(_) => show(value),
        _ => None,
    })
}

/// A value inside of a list or map, as CEL itself would write it.
fn nested(run: &Run<'_>, value: &Val) -> Result<String, Fault> {
    run.pay(weight(value))?;
    let shown = || show(value).unwrap_or_default();
    Ok(match value {
        Val::List(items) => {
            let items = items.iter().map(|item| nested(run, item)).collect::<Result<Vec<_>, _>>()?;
            format!("[{}]", items.join(", "))
        }
        Val::Map(map) => {
            let mut pairs = Vec::with_capacity(map.len());
            for (key, value) in map.iter() {
                let key = match key {
                    Key::Text(key) => format!("{key:?}"),
                    Key::Null | Key::Double(_) => {
                        let text = "error during formatting: no formatting function for map key of type";
                        return error(format!("{text} {}", key.to_val().type_name()));
                    }
                    key => key.to_string(),
                };
                pairs.push((key, nested(run, value)?));
            }
            pairs.sort();
            format!("{{{}}}", pairs.iter().map(|(key, value)| format!("{key}:{value}")).collect::<Vec<_>>().join(", "))
        }
        Val::Double(n) if n.is_finite() => format!("{n:.DIGITS$}"),
        Val::Double(_) | Val::Text(_) => format!("{:?}", shown()),
        Val::Bytes(_) => format!("b{:?}", shown()),
        Val::Time(_) => format!("timestamp({:?})", shown()),
        Val::Duration(_) => format!("duration({:?})", shown()),
        other => match plain(run, other)? {
            Some(text) => text,
            None => return error(format!("error during formatting: no formatting function for {}", other.type_name())),
        },
    })
}
