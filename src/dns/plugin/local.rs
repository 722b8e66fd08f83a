//! `local`, `any` and `whoami`: answers that need nothing but the question.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, HINFO, NS, PTR, SOA, SRV};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use crate::args::{Parsed, none, one, unknown};
use crate::corefile::Directive;
use crate::question::{Answer, Question, Transport};

/// A week, as CoreDNS's.
const LOCAL_TTL_SECS: u32 = 604_800;
const ZONES: [&str; 4] = ["localhost.", "0.in-addr.arpa.", "127.in-addr.arpa.", "255.in-addr.arpa."];
/// RFC 8482.
const ANY_TTL_SECS: u32 = 8482;

/// Names of the machine itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Local {
    /// `localhost.anything.` is the machine itself, too.
    prefix: bool,
}

impl Local {
    pub(crate) fn parse(directive: &Directive) -> Parsed<Local> {
        none(directive)?;
        let mut local = Local { prefix: true };
        for option in &directive.body {
            match (option.name.as_str(), one(option)?) {
                ("localhost_prefix", "on") => local.prefix = true,
                ("localhost_prefix", "off") => local.prefix = false,
                ("localhost_prefix", other) => return Err(option.error(format!("neither on nor off: {other}"))),
                _ => return Err(unknown(directive, option)),
            }
        }
        Ok(local)
    }

    /// Whether the name is counted as one that a search path made.
    pub(crate) fn counts(self, text: &str) -> bool {
        text != "localhost." && (text.ends_with(".localhost.") || self.prefix && text.starts_with("localhost."))
    }

    /// `None` passes the question on.
    pub(crate) fn answer(self, question: &Question) -> Option<Answer> {
        let text = question.text();
        let mut answer = Answer::new(ResponseCode::NoError, "local");
        if self.counts(&text) {
            match loopback(question.kind) {
                Some(data) => answer.add(&question.name, LOCAL_TTL_SECS, data),
                None => answer.authorities.push(soa(&question.name)),
            }
            return Some(answer);
        }
        let is_in = |zone: &&&str| text == **zone || text.ends_with(&format!(".{zone}"));
        let zone = Name::from_ascii(ZONES.iter().find(is_in)?).ok()?;
        if text == "1.0.0.127.in-addr.arpa." {
            match question.kind {
                RecordType::PTR => answer.add(&question.name, LOCAL_TTL_SECS, RData::PTR(PTR(localhost()))),
                _ => answer.authorities.push(soa(&zone)),
            }
        } else if zone != question.lower {
            answer.code = ResponseCode::NXDomain;
            answer.authorities.push(soa(&zone));
        } else {
            match question.kind {
                RecordType::SOA => answer.answers.push(soa(&question.name)),
                RecordType::NS => answer.add(&question.name, LOCAL_TTL_SECS, RData::NS(NS(localhost()))),
                kind => match loopback(kind).filter(|_| text == "localhost.") {
                    Some(data) => answer.add(&question.name, LOCAL_TTL_SECS, data),
                    None => answer.authorities.push(soa(&question.name)),
                },
            }
        }
        Some(answer)
    }
}

fn loopback(kind: RecordType) -> Option<RData> {
    match kind {
        RecordType::A => Some(RData::A(A(Ipv4Addr::LOCALHOST))),
        RecordType::AAAA => Some(RData::AAAA(AAAA(Ipv6Addr::LOCALHOST))),
        _ => None,
    }
}

fn localhost() -> Name {
    Name::from_ascii("localhost.").unwrap_or_default()
}

fn soa(zone: &Name) -> Record {
    let mailbox = Name::from_ascii("root.localhost.").unwrap_or_default();
    let soa = SOA::new(localhost(), mailbox, 1, 0, 0, 0, LOCAL_TTL_SECS);
    Record::from_rdata(zone.clone(), LOCAL_TTL_SECS, RData::SOA(soa))
}

/// RFC 8482: a question for everything is answered with next to nothing.
pub(crate) fn any(question: &Question) -> Option<Answer> {
    (question.kind == RecordType::ANY).then(|| {
        let mut answer = Answer::new(ResponseCode::NoError, "any");
        let data = HINFO::new("ANY obsoleted".to_owned(), "See RFC 8482".to_owned());
        answer.add(&question.name, ANY_TTL_SECS, RData::HINFO(data));
        answer
    })
}

/// The asker's address and port.
pub(crate) fn whoami(question: &Question) -> Answer {
    let mut answer = Answer { authoritative: true, ..Answer::new(ResponseCode::NoError, "whoami") };
    let address = match question.client.ip().to_canonical() {
        IpAddr::V4(ip) => RData::A(A(ip)),
        IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
    };
    answer.additionals.push(Record::from_rdata(question.name.clone(), 0, address));
    let label = if question.transport == Transport::Udp { "_udp" } else { "_tcp" };
    if let Ok(name) = question.name.prepend_label(label) {
        let srv = SRV::new(0, 0, question.client.port(), Name::root());
        answer.additionals.push(Record::from_rdata(name, 0, RData::SRV(srv)));
    }
    answer
}
