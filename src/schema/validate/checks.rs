//! Small checks that many kinds share. Each takes the path of the parent and the name of the field.

use std::net::IpAddr;

use ipnet::IpNet;
use model::labels::Selector;
use model::names;
use model::quantity::Quantity;
use serde_json::Value;

use crate::read;
use crate::validate::error::FieldError;
use crate::validate::metadata;
use crate::validate::path::Path;

/// Where errors go.
pub(super) use crate::behaviour::Errors;

pub(super) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
pub(super) const IMMUTABLE: &str = "field is immutable";

/// Each message as an `Invalid` of this value.
pub(super) fn invalid_each(path: Path<'_>, value: impl Into<Value>, messages: Vec<String>, errors: &mut Errors) {
    let value = value.into();
    errors.extend(messages.into_iter().map(|m| FieldError::invalid(path, value.clone(), m)));
}

/// The number may not be negative.
pub(super) fn not_negative(value: &Value, path: Path<'_>, field: &str, errors: &mut Errors) {
    if let Some(n) = read::integer(value, field).filter(|n| *n < 0) {
        errors.push(FieldError::invalid(path.child(field), n, NOT_NEGATIVE).clone());
    }
}

/// The number must be positive when given.
pub(super) fn positive(value: &Value, path: Path<'_>, field: &str, errors: &mut Errors) {
    if let Some(n) = read::integer(value, field).filter(|n| *n <= 0) {
        errors.push(FieldError::invalid(path.child(field), n, "must be greater than 0"));
    }
}

/// The field may not change.
pub(super) fn immutable(new: &Value, old: &Value, field: &str, errors: &mut Errors) {
    let (now, before) = (read::at(new, field), read::at(old, field));
    if now != before {
        errors.push(FieldError::invalid(field, now.cloned().unwrap_or(Value::Null), IMMUTABLE));
    }
}

/// A number that is not negative, or a percentage.
pub(super) fn int_or_percent(value: &Value, path: Path<'_>, field: &str, errors: &mut Errors) {
    match read::at(value, field) {
        Some(Value::String(text)) => {
            invalid_each(Path(&path.child(field)), text.as_str(), names::percent_errors(text), errors)
        }
        Some(_) => not_negative(value, path, field, errors),
        None => {}
    }
}

/// An int-or-percent as a number; percentages count as their number.
pub(super) fn int_or_percent_value(value: &Value, field: &str) -> i64 {
    match read::at(value, field) {
        Some(Value::String(text)) => text.trim_end_matches('%').parse().unwrap_or(0),
        Some(n) => n.as_i64().unwrap_or(0),
        None => 0,
    }
}

/// A `metav1.LabelSelector`.
pub(super) fn label_selector(selector: &Value, path: Path<'_>, errors: &mut Errors) {
    if let Some(map) = read::map(selector, "matchLabels") {
        metadata::labels(map, Path(&path.child("matchLabels")), errors);
    }
    for (idx, requirement) in read::list(selector, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{idx}]");
        let values = read::texts(requirement, "values");
        match read::text(requirement, "operator") {
            "In" | "NotIn" if values.is_empty() => {
                let message = "must be specified when `operator` is 'In' or 'NotIn'";
                errors.push(FieldError::required(format!("{path}.values"), message));
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let message = "may not be specified when `operator` is 'Exists' or 'DoesNotExist'";
                errors.push(FieldError::forbidden(format!("{path}.values"), message));
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => {
                errors.push(FieldError::invalid(format!("{path}.operator"), other, "not a valid selector operator"))
            }
        }
        let key = read::text(requirement, "key");
        invalid_each(Path(&format!("{path}.key")), key, names::qualified_name_errors(key), errors);
        for (idx, value) in values.iter().enumerate() {
            invalid_each(Path(&format!("{path}.values[{idx}]")), *value, names::label_value_errors(value), errors);
        }
    }
}

/// A workload's selector: there, not empty, matching its own template.
pub(super) fn workload_selector(spec: &Value, kind: &str, errors: &mut Errors) {
    let Some(selector) = read::at(spec, "selector") else {
        errors.push(FieldError::required("spec.selector", ""));
        return mismatch(spec, errors);
    };
    label_selector(selector, Path("spec.selector"), errors);
    if read::map(selector, "matchLabels").is_none_or(serde_json::Map::is_empty)
        && read::list(selector, "matchExpressions").is_empty()
    {
        let message = format!("empty selector is invalid for {kind}");
        errors.push(FieldError::invalid("spec.selector", selector.clone(), message));
        return;
    }
    if Selector::from_json(Some(selector)).is_err() || !well_formed(selector) {
        match kind {
            "daemonset" => {}
            "statefulset" => errors.push(FieldError::invalid("spec.selector", selector.clone(), "")),
            _ => errors.push(FieldError::invalid("spec.selector", selector.clone(), "invalid label selector")),
        }
        return;
    }
    selector_matches_template(spec, selector, errors);
}

/// Whether keys and values of a selector are such that labels could have them.
fn well_formed(selector: &Value) -> bool {
    let mut errors = Vec::new();
    label_selector(selector, Path(""), &mut errors);
    errors.is_empty()
}

fn mismatch(spec: &Value, errors: &mut Errors) {
    let labels =
        read::map(spec, "template.metadata.labels").map_or(Value::Null, |labels| Value::Object(labels.clone()));
    errors.push(FieldError::invalid(
        "spec.template.metadata.labels",
        labels,
        "`selector` does not match template `labels`",
    ));
}

/// `selector` must match the labels of `template`.
pub(super) fn selector_matches_template(spec: &Value, selector: &Value, errors: &mut Errors) {
    let labels = read::map(spec, "template.metadata.labels");
    if Selector::from_json(Some(selector)).is_ok_and(|s| !s.matches(labels)) {
        mismatch(spec, errors);
    }
}

/// Every value of a resource list is a quantity that is not negative.
pub(super) fn resource_list(value: &Value, path: Path<'_>, field: &str, errors: &mut Errors) {
    for (name, amount) in read::map(value, field).into_iter().flatten() {
        let here = format!("{}[{name}]", path.child(field));
        invalid_each(Path(&here), name.as_str(), names::qualified_name_errors(name), errors);
        match Quantity::from_value(amount) {
            Ok(q) if q.sign() < 0 => errors.push(FieldError::invalid(here, q.to_string(), NOT_NEGATIVE)),
            Ok(_) => {}
            Err(e) => errors.push(FieldError::invalid(here, amount.clone(), e.to_string())),
        }
    }
}

/// `010.1.2.03/08` as `10.1.2.3/8`, if there are such zeros at all: some read them as octal, so nobody may write them.
fn without_leading_zeros(text: &str) -> Option<String> {
    let plain = |part: &str| {
        let plain = part.trim_start_matches('0');
        if plain.is_empty() && !part.is_empty() { "0".to_owned() } else { plain.to_owned() }
    };
    let numbers = |text: &str| text.split('.').map(plain).collect::<Vec<_>>().join(".");
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let address = if address.contains(':') { address.to_owned() } else { numbers(address) };
    let out = length.map_or_else(|| address.clone(), |length| format!("{address}/{}", plain(length)));
    (out != text).then_some(out)
}

/// An IP address, as strictly as upstream reads it.
pub(super) fn ip(text: &str, path: Path<'_>, errors: &mut Errors) {
    let why = match text.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => "must not be an IPv4-mapped IPv6 address",
        Ok(_) => return,
        Err(_) if without_leading_zeros(text).is_some_and(|plain| plain.parse::<IpAddr>().is_ok()) => {
            "must not have leading 0s"
        }
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    };
    errors.push(FieldError::invalid(path, text, why));
}

/// A CIDR block.
pub(super) fn cidr(text: &str, path: Path<'_>, errors: &mut Errors) {
    let why = match text.parse::<IpNet>() {
        Ok(IpNet::V6(net)) if net.addr().to_ipv4_mapped().is_some() => "must not have an IPv4-mapped IPv6 address",
        Ok(net) if net.addr() != net.network() => "must not have bits set beyond the prefix length",
        Ok(_) => return,
        Err(_) if without_leading_zeros(text).is_some_and(|plain| plain.parse::<IpNet>().is_ok()) => {
            "must not have leading 0s in IP or prefix length"
        }
        Err(_) => "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
    };
    errors.push(FieldError::invalid(path, text, why));
}
