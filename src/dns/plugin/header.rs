//! `header { SELECTOR ACTION FLAGS... }`: flags of questions and answers.

use crate::args::{Parsed, none, wrong_count};
use crate::corefile::Directive;
use crate::question::{Answer, Question};

/// Flags to be set or cleared; of two lines the later one counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Header {
    query_recursion_desired: Option<bool>,
    authoritative: Option<bool>,
    recursion_available: Option<bool>,
    recursion_desired: Option<bool>,
}

impl Header {
    pub(crate) fn add(&mut self, directive: &Directive) -> Parsed<()> {
        none(directive)?;
        for line in &directive.body {
            let Some((action, flags)) = line.args.split_first().filter(|(_, flags)| !flags.is_empty()) else {
                return Err(wrong_count(line));
            };
            let value = match action.as_str() {
                "set" => true,
                "clear" => false,
                other => return Err(line.error(format!("unknown flag action={other}, should be set or clear"))),
            };
            for flag in flags {
                match (line.name.as_str(), flag.to_ascii_lowercase().as_str()) {
                    ("query", "rd") => self.query_recursion_desired = Some(value),
                    ("query", "aa" | "ra") => {
                        let what = format!("the flag {flag} means nothing in a query: only rd can be changed there");
                        return Err(line.error(what));
                    }
                    ("response", "aa") => self.authoritative = Some(value),
                    ("response", "ra") => self.recursion_available = Some(value),
                    ("response", "rd") => self.recursion_desired = Some(value),
                    ("query" | "response", other) => {
                        return Err(line.error(format!("unknown/unsupported flag={other}, should be aa, ra or rd")));
                    }
                    (other, _) => {
                        return Err(line.error(format!("unknown selector {other}, should be query or response")));
                    }
                }
            }
        }
        Ok(())
    }

    pub(crate) fn change_question(&self, question: &mut Question) {
        question.recursion_desired = self.query_recursion_desired.unwrap_or(question.recursion_desired);
    }

    pub(crate) fn change_answer(&self, answer: &mut Answer) {
        answer.authoritative = self.authoritative.unwrap_or(answer.authoritative);
        if self.recursion_available.is_some() || self.recursion_desired.is_some() {
            let extra = answer.extra();
            extra.recursion_available = self.recursion_available;
            extra.recursion_desired = self.recursion_desired;
        }
    }
}
