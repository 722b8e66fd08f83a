//! Durations in CEL's and Go's spelling.

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
        let units =
            [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("μs", 1e3), ("ms", 1e6), ("s", 1e9), ("m", 6e10), ("h", 3.6e12)];
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
