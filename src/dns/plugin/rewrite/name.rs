//! `rewrite name [exact|prefix|suffix|substring|regex] FROM TO [answer …]`.

use regex::Regex;

use crate::args::{Parsed, pattern, wrong_count};
use crate::corefile::Directive;
use crate::plugin::rewrite::{
    Change, InvalidName, Revert, absolute, answer_pattern, check_groups, named, not_here, substituted,
};
use crate::question::Question;

/// Names that a rule is for.
#[derive(Clone, Debug)]
pub(super) enum Pattern {
    Exact(String),
    Prefix(String),
    Suffix(String),
    Substring(String),
    Regex(Regex),
}

impl Pattern {
    /// `[exact|prefix|suffix|substring|regex] STRING`.
    pub(super) fn parse(directive: &Directive, words: &[&str]) -> Parsed<Pattern> {
        match words {
            [text] => Pattern::of(directive, ["exact", text]),
            [kind, text] => Pattern::of(directive, [kind, text]),
            _ => Err(wrong_count(directive)),
        }
    }

    fn of(directive: &Directive, [kind, text]: [&str; 2]) -> Parsed<Pattern> {
        let lower = text.to_ascii_lowercase();
        Ok(match kind.to_ascii_lowercase().as_str() {
            "exact" => Pattern::Exact(absolute(lower)),
            "prefix" => Pattern::Prefix(lower),
            "suffix" => Pattern::Suffix(absolute(lower)),
            "substring" if lower.is_empty() => return Err(directive.error("an empty substring is in every name")),
            "substring" => Pattern::Substring(lower),
            "regex" => Pattern::Regex(pattern(directive, text)?),
            other => {
                return Err(directive
                    .error(format!("only exact, prefix, suffix, substring and regex match names, not {other}")));
            }
        })
    }

    pub(super) fn fits(&self, text: &str) -> bool {
        match self {
            Pattern::Exact(name) => text == name,
            Pattern::Prefix(prefix) => text.starts_with(prefix),
            Pattern::Suffix(suffix) => text.ends_with(suffix),
            Pattern::Substring(part) => text.contains(part),
            Pattern::Regex(regex) => regex.is_match(text),
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct NameRule {
    from: Pattern,
    to: String,
    /// The answer's names become the question's again.
    auto: bool,
    answers: Vec<Revert>,
}

impl NameRule {
    pub(super) fn parse(directive: &Directive, words: &[&str]) -> Parsed<NameRule> {
        let (kind, from, to, rest) = match words {
            [] | [_] => return Err(directive.error("too few arguments for a name rule")),
            [from, to] => ("exact", *from, *to, &[][..]),
            [kind, from, to, rest @ ..] => (*kind, *from, *to, rest),
        };
        let from = Pattern::of(directive, [kind, from])?;
        let to = match &from {
            Pattern::Exact(_) | Pattern::Suffix(_) => absolute(to.to_ascii_lowercase()),
            Pattern::Regex(regex) => {
                check_groups(directive, regex, to)?;
                absolute(to.to_ascii_lowercase())
            }
            Pattern::Prefix(_) | Pattern::Substring(_) => to.to_ascii_lowercase(),
        };
        let mut rule = NameRule { from, to, auto: false, answers: Vec::new() };
        rule.parse_answers(directive, rest)?;
        match &rule.from {
            Pattern::Exact(_) => rule.auto = true,
            // For a suffix there is a better way back: the suffix is put in its place again.
            Pattern::Suffix(suffix) if rule.auto => {
                rule.auto = false;
                let back = Change::Suffix { from: rule.to.clone(), to: suffix.clone() };
                rule.answers.splice(0..0, [Revert::Name(back.clone()), Revert::Value(back)]);
            }
            _ => {}
        }
        Ok(rule)
    }

    /// `answer (auto | name FROM TO | value FROM TO) …`.
    fn parse_answers(&mut self, directive: &Directive, words: &[&str]) -> Parsed<()> {
        if words.first() == Some(&"metadata") {
            return Err(not_here(directive, "metadata"));
        }
        if words.first().is_some_and(|word| *word != "answer") {
            let what = format!("{:?} stands where only 'answer' may stand", words[0]);
            return Err(directive.error(what));
        }
        let mut rest = words;
        while let Some((word, after)) = rest.split_first() {
            rest = after;
            match (*word, rest) {
                ("answer", []) => return Err(directive.error("type missing for answer rule")),
                ("answer", _) => {}
                ("auto", _) => self.auto = true,
                // `answer name auto`, as the manual's own example has it.
                ("name", ["auto", after @ ..]) => {
                    self.auto = true;
                    rest = after;
                }
                ("name", [from, to, after @ ..]) => {
                    self.answers.push(Revert::Name(answer_pattern(directive, [from, to])?));
                    rest = after;
                }
                ("value", [from, to, after @ ..]) => {
                    self.answers.push(Revert::Value(answer_pattern(directive, [from, to])?));
                    rest = after;
                }
                ("name" | "value", _) => {
                    return Err(directive.error(format!("answer {word}: 2 arguments required")));
                }
                (other, _) => return Err(directive.error(format!("invalid type {other:?} for an answer rule"))),
            }
        }
        Ok(())
    }

    pub(super) fn apply(&self, question: &mut Question) -> Result<Option<Vec<Revert>>, InvalidName> {
        let text = question.text();
        let changed = match &self.from {
            Pattern::Exact(name) => (text == *name).then(|| self.to.clone()),
            Pattern::Prefix(prefix) => text.strip_prefix(prefix.as_str()).map(|after| format!("{}{after}", self.to)),
            Pattern::Suffix(suffix) => text.strip_suffix(suffix.as_str()).map(|before| format!("{before}{}", self.to)),
            Pattern::Substring(part) => text.contains(part.as_str()).then(|| text.replace(part.as_str(), &self.to)),
            Pattern::Regex(regex) => substituted(regex, [&self.to, &text]),
        };
        let Some(changed) = changed else { return Ok(None) };
        let changed = absolute(changed);
        let Some(name) = named(&changed) else {
            let shown: String = changed.chars().take(255).collect();
            return Err(InvalidName(shown));
        };
        let mut reverts = Vec::new();
        if self.auto {
            let back = Change::Remap { from: absolute(name.to_ascii()), to: text };
            reverts.extend([Revert::Name(back.clone()), Revert::Value(back)]);
        }
        reverts.extend(self.answers.iter().cloned());
        question.lower = name.to_lowercase();
        question.name = name;
        Ok(Some(reverts))
    }
}
