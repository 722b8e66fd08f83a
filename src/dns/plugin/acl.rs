//! `acl [ZONES...] { ACTION [type QTYPE...] [net SOURCE...] }`: who may ask for what.

use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};
use ipnet::IpNet;

use crate::args::{Parsed, names_or, record_type};
use crate::corefile::Directive;
use crate::question::{Answer, Question, extended_error};

/// Codes of RFC 8914.
const EDE_BLOCKED: u16 = 15;
const EDE_FILTERED: u16 = 17;

/// The rules of one `acl`; the first that fits decides.
#[derive(Clone, Debug)]
pub(crate) struct Acl {
    zones: Vec<Name>,
    rules: Vec<Rule>,
}

#[derive(Clone, Debug)]
struct Rule {
    action: Action,
    /// Empty: all types.
    types: Vec<RecordType>,
    /// Empty: all sources.
    nets: Vec<IpNet>,
}

/// The fate of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Allow,
    Block,
    Filter,
    Drop,
}

impl Action {
    pub(crate) fn metric(self) -> &'static str {
        match self {
            Action::Allow => "coredns_acl_allowed_requests_total",
            Action::Block => "coredns_acl_blocked_requests_total",
            Action::Filter => "coredns_acl_filtered_requests_total",
            Action::Drop => "coredns_acl_dropped_requests_total",
        }
    }

    /// The answer; `None` lets the next plugin give it.
    pub(crate) fn answer(self) -> Option<Answer> {
        let with = |code, ede, text| {
            let mut answer = Answer::new(code, "acl");
            answer.extra().options.push(extended_error(ede, text));
            answer
        };
        match self {
            Action::Allow => None,
            Action::Block => Some(with(ResponseCode::Refused, EDE_BLOCKED, "blocked")),
            Action::Filter => Some(with(ResponseCode::NoError, EDE_FILTERED, "filtered")),
            Action::Drop => {
                let mut answer = Answer::new(ResponseCode::NoError, "acl");
                answer.extra().dropped = true;
                Some(answer)
            }
        }
    }
}

impl Acl {
    pub(crate) fn parse(directive: &Directive, zones: &[Name]) -> Parsed<Acl> {
        let zones = names_or(directive, &directive.args, zones)?;
        let rules = directive.body.iter().map(Rule::parse).collect::<Parsed<_>>()?;
        Ok(Acl { zones, rules })
    }

    /// The action of the first rule that fits.
    pub(crate) fn judge(&self, question: &Question) -> Option<Action> {
        if !self.zones.iter().any(|zone| zone.zone_of(&question.lower)) {
            return None;
        }
        let client = question.client.ip().to_canonical();
        self.rules.iter().find(|rule| rule.fits(client, question.kind)).map(|rule| rule.action)
    }
}

impl Rule {
    fn parse(line: &Directive) -> Parsed<Rule> {
        let action = match line.name.to_ascii_lowercase().as_str() {
            "allow" => Action::Allow,
            "block" => Action::Block,
            "filter" => Action::Filter,
            "drop" => Action::Drop,
            other => {
                let what = format!("unexpected token {other:?}; expect 'allow', 'block', 'filter' or 'drop'");
                return Err(line.error(what));
            }
        };
        let (mut types, mut nets) = (None, None);
        let mut words = line.args.iter().peekable();
        while let Some(section) = words.next() {
            let mut values = Vec::new();
            while let Some(word) = words.next_if(|word| !matches!(word.as_str(), "type" | "net")) {
                values.push(word.clone());
            }
            if values.is_empty() {
                return Err(line.error(format!("no token specified in {section:?} section")));
            }
            let all = values.iter().any(|value| value == "*");
            match section.as_str() {
                "type" if all => types = Some(Vec::new()),
                "type" => types = Some(values.iter().map(|text| record_type(line, text)).collect::<Parsed<_>>()?),
                "net" if all => nets = Some(Vec::new()),
                "net" => nets = Some(values.iter().map(|text| net(line, text)).collect::<Parsed<_>>()?),
                other => return Err(line.error(format!("unexpected token {other:?}; expect 'type | net'"))),
            }
        }
        Ok(Rule { action, types: types.unwrap_or_default(), nets: nets.unwrap_or_default() })
    }

    fn fits(&self, client: IpAddr, kind: RecordType) -> bool {
        (self.types.is_empty() || self.types.contains(&kind))
            && (self.nets.is_empty() || self.nets.iter().any(|net| net.contains(&client)))
    }
}

fn net(line: &Directive, text: &str) -> Parsed<IpNet> {
    let one = text.parse::<IpAddr>().map(IpNet::from).ok();
    one.or_else(|| text.parse().ok()).ok_or_else(|| line.error(format!("illegal CIDR notation {text:?}")))
}
