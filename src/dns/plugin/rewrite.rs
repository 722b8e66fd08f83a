//! `rewrite [continue|stop] FIELD …`: questions are changed on their way in, and answers on their way out.

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use regex::Regex;

use crate::args::{Parsed, absent, pattern, record_type, response_code, wrong_count};
use crate::corefile::Directive;
use crate::question::{Answer, Question};

mod edns;
mod name;

use name::{NameRule, Pattern};

/// Rules of one server block; each plugin line counts, so their number is bounded by the words of a Corefile.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules(Vec<Rule>);

#[derive(Clone, Debug)]
struct Rule {
    then: Then,
    field: Field,
}

/// The next step after a rule that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    Stop,
    Continue,
}

#[derive(Clone, Debug)]
enum Field {
    Name(NameRule),
    Type { from: RecordType, to: RecordType },
    Class { from: DNSClass, to: DNSClass },
    Ttl { of: Pattern, secs: (u32, u32) },
    Rcode { of: Pattern, from: ResponseCode, to: ResponseCode },
    Edns(edns::EdnsRule),
}

/// A change of an answer, as the rules that fitted ask for it.
#[derive(Clone, Debug)]
pub(crate) enum Revert {
    /// Owner names.
    Name(Change),
    /// Names in the data of records.
    Value(Change),
    Ttl(u32, u32),
    Rcode(ResponseCode, ResponseCode),
}

/// A change of a name's text.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Regex {
        pattern: Regex,
        to: String,
    },
    /// The name, or its end from a label on.
    Remap {
        from: String,
        to: String,
    },
    Suffix {
        from: String,
        to: String,
    },
}

/// Why a question cannot be changed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid name after rewrite: {0}")]
pub(crate) struct InvalidName(pub(crate) String);

impl Rules {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One more line of the Corefile.
    pub(crate) fn add(&mut self, directive: &Directive) -> Parsed<()> {
        let mut args = directive.args.as_slice();
        let mut then = Then::Stop;
        if let Some((first, rest)) = args.split_first()
            && matches!(first.to_ascii_lowercase().as_str(), "continue" | "stop")
        {
            if first.eq_ignore_ascii_case("continue") {
                then = Then::Continue;
            }
            args = rest;
        }
        // In braces the words stand in several lines: the field first, answers behind it.
        let mut words: Vec<String> = args.to_vec();
        for line in &directive.body {
            if !line.body.is_empty() {
                return Err(line.error("rewrite has no braces within braces"));
            }
            words.push(line.name.clone());
            words.extend(line.args.iter().cloned());
        }
        self.0.push(Rule { then, field: field(directive, &words)? });
        Ok(())
    }

    /// Changes the question; returns how its answer is to be changed, in this order.
    pub(crate) fn apply(&self, question: &mut Question) -> Result<Vec<Revert>, InvalidName> {
        let mut reverts: Vec<Revert> = Vec::new();
        for rule in &self.0 {
            let Some(more) = rule.field.apply(question)? else { continue };
            // The change that was made last is undone first.
            reverts.splice(0..0, more);
            if rule.then == Then::Stop {
                break;
            }
        }
        Ok(reverts)
    }
}

impl Field {
    /// `None`: the rule does not fit.
    fn apply(&self, question: &mut Question) -> Result<Option<Vec<Revert>>, InvalidName> {
        Ok(match self {
            Field::Name(rule) => rule.apply(question)?,
            Field::Type { from, to } => (question.kind == *from).then(|| {
                question.kind = *to;
                Vec::new()
            }),
            Field::Class { from, to } => (question.class == *from).then(|| {
                question.class = *to;
                Vec::new()
            }),
            Field::Ttl { of, secs } => of.fits(&question.text()).then(|| vec![Revert::Ttl(secs.0, secs.1)]),
            Field::Rcode { of, from, to } => of.fits(&question.text()).then(|| vec![Revert::Rcode(*from, *to)]),
            Field::Edns(rule) => rule.apply(question).then(Vec::new),
        })
    }
}

fn field(directive: &Directive, words: &[String]) -> Parsed<Field> {
    let Some((name, args)) = words.split_first() else { return Err(wrong_count(directive)) };
    let texts: Vec<&str> = args.iter().map(String::as_str).collect();
    Ok(match (name.to_ascii_lowercase().as_str(), texts.as_slice()) {
        ("name", args) => Field::Name(NameRule::parse(directive, args)?),
        ("type", [from, to]) => Field::Type { from: record_type(directive, from)?, to: record_type(directive, to)? },
        ("class", [from, to]) => Field::Class { from: class(directive, from)?, to: class(directive, to)? },
        ("ttl", [of @ .., secs]) => Field::Ttl { of: Pattern::parse(directive, of)?, secs: range(directive, secs)? },
        ("rcode", [of @ .., from, to]) => Field::Rcode {
            of: Pattern::parse(directive, of)?,
            from: response_code(directive, from)?,
            to: response_code(directive, to)?,
        },
        ("edns0", args) => Field::Edns(edns::EdnsRule::parse(directive, args)?),
        ("cname", _) => return Err(not_here(directive, "cname")),
        ("type" | "class" | "ttl" | "rcode", _) => return Err(wrong_count(directive)),
        (other, _) => return Err(directive.error(format!("invalid rule type {other:?}"))),
    })
}

fn not_here(directive: &Directive, word: &str) -> crate::corefile::CorefileError {
    absent(directive, &Directive { name: word.to_owned(), ..directive.clone() })
}

fn class(directive: &Directive, text: &str) -> Parsed<DNSClass> {
    match text.to_ascii_uppercase().as_str() {
        "IN" => Ok(DNSClass::IN),
        "CH" => Ok(DNSClass::CH),
        "HS" => Ok(DNSClass::HS),
        other => Err(directive.error(format!("not a class: {other}"))),
    }
}

/// `30`, `30-300`, `30-`, `-300`.
fn range(directive: &Directive, text: &str) -> Parsed<(u32, u32)> {
    let bad = || directive.error(format!("not a time to live or a range of them: {text}"));
    let secs = |text: &str, default: u32| match text {
        "" => Ok(default),
        text => text.parse::<u32>().ok().filter(|secs| *secs <= u32::MAX >> 1).ok_or_else(bad),
    };
    let (low, high) = match text.split_once('-') {
        None if text.is_empty() => return Err(bad()),
        None => (secs(text, 0)?, secs(text, 0)?),
        Some(("", "")) => return Err(bad()),
        Some((low, high)) => (secs(low, 0)?, secs(high, u32::MAX >> 1)?),
    };
    if low > high { Err(bad()) } else { Ok((low, high)) }
}

/// Changes the records of an answer.
pub(crate) fn revert(answer: &mut Answer, reverts: &[Revert]) {
    for revert in reverts {
        if let Revert::Rcode(from, to) = revert
            && answer.code == *from
        {
            answer.code = *to;
        }
    }
    for record in answer.records_mut() {
        for revert in reverts {
            match revert {
                Revert::Name(change) => change.apply(&mut record.name),
                Revert::Value(change) => value(record, change),
                Revert::Ttl(low, high) => record.ttl = record.ttl.clamp(*low, *high),
                Revert::Rcode(..) => {}
            }
        }
    }
}

fn value(record: &mut Record, change: &Change) {
    match &mut record.data {
        RData::CNAME(name) => change.apply(&mut name.0),
        RData::NS(name) => change.apply(&mut name.0),
        RData::PTR(name) => change.apply(&mut name.0),
        RData::MX(mx) => change.apply(&mut mx.exchange),
        RData::SRV(srv) => change.apply(&mut srv.target),
        RData::SOA(soa) => change.apply(&mut soa.mname),
        RData::NAPTR(naptr) => change.apply(&mut naptr.replacement),
        _ => {}
    }
}

impl Change {
    /// A change that makes no name leaves the old one.
    fn apply(&self, name: &mut Name) {
        let text = absolute(name.to_ascii());
        let changed = match self {
            Change::Regex { pattern, to } => substituted(pattern, [to, &text]),
            Change::Remap { from, to } => remapped(&text, [from, to]),
            Change::Suffix { from, to } => text.strip_suffix(from.as_str()).map(|before| format!("{before}{to}")),
        };
        if let Some(changed) = changed.and_then(|changed| named(&changed)) {
            *name = changed;
        }
    }
}

fn remapped(text: &str, [from, to]: [&String; 2]) -> Option<String> {
    let before = text.strip_suffix(from.as_str())?;
    (before.is_empty() || before.ends_with('.')).then(|| format!("{before}{to}"))
}

/// The replacement with `{0}`, `{1}`, … filled in; `None`: no match.
fn substituted(pattern: &Regex, [to, text]: [&str; 2]) -> Option<String> {
    let groups = pattern.captures(text)?;
    let mut out = to.to_owned();
    for (n, group) in groups.iter().enumerate() {
        let mark = format!("{{{n}}}");
        if out.contains(&mark) {
            out = out.replace(&mark, group.map_or("", |group| group.as_str()));
        }
        // A name has 255 octets, and its text four letters for each at most.
        if out.len() > TEXT_BYTES_MAX {
            return Some(out);
        }
    }
    Some(out)
}

const TEXT_BYTES_MAX: usize = 4 * 255;

/// A name of a text that need not end in a dot.
fn named(text: &str) -> Option<Name> {
    let mut name = Name::from_ascii(text).ok().filter(|_| !text.is_empty())?;
    name.set_fqdn(true);
    Some(name)
}

fn absolute(mut text: String) -> String {
    if !text.ends_with('.') {
        text.push('.');
    }
    text
}

fn answer_pattern(directive: &Directive, [from, to]: [&str; 2]) -> Parsed<Change> {
    let pattern = pattern(directive, from)?;
    check_groups(directive, &pattern, to)?;
    Ok(Change::Regex { pattern, to: absolute(to.to_ascii_lowercase()) })
}

/// A replacement names only groups that the expression has.
fn check_groups(directive: &Directive, pattern: &Regex, to: &str) -> Parsed<()> {
    let mut rest = to;
    while let Some(start) = rest.find('{') {
        let Some(len) = rest[start..].find('}') else { break };
        let word = &rest[start + 1..start + len];
        match word.parse::<usize>() {
            Ok(n) if n < pattern.captures_len() => {}
            Ok(n) => {
                let what =
                    format!("the replacement names the group {n}, the expression has {}", pattern.captures_len() - 1);
                return Err(directive.error(what));
            }
            Err(_) => return Err(directive.error(format!("{{{word}}} is not a group's number"))),
        }
        rest = &rest[start + len + 1..];
    }
    Ok(())
}

#[cfg(test)]
mod tests;
