//! Words of a directive as values: numbers, durations, addresses, zones, record types, patterns. An error names the
//! line.

use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use hickory_proto::ProtoError;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};
use ipnet::IpNet;
use regex::{Regex, RegexBuilder};

use crate::corefile::{CorefileError, Directive};

pub(crate) type Parsed<T> = Result<T, CorefileError>;

/// Letters of a regular expression, as CoreDNS bounds them, and bytes of its program. Matching takes time in proportion
/// to the name, whatever the expression says.
const PATTERN_BYTES_MAX: usize = 10_000;
const PROGRAM_BYTES_MAX: usize = 1024 * 1024;
/// Zones that a network in CIDR form may become: a prefix ends within a label of 8 bits.
const LABEL_BITS_V4: u8 = 8;
const LABEL_BITS_V6: u8 = 4;

/// Why a text names no zone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ZoneError {
    #[error("the transport {scheme}:// of {key:?} is not supported, only dns://")]
    Transport { scheme: String, key: String },
    #[error("not a port in {key:?}")]
    Port { key: String },
    /// hickory's text has its causes in it, so they are no source.
    #[error("{text:?} is not a zone: {cause}")]
    Name { text: String, cause: ProtoError },
}

/// A zone as a lower-case name; a network in CIDR form becomes its reverse zones. There are several where its prefix
/// ends within a label: `172.16.0.0/15` is `16.172.in-addr.arpa` and `17.172.in-addr.arpa`, as CoreDNS reads it.
pub(crate) fn zone_names(text: &str) -> Result<Vec<Name>, ZoneError> {
    let named = |text: &str| {
        let mut name = Name::from_ascii(text).map_err(|cause| ZoneError::Name { text: text.to_owned(), cause })?;
        name.set_fqdn(true);
        Ok(name.to_lowercase())
    };
    let Ok(net) = text.parse::<IpNet>() else { return Ok(vec![named(text)?]) };
    let label_bits = if net.addr().is_ipv4() { LABEL_BITS_V4 } else { LABEL_BITS_V6 };
    let whole = net.prefix_len().next_multiple_of(label_bits);
    let reverse = |net: IpNet| match net {
        IpNet::V4(net) => {
            let octets = &net.network().octets()[..usize::from(whole / label_bits)];
            let labels = octets.iter().rev().map(|octet| format!("{octet}.")).collect::<String>();
            format!("{labels}in-addr.arpa.")
        }
        IpNet::V6(net) => {
            let hex = base::hex::encode(&net.network().octets());
            let nibbles = &hex[..usize::from(whole / label_bits)];
            let labels = nibbles.chars().rev().map(|nibble| format!("{nibble}.")).collect::<String>();
            format!("{labels}ip6.arpa.")
        }
    };
    // The prefix is no longer than the address, so there are always subnets.
    net.subnets(whole).into_iter().flatten().map(|net| named(&reverse(net))).collect()
}

/// Zones; networks become their reverse zones.
pub(crate) fn names(directive: &Directive, texts: &[String]) -> Parsed<Vec<Name>> {
    let zones = texts.iter().map(|text| zone_names(text).map_err(|err| directive.error(err.to_string())));
    Ok(zones.collect::<Parsed<Vec<_>>>()?.concat())
}

/// The zones that are named, or else those of the server block.
pub(crate) fn names_or(directive: &Directive, texts: &[String], zones: &[Name]) -> Parsed<Vec<Name>> {
    let own = names(directive, texts)?;
    Ok(if own.is_empty() { zones.to_vec() } else { own })
}

/// One name, absolute whether or not it ends in a dot.
pub(crate) fn name(directive: &Directive, text: &str) -> Parsed<Name> {
    let mut name = Name::from_ascii(text).map_err(|err| directive.error(format!("not a name: {text}: {err}")))?;
    name.set_fqdn(true);
    Ok(name)
}

/// The only argument.
pub(crate) fn one(directive: &Directive) -> Parsed<&str> {
    match directive.args.as_slice() {
        [only] => Ok(only),
        _ => Err(wrong_count(directive)),
    }
}

/// A line without arguments.
pub(crate) fn none(directive: &Directive) -> Parsed<()> {
    if directive.args.is_empty() { Ok(()) } else { Err(wrong_count(directive)) }
}

/// A line without arguments and without lines in braces.
pub(crate) fn bare(directive: &Directive) -> Parsed<()> {
    none(directive)?;
    body_less(directive)
}

/// A line without lines in braces.
pub(crate) fn body_less(directive: &Directive) -> Parsed<()> {
    match directive.body.first() {
        None => Ok(()),
        Some(option) => Err(unknown(directive, option)),
    }
}

pub(crate) fn wrong_count(directive: &Directive) -> CorefileError {
    directive.error(format!("Wrong argument count or unexpected line ending after '{}'", directive.name))
}

/// An option that the plugin does not have.
pub(crate) fn unknown(directive: &Directive, option: &Directive) -> CorefileError {
    option.error(format!("unknown property '{}' of {}", option.name, directive.name))
}

/// An option that CoreDNS has and this server has not.
pub(crate) fn absent(directive: &Directive, option: &Directive) -> CorefileError {
    option.error(format!(
        "the option '{}' of {} is not in Kedge's DNS: leave it out, or run CoreDNS's own image (docs/dns.md)",
        option.name, directive.name
    ))
}

pub(crate) fn number<T: FromStr>(directive: &Directive, text: &str) -> Parsed<T> {
    text.parse().map_err(|_| directive.error(format!("not a number: {text}")))
}

/// `5s`, `500ms`, `1m30s`, as Go writes durations.
pub(crate) fn duration(directive: &Directive, text: &str) -> Parsed<Duration> {
    let bad = || directive.error(format!("not a duration: {text}"));
    let (mut rest, mut total) = (text, 0.0);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(bad());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let value: f64 = rest[..digits].parse().map_err(|_| bad())?;
        let unit_len = rest[digits..].find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len() - digits);
        let unit = match &rest[digits..digits + unit_len] {
            "us" | "µs" => 0.000_001,
            "ms" => 0.001,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(bad()),
        };
        total += value * unit;
        rest = &rest[digits + unit_len..];
    }
    Duration::try_from_secs_f64(total).map_err(|_| bad())
}

/// Where a page listens.
pub(crate) fn address(directive: &Directive, default: &str) -> Parsed<SocketAddr> {
    let text = match directive.args.as_slice() {
        [] => default,
        [only] => only,
        _ => return Err(directive.error(format!("Wrong argument count after '{}'", directive.name))),
    };
    let full = match text {
        text if text.starts_with(':') => format!("[::]{text}"),
        text => text.replace("localhost", "127.0.0.1"),
    };
    full.parse().map_err(|_| directive.error(format!("not an address: {text}")))
}

/// A regular expression of Go's kind; both are RE2's.
pub(crate) fn pattern(directive: &Directive, text: &str) -> Parsed<Regex> {
    if text.len() > PATTERN_BYTES_MAX {
        let what = format!("a regular expression has at most {PATTERN_BYTES_MAX} letters, this one {}", text.len());
        return Err(directive.error(what));
    }
    let built = RegexBuilder::new(text).size_limit(PROGRAM_BYTES_MAX).dfa_size_limit(PROGRAM_BYTES_MAX).build();
    built.map_err(|err| directive.error(format!("not a regular expression: {}", one_line(&err.to_string()))))
}

/// An error of several lines in one; the last one says what is wrong.
fn one_line(text: &str) -> String {
    text.lines().last().unwrap_or_default().trim().to_owned()
}

/// `A`, `AAAA`, `ANY`, `TYPE65`.
pub(crate) fn record_type(directive: &Directive, text: &str) -> Parsed<RecordType> {
    let upper = text.to_ascii_uppercase();
    let numbered = upper.strip_prefix("TYPE").and_then(|number| number.parse::<u16>().ok()).map(RecordType::from);
    let known = numbered.or_else(|| RecordType::from_str(&upper).ok());
    known.ok_or_else(|| directive.error(format!("not a record type: {text}")))
}

const CODES: [(&str, u16); 20] = [
    ("NOERROR", 0),
    ("FORMERR", 1),
    ("SERVFAIL", 2),
    ("NXDOMAIN", 3),
    ("NOTIMP", 4),
    ("REFUSED", 5),
    ("YXDOMAIN", 6),
    ("YXRRSET", 7),
    ("NXRRSET", 8),
    ("NOTAUTH", 9),
    ("NOTZONE", 10),
    ("BADSIG", 16),
    ("BADVERS", 16),
    ("BADKEY", 17),
    ("BADTIME", 18),
    ("BADMODE", 19),
    ("BADNAME", 20),
    ("BADALG", 21),
    ("BADTRUNC", 22),
    ("BADCOOKIE", 23),
];

/// A response code by name, or by number.
pub(crate) fn response_code(directive: &Directive, text: &str) -> Parsed<ResponseCode> {
    let upper = text.to_ascii_uppercase();
    let named = CODES.iter().find(|(name, _)| *name == upper).map(|(_, code)| *code);
    let code = named.or_else(|| text.parse().ok().filter(|code| *code <= 23));
    code.map(code_of).ok_or_else(|| directive.error(format!("not a response code: {text}")))
}

pub(crate) fn code_of(code: u16) -> ResponseCode {
    ResponseCode::from((code >> 4).try_into().unwrap_or(0), (code & 15).try_into().unwrap_or(0))
}

/// The code's name as CoreDNS prints and counts it.
pub(crate) fn code_name(code: ResponseCode) -> &'static str {
    let number = u16::from(code);
    CODES.iter().find(|(_, known)| *known == number).map_or("UNKNOWN", |(name, _)| name)
}
