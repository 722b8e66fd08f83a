//! `template CLASS TYPE [ZONE...] { … }`: records made from the question.

use std::collections::BTreeMap;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use regex::Regex;

use crate::args::{Parsed, absent, names_or, number, one, pattern, record_type, response_code, unknown, wrong_count};
use crate::around::Fall;
use crate::corefile::Directive;
use crate::plugin::go_template::{Facts, GoTemplate, TemplateError};
use crate::plugin::master_file;
use crate::question::{Answer, Question, extended_error};

#[derive(Clone, Debug)]
pub(crate) struct Template {
    /// `None`: any.
    class: Option<DNSClass>,
    kind: Option<RecordType>,
    zones: Vec<Name>,
    patterns: Vec<Regex>,
    answer: Vec<GoTemplate>,
    additional: Vec<GoTemplate>,
    authority: Vec<GoTemplate>,
    code: ResponseCode,
    extended: Option<(u16, String)>,
    fall: Fall,
}

impl Template {
    pub(crate) fn parse(directive: &Directive, zones: &[Name]) -> Parsed<Template> {
        let [class, kind, own @ ..] = directive.args.as_slice() else { return Err(wrong_count(directive)) };
        let class = match class.to_ascii_uppercase().as_str() {
            "ANY" => None,
            "IN" => Some(DNSClass::IN),
            "CH" => Some(DNSClass::CH),
            "HS" => Some(DNSClass::HS),
            other => return Err(directive.error(format!("invalid query class {other}"))),
        };
        let kind = Some(record_type(directive, kind)?).filter(|kind| *kind != RecordType::ANY);
        let mut template = Template {
            class,
            kind,
            zones: names_or(directive, own, zones)?,
            patterns: Vec::new(),
            answer: Vec::new(),
            additional: Vec::new(),
            authority: Vec::new(),
            code: ResponseCode::NoError,
            extended: None,
            fall: Fall::default(),
        };
        for option in &directive.body {
            template.set(directive, option)?;
        }
        if template.patterns.is_empty() {
            template.patterns.push(pattern(directive, ".*")?);
        }
        Ok(template)
    }

    fn set(&mut self, directive: &Directive, option: &Directive) -> Parsed<()> {
        let templates = || -> Parsed<Vec<GoTemplate>> {
            if option.args.is_empty() {
                return Err(wrong_count(option));
            }
            let parse = |text: &String| GoTemplate::parse(text).map_err(|err| option.error(err.0));
            option.args.iter().map(parse).collect()
        };
        match option.name.as_str() {
            "match" if option.args.is_empty() => return Err(wrong_count(option)),
            "match" => {
                let patterns = option.args.iter().map(|text| pattern(option, text));
                self.patterns.extend(patterns.collect::<Parsed<Vec<_>>>()?);
            }
            "answer" => self.answer.extend(templates()?),
            "additional" => self.additional.extend(templates()?),
            "authority" => self.authority.extend(templates()?),
            "rcode" => self.code = response_code(option, one(option)?)?,
            "ederror" => match option.args.as_slice() {
                [code] => self.extended = Some((number(option, code)?, String::new())),
                [code, reason] => self.extended = Some((number(option, code)?, reason.clone())),
                _ => return Err(wrong_count(option)),
            },
            "fallthrough" => self.fall = Fall::parse(option)?,
            "upstream" => {}
            "var" | "expr" => return Err(absent(directive, option)),
            _ => return Err(unknown(directive, option)),
        }
        Ok(())
    }

    /// `None`: the next template or plugin.
    pub(crate) fn answer(&self, question: &Question) -> Option<Answer> {
        let zone =
            self.zones.iter().filter(|zone| zone.zone_of(&question.lower)).max_by_key(|zone| zone.num_labels())?;
        let fits_class = self.class.is_none_or(|class| class == question.class);
        let fits_kind = self.kind.is_none_or(|kind| kind == question.kind || question.kind == RecordType::ANY);
        if !fits_class || !fits_kind {
            return None;
        }
        let text = question.text();
        let Some((pattern, found)) = self.patterns.iter().find_map(|p| Some((p, p.captures(&text)?))) else {
            return (!self.fall.through(&question.lower))
                .then(|| Answer::failed("template", "no expression of the template fits the name"));
        };
        let matches: Vec<&str> = found.iter().map(|group| group.map_or("", |group| group.as_str())).collect();
        let numbers: Vec<String> = (0..matches.len()).map(|n| n.to_string()).collect();
        let mut groups: BTreeMap<&str, &str> =
            numbers.iter().map(String::as_str).zip(matches.iter().copied()).collect();
        for (name, group) in pattern.capture_names().zip(&matches) {
            groups.extend(name.map(|name| (name, *group)));
        }
        let kind = if question.kind == RecordType::ANY { self.kind.unwrap_or(RecordType::ANY) } else { question.kind };
        let facts = Facts {
            zone: &zone.to_ascii(),
            name: &text,
            class: &question.class.to_string(),
            kind: &kind.to_string(),
            remote: &question.client.ip().to_canonical().to_string(),
            matches,
            groups,
        };
        Some(self.made(&facts).unwrap_or_else(|err| Answer::failed("template", err.0)))
    }

    fn made(&self, facts: &Facts<'_>) -> Result<Answer, TemplateError> {
        let mut answer = Answer { authoritative: true, ..Answer::new(self.code, "template") };
        if self.code == ResponseCode::ServFail {
            answer.authoritative = false;
            return Ok(answer);
        }
        let made = |templates: &[GoTemplate]| -> Result<Vec<Record>, TemplateError> {
            let record = |template: &GoTemplate| {
                let text = template.fill(facts)?;
                master_file::record(&text).map_err(|err| TemplateError(format!("not a record: {text:?}: {}", err.what)))
            };
            templates.iter().map(record).collect()
        };
        answer.answers = made(&self.answer)?;
        answer.additionals = made(&self.additional)?;
        answer.authorities = made(&self.authority)?;
        if let Some((code, reason)) = &self.extended {
            answer.extra().options.push(extended_error(*code, reason));
        }
        Ok(answer)
    }
}

#[cfg(test)]
mod tests;
