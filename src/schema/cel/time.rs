//! Durations and timestamps in CEL's and Go's spelling.

use jiff::Timestamp;
use jiff::civil::Weekday;
use jiff::tz::{Offset, TimeZone};

/// Reads Go's duration text, such as `1h30m` or `-1.5s`, as nanoseconds.
pub fn read_duration(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !(c.is_ascii_digit() || c == '.')).filter(|end| *end > 0)?;
        let number: f64 = rest[..end].parse().ok()?;
        rest = &rest[end..];
        let units = [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];
        let (unit, factor) = units.iter().find(|(u, _)| rest.starts_with(u))?;
        nanos += number * factor;
        rest = &rest[unit.len()..];
    }
    let nanos = sign * nanos;
    (nanos.abs() < i64::MAX as f64).then_some(nanos.round() as i64)
}

/// Seconds, as `string()` and JSON show a duration: `5400s`, `1.5s`.
pub fn show_duration(nanos: i64) -> String {
    let (whole, rest) = (nanos / 1_000_000_000, (nanos % 1_000_000_000).abs());
    let sign = if nanos < 0 && whole == 0 { "-" } else { "" };
    if rest == 0 {
        return format!("{whole}s");
    }
    format!("{sign}{whole}.{}s", format!("{rest:09}").trim_end_matches('0'))
}

/// `getHours` and its like of a timestamp, in a zone (`UTC`, `Europe/Berlin`, `-08:00`).
pub fn field(at: Timestamp, zone: &str, name: &str) -> Option<i64> {
    let zone = match zone {
        "" | "UTC" => TimeZone::UTC,
        other => offset(other).map(TimeZone::fixed).or_else(|| TimeZone::get(other).ok())?,
    };
    let t = at.to_zoned(zone);
    Some(match name {
        "getFullYear" => i64::from(t.year()),
        "getMonth" => i64::from(t.month()) - 1,
        "getDate" => i64::from(t.day()),
        "getDayOfMonth" => i64::from(t.day()) - 1,
        "getDayOfWeek" => i64::from(t.weekday().since(Weekday::Sunday)),
        "getDayOfYear" => i64::from(t.day_of_year()) - 1,
        "getHours" => i64::from(t.hour()),
        "getMinutes" => i64::from(t.minute()),
        "getSeconds" => i64::from(t.second()),
        "getMilliseconds" => i64::from(t.millisecond()),
        _ => return None,
    })
}

fn offset(text: &str) -> Option<Offset> {
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (hours, minutes) = rest.split_once(':')?;
    let seconds = hours.parse::<i32>().ok()?.checked_mul(3600)?.checked_add(minutes.parse::<i32>().ok()?.checked_mul(60)?)?;
    Offset::from_seconds(sign * seconds).ok()
}
