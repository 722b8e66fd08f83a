//! Durations as people read them: `45s`, `5m3s`, `3h20m`, `2d4h`, `400d`, `2y35d`.

use jiff::Timestamp;

/// Two or three significant figures, as apimachinery's `HumanDuration`.
pub fn human(seconds: i64) -> String {
    let with_rest = |n: i64, unit: &str, rest: i64, rest_unit: &str| match rest {
        0 => format!("{n}{unit}"),
        _ => format!("{n}{unit}{rest}{rest_unit}"),
    };
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        s if s < -1 => "<invalid>".to_owned(),
        s if s < 0 => "0s".to_owned(),
        s if s < 120 => format!("{s}s"),
        _ if minutes < 10 => with_rest(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => with_rest(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 24 * 8 => with_rest(days, "d", hours % 24, "h"),
        _ if hours < 24 * 365 * 2 => format!("{days}d"),
        _ if hours < 24 * 365 * 8 => with_rest(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

/// The time since a wire timestamp; `<unknown>` when there is none.
pub fn since(timestamp: Option<&str>, now: Timestamp) -> String {
    match timestamp.and_then(|t| t.parse::<Timestamp>().ok()) {
        Some(at) => human(seconds_between(at, now)),
        None => "<unknown>".to_owned(),
    }
}

/// Whole seconds from one time to another, towards zero.
pub fn seconds_between(from: Timestamp, to: Timestamp) -> i64 {
    to.duration_since(from).as_secs()
}

#[cfg(test)]
mod tests {
    use super::human;

    #[test]
    fn units_change_where_upstream_changes_them() {
        for (seconds, want) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (303, "5m3s"),
            (3600, "60m"),
            (179 * 60, "179m"),
            (180 * 60, "3h"),
            (3 * 3600 + 1200, "3h20m"),
            (47 * 3600, "47h"),
            (52 * 3600, "2d4h"),
            (8 * 86_400, "8d"),
            (729 * 86_400, "729d"),
            (765 * 86_400, "2y35d"),
        ] {
            assert_eq!(human(seconds), want, "{seconds}");
        }
    }
}
