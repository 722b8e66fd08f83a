//! `log [NAMES...] [FORMAT] { class CLASSES... }`: one line a question.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::Name;

use crate::args::{Parsed, code_name, names, unknown, wrong_count};
use crate::corefile::Directive;
use crate::question::{Answer, Transport};

const COMMON: &str = "{remote}:{port} - {>id} \"{type} {class} {name} {proto} {size} {>do} {>bufsize}\" {rcode} \
                      {>rflags} {rsize} {duration}";
const COMBINED: &str = "{remote}:{port} - {>id} \"{type} {class} {name} {proto} {size} {>do} {>bufsize}\" {rcode} \
                        {>rflags} {rsize} {duration} {>opcode}";

/// Which answers are logged, and how.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    names: Vec<Name>,
    format: Vec<Part>,
    /// Empty: all.
    classes: Vec<Class>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Kind,
    Name,
    Class,
    Proto,
    Remote,
    Local,
    Size,
    Port,
    Duration,
    Rcode,
    ReplySize,
    Flags,
    Bufsize,
    DnssecOk,
    Id,
    Opcode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Success,
    Denial,
    Error,
}

/// One question and its answer.
pub(crate) struct Seen<'a> {
    pub(crate) request: &'a Message,
    pub(crate) reply: Flags,
    pub(crate) answer: &'a Answer,
    pub(crate) peer: SocketAddr,
    pub(crate) local: Option<IpAddr>,
    pub(crate) transport: Transport,
    pub(crate) request_bytes: usize,
    pub(crate) reply_bytes: usize,
    pub(crate) took: Duration,
}

/// Flags of the reply's header.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) authoritative: bool,
    pub(crate) truncated: bool,
    pub(crate) recursion_desired: bool,
    pub(crate) recursion_available: bool,
    pub(crate) authentic: bool,
    pub(crate) checking_disabled: bool,
}

impl Log {
    pub(crate) fn parse(directive: &Directive) -> Parsed<Log> {
        let mut args = directive.args.as_slice();
        let mut format = COMMON.to_owned();
        if let Some((last, rest)) = args.split_last().filter(|(last, _)| last.contains('{')) {
            format = last.replace("{common}", COMMON).replace("{combined}", COMBINED);
            args = rest;
        }
        let mut log = Log { names: names(directive, args)?, format: parts(directive, &format)?, classes: Vec::new() };
        if log.names.is_empty() {
            log.names.push(Name::root());
        }
        let mut all = false;
        for option in &directive.body {
            if option.name != "class" {
                return Err(unknown(directive, option));
            }
            if option.args.is_empty() {
                return Err(wrong_count(option));
            }
            for word in &option.args {
                match word.as_str() {
                    "all" => all = true,
                    "success" => log.classes.push(Class::Success),
                    "denial" => log.classes.push(Class::Denial),
                    "error" => log.classes.push(Class::Error),
                    other => return Err(option.error(format!("invalid class: {other}"))),
                }
            }
        }
        if all {
            log.classes.clear();
        }
        Ok(log)
    }

    /// The line, if this answer is to be logged.
    pub(crate) fn line(&self, seen: &Seen<'_>) -> Option<String> {
        let query = seen.request.queries.first()?;
        let class = class_of(seen.answer);
        let wanted = self.names.iter().any(|zone| zone.zone_of(&query.name))
            && (self.classes.is_empty() || self.classes.contains(&class));
        if !wanted {
            return None;
        }
        let mut line = String::new();
        for part in &self.format {
            push(&mut line, part, seen);
        }
        Some(line)
    }
}

fn push(line: &mut String, part: &Part, seen: &Seen<'_>) {
    let Some(query) = seen.request.queries.first() else { return };
    let edns = seen.request.edns.as_ref();
    let ip = |ip: IpAddr| match ip.to_canonical() {
        IpAddr::V6(ip) => format!("[{ip}]"),
        ip @ IpAddr::V4(_) => ip.to_string(),
    };
    let _written = match part {
        Part::Text(text) => write!(line, "{text}"),
        Part::Kind => write!(line, "{}", query.query_type),
        // A name may hold any byte; its text has no line breaks, as the others are escaped.
        Part::Name => write!(line, "{}", query.name.to_ascii()),
        Part::Class => write!(line, "{}", query.query_class),
        Part::Proto => write!(line, "{}", if seen.transport == Transport::Udp { "udp" } else { "tcp" }),
        Part::Remote => write!(line, "{}", ip(seen.peer.ip())),
        Part::Local => write!(line, "{}", seen.local.map_or_else(|| "-".to_owned(), ip)),
        Part::Size => write!(line, "{}", seen.request_bytes),
        Part::Port => write!(line, "{}", seen.peer.port()),
        Part::Duration => write!(line, "{}s", seen.took.as_secs_f64()),
        Part::Rcode => write!(line, "{}", code_name(seen.answer.code)),
        Part::ReplySize => write!(line, "{}", seen.reply_bytes),
        Part::Flags => write!(line, "{}", flags(seen.reply)),
        Part::Bufsize => write!(line, "{}", edns.map_or(512, |edns| edns.max_payload())),
        Part::DnssecOk => write!(line, "{}", edns.is_some_and(|edns| edns.flags().dnssec_ok)),
        Part::Id => write!(line, "{}", seen.request.metadata.id),
        Part::Opcode => write!(line, "{}", u8::from(seen.request.metadata.op_code)),
    };
}

fn flags(flags: Flags) -> String {
    let named = [
        ("qr", true),
        ("aa", flags.authoritative),
        ("tc", flags.truncated),
        ("rd", flags.recursion_desired),
        ("ra", flags.recursion_available),
        ("ad", flags.authentic),
        ("cd", flags.checking_disabled),
    ];
    named.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect::<Vec<_>>().join(",")
}

fn class_of(answer: &Answer) -> Class {
    match answer.code {
        ResponseCode::NoError if answer.answers.is_empty() && !answer.authorities.is_empty() => Class::Denial,
        ResponseCode::NoError => Class::Success,
        ResponseCode::NXDomain => Class::Denial,
        _ => Class::Error,
    }
}

fn parts(directive: &Directive, format: &str) -> Parsed<Vec<Part>> {
    let (mut parts, mut rest) = (Vec::new(), format);
    while let Some(start) = rest.find('{') {
        let Some(len) = rest[start..].find('}') else { break };
        if start > 0 {
            parts.push(Part::Text(rest[..start].to_owned()));
        }
        let word = &rest[start + 1..start + len];
        parts.push(placeholder(directive, word)?);
        rest = &rest[start + len + 1..];
    }
    if !rest.is_empty() {
        parts.push(Part::Text(rest.to_owned()));
    }
    Ok(parts)
}

fn placeholder(directive: &Directive, word: &str) -> Parsed<Part> {
    Ok(match word {
        "type" => Part::Kind,
        "name" => Part::Name,
        "class" => Part::Class,
        "proto" => Part::Proto,
        "remote" => Part::Remote,
        "local" => Part::Local,
        "size" => Part::Size,
        "port" => Part::Port,
        "duration" => Part::Duration,
        "rcode" => Part::Rcode,
        "rsize" => Part::ReplySize,
        ">rflags" => Part::Flags,
        ">bufsize" => Part::Bufsize,
        ">do" => Part::DnssecOk,
        ">id" => Part::Id,
        ">opcode" => Part::Opcode,
        other => {
            let what =
                format!("the placeholder {{{other}}} is not in Kedge's DNS: labels of metadata are not kept here");
            return Err(directive.error(what));
        }
    })
}
