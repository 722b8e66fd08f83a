//! Go's templates as far as `template` needs them: fields, groups of the expression, `index`, `parseInt`. All else is
//! refused by name when the Corefile is read.

use std::collections::BTreeMap;

/// Letters that one template may make; a record has no place for more.
const OUTPUT_BYTES_MAX: usize = 70_000;

/// A text that is no template, or cannot be filled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct TemplateError(pub(super) String);

impl From<String> for TemplateError {
    fn from(why: String) -> TemplateError {
        TemplateError(why)
    }
}

impl From<&str> for TemplateError {
    fn from(why: &str) -> TemplateError {
        TemplateError(why.to_owned())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GoTemplate(Vec<Part>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(Value),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Zone,
    Name,
    Class,
    Kind,
    Remote,
    Text(String),
    Match(usize),
    Group(String),
    ParseInt(Box<Value>, u32, u32),
}

/// Facts that a template speaks of.
pub(super) struct Facts<'a> {
    pub(super) zone: &'a str,
    pub(super) name: &'a str,
    pub(super) class: &'a str,
    pub(super) kind: &'a str,
    pub(super) remote: &'a str,
    pub(super) matches: Vec<&'a str>,
    pub(super) groups: BTreeMap<&'a str, &'a str>,
}

impl GoTemplate {
    pub(super) fn parse(text: &str) -> Result<GoTemplate, TemplateError> {
        let (mut parts, mut rest) = (Vec::new(), text);
        while let Some(start) = rest.find("{{") {
            let Some(len) = rest[start..].find("}}") else {
                return Err(format!("an action is never closed: {text}").into());
            };
            let (mut before, mut after) = (&rest[..start], &rest[start + len + 2..]);
            let mut action = &rest[start + 2..start + len];
            if let Some(trimmed) = action.strip_prefix("- ") {
                (action, before) = (trimmed, before.trim_end());
            }
            if let Some(trimmed) = action.strip_suffix(" -") {
                (action, after) = (trimmed, after.trim_start());
            }
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let action = action.trim();
            if !(action.starts_with("/*") && action.ends_with("*/")) {
                parts.push(Part::Value(value(&words(action)?)?));
            }
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(GoTemplate(parts))
    }

    pub(super) fn fill(&self, facts: &Facts<'_>) -> Result<String, TemplateError> {
        let mut out = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => out.push_str(text),
                Part::Value(value) => out.push_str(&value.of(facts)?),
            }
            if out.len() > OUTPUT_BYTES_MAX {
                return Err(format!("the template makes more than {OUTPUT_BYTES_MAX} letters").into());
            }
        }
        Ok(out)
    }
}

impl Value {
    fn of(&self, facts: &Facts<'_>) -> Result<String, TemplateError> {
        Ok(match self {
            Value::Zone => facts.zone.to_owned(),
            Value::Name => facts.name.to_owned(),
            Value::Class => facts.class.to_owned(),
            Value::Kind => facts.kind.to_owned(),
            Value::Remote => facts.remote.to_owned(),
            Value::Text(text) => text.clone(),
            Value::Match(n) => {
                let found = facts.matches.get(*n);
                (*found.ok_or_else(|| format!("the expression has no group {n}"))?).to_owned()
            }
            Value::Group(name) => facts.groups.get(name.as_str()).copied().unwrap_or_default().to_owned(),
            Value::ParseInt(value, base, bits) => {
                let text = value.of(facts)?;
                let number = u64::from_str_radix(&text, *base).map_err(|err| format!("parseInt {text:?}: {err}"))?;
                if *bits < 64 && number >> *bits > 0 {
                    return Err(format!("parseInt {text:?}: value out of range").into());
                }
                number.to_string()
            }
        })
    }
}

/// Words of an action; a group of words in parentheses is one, and so is a text in quotes.
fn words(action: &str) -> Result<Vec<String>, TemplateError> {
    let (mut words, mut word, mut depth, mut quote) = (Vec::new(), String::new(), 0u32, None);
    for c in action.chars() {
        match (c, quote) {
            (c, Some(open)) => {
                word.push(c);
                if c == open {
                    quote = None;
                }
            }
            ('"' | '`', None) => {
                word.push(c);
                quote = Some(c);
            }
            ('(', None) => {
                depth += 1;
                word.push(c);
            }
            (')', None) => {
                depth = depth.checked_sub(1).ok_or_else(|| format!("unexpected ) in {action}"))?;
                word.push(c);
            }
            (c, None) if c.is_whitespace() && depth == 0 => {
                if !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
            }
            (c, None) => word.push(c),
        }
    }
    if depth > 0 || quote.is_some() {
        return Err(format!("a parenthesis or quote is never closed: {action}").into());
    }
    if !word.is_empty() {
        words.push(word);
    }
    Ok(words)
}

/// Parentheses within parentheses.
const NESTING_MAX: usize = 8;

fn value(words: &[String]) -> Result<Value, TemplateError> {
    nested(words, 0)
}

fn nested(all: &[String], depth: usize) -> Result<Value, TemplateError> {
    if depth > NESTING_MAX {
        return Err(format!("more than {NESTING_MAX} parentheses within parentheses").into());
    }
    let texts: Vec<&str> = all.iter().map(String::as_str).collect();
    let number = |text: &str| text.parse::<u32>().map_err(|_| TemplateError(format!("not a number: {text}")));
    match texts.as_slice() {
        [] => Err("an empty action".into()),
        [one] => single(one, depth),
        ["index", ".Match", n] => Ok(Value::Match(number(n)?.try_into().unwrap_or(usize::MAX))),
        ["index", ".Group", name] => match single(name, depth)? {
            Value::Text(name) => Ok(Value::Group(name)),
            _ => Err(format!("not the name of a group: {name}").into()),
        },
        ["parseInt", value, base, bits] => {
            let (base, bits) = (number(base)?, number(bits)?);
            if !(2..=36).contains(&base) || bits > 64 {
                return Err(format!("parseInt takes a base of 2 to 36 and at most 64 bits: {base} {bits}").into());
            }
            let bits = if bits == 0 { 64 } else { bits };
            Ok(Value::ParseInt(Box::new(single(value, depth)?), base, bits))
        }
        [first, ..] => Err(absent(first)),
    }
}

fn absent(word: &str) -> TemplateError {
    TemplateError(format!(
        "{word:?} is not in the templates of Kedge's DNS: there are .Zone, .Name, .Class, .Type, .Remote, \
         .Group.x, index .Match n and parseInt"
    ))
}

fn single(word: &str, depth: usize) -> Result<Value, TemplateError> {
    if let Some(inner) = word.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) {
        return nested(&words(inner)?, depth + 1);
    }
    for quote in ['"', '`'] {
        if let Some(text) = word.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote)) {
            return Ok(Value::Text(text.to_owned()));
        }
    }
    if let Some(group) = word.strip_prefix(".Group.").filter(|name| !name.contains('.')) {
        return Ok(Value::Group(group.to_owned()));
    }
    match word {
        ".Zone" => Ok(Value::Zone),
        ".Name" | ".Question.Name" => Ok(Value::Name),
        ".Class" => Ok(Value::Class),
        ".Type" => Ok(Value::Kind),
        ".Remote" => Ok(Value::Remote),
        number if number.parse::<u64>().is_ok() => Ok(Value::Text(number.to_owned())),
        other => Err(absent(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(text: &str) -> Result<String, TemplateError> {
        let facts = Facts {
            zone: "example.",
            name: "ip0a0b.example.",
            class: "IN",
            kind: "A",
            remote: "192.0.2.1",
            matches: vec!["whole", "0a", "0b"],
            groups: [("a", "0a"), ("1", "0a"), ("b", "zz")].into(),
        };
        GoTemplate::parse(text)?.fill(&facts)
    }

    #[test]
    fn templates_are_filled_from_the_question_and_its_groups() {
        for (text, wanted) in [
            ("{{ .Name }} 60 {{.Class}} {{ .Type }} x", "ip0a0b.example. 60 IN A x"),
            ("{{ index .Match 1 }}.{{.Group.a}}.{{ index .Group \"1\" }}", "0a.0a.0a"),
            ("10.{{ parseInt .Group.a 16 8 }}.{{ parseInt (index .Match 2) 16 0 }}", "10.10.11"),
            ("{{ .Group.none }}|{{ .Zone }} {{- /* quiet */ -}} {{ .Remote }}", "|example.192.0.2.1"),
            ("no action", "no action"),
        ] {
            assert_eq!(filled(text).unwrap(), wanted, "{text}");
        }
    }

    #[test]
    fn what_cannot_be_filled_or_is_not_here_is_refused_by_name() {
        for (text, wanted) in [
            ("{{ .Name", "an action is never closed"),
            ("{{ if .Name }}x{{ end }}", "\"if\" is not in the templates"),
            ("{{ .Meta \"a/b\" }}", "\".Meta\" is not in the templates"),
            ("{{ .Name | printf }}", "\".Name\" is not in the templates"),
            ("{{ .Var.ip }}", "\".Var.ip\" is not in the templates"),
            ("{{ index .Match 7 }}", "the expression has no group 7"),
            ("{{ parseInt .Group.b 16 8 }}", "parseInt \"zz\": invalid digit"),
            ("{{ parseInt \"fff\" 16 8 }}", "parseInt \"fff\": value out of range"),
            ("{{ parseInt .Group.a 99 8 }}", "parseInt takes a base"),
            ("{{ (.Name }}", "a parenthesis or quote is never closed"),
            ("{{ }}", "an empty action"),
        ] {
            let why = filled(text).unwrap_err().0;
            assert!(why.starts_with(wanted), "{text}: {why}");
        }
        let deep = format!("{{{{ {}.Name{} }}}}", "(".repeat(5000), ")".repeat(5000));
        assert!(filled(&deep).is_err());
    }
}
