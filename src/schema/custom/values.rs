//! Does a custom object fit its schema? Every refusal in upstream's words.

use std::collections::{HashMap, HashSet};

use cel::formats;
use serde_json::Value;

use super::node::{List, Node, Type};
use crate::validate::error::{FieldError, Kind};
use crate::validate::path::Path;

/// Everything in `value` that the schema does not allow. `path` is empty for a whole object.
///
/// A value that is as it was in `old` is not judged again: a schema may grow stricter than the objects it finds.
pub fn check(node: &Node, value: &Value, old: Option<&Value>, path: &str, errors: &mut Vec<FieldError>) {
    if old == Some(value) || !type_fits(node, value, path, errors) {
        return;
    }
    bounds(node, value, path, errors);
    let absent = value.is_null() && node.nullable;
    if !absent && !node.enums.is_empty() && !node.enums.iter().any(|e| same(e, value)) {
        let texts: Vec<String> =
            node.enums.iter().map(|e| e.as_str().map_or_else(|| e.to_string(), str::to_owned)).collect();
        let supported: Vec<&str> = texts.iter().map(String::as_str).collect();
        errors.push(FieldError::not_supported(shown(path), value.clone(), &supported));
    }
    junctors(node, value, path, errors);
    match value {
        Value::Object(map) => {
            for name in node.required.iter().filter(|name| !map.contains_key(*name)) {
                errors.push(FieldError::required(Path(path).child(name), ""));
            }
            if node.embedded && !path.is_empty() {
                resource(value, path, errors);
            }
            for (key, value) in map {
                if let Some(child) = node.child(key) {
                    check(child, value, old.and_then(|o| o.get(key)), &Path(path).child(key), errors);
                }
            }
        }
        Value::Array(items) => {
            if let Some(of) = &node.items {
                let partners = Partners::of(node, old);
                for (idx, item) in items.iter().enumerate() {
                    check(of, item, partners.find(item), &format!("{path}[{idx}]"), errors);
                }
            }
        }
        _ => {}
    }
}

/// The items of an old list by their keys, to find those that are still there: lists of type map only can tell.
pub struct Partners<'a> {
    node: &'a Node,
    by_key: HashMap<Vec<Option<&'a Value>>, &'a Value>,
}

impl<'a> Partners<'a> {
    /// The values that `old` holds; none where there is no old list, or its items have no keys.
    pub fn of(node: &'a Node, old: Option<&'a Value>) -> Partners<'a> {
        let items = old.and_then(Value::as_array).filter(|_| matches!(node.list, List::Map(_)));
        let mut by_key = HashMap::new();
        for item in items.into_iter().flatten() {
            by_key.entry(key_of(node, item)).or_insert(item);
        }
        Partners { node, by_key }
    }

    /// The old item that is the same one as `item`.
    pub fn find(&self, item: &Value) -> Option<&'a Value> {
        if self.by_key.is_empty() {
            return None;
        }
        self.by_key.get(&key_of(self.node, item)).copied()
    }
}

fn key_of<'v>(node: &'v Node, item: &'v Value) -> Vec<Option<&'v Value>> {
    let List::Map(keys) = &node.list else { return Vec::new() };
    let default = |k: &String| node.items.as_ref().and_then(|n| n.properties.get(k)).and_then(|n| n.default.as_ref());
    keys.iter().map(|k| item.get(k).or_else(|| default(k))).collect()
}

/// Repeats in lists that are sets or maps, anywhere.
pub fn repeats(node: &Node, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                if let Some(child) = node.child(key) {
                    repeats(child, value, &Path(path).child(key), errors);
                }
            }
        }
        Value::Array(items) => {
            repeated_items(node, items, path, errors);
            if let Some(of) = &node.items {
                for (idx, item) in items.iter().enumerate() {
                    repeats(of, item, &format!("{path}[{idx}]"), errors);
                }
            }
        }
        _ => {}
    }
}

fn repeated_items(node: &Node, items: &[Value], path: &str, errors: &mut Vec<FieldError>) {
    let key = |item: &Value| match &node.list {
        List::Atomic => None,
        List::Set => Some(item.clone()),
        List::Map(keys) => {
            let default =
                |k: &String| node.items.as_ref().and_then(|n| n.properties.get(k)).and_then(|n| n.default.clone());
            Some(
                keys.iter()
                    .filter_map(|k| Some((k.clone(), item.get(k).cloned().or_else(|| default(k))?)))
                    .collect::<serde_json::Map<_, _>>()
                    .into(),
            )
        }
    };
    let mut seen: std::collections::BTreeMap<String, usize> = std::collections::BTreeMap::new();
    for (idx, item) in items.iter().enumerate() {
        let Some(key) = key(item) else { return };
        let times = seen.entry(key.to_string()).or_default();
        *times += 1;
        if *times == 2 {
            errors.push(FieldError::duplicate(format!("{path}[{idx}]"), key));
        }
    }
}

/// The fields that an embedded object must have.
fn resource(value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    for field in ["apiVersion", "kind"] {
        if value[field].as_str().unwrap_or_default().is_empty() {
            errors.push(FieldError::required(Path(path).child(field), "must not be empty"));
        }
    }
}

/// Go prints a path that is not there like this.
fn shown(path: &str) -> &str {
    if path.is_empty() { "<nil>" } else { path }
}

fn type_word(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if is_whole(n) => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_whole(n: &serde_json::Number) -> bool {
    n.is_i64() || n.is_u64() || n.as_f64().is_some_and(|f| f.fract() == 0.0 && f.abs() < 9.0e15)
}

fn type_fits(node: &Node, value: &Value, path: &str, errors: &mut Vec<FieldError>) -> bool {
    let fits = match (node.kind, value) {
        (_, Value::Null) => node.nullable || (node.kind.is_none() && !node.int_or_string),
        _ if node.int_or_string => matches!(type_word(value), "integer" | "string"),
        (None, _) => true,
        (Some(kind), value) => match kind {
            Type::Boolean => value.is_boolean(),
            Type::Integer => type_word(value) == "integer",
            Type::Number => value.is_number(),
            Type::String => value.is_string(),
            Type::Array => value.is_array(),
            Type::Object => value.is_object(),
        },
    };
    if fits {
        return true;
    }
    let mut wanted = if node.int_or_string { "integer,string" } else { node.kind.map_or("", Type::word) }.to_owned();
    if node.nullable {
        wanted.push_str(",null");
    }
    let got = type_word(value);
    let detail = format!("{path} in body must be of type {wanted}: {got:?}");
    errors.push(FieldError {
        kind: Kind::TypeInvalid,
        field: shown(path).to_owned(),
        bad_value: Some(got.into()),
        detail,
    });
    false
}

fn invalid(path: &str, value: &Value, why: String) -> FieldError {
    FieldError::invalid(shown(path), value.clone(), format!("{path} in body {why}"))
}

fn bounds(node: &Node, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let b = &node.bounds;
    match value {
        Value::Number(n) => numbers(node, n, value, path, errors),
        Value::String(text) => {
            let length = text.chars().count() as u64;
            if let Some(max) = b.length.1.filter(|max| length > *max) {
                errors.push(FieldError::too_long(shown(path), usize::try_from(max).unwrap_or(usize::MAX)));
            }
            if let Some(min) = b.length.0.filter(|min| length < *min) {
                errors.push(invalid(path, value, format!("should be at least {min} chars long")));
            }
            if let Some((pattern, compiled)) = &b.pattern
                && !compiled.as_ref().is_some_and(|r| r.is_match(text))
            {
                errors.push(invalid(path, value, format!("should match '{pattern}'")));
            }
            if let Some(format) = &b.format
                && !formats::fits(format, text)
            {
                let detail = format!("{path} in body must be of type {format}: {text:?}");
                errors.push(FieldError {
                    kind: Kind::TypeInvalid,
                    field: shown(path).to_owned(),
                    bad_value: Some(value.clone()),
                    detail,
                });
            }
        }
        Value::Array(items) => {
            if let Some(min) = b.items.0.filter(|min| (items.len() as u64) < *min) {
                errors.push(invalid(path, &items.len().into(), format!("should have at least {min} items")));
            }
            if let Some(max) = b.items.1.filter(|max| items.len() as u64 > *max) {
                errors.push(FieldError::too_many(shown(path), items.len(), usize::try_from(max).unwrap_or(usize::MAX)));
            }
            let mut seen = HashSet::new();
            if b.unique && !items.iter().all(|item| seen.insert(item)) {
                errors.push(invalid(path, &Value::from(""), "shouldn't contain duplicates".to_owned()));
            }
        }
        Value::Object(map) => {
            if let Some(min) = b.properties.0.filter(|min| (map.len() as u64) < *min) {
                errors.push(invalid(path, &map.len().into(), format!("should have at least {min} properties")));
            }
            if let Some(max) = b.properties.1.filter(|max| map.len() as u64 > *max) {
                errors.push(FieldError::too_many(shown(path), map.len(), usize::try_from(max).unwrap_or(usize::MAX)));
            }
        }
        _ => {}
    }
}

fn numbers(node: &Node, n: &serde_json::Number, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let Some(f) = n.as_f64() else { return };
    let b = &node.bounds;
    if let Some((max, exclusive)) = b.maximum.filter(|(max, exclusive)| f > *max || (*exclusive && f >= *max)) {
        errors.push(invalid(
            path,
            value,
            format!("should be less than {}{max}", if exclusive { "" } else { "or equal to " }),
        ));
    }
    if let Some((min, exclusive)) = b.minimum.filter(|(min, exclusive)| f < *min || (*exclusive && f <= *min)) {
        errors.push(invalid(
            path,
            value,
            format!("should be greater than {}{min}", if exclusive { "" } else { "or equal to " }),
        ));
    }
    if let Some(of) =
        b.multiple_of.filter(|of| *of > 0.0 && ((f / of).round() * of - f).abs() > 1e-9 * f.abs().max(1.0))
    {
        errors.push(invalid(path, value, format!("should be a multiple of {of}")));
    }
}

fn same(a: &Value, b: &Value) -> bool {
    a == b || (a.is_number() && b.is_number() && a.as_f64() == b.as_f64())
}

/// Wrong if the value does not fit a schema of a junctor: those errors alone.
fn alone(node: &Node, value: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check(node, value, None, path, &mut errors);
    errors
}

fn junctors(node: &Node, value: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let mut say = |text: &str| errors.push(FieldError::invalid("<nil>", "", format!("{path:?} {text}")));
    if let Some(not) = &node.not
        && alone(not, value, path).is_empty()
    {
        say("must not validate the schema (not)");
    }
    let mut worst = Vec::new();
    if !node.any_of.is_empty() && !node.int_or_string {
        let failures: Vec<Vec<FieldError>> = node.any_of.iter().map(|n| alone(n, value, path)).collect();
        if failures.iter().all(|f| !f.is_empty()) {
            say("must validate at least one schema (anyOf)");
            worst.extend(failures.into_iter().min_by_key(Vec::len).unwrap_or_default());
        }
    }
    if !node.one_of.is_empty() {
        let failures: Vec<Vec<FieldError>> = node.one_of.iter().map(|n| alone(n, value, path)).collect();
        let valid = failures.iter().filter(|f| f.is_empty()).count();
        if valid == 0 {
            say("must validate one and only one schema (oneOf). Found none valid");
            worst.extend(failures.into_iter().min_by_key(Vec::len).unwrap_or_default());
        } else if valid > 1 {
            say(&format!("must validate one and only one schema (oneOf). Found {valid} valid alternatives"));
        }
    }
    if !node.all_of.is_empty() {
        let failures: Vec<Vec<FieldError>> = node.all_of.iter().map(|n| alone(n, value, path)).collect();
        let wrong = failures.iter().filter(|f| !f.is_empty()).count();
        if wrong > 0 {
            let none = if wrong == node.all_of.len() { ". None validated" } else { "" };
            say(&format!("must validate all the schemas (allOf){none}"));
            worst.extend(failures.into_iter().flatten());
        }
    }
    errors.extend(worst);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn texts(schema: Value, value: Value) -> Vec<String> {
        let node = Node::compile(&schema);
        let mut errors = Vec::new();
        check(&node, &value, None, "", &mut errors);
        repeats(&node, &value, "", &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn refusals_have_upstreams_words() {
        let schema = json!({"type": "object", "required": ["spec"],
            "properties": {"spec": {"type": "object", "required": ["need"], "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 5},
                "s": {"type": "string", "maxLength": 3, "pattern": "^a"},
            "e": {"type": "string", "enum": ["A", "B"]}, "d": {"type": "string", "format": "date-time"},
            "l": {"type": "array", "maxItems": 1, "items": {"type": "string"}},
                "p": {"x-kubernetes-int-or-string": true},
            "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}}}}});
        let value =
            json!({"spec": {"n": 9, "s": "bbbb", "e": "C", "d": "x", "l": ["a", 1], "p": true, "set": ["q", "q"]}});
        assert_eq!(
            texts(schema, value),
            [
                "spec.need: Required value",
                "spec.d: Invalid value: \"x\": spec.d in body must be of type date-time: \"x\"",
                "spec.e: Unsupported value: \"C\": supported values: \"A\", \"B\"",
                "spec.l: Too many: 2: must have at most 1 item",
                "spec.l[1]: Invalid value: \"integer\": spec.l[1] in body must be of type string: \"integer\"",
                "spec.n: Invalid value: 9: spec.n in body should be less than or equal to 5",
                "spec.p: Invalid value: \"boolean\": spec.p in body must be of type integer,string: \"boolean\"",
                "spec.s: Too long: may not be more than 3 bytes",
                "spec.s: Invalid value: \"bbbb\": spec.s in body should match '^a'",
                "spec.set[1]: Duplicate value: \"q\"",
            ]
        );
        assert_eq!(
            texts(
                json!({"type": "object", "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}),
                json!({"a": 1, "b": 2})
            ),
            ["<nil>: Invalid value: \"\": \"\" must validate one and only one schema (oneOf). Found 2 valid \
                alternatives"]
        );
    }
}
