//! The columns that a CustomResourceDefinition asks for: `additionalPrinterColumns` with their simple JSON paths.

use jiff::Timestamp;
use model::meta;
use serde_json::{Map, Value, json};

use super::column::NAME;
use super::duration;
use crate::read;

/// The wire form of the table's columns: the name, then those of the definition
/// (`spec.versions[*].additionalPrinterColumns`).
pub fn columns(additional: &[Value]) -> Vec<Value> {
    let mut columns = vec![NAME.to_value()];
    columns.extend(additional.iter().map(|c| {
        json!({
            "name": read::text(c, "name"),
            "type": read::text(c, "type"),
            "format": read::text(c, "format"),
            "description": read::some_text(c, "description").unwrap_or("Custom resource definition column"),
            "priority": read::number(c, "priority"),
        })
    }));
    columns
}

/// The cells of one custom resource under [`columns`]. A path that leads nowhere is null, as upstream.
pub fn row(additional: &[Value], object: &Value, now: Timestamp) -> Vec<Value> {
    let mut cells = vec![json!(meta::name(object))];
    cells.extend(additional.iter().map(|c| {
        let found = find(object, read::text(c, "jsonPath"));
        cell(read::text(c, "type"), &found, now)
    }));
    cells
}

fn cell(kind: &str, found: &[&Value], now: Timestamp) -> Value {
    let Some(first) = found.first().filter(|v| !v.is_null()) else { return Value::Null };
    match kind {
        "integer" => first.as_i64().or(first.as_f64().map(|f| f as i64)).map_or(Value::Null, Value::from),
        "number" => {
            if first.is_number() {
                (*first).clone()
            } else {
                Value::Null
            }
        }
        "boolean" => {
            if first.is_boolean() {
                (*first).clone()
            } else {
                Value::Null
            }
        }
        "date" => match first.as_str() {
            Some(text) if text.parse::<Timestamp>().is_ok() => json!(duration::since(Some(text), now)),
            Some(_) => json!("<invalid>"),
            None => Value::Null,
        },
        _ => json!(
            found.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect::<Vec<_>>().join(",")
        ),
    }
}

/// The values that a simple JSON path finds: `.a.b`, `['a.b']`, `[0]`, `[*]`, `[?(@.type=="Ready")]`, `\\.` in names.
pub fn find<'a>(object: &'a Value, path: &str) -> Vec<&'a Value> {
    let mut found = vec![object];
    let mut rest = path.trim().trim_start_matches('{').trim_end_matches('}').trim_start_matches('$');
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('[') {
            let end = closing(inner);
            let (step, after) = inner.split_at(end);
            rest = after.strip_prefix(']').unwrap_or("");
            found = found.into_iter().flat_map(|v| bracket(v, step)).collect();
            continue;
        }
        let (name, after) = name_of(rest.strip_prefix('.').unwrap_or(rest));
        if name.is_empty() {
            return Vec::new();
        }
        rest = after;
        found = found
            .into_iter()
            .flat_map(|v| match name.as_str() {
                "*" => children(v),
                name => v.get(name).into_iter().collect(),
            })
            .collect();
    }
    found
}

/// The place of the bracket that closes what stands before `inner`; quotes may hold brackets.
fn closing(inner: &str) -> usize {
    let (mut quote, mut depth) = (None, 0);
    for (at, c) in inner.char_indices() {
        match (quote, c) {
            (Some(q), c) if q == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '[') => depth += 1,
            (None, ']') if depth == 0 => return at,
            (None, ']') => depth -= 1,
            _ => {}
        }
    }
    inner.len()
}

fn name_of(text: &str) -> (String, &str) {
    let mut name = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => name.extend(chars.next().map(|(_, c)| c)),
            '.' | '[' => return (name, &text[at..]),
            _ => name.push(c),
        }
    }
    (name, "")
}

fn children(value: &Value) -> Vec<&Value> {
    match value {
        Value::Array(list) => list.iter().collect(),
        Value::Object(map) => map.values().collect(),
        _ => Vec::new(),
    }
}

fn bracket<'a>(value: &'a Value, step: &str) -> Vec<&'a Value> {
    let step = step.trim();
    if step == "*" {
        return children(value);
    }
    if let Some(filter) = step.strip_prefix("?(").and_then(|s| s.strip_suffix(')')) {
        return children(value).into_iter().filter(|item| matches_filter(item, filter)).collect();
    }
    if let Some(name) = unquote(step) {
        return value.get(name).into_iter().collect();
    }
    match (step.parse::<i64>(), value.as_array()) {
        (Ok(idx), Some(list)) => {
            let idx = if idx < 0 { idx + list.len() as i64 } else { idx };
            usize::try_from(idx).ok().and_then(|i| list.get(i)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

fn unquote(text: &str) -> Option<&str> {
    let text = text.trim();
    ['\'', '"'].iter().find_map(|q| text.strip_prefix(*q)?.strip_suffix(*q))
}

/// `@.type=="Ready"`, `@.n!=1`, `@.x` (exists).
fn matches_filter(item: &Value, filter: &str) -> bool {
    for (operator, equal) in [("==", true), ("!=", false)] {
        if let Some((left, right)) = filter.split_once(operator) {
            let have = find(item, left.trim().trim_start_matches('@'));
            let want =
                unquote(right).map_or_else(|| serde_json::from_str(right.trim()).unwrap_or(Value::Null), Value::from);
            return have.first().is_some_and(|v| (**v == want) == equal);
        }
    }
    find(item, filter.trim().trim_start_matches('@')).first().is_some_and(|v| !v.is_null())
}

/// Whether a definition gives columns of its own; without, the table is name and age.
pub fn or_default(additional: &[Value]) -> Vec<Value> {
    if !additional.is_empty() {
        return additional.to_vec();
    }
    let mut age = Map::new();
    for (field, value) in [("name", "Age"), ("type", "date"), ("jsonPath", ".metadata.creationTimestamp")] {
        age.insert(field.to_owned(), Value::from(value));
    }
    vec![Value::Object(age)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simple_paths_find_what_definitions_ask_for() {
        let object = json!({"metadata": {"name": "x", "labels": {"a.b/c": "v"}},
            "spec": {"n": 3, "l": [{"t": "A", "s": 1}, {"t": "B", "s": 2}]}});
        let text = |path: &str| find(&object, path).iter().map(|v| v.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(text(".spec.n"), "3");
        assert_eq!(text(".spec.l[?(@.t==\"B\")].s"), "2");
        assert_eq!(text(".spec.l[*].t"), "\"A\" \"B\"");
        assert_eq!(text(".spec.l[-1].t"), "\"B\"");
        assert_eq!(text(".metadata.labels['a.b/c']"), "\"v\"");
        assert_eq!(text(r".metadata.labels.a\.b/c"), "\"v\"");
        assert_eq!(text(".spec.none.deeper"), "");
    }

    #[test]
    fn cells_have_the_type_of_their_column() {
        let object = json!({"metadata": {"name": "x", "creationTimestamp": "2026-11-21T05:00:00Z"}, "spec": {"n": 3}});
        let columns = [
            json!({"name": "N", "type": "integer", "jsonPath": ".spec.n"}),
            json!({"name": "M", "type": "string", "jsonPath": ".spec.m"}),
            json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}),
        ];
        let cells = row(&columns, &object, "2026-11-21T05:10:00Z".parse().unwrap());
        assert_eq!(cells, [json!("x"), json!(3), Value::Null, json!("10m")]);
    }
}
