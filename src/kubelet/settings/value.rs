//! The values of settings: numbers, sizes, durations and thresholds as upstream's flags spell them.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use model::names;
use model::quantity::Quantity;
use pki::tls::PolicyError;
use serde_json::{Map, Value};

use super::form::Take as _;
use super::{Cloud, SwapBehavior, Threshold};
use crate::runtime::driver::CgroupDriver;

/// Signals of the eviction manager.
pub(super) const SIGNALS: [&str; 6] = [
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
];

/// Resources that can be set aside.
const ASIDE: [&str; 4] = ["cpu", "memory", "ephemeral-storage", "pid"];

/// A value that does not fit its setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ValueError {
    #[error("this kubelet has no such setting")]
    Unknown,
    #[error("want {wanted}")]
    Form { wanted: &'static str },
    #[error("{wanted} only: {because}")]
    Fixed { wanted: String, because: &'static str },
    #[error("refused: {because}")]
    Refused { because: &'static str },
    #[error("{text:?} is not a number")]
    NotANumber { text: String },
    #[error("{number} is not between {min} and {max}")]
    OutOfRange { number: i64, min: i64, max: i64 },
    #[error("must be at least {secs}s")]
    TooShort { secs: u64 },
    #[error("want true or false")]
    NotABool,
    #[error("{text:?} is not a quantity")]
    NotAQuantity { text: String },
    #[error("{text:?} must not be negative")]
    Negative { text: String },
    #[error("{text:?} must be more than nothing; 0% switches a signal off")]
    Nothing { text: String },
    #[error("{text:?} is not a duration such as 5m or 1h30m")]
    NotADuration { text: String },
    #[error("must be an absolute path")]
    RelativePath,
    #[error("pods or none: kube-reserved and system-reserved have no control group here")]
    NoControlGroup,
    #[error("{text:?}: expected name=value")]
    NotAnAmount { text: String },
    #[error("{name:?} cannot be set aside; cpu, memory, ephemeral-storage and pid can")]
    NotAside { name: String },
    #[error("{text:?}: expected signal<threshold")]
    NotAThreshold { text: String },
    #[error("unknown signal {name:?}; known are {}", SIGNALS.join(", "))]
    UnknownSignal { name: String },
    #[error("{text:?} is not between 0% and 100%")]
    NotAShare { text: String },
    #[error("{text:?} is not key=value:effect or key:effect with NoSchedule, PreferNoSchedule or NoExecute")]
    NotATaint { text: String },
    #[error("{text:?} is not an address")]
    NotAnAddress { text: String },
    #[error("{text:?} is not a DNS domain")]
    NotADomain { text: String },
    #[error("{text:?} is not external; no cloud's own code is in the kubelet")]
    NoCloud { text: String },
    #[error("{text:?} is neither cgroupfs nor systemd")]
    NoDriver { text: String },
    #[error("{text:?} is neither NoSwap nor LimitedSwap")]
    NoSwap { text: String },
    #[error(transparent)]
    Tls(PolicyError),
}

pub(super) fn number<T: FromStr>(text: &str) -> Result<T, ValueError> {
    text.trim().parse().map_err(|_| ValueError::NotANumber { text: text.to_owned() })
}

/// The words of Go's `strconv.ParseBool`.
pub(super) fn boolean(text: &str) -> Result<bool, ValueError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(ValueError::NotABool),
    }
}

fn quantity(text: &str) -> Result<Quantity, ValueError> {
    text.parse().map_err(|_| ValueError::NotAQuantity { text: text.to_owned() })
}

pub(super) fn bytes(text: &str) -> Result<u64, ValueError> {
    u64::try_from(quantity(text)?.value()).map_err(|_| ValueError::Negative { text: text.to_owned() })
}

/// Nanoseconds of a unit of Go's durations.
fn unit_nanos(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// The longest duration of Go: 2^63 nanoseconds, 292 years.
const NANOS_MAX: u128 = i64::MAX as u128;

/// Go's durations: `90s`, `1h30m`, `1.5h`, `500ms`, `0`.
pub(super) fn duration(text: &str) -> Result<Duration, ValueError> {
    let bad = || ValueError::NotADuration { text: text.to_owned() };
    if let Some(rest) = text.strip_prefix('-') {
        let is_duration = duration(rest).is_ok();
        return Err(if is_duration { ValueError::Negative { text: text.to_owned() } } else { bad() });
    }
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut total, mut rest) = (0u128, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (whole, fraction) = rest[..digits].split_once('.').unwrap_or((&rest[..digits], ""));
        let after = &rest[digits..];
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let nanos = unit_nanos(&after[..end]).ok_or_else(bad)?;
        if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
            return Err(bad());
        }
        let whole: u64 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| bad())? };
        // Digits beyond the nanosecond say nothing.
        let fraction = &fraction[..fraction.len().min(18)];
        let part: u64 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| bad())? };
        let scale = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| bad())?);
        total = total.saturating_add(u128::from(whole) * nanos + u128::from(part) * nanos / scale);
        rest = &after[end..];
    }
    match u64::try_from(total) {
        Ok(nanos) if total <= NANOS_MAX && !text.is_empty() => Ok(Duration::from_nanos(nanos)),
        _ => Err(bad()),
    }
}

/// A duration of so many seconds or more.
pub(super) fn at_least_secs(value: &Value, secs: u64) -> Result<Duration, ValueError> {
    let read = Duration::take(value)?;
    if read.as_secs() >= secs { Ok(read) } else { Err(ValueError::TooShort { secs }) }
}

pub(super) fn absolute(value: &Value) -> Result<PathBuf, ValueError> {
    let path = PathBuf::from(String::take(value)?);
    if path.is_absolute() { Ok(path) } else { Err(ValueError::RelativePath) }
}

fn pairs(value: &Value) -> Result<BTreeMap<String, String>, ValueError> {
    BTreeMap::take(value)
}

/// `cpu=100m,memory=64Mi`.
pub(super) fn amounts(value: &Value) -> Result<BTreeMap<String, Quantity>, ValueError> {
    let amount = |(name, text): (String, String)| {
        if !ASIDE.contains(&name.as_str()) {
            return Err(ValueError::NotAside { name });
        }
        let read = quantity(&text)?;
        if read.milli_value() < 0 { Err(ValueError::Negative { text }) } else { Ok((name, read)) }
    };
    pairs(value)?.into_iter().map(amount).collect()
}

fn known_signal(name: String) -> Result<String, ValueError> {
    if SIGNALS.contains(&name.as_str()) { Ok(name) } else { Err(ValueError::UnknownSignal { name }) }
}

fn threshold(text: &str) -> Result<Threshold, ValueError> {
    let Some(share) = text.strip_suffix('%') else { return Ok(Threshold::Amount(bytes(text)?)) };
    let share: f64 = number(share)?;
    if !(0.0..=100.0).contains(&share) {
        return Err(ValueError::NotAShare { text: text.to_owned() });
    }
    Ok(Threshold::Share(thousandths(share)))
}

/// `memory.available<200Mi,nodefs.available<5%`. `0%` and `100%` switch a signal off, as upstream.
pub(super) fn thresholds(value: &Value) -> Result<BTreeMap<String, Option<Threshold>>, ValueError> {
    let one = |(signal, text): (String, String)| {
        let signal = known_signal(signal)?;
        match threshold(&text)? {
            _ if text == "0%" || text == "100%" => Ok((signal, None)),
            Threshold::Amount(0) | Threshold::Share(0) => Err(ValueError::Nothing { text }),
            at => Ok((signal, Some(at))),
        }
    };
    pairs(value)?.into_iter().map(one).collect()
}

/// `memory.available=1m30s`.
pub(super) fn graces(value: &Value) -> Result<BTreeMap<String, Duration>, ValueError> {
    let one = |(signal, text): (String, String)| Ok((known_signal(signal)?, duration(&text)?));
    pairs(value)?.into_iter().map(one).collect()
}

/// `imagefs.available=2Gi,nodefs.available=10%`.
pub(super) fn reclaims(value: &Value) -> Result<BTreeMap<String, Threshold>, ValueError> {
    let one = |(signal, text): (String, String)| Ok((known_signal(signal)?, threshold(&text)?));
    pairs(value)?.into_iter().map(one).collect()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 100 was checked")]
fn thousandths(percent: f64) -> u64 {
    (percent * 1000.0) as u64
}

/// `pods`, or `none`: whether all pods together are held to what is not set aside.
pub(super) fn enforced(value: &Value) -> Result<bool, ValueError> {
    let words: Vec<String> = Vec::take(value)?;
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["pods"] => Ok(true),
        [] | ["none"] => Ok(false),
        _ => Err(ValueError::NoControlGroup),
    }
}

/// `key=value:effect` in the form of a file.
pub(super) fn taint(text: &str) -> Result<Value, ValueError> {
    let bad = || ValueError::NotATaint { text: text.to_owned() };
    let (key_value, effect) = text.rsplit_once(':').ok_or_else(bad)?;
    let (key, value) = key_value.split_once('=').unwrap_or((key_value, ""));
    let made = serde_json::json!([{"key": key, "value": value, "effect": effect}]);
    taints(&made)?;
    Ok(made.as_array().and_then(|list| list.first()).cloned().unwrap_or_default())
}

/// Taints as a file has them.
pub(super) fn taints(value: &Value) -> Result<Vec<Taint>, ValueError> {
    value.as_array().into_iter().flatten().map(one_taint).collect()
}

fn one_taint(value: &Value) -> Result<Taint, ValueError> {
    let bad = || ValueError::NotATaint { text: value.to_string() };
    let map: &Map<String, Value> = value.as_object().ok_or_else(bad)?;
    if map.keys().any(|key| !["key", "value", "effect"].contains(&key.as_str())) {
        return Err(bad());
    }
    let text = |name: &str| map.get(name).map(|text| text.as_str().map(str::to_owned).ok_or_else(bad)).transpose();
    let (key, effect) = (text("key")?.unwrap_or_default(), text("effect")?.unwrap_or_default());
    let value = text("value")?.filter(|value| !value.is_empty());
    let is_named = names::qualified_name_errors(&key).is_empty();
    let has_value = value.as_ref().is_none_or(|value| names::label_value_errors(value).is_empty());
    if !is_named || !has_value || !matches!(effect.as_str(), "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        return Err(bad());
    }
    Ok(Taint { key, value, effect, time_added: None })
}

pub(super) fn addresses(value: &Value) -> Result<Vec<IpAddr>, ValueError> {
    let words: Vec<String> = Vec::take(value)?;
    words.into_iter().map(|text| text.parse().map_err(|_| ValueError::NotAnAddress { text })).collect()
}

/// A domain in lower case, without a point at its end.
pub(super) fn domain(value: &Value) -> Result<String, ValueError> {
    let text = String::take(value)?;
    let name = text.trim_end_matches('.');
    let is_label = |label: &str| {
        let inner = label.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        !label.is_empty() && label.len() <= 63 && inner && !label.starts_with('-') && !label.ends_with('-')
    };
    if name.len() <= 253 && name.split('.').all(is_label) {
        Ok(name.to_owned())
    } else {
        Err(ValueError::NotADomain { text })
    }
}

pub(super) fn cloud(value: &Value) -> Result<Cloud, ValueError> {
    match value.as_str().unwrap_or_default() {
        "" => Ok(Cloud::No),
        "external" => Ok(Cloud::External),
        other => Err(ValueError::NoCloud { text: other.to_owned() }),
    }
}

pub(super) fn driver(value: &Value) -> Result<CgroupDriver, ValueError> {
    match value.as_str().unwrap_or_default() {
        "systemd" => Ok(CgroupDriver::Systemd),
        "cgroupfs" => Ok(CgroupDriver::Cgroupfs),
        other => Err(ValueError::NoDriver { text: other.to_owned() }),
    }
}

pub(super) fn swap(value: &Value) -> Result<SwapBehavior, ValueError> {
    match value.as_str().unwrap_or_default() {
        "" | "NoSwap" => Ok(SwapBehavior::No),
        "LimitedSwap" => Ok(SwapBehavior::Limited),
        other => Err(ValueError::NoSwap { text: other.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use serde_json::json;

    use super::*;

    fn why<T: Debug>(read: Result<T, ValueError>) -> String {
        read.unwrap_err().to_string()
    }

    // time.ParseDuration of Go 1.25.
    #[test]
    fn durations_are_written_as_go_writes_them() {
        for (text, ms) in [
            ("90s", 90_000),
            ("1h30m", 5_400_000),
            ("500ms", 500),
            ("0s", 0),
            ("0", 0),
            ("1m1s1ms", 61_001),
            ("1.5h", 5_400_000),
            (".5s", 500),
            ("1.s", 1000),
            ("1000us", 1),
            ("1000000ns", 1),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "5", "s", "5d", "5 m", "m5", "99999999999999999999s", ".s", "1.2.3s", "--5m", "5m-1s"] {
            assert_eq!(why(duration(bad)), format!("{bad:?} is not a duration such as 5m or 1h30m"));
        }
        assert_eq!(why(duration("-5m")), "\"-5m\" must not be negative");
    }

    // The product of a number and its unit was not checked: the kubelet ended with a panic, or waited for a moment.
    #[test]
    fn a_duration_that_no_clock_counts_is_refused() {
        for text in ["18446744073709551615h", "307445734561825861m", "5124095576030432h", "2562048h", "1e30s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        assert!(duration(&"1h".repeat(10_000_000)).is_err());
    }

    #[test]
    fn numbers_and_switches_are_read_as_gos_flags() {
        assert_eq!(number::<u32>(" 7 "), Ok(7));
        assert_eq!(why(number::<u32>("-1")), "\"-1\" is not a number");
        assert_eq!((boolean("true"), boolean("F"), boolean("1")), (Ok(true), Ok(false), Ok(true)));
        for bad in ["", "yes", "on", "tRUE"] {
            assert_eq!(why(boolean(bad)), "want true or false", "{bad}");
        }
    }

    #[test]
    fn sizes_are_quantities_that_are_not_negative() {
        assert_eq!((bytes("1Mi"), bytes("0")), (Ok(1 << 20), Ok(0)));
        assert_eq!(why(bytes("-1")), "\"-1\" must not be negative");
        assert_eq!(why(bytes("much")), "\"much\" is not a quantity");
    }

    #[test]
    fn amounts_are_told_by_resource() {
        let read = amounts(&json!({"cpu": "100m", "memory": "1Ki"})).unwrap();
        let values: Vec<_> = read.iter().map(|(resource, amount)| (resource.as_str(), amount.milli_value())).collect();
        assert_eq!(values, [("cpu", 100), ("memory", 1_024_000)]);
        assert_eq!(why(amounts(&json!({"cpu": "x"}))), "\"x\" is not a quantity");
        assert_eq!(why(amounts(&json!({"cpu": "-1"}))), "\"-1\" must not be negative");
        let moon = why(amounts(&json!({"moon": "1"})));
        assert_eq!(moon, "\"moon\" cannot be set aside; cpu, memory, ephemeral-storage and pid can");
    }

    // parseThresholdStatement, pkg/kubelet/eviction/helpers.go v1.36.2.
    #[test]
    fn thresholds_are_amounts_or_shares_of_signals_that_are_known() {
        let one = |signal: &str, text: &str| thresholds(&json!({signal: text})).map(|all| all[signal]);
        assert_eq!(one("memory.available", "200Mi"), Ok(Some(Threshold::Amount(200 << 20))));
        assert_eq!(one("nodefs.available", "0.5%"), Ok(Some(Threshold::Share(500))));
        assert_eq!((one("pid.available", "100%"), one("pid.available", "0%")), (Ok(None), Ok(None)));
        for (signal, text, said) in [
            ("nodefs.available", "101%", "\"101%\" is not between 0% and 100%"),
            ("nodefs.available", "110%", "\"110%\" is not between 0% and 100%"),
            ("nodefs.available", "-1%", "\"-1%\" is not between 0% and 100%"),
            ("nodefs.available", "NaN%", "\"NaN%\" is not between 0% and 100%"),
            ("nodefs.available", "%", "\"\" is not a number"),
            ("memory.available", "", "\"\" is not a quantity"),
            ("memory.available", "0", "\"0\" must be more than nothing; 0% switches a signal off"),
            ("memory.available", "-5Gi", "\"-5Gi\" must not be negative"),
            (
                "moon.available",
                "1",
                "unknown signal \"moon.available\"; known are memory.available, nodefs.available, nodefs.inodesFree, \
                 imagefs.available, imagefs.inodesFree, pid.available",
            ),
        ] {
            assert_eq!(why(one(signal, text)), said);
        }
    }

    #[test]
    fn a_taint_is_whole_or_refused() {
        let made = taints(&json!([{"key": "gpu", "value": "yes", "effect": "NoSchedule"}])).unwrap();
        assert_eq!((made[0].key.as_str(), made[0].value.as_deref()), ("gpu", Some("yes")));
        assert_eq!(taints(&json!([taint("gpu:NoExecute").unwrap()])).unwrap()[0].value, None);
        for bad in ["gpu", "gpu=yes:Never", ":NoSchedule", "=x:NoSchedule", "a b=c:NoSchedule"] {
            assert!(taint(bad).is_err(), "{bad}");
        }
        for bad in
            [json!(["gpu"]), json!([{"key": "a", "effect": "NoSchedule", "timeAdded": "now"}]), json!([{"key": 1}])]
        {
            assert!(taints(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_domain_is_one_of_dns() {
        assert_eq!(domain(&json!("cluster.local.")), Ok("cluster.local".to_owned()));
        for bad in ["a..b", "-a", "A.b", "a_b", "a b"] {
            assert!(domain(&json!(bad)).is_err(), "{bad}");
        }
    }
}
