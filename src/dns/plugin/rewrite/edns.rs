//! `rewrite edns0 local|nsid|subnet ACTION …`: options of EDNS that resolvers are told.

use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::rdata::opt::{ClientSubnet, EdnsCode, EdnsOption, NSIDPayload};

use crate::args::{Parsed, number, wrong_count};
use crate::corefile::Directive;
use crate::question::{Question, Transport};

#[derive(Clone, Debug)]
pub(super) struct EdnsRule {
    action: Action,
    option: EdnsKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Replace,
    Append,
    Set,
    Unset,
}

#[derive(Clone, Debug)]
enum EdnsKind {
    Local(u16, Payload),
    Nsid,
    /// Bits of the client's address that are told, of IPv4 and IPv6.
    Subnet(u8, u8),
}

#[derive(Clone, Debug)]
enum Payload {
    Bytes(Vec<u8>),
    Qname,
    Qtype,
    ClientIp,
    ClientPort,
    Protocol,
}

impl EdnsRule {
    pub(super) fn parse(directive: &Directive, words: &[&str]) -> Parsed<EdnsRule> {
        if words.last() == Some(&"revert") {
            return Err(
                directive.error("revert is not in Kedge's DNS: options are for resolvers only, no answer has them")
            );
        }
        let [kind, action, rest @ ..] = words else { return Err(wrong_count(directive)) };
        let action = match action.to_ascii_lowercase().as_str() {
            "replace" => Action::Replace,
            "append" => Action::Append,
            "set" => Action::Set,
            "unset" => Action::Unset,
            other => return Err(directive.error(format!("invalid action: {other:?}"))),
        };
        let option = match (kind.to_ascii_lowercase().as_str(), action, rest) {
            ("local", Action::Unset, [code]) => {
                EdnsKind::Local(local_code(directive, code)?, Payload::Bytes(Vec::new()))
            }
            ("local", _, [code, payload]) => {
                EdnsKind::Local(local_code(directive, code)?, Payload::parse(directive, payload)?)
            }
            ("nsid", _, []) => EdnsKind::Nsid,
            ("subnet", Action::Unset, []) => EdnsKind::Subnet(0, 0),
            ("subnet", _, [v4, v6]) => {
                let (v4, v6) = (number(directive, v4)?, number(directive, v6)?);
                if v4 > 32 || v6 > 128 {
                    return Err(directive.error(format!("not the lengths of prefixes: {v4} {v6}")));
                }
                EdnsKind::Subnet(v4, v6)
            }
            ("local" | "nsid" | "subnet", ..) => return Err(wrong_count(directive)),
            (other, ..) => return Err(directive.error(format!("invalid rule type {other:?}"))),
        };
        Ok(EdnsRule { action, option })
    }

    /// Says whether the rule fitted.
    pub(super) fn apply(&self, question: &mut Question) -> bool {
        let Some(fresh) = self.option.of(question) else { return false };
        let code = EdnsCode::from(&fresh);
        let here = question.options.iter().any(|known| EdnsCode::from(known) == code);
        let (removes, adds) = match self.action {
            Action::Replace => (here, here),
            Action::Append => (false, !here),
            Action::Set => (here, true),
            Action::Unset => (here, false),
        };
        if removes || adds {
            let kept = question.options.iter().filter(|known| !removes || EdnsCode::from(*known) != code).cloned();
            question.options = kept.chain(adds.then_some(fresh)).collect::<Arc<[EdnsOption]>>();
            question.edns |= adds;
        }
        removes || adds
    }
}

impl EdnsKind {
    fn of(&self, question: &Question) -> Option<EdnsOption> {
        Some(match self {
            EdnsKind::Local(code, payload) => EdnsOption::Unknown(*code, payload.bytes(question)),
            EdnsKind::Nsid => EdnsOption::NSID(NSIDPayload::new(Vec::new()).ok()?),
            EdnsKind::Subnet(v4, v6) => {
                let ip = question.client.ip().to_canonical();
                let bits = if ip.is_ipv4() { *v4 } else { *v6 };
                let net = ipnet::IpNet::new(ip, bits).ok()?.network();
                EdnsOption::Subnet(ClientSubnet::new(net, bits, 0))
            }
        })
    }
}

impl Payload {
    fn parse(directive: &Directive, text: &str) -> Parsed<Payload> {
        Ok(match text {
            "{qname}" => Payload::Qname,
            "{qtype}" => Payload::Qtype,
            "{client_ip}" => Payload::ClientIp,
            "{client_port}" => Payload::ClientPort,
            "{protocol}" => Payload::Protocol,
            text if text.starts_with('{') && text.ends_with('}') => {
                return Err(directive.error(format!("the variable {text} is not in Kedge's DNS")));
            }
            text => match text.strip_prefix("0x") {
                None => Payload::Bytes(text.as_bytes().to_vec()),
                Some(hex) => {
                    Payload::Bytes(bytes_of(hex).ok_or_else(|| directive.error(format!("not hexadecimal: {text}")))?)
                }
            },
        })
    }

    fn bytes(&self, question: &Question) -> Vec<u8> {
        match self {
            Payload::Bytes(bytes) => bytes.clone(),
            Payload::Qname => question.text().into_bytes(),
            Payload::Qtype => u16::from(question.kind).to_be_bytes().to_vec(),
            Payload::ClientIp => match question.client.ip().to_canonical() {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            },
            Payload::ClientPort => question.client.port().to_be_bytes().to_vec(),
            Payload::Protocol => if question.transport == Transport::Udp { "udp" } else { "tcp" }.into(),
        }
    }
}

fn bytes_of(hex: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = hex.chars().map(|c| c.to_digit(16)?.try_into().ok()).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

fn local_code(directive: &Directive, text: &str) -> Parsed<u16> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u16::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    };
    parsed.ok_or_else(|| directive.error(format!("not the code of an option: {text}")))
}
