//! Is a schema structural? What a CustomResourceDefinition may not say in its schemas, in upstream's words.

use std::collections::BTreeSet;

use cel::patterns;
use serde_json::{Map, Value};

use super::node::{Node, PATTERN_BYTES_MAX};
use super::{shape, values};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

/// Where in a schema a level stands.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Position {
    Root,
    Field,
    Item,
    /// Inside allOf, anyOf, oneOf, not: values are narrowed there, nothing is declared.
    Nested,
}

const UNSUPPORTED: [&str; 9] = [
    "$ref",
    "definitions",
    "dependencies",
    "deprecated",
    "discriminator",
    "id",
    "patternProperties",
    "readOnly",
    "xml",
];
const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// Everything wrong with a schema; `path` is where it stands, such as `spec.validation.openAPIV3Schema`.
pub fn check(schema: &Value, path: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    level(schema, path, Position::Root, &mut errors);
    errors
}

fn level(schema: &Value, path: &str, position: Position, errors: &mut Vec<FieldError>) {
    let Some(map) = schema.as_object() else { return };
    for key in UNSUPPORTED.into_iter().filter(|k| map.get(*k).is_some_and(|v| !is_empty(v))) {
        errors.push(FieldError::forbidden(format!("{path}.{key}"), format!("{key} is not supported")));
    }
    if map.get("uniqueItems") == Some(&Value::Bool(true)) {
        errors.push(FieldError::forbidden(
            format!("{path}.uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
    if position == Position::Nested {
        nested(map, path, errors)
    } else {
        types(map, path, position, errors)
    }
    if let Some(pattern) = map.get("pattern").and_then(Value::as_str)
        && let Err(why) = patterns::compile(pattern, PATTERN_BYTES_MAX)
    {
        errors.push(FieldError::invalid(
            format!("{path}.pattern"),
            pattern,
            format!("must be a valid regular expression, but isn't: error parsing regexp: {why}"),
        ));
    }
    if position != Position::Nested {
        extensions(map, path, position, errors);
        fields(map, path, position, errors);
        junctors_are_declared(map, path, errors);
    } else {
        for (key, child) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
            level(child, &format!("{path}.properties[{key}]"), Position::Nested, errors);
        }
        if let Some(items) = map.get("items") {
            level(items, &format!("{path}.items"), Position::Nested, errors);
        }
    }
    for junctor in ["allOf", "anyOf", "oneOf"] {
        for (idx, inner) in map.get(junctor).and_then(Value::as_array).into_iter().flatten().enumerate() {
            // An int-or-string may say so in the old way too.
            let spelt_out = map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true))
                && inner.as_object().is_some_and(|o| o.len() == 1 && o.contains_key("type"));
            let all_of_any = junctor == "allOf"
                && map.get("x-kubernetes-int-or-string") == Some(&Value::Bool(true))
                && inner.get("anyOf").is_some();
            if !spelt_out && !all_of_any {
                level(inner, &format!("{path}.{junctor}[{idx}]"), Position::Nested, errors);
            }
        }
    }
    if let Some(inner) = map.get("not") {
        level(inner, &format!("{path}.not"), Position::Nested, errors);
    }
}

fn is_empty(v: &Value) -> bool {
    match v {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        Value::Number(_) => false,
    }
}

fn is(map: &Map<String, Value>, extension: &str) -> bool {
    map.get(extension) == Some(&Value::Bool(true))
}

fn types(map: &Map<String, Value>, path: &str, position: Position, errors: &mut Vec<FieldError>) {
    let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
    let at = format!("{path}.type");
    let int_or_string = is(map, "x-kubernetes-int-or-string");
    if int_or_string {
        if !kind.is_empty() {
            errors.push(FieldError::invalid(at, kind, "must be empty if x-kubernetes-int-or-string is true"));
        }
        return;
    }
    match (kind, position) {
        ("", Position::Root) => errors.push(FieldError::required(at, "must not be empty at the root")),
        ("", Position::Field | Position::Item) if !is(map, "x-kubernetes-preserve-unknown-fields") => {
            let what = if position == Position::Item { "array items" } else { "object fields" };
            errors.push(FieldError::required(at, format!("must not be empty for specified {what}")));
        }
        ("", _) => {}
        ("null", _) => {
            errors.push(FieldError::forbidden(at, "type cannot be set to null, use nullable as an alternative"))
        }
        (kind, _) if !TYPES.contains(&kind) => errors.push(FieldError::not_supported(at, kind, &TYPES)),
        (kind, Position::Root) if kind != "object" => {
            errors.push(FieldError::invalid(at, kind, "must be object at the root"))
        }
        _ => {}
    }
}

/// Fields that may only stand where something is declared.
fn nested(map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
    if map.get("type").is_some_and(|t| !is_empty(t)) {
        errors.push(FieldError::forbidden(format!("{path}.type"), "must be empty to be structural"));
    }
    let undefined = ["additionalProperties", "default", "description", "title", "example", "nullable"];
    let extensions = [
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
        "x-kubernetes-int-or-string",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-map-type",
    ];
    for key in undefined.into_iter().filter(|k| map.get(*k).is_some_and(|v| !is_empty(v))) {
        errors.push(FieldError::forbidden(format!("{path}.{key}"), "must be undefined to be structural"));
    }
    for key in extensions.into_iter().filter(|k| map.get(*k).is_some_and(|v| !is_empty(v))) {
        errors.push(FieldError::forbidden(format!("{path}.{key}"), "must be false to be structural"));
    }
}

fn extensions(map: &Map<String, Value>, path: &str, position: Position, errors: &mut Vec<FieldError>) {
    let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        errors.push(FieldError::invalid(
            format!("{path}.x-kubernetes-preserve-unknown-fields"),
            false,
            "must be true or undefined",
        ));
    }
    if is(map, "x-kubernetes-embedded-resource") {
        if kind != "object" {
            errors.push(FieldError::invalid(
                format!("{path}.type"),
                kind,
                "must be object if x-kubernetes-embedded-resource is true",
            ));
        }
        if map.get("properties").is_none_or(is_empty) && !is(map, "x-kubernetes-preserve-unknown-fields") {
            let why = "must not be empty if x-kubernetes-embedded-resource is true without \
                x-kubernetes-preserve-unknown-fields";
            errors.push(FieldError::required(format!("{path}.properties"), why));
        }
    }
    if (position == Position::Root || is(map, "x-kubernetes-embedded-resource"))
        && let Some(metadata) = map.get("properties").and_then(|p| p.get("metadata")).and_then(Value::as_object)
    {
        let other = |p: &Map<String, Value>| p.keys().any(|k| !matches!(k.as_str(), "name" | "generateName"));
        if metadata.keys().any(|k| !matches!(k.as_str(), "type" | "properties" | "description"))
            || metadata.get("properties").and_then(Value::as_object).is_some_and(other)
        {
            let why =
                "must not specify anything other than name and generateName, but metadata is implicitly specified";
            errors.push(FieldError::forbidden(format!("{path}.properties[metadata]"), why));
        }
    }
    lists(map, kind, Path(path), errors);
    if let Some(said) = map.get("x-kubernetes-map-type").and_then(Value::as_str) {
        if !matches!(said, "granular" | "atomic") {
            errors.push(FieldError::not_supported(
                format!("{path}.x-kubernetes-map-type"),
                said,
                &["atomic", "granular"],
            ));
        }
        if kind != "object" {
            let why = if kind.is_empty() {
                FieldError::required(format!("{path}.type"), "must be object if x-kubernetes-map-type is specified")
            } else {
                FieldError::invalid(
                    format!("{path}.type"),
                    kind,
                    "must be object if x-kubernetes-map-type is specified",
                )
            };
            errors.push(why);
        }
    }
}

fn lists(map: &Map<String, Value>, kind: &str, path: Path<'_>, errors: &mut Vec<FieldError>) {
    let keys: Vec<&str> = map
        .get("x-kubernetes-list-map-keys")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let said = map.get("x-kubernetes-list-type").and_then(Value::as_str);
    if let Some(said) = said {
        if kind != "array" {
            let why = "must be array if x-kubernetes-list-type is specified";
            errors.push(if kind.is_empty() {
                FieldError::required(format!("{path}.type"), why)
            } else {
                FieldError::invalid(format!("{path}.type"), kind, why)
            });
        }
        if !matches!(said, "set" | "map" | "atomic") {
            errors.push(FieldError::not_supported(
                format!("{path}.x-kubernetes-list-type"),
                said,
                &["atomic", "map", "set"],
            ));
        }
    }
    if said != Some("map") {
        if !keys.is_empty() {
            let why = "must be map if x-kubernetes-list-map-keys is non-empty";
            errors.push(match said {
                None => FieldError::required(format!("{path}.x-kubernetes-list-type"), why),
                Some(said) => FieldError::invalid(format!("{path}.x-kubernetes-list-type"), said, why),
            });
        }
        return;
    }
    list_keys(map, &keys, path, errors);
}

/// The keys of a list whose type is map.
fn list_keys(map: &Map<String, Value>, keys: &[&str], path: Path<'_>, errors: &mut Vec<FieldError>) {
    let at = format!("{path}.x-kubernetes-list-map-keys");
    if keys.is_empty() {
        errors.push(FieldError::required(&at, "must not be empty if x-kubernetes-list-type is map"));
    }
    let items = map.get("items").unwrap_or(&Value::Null);
    if items["type"] != "object" {
        errors.push(FieldError::invalid(
            format!("{path}.items.type"),
            items["type"].as_str().unwrap_or_default(),
            "must be object if parent array's x-kubernetes-list-type is map",
        ));
    }
    let mut seen = BTreeSet::new();
    let required: BTreeSet<&str> =
        items["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (idx, key) in keys.iter().enumerate() {
        if !seen.insert(key) {
            errors.push(FieldError::duplicate(format!("{at}[{idx}]"), *key));
        }
        let Some(field) = items["properties"].get(*key) else {
            errors.push(FieldError::invalid(
                format!("{at}[{idx}]"),
                *key,
                "entries must all be names of item properties",
            ));
            continue;
        };
        if matches!(field["type"].as_str(), Some("array" | "object")) {
            errors.push(FieldError::invalid(
                format!("{path}.items.properties[{key}].type"),
                field["type"].clone(),
                "must be a scalar type if parent array's x-kubernetes-list-type is map",
            ));
        }
        if !required.contains(*key) && field.get("default").is_none() {
            let why =
                "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property";
            errors.push(FieldError::required(format!("{path}.items.properties[{key}].default"), why));
        }
    }
}

fn fields(map: &Map<String, Value>, path: &str, position: Position, errors: &mut Vec<FieldError>) {
    let kind = map.get("type").and_then(Value::as_str).unwrap_or_default();
    for (key, child) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let implicit = matches!(key.as_str(), "apiVersion" | "kind" | "metadata")
            && (position == Position::Root || is(map, "x-kubernetes-embedded-resource"));
        if !implicit || child.get("type").is_some() {
            level(child, &format!("{path}.properties[{key}]"), Position::Field, errors);
        }
    }
    match map.get("additionalProperties") {
        Some(Value::Bool(false)) => errors.push(FieldError::forbidden(
            format!("{path}.additionalProperties"),
            "additionalProperties cannot be set to false",
        )),
        Some(said) if !said.is_null() => {
            // Saying that others are allowed contradicts nothing; a schema for them does.
            if said.is_object() && map.get("properties").is_some_and(|p| !is_empty(p)) {
                errors.push(FieldError::forbidden(
                    format!("{path}.additionalProperties"),
                    "additionalProperties and properties are mutual exclusive",
                ));
            }
            level(said, &format!("{path}.additionalProperties"), Position::Field, errors);
        }
        _ => {}
    }
    match map.get("items") {
        Some(Value::Array(_)) => errors
            .push(FieldError::forbidden(format!("{path}.items"), "items must be a schema object and not an array")),
        Some(items) if !items.is_null() => level(items, &format!("{path}.items"), Position::Item, errors),
        _ if kind == "array" => errors.push(FieldError::required(format!("{path}.items"), "must be specified")),
        _ => {}
    }
    if let Some(default) = map.get("default").filter(|d| !d.is_null()) {
        default_fits(&Value::Object(map.clone()), default, &format!("{path}.default"), errors);
    }
}

fn default_fits(schema: &Value, given: &Value, path: &str, errors: &mut Vec<FieldError>) {
    let node = Node::compile(schema);
    let mut pruned = given.clone();
    let mut unknown = Vec::new();
    shape::prune(&node, &mut pruned, &mut unknown);
    if !unknown.is_empty() && !node.embedded {
        errors.push(FieldError::invalid(path, given.clone(), "must not have unknown fields"));
    }
    values::check(&node, given, None, path, errors);
}

/// The fields that anyOf and its like narrow must be declared beside them.
fn junctors_are_declared(map: &Map<String, Value>, path: &str, errors: &mut Vec<FieldError>) {
    let outer = Value::Object(map.clone());
    let inner = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|j| {
        map.get(j)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .enumerate()
            .map(move |(i, v)| (format!("{j}[{i}]"), v))
    });
    for (name, nested) in inner.chain(map.get("not").map(|v| ("not".to_owned(), v))) {
        declared((nested, &format!("{path}.{name}")), (&outer, path), errors);
    }
}

/// Both schemas come with their paths.
fn declared((nested, nested_path): (&Value, &str), (outer, path): (&Value, &str), errors: &mut Vec<FieldError>) {
    for (key, child) in nested["properties"].as_object().into_iter().flatten() {
        let (here, there) = (format!("{path}.properties[{key}]"), format!("{nested_path}.properties[{key}]"));
        match outer["properties"].get(key) {
            Some(field) => declared((child, &there), (field, &here), errors),
            None => errors.push(FieldError::required(here, format!("because it is defined in {there}"))),
        }
    }
    if nested["items"].is_object() {
        if outer["items"].is_object() {
            let (here, there) = (format!("{path}.items"), format!("{nested_path}.items"));
            declared((&nested["items"], &there), (&outer["items"], &here), errors);
        } else {
            errors.push(FieldError::required(
                format!("{path}.items"),
                format!("because it is defined in {nested_path}.items"),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_that_are_not_structural_are_refused_with_upstreams_words() {
        let schema = json!({"properties": {"a": {}, "l": {"type": "array"},
            "o": {"type": "object", "properties": {"x": {"type": "string"}},
                "additionalProperties": {"type": "string"}},
            "d": {"type": "integer", "default": "x"}}, "anyOf": [{"properties": {"z": {"type": "string"}}}]});
        let texts: Vec<String> = check(&schema, "s").iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "s.type: Required value: must not be empty at the root",
                "s.properties[a].type: Required value: must not be empty for specified object fields",
                "s.properties[d].default: Invalid value: \"string\": s.properties[d].default in body must be of type \
                integer: \"string\"",
                "s.properties[l].items: Required value: must be specified",
                "s.properties[o].additionalProperties: Forbidden: additionalProperties and properties are mutual \
                exclusive",
                "s.properties[z]: Required value: because it is defined in s.anyOf[0].properties[z]",
                "s.anyOf[0].properties[z].type: Forbidden: must be empty to be structural",
            ]
        );
    }
}
