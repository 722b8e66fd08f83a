//! The values of settings: numbers, sizes, durations and thresholds as upstream's flags spell them.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::time::Duration;

use model::quantity::Quantity;

use super::Threshold;

/// Signals of the eviction manager.
const SIGNALS: [&str; 6] = [
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
];

/// A value that does not fit its setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ValueError {
    #[error("this kubelet has no such setting")]
    Unknown,
    #[error("{text:?} is not a number")]
    NotANumber { text: String },
    #[error("{percent} is more than 100")]
    OverHundred { percent: u64 },
    #[error("must be at least {min}")]
    TooSmall { min: usize },
    #[error("want true or false")]
    NotABool,
    #[error("{text:?} is not a quantity")]
    NotAQuantity { text: String },
    #[error("{text:?} is negative")]
    Negative { text: String },
    #[error("{text:?} is not a duration such as 5m or 1h30m")]
    NotADuration { text: String },
    #[error("must be an absolute path")]
    RelativePath,
    #[error("pods or none: kube-reserved and system-reserved have no control group here")]
    NoControlGroup,
    #[error("{text:?}: expected resource=amount")]
    NotAnAmount { text: String },
    #[error("{text:?}: expected signal<threshold")]
    NotAThreshold { text: String },
    #[error("unknown signal {name:?}; known are {}", SIGNALS.join(", "))]
    UnknownSignal { name: String },
    #[error("{text:?} is not between 0% and 100%")]
    NotAShare { text: String },
}

pub(super) fn number<T: FromStr>(text: &str) -> Result<T, ValueError> {
    text.trim().parse().map_err(|_| ValueError::NotANumber { text: text.to_owned() })
}

/// A count of `min` or more.
pub(super) fn at_least(min: usize, text: &str) -> Result<usize, ValueError> {
    let count = number(text)?;
    if count >= min { Ok(count) } else { Err(ValueError::TooSmall { min }) }
}

pub(super) fn percent(text: &str) -> Result<u64, ValueError> {
    let percent = number(text)?;
    if percent <= 100 { Ok(percent) } else { Err(ValueError::OverHundred { percent }) }
}

pub(super) fn boolean(text: &str) -> Result<bool, ValueError> {
    text.parse().map_err(|_| ValueError::NotABool)
}

fn quantity(text: &str) -> Result<Quantity, ValueError> {
    text.parse().map_err(|_| ValueError::NotAQuantity { text: text.to_owned() })
}

pub(super) fn bytes(text: &str) -> Result<u64, ValueError> {
    u64::try_from(quantity(text)?.value()).map_err(|_| ValueError::Negative { text: text.to_owned() })
}

/// Go's durations in whole units: `90s`, `1h30m`, `500ms`.
pub(super) fn duration(text: &str) -> Result<Duration, ValueError> {
    let bad = || ValueError::NotADuration { text: text.to_owned() };
    let (mut total, mut rest) = (Duration::ZERO, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
        let n: u64 = rest[..digits].parse().map_err(|_| bad())?;
        let after = &rest[digits..];
        let end = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let part = match &after[..end] {
            "ms" => Some(Duration::from_millis(n)),
            "s" => Some(Duration::from_secs(n)),
            "m" => n.checked_mul(60).map(Duration::from_secs),
            "h" => n.checked_mul(3600).map(Duration::from_secs),
            _ => None,
        };
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(bad)?;
        rest = &after[end..];
    }
    if text.is_empty() { Err(bad()) } else { Ok(total) }
}

/// `cpu=100m,memory=64Mi`.
pub(super) fn amounts(text: &str) -> Result<Vec<(&str, Quantity)>, ValueError> {
    let amount = |part: &'_ str| ValueError::NotAnAmount { text: part.to_owned() };
    let parts = text.split(',').filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let (resource, value) = part.split_once('=').ok_or_else(|| amount(part))?;
            Ok((resource, quantity(value)?))
        })
        .collect()
}

/// `memory.available<200Mi,nodefs.available<5%`.
pub(super) fn thresholds(text: &str) -> Result<BTreeMap<String, Threshold>, ValueError> {
    let mut found = BTreeMap::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (signal, at) = part.split_once('<').ok_or_else(|| ValueError::NotAThreshold { text: part.to_owned() })?;
        if !SIGNALS.contains(&signal) {
            return Err(ValueError::UnknownSignal { name: signal.to_owned() });
        }
        let at = match at.strip_suffix('%') {
            Some(share) => {
                let share: f64 = number(share)?;
                if !(0.0..=100.0).contains(&share) {
                    return Err(ValueError::NotAShare { text: at.to_owned() });
                }
                Threshold::Share(thousandths(share))
            }
            None => Threshold::Amount(bytes(at)?),
        };
        found.insert(signal.to_owned(), at);
    }
    Ok(found)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 100 was checked")]
fn thousandths(percent: f64) -> u64 {
    (percent * 1000.0) as u64
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;

    fn why<T: Debug>(read: Result<T, ValueError>) -> String {
        read.unwrap_err().to_string()
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (text, ms) in [("90s", 90_000), ("1h30m", 5_400_000), ("500ms", 500), ("0s", 0), ("1m1s1ms", 61_001)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "5", "s", "5d", "5 m", "-5m", "1.5h", "m5", "99999999999999999999s"] {
            assert_eq!(why(duration(bad)), format!("{bad:?} is not a duration such as 5m or 1h30m"));
        }
    }

    // The product of a number and its unit was not checked: the kubelet ended with a panic, or waited for a moment.
    #[test]
    fn a_duration_that_no_clock_counts_is_refused() {
        for text in ["18446744073709551615h", "307445734561825861m", "5124095576030432h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_have_their_bounds() {
        assert_eq!(number::<u32>(" 7 "), Ok(7));
        assert_eq!(why(number::<u32>("-1")), "\"-1\" is not a number");
        assert_eq!((percent("100"), why(percent("101"))), (Ok(100), "101 is more than 100".to_owned()));
        assert_eq!((at_least(2, "2"), why(at_least(2, "1"))), (Ok(2), "must be at least 2".to_owned()));
        assert_eq!((boolean("true"), boolean("false")), (Ok(true), Ok(false)));
        for bad in ["", "yes", "1", "TRUE"] {
            assert_eq!(why(boolean(bad)), "want true or false", "{bad}");
        }
    }

    #[test]
    fn sizes_are_quantities_that_are_not_negative() {
        assert_eq!((bytes("1Mi"), bytes("0")), (Ok(1 << 20), Ok(0)));
        assert_eq!(why(bytes("-1")), "\"-1\" is negative");
        assert_eq!(why(bytes("much")), "\"much\" is not a quantity");
    }

    #[test]
    fn amounts_are_told_by_resource() {
        let read = amounts("cpu=100m,,memory=1Ki").unwrap();
        let values: Vec<_> = read.iter().map(|(resource, amount)| (*resource, amount.milli_value())).collect();
        assert_eq!(values, [("cpu", 100), ("memory", 1_024_000)]);
        assert_eq!(why(amounts("cpu")), "\"cpu\": expected resource=amount");
        assert_eq!(why(amounts("cpu=x")), "\"x\" is not a quantity");
    }

    #[test]
    fn thresholds_are_amounts_or_shares_of_signals_that_are_known() {
        let read = thresholds("memory.available<200Mi,nodefs.available<0.5%,pid.available<100%").unwrap();
        assert_eq!(read["memory.available"], Threshold::Amount(200 << 20));
        assert_eq!(read["nodefs.available"], Threshold::Share(500));
        assert_eq!(read["pid.available"], Threshold::Share(100_000));
        assert_eq!(why(thresholds("memory.available")), "\"memory.available\": expected signal<threshold");
        assert_eq!(why(thresholds("nodefs.available<101%")), "\"101%\" is not between 0% and 100%");
        assert_eq!(why(thresholds("nodefs.available<NaN%")), "\"NaN%\" is not between 0% and 100%");
        assert_eq!(
            why(thresholds("moon.available<1")),
            "unknown signal \"moon.available\"; known are memory.available, nodefs.available, nodefs.inodesFree, \
             imagefs.available, imagefs.inodesFree, pid.available"
        );
    }
}
