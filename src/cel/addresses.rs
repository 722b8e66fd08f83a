//! Texts that are no addresses and no networks: why, in the words of Go's `net/netip`.

use std::net::IpAddr;

/// A text that is no address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("ParseAddr({text:?}): {}", .fault.words())]
pub(super) struct AddressError<'t> {
    text: &'t str,
    fault: Fault<'t>,
}

/// A text that is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("netip.ParsePrefix({text:?}): {fault}")]
pub(super) struct NetworkError<'t> {
    text: &'t str,
    fault: NetworkFault<'t>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum NetworkFault<'t> {
    #[error("no '/'")]
    NoLength,
    #[error("{0}")]
    Address(AddressError<'t>),
    #[error("IPv6 zones cannot be present in a prefix")]
    Zone,
    #[error("bad bits after slash: {0:?}")]
    Bits(&'t str),
    #[error("prefix length out of range")]
    Range,
}

/// The reason, and the rest of the text from where it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Fault<'t> {
    why: &'static str,
    at: &'t str,
}

impl Fault<'_> {
    fn words(&self) -> String {
        if self.at.is_empty() { self.why.to_owned() } else { format!("{} (at {:?})", self.why, self.at) }
    }
}

fn fault<'t>(why: &'static str) -> Result<(), Fault<'t>> {
    Err(Fault { why, at: "" })
}

fn fault_at<'t>(why: &'static str, at: &'t str) -> Result<(), Fault<'t>> {
    Err(Fault { why, at })
}

/// Reads an address as Go does; one with a zone is an address.
///
/// Errors: Go's reason.
pub(super) fn check_address(text: &str) -> Result<(), AddressError<'_>> {
    let read = match text.find(['.', ':', '%']).map(|at| text.as_bytes()[at]) {
        Some(b'.') => v4(text),
        Some(b':') => v6(text),
        Some(_) => fault("missing IPv6 address"),
        None => fault("unable to parse IP"),
    };
    read.map_err(|fault| AddressError { text, fault })
}

/// Reads a network as Go does.
///
/// Errors: Go's reason.
pub(super) fn check_network(text: &str) -> Result<(), NetworkError<'_>> {
    network(text).map_err(|fault| NetworkError { text, fault })
}

fn network(text: &str) -> Result<(), NetworkFault<'_>> {
    let (address, bits) = text.rsplit_once('/').ok_or(NetworkFault::NoLength)?;
    check_address(address).map_err(NetworkFault::Address)?;
    let Ok(ip) = address.parse::<IpAddr>() else { return Err(NetworkFault::Zone) };
    let is_padded = bits.len() > 1 && !bits.starts_with(|c: char| matches!(c, '1'..='9'));
    let length: i64 = bits.parse().ok().filter(|_| !is_padded).ok_or(NetworkFault::Bits(bits))?;
    let max = if ip.is_ipv4() { 32 } else { 128 };
    if (0..=max).contains(&length) { Ok(()) } else { Err(NetworkFault::Range) }
}

fn v4(text: &str) -> Result<(), Fault<'_>> {
    let bytes = text.as_bytes();
    let (mut value, mut n_digits, mut n_dots) = (0, 0, 0);
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'0'..=b'9' if n_digits == 1 && value == 0 => return fault("IPv4 field has octet with leading zero"),
            b'0'..=b'9' => {
                value = value * 10 + u32::from(byte - b'0');
                n_digits += 1;
                if value > 255 {
                    return fault("IPv4 field has value >255");
                }
            }
            b'.' if at == 0 || at + 1 == bytes.len() || bytes[at - 1] == b'.' => {
                return fault_at("IPv4 field must have at least one digit", &text[at..]);
            }
            b'.' if n_dots == 3 => return fault("IPv4 address too long"),
            b'.' => {
                n_dots += 1;
                (value, n_digits) = (0, 0);
            }
            _ => return fault_at("unexpected character", &text[at..]),
        }
    }
    if n_dots < 3 { fault("IPv4 address too short") } else { Ok(()) }
}

/// Groups of hexadecimal digits, `::` in place of those that are zero, and perhaps an IPv4 address at the end.
fn v6(text: &str) -> Result<(), Fault<'_>> {
    let mut rest = match text.split_once('%') {
        Some((_, "")) => return fault("zone must be a non-empty string"),
        Some((address, _)) => address,
        None => text,
    };
    let mut has_gap = false;
    if let Some(after) = rest.strip_prefix("::") {
        has_gap = true;
        rest = after;
        if rest.is_empty() {
            return Ok(());
        }
    }
    let mut n_bytes = 0;
    while n_bytes < 16 {
        let n_digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        match n_digits {
            0 => return fault_at("each colon-separated field must have at least one digit", rest),
            1..=4 => {}
            _ => return fault_at("each group must have 4 or less digits", rest),
        }
        if rest[n_digits..].starts_with('.') {
            if !has_gap && n_bytes != 12 {
                return fault_at("embedded IPv4 address must replace the final 2 fields of the address", rest);
            }
            if n_bytes > 12 {
                return fault_at("too many hex fields to fit an embedded IPv4 at the end of the address", rest);
            }
            v4(rest)?;
            rest = "";
            n_bytes += 4;
            break;
        }
        n_bytes += 2;
        rest = &rest[n_digits..];
        if rest.is_empty() {
            break;
        }
        let Some(after) = rest.strip_prefix(':') else { return fault_at("unexpected character, want colon", rest) };
        if after.is_empty() {
            return fault_at("colon must be followed by more characters", rest);
        }
        rest = after;
        if let Some(after) = rest.strip_prefix(':') {
            if has_gap {
                return fault_at("multiple :: in address", rest);
            }
            has_gap = true;
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
    }
    match (rest.is_empty(), n_bytes, has_gap) {
        (false, ..) => fault_at("trailing garbage after address", rest),
        (_, 0..16, false) => fault("address string too short"),
        (_, 16.., true) => fault("the :: must expand to at least one field of zeros"),
        _ => Ok(()),
    }
}
