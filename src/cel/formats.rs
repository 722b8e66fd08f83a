//! The formats of text that a schema may ask for. An unknown format allows everything, as upstream.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use base64::Engine as _;
use model::names;
use regex::Regex;

use super::moment::Moment;

/// Whether a text has a format.
pub fn fits(format: &str, text: &str) -> bool {
    match format.replace('-', "").as_str() {
        "datetime" => is_date_time(text),
        "date" => Moment::is_date(text),
        "duration" => is_duration(text),
        "byte" => base64::engine::general_purpose::STANDARD.decode(text).is_ok(),
        "uuid" => matches(0, text),
        "uuid3" => matches(0, text) && text.replace('-', "").as_bytes().get(12) == Some(&b'3'),
        "uuid4" => matches(0, text) && text.replace('-', "").as_bytes().get(12) == Some(&b'4'),
        "uuid5" => matches(0, text) && text.replace('-', "").as_bytes().get(12) == Some(&b'5'),
        "ipv4" => text.parse::<Ipv4Addr>().is_ok(),
        "ipv6" => text.parse::<Ipv6Addr>().is_ok() && text.parse::<IpAddr>().is_ok(),
        "cidr" => text.parse::<ipnet::IpNet>().is_ok(),
        "mac" => matches(1, text),
        "email" => matches(2, text),
        "hostname" => text.len() <= 255 && matches(3, text),
        "hexcolor" => matches(4, text),
        "rgbcolor" => matches(5, text),
        "bsonobjectid" => matches(6, text),
        "ssn" => matches(7, text),
        "creditcard" => is_credit_card(text),
        "isbn" => is_isbn10(text) || is_isbn13(text),
        "isbn10" => is_isbn10(text),
        "isbn13" => is_isbn13(text),
        "uri" => matches(8, text),
        "k8sshortname" => names::dns_label_errors(text).is_empty(),
        "k8slongname" => names::subdomain(text, names::NameUse::Whole).is_empty(),
        _ => true,
    }
}

fn matches(which: usize, text: &str) -> bool {
    const PATTERNS: [&str; 10] = [
        r"(?i)^[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}$",
        r"(?i)^([0-9a-f]{2}[:-]){5}([0-9a-f]{2}|([0-9a-f]{2}[:-]){2}[0-9a-f]{2})$|^([0-9a-f]{4}\.){2}[0-9a-f]{4}$",
        r"^[^@\s<>]+@[^@\s<>]+$",
        r"^[a-zA-Z0-9_]([a-zA-Z0-9_-]{0,62}[a-zA-Z0-9_])?(\.[a-zA-Z0-9_]([a-zA-Z0-9_-]{0,62}[a-zA-Z0-9_])?)*\.?$",
        r"(?i)^#?([0-9a-f]{3}|[0-9a-f]{6})$",
        r"^rgb\(\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*,\s*(0|[1-9]\d?|1\d\d?|2[0-4]\d|25[0-5])\s*\)$",
        r"(?i)^[0-9a-f]{24}$",
        r"^\d{3}[- ]?\d{2}[- ]?\d{4}$",
        r"^([a-zA-Z][a-zA-Z0-9+.-]*:[^\s]*|/[^\s]*)$",
        r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](.[0-9]+)?(z|[+-][0-9]{2}:[0-9]{2})$",
    ];
    static COMPILED: [OnceLock<Option<Regex>>; 10] = [const { OnceLock::new() }; 10];
    COMPILED[which].get_or_init(|| Regex::new(PATTERNS[which]).ok()).as_ref().is_some_and(|r| r.is_match(text))
}

/// RFC 3339, as kube-openapi reads it: an offset must be there, of any size, and what follows a further `T` is not
/// looked at.
fn is_date_time(text: &str) -> bool {
    let text = text.to_lowercase();
    let mut parts = text.split('t');
    parts.next().is_some_and(Moment::is_date) && parts.next().is_some_and(|time| matches(9, time))
}

/// Go's durations, and `3 days` as go-openapi allows.
fn is_duration(text: &str) -> bool {
    static WORDS: OnceLock<Option<Regex>> = OnceLock::new();
    let words = WORDS.get_or_init(|| {
        let units = "ns|us|µs|μs|ms|s|m|h|d|w|nano|micro|milli|sec|second|min|minute|hr|hour|day|wk|week|nanosecond|\
                     microsecond|millisecond";
        Regex::new(&format!(r"^([+-]?(\d+(\.\d*)?|\.\d+)\s*({units})s?\s*)+$|^0$")).ok()
    });
    words.as_ref().is_some_and(|r| r.is_match(text))
}

fn digits(text: &str) -> Vec<u32> {
    text.chars().filter(|c| !matches!(c, '-' | ' ')).map(|c| c.to_digit(10).unwrap_or(99)).collect()
}

fn is_credit_card(text: &str) -> bool {
    let all = digits(text);
    let luhn = |(i, d): (usize, &u32)| if i % 2 == 1 { if d * 2 > 9 { d * 2 - 9 } else { d * 2 } } else { *d };
    (13..=19).contains(&all.len())
        && all.iter().all(|d| *d < 10)
        && all.iter().rev().enumerate().map(luhn).sum::<u32>() % 10 == 0
}

fn is_isbn10(text: &str) -> bool {
    let all: Vec<u32> = text
        .chars()
        .filter(|c| !matches!(c, '-' | ' '))
        .map(|c| if c == 'X' { 10 } else { c.to_digit(10).unwrap_or(99) })
        .collect();
    all.len() == 10
        && all[..9].iter().all(|d| *d < 10)
        && all[9] <= 10
        && all.iter().zip(1u32..).map(|(d, i)| d * i).sum::<u32>() % 11 == 0
}

fn is_isbn13(text: &str) -> bool {
    let all = digits(text);
    all.len() == 13
        && all.iter().all(|d| *d < 10)
        && all.iter().enumerate().map(|(i, d)| if i % 2 == 1 { d * 3 } else { *d }).sum::<u32>() % 10 == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `strfmt` of kube-openapi in upstream v1.36.2 answered.
    #[test]
    fn dates_and_times_are_those_of_a_genuine_server() {
        for text in [
            "9999-12-31T23:59:59Z",
            "9999-12-31T23:59:59-02:00",
            "0000-01-01T00:00:00Z",
            "2024-01-02t03:04:05z",
            "2024-01-02T03:04:05+99:99",
            "2024-01-02T03:04:05,5Z",
            "2024-01-02T03:04:05.1234567890123Z",
        ] {
            assert!(fits("date-time", text), "{text}");
        }
        for text in [
            "",
            "2024-01-02",
            "2024-01-02T03:04:05",
            "2024-01-02 03:04:05Z",
            "2024-01-02T03:04:60Z",
            "2024-01-02T24:04:05Z",
            "2024-01-02T3:04:05Z",
            "2024-02-30T03:04:05Z",
            "2024-01-02T03:04:05.Z",
            "2024-01-02T03:04:05+0100",
            "2024-01-02T03:04:05Z[UTC]",
        ] {
            assert!(!fits("date-time", text), "{text}");
        }
        assert!(fits("date", "9999-12-31") && fits("date", "0000-01-01"));
        for text in ["2024-1-02", "2024-02-30", "20240102", "-2024-01-02", "2024-01-02 "] {
            assert!(!fits("date", text), "{text}");
        }
    }
}
