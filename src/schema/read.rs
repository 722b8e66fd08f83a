//! Reading values by dotted path, with the zero value where nothing is: `text(pod, "spec.nodeName")`.

use serde_json::{Map, Value};

/// The value at a dotted path; null counts as missing.
pub fn at<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    path.split('.').try_fold(value, |v, name| v.get(name)).filter(|v| !v.is_null())
}

/// Text, empty when missing.
pub fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or_default()
}

/// Text, None when missing or empty.
pub fn some_text<'a>(value: &'a Value, path: &str) -> Option<&'a str> {
    Some(text(value, path)).filter(|t| !t.is_empty())
}

/// An integer, if there is one.
pub fn integer(value: &Value, path: &str) -> Option<i64> {
    at(value, path)?.as_i64()
}

/// An integer, 0 when missing.
pub fn number(value: &Value, path: &str) -> i64 {
    integer(value, path).unwrap_or(0)
}

/// A flag, false when missing.
pub fn flag(value: &Value, path: &str) -> bool {
    at(value, path).and_then(Value::as_bool).unwrap_or(false)
}

/// A list, empty when missing.
pub fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// A map, None when missing.
pub fn map<'a>(value: &'a Value, path: &str) -> Option<&'a Map<String, Value>> {
    at(value, path)?.as_object()
}

/// The texts of a list of texts.
pub fn texts<'a>(value: &'a Value, path: &str) -> Vec<&'a str> {
    list(value, path).iter().filter_map(Value::as_str).collect()
}

/// The item of `list` with this `type`: a condition, an address.
pub fn typed<'a>(list: &'a [Value], kind: &str) -> Option<&'a Value> {
    list.iter().find(|item| item.get("type").and_then(Value::as_str) == Some(kind))
}

/// The item of `list` with this `name`: a container, a driver.
pub fn named<'a>(list: &'a [Value], name: &str) -> Option<&'a Value> {
    list.iter().find(|item| item.get("name").and_then(Value::as_str) == Some(name))
}

/// Whether `status.conditions` has this type with status `True`.
pub fn condition_is_true(object: &Value, kind: &str) -> bool {
    typed(list(object, "status.conditions"), kind).is_some_and(|c| text(c, "status") == "True")
}
