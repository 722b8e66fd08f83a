//! OpenAPI v2 as protobuf, the only form that older kubectl asks for: `openapi.v2.Document` of the gnostic project.
//!
//! Only what clients read: info, and definitions with their types, required fields and kinds. Paths are left out
//! (empty), as no client of this form reads them. Spec: `openapiv2/OpenAPIv2.proto` of gnostic-models; numbers below
//! are its field tags.

use serde_json::Value;

/// The media type under which kubectl asks for it.
pub const MEDIA_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn bytes(tag: u64, content: &[u8], out: &mut Vec<u8>) {
    varint(tag << 3 | 2, out);
    varint(content.len() as u64, out);
    out.extend_from_slice(content);
}

fn text(tag: u64, value: Option<&str>, out: &mut Vec<u8>) {
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        bytes(tag, value.as_bytes(), out);
    }
}

fn message(tag: u64, fill: impl FnOnce(&mut Vec<u8>), out: &mut Vec<u8>) {
    let mut inner = Vec::new();
    fill(&mut inner);
    bytes(tag, &inner, out);
}

/// `NamedSchema { name = 1, value = 2 }`, as every map of schemas is written.
fn named_schema(name: &str, value: &Value, out: &mut Vec<u8>) {
    message(
        1,
        |named| {
            bytes(1, name.as_bytes(), named);
            message(2, |inner| schema(value, inner), named);
        },
        out,
    );
}

fn schema(value: &Value, out: &mut Vec<u8>) {
    text(1, value["$ref"].as_str(), out);
    text(2, value["format"].as_str(), out);
    text(4, value["description"].as_str(), out);
    for required in value["required"].as_array().into_iter().flatten() {
        text(19, required.as_str(), out);
    }
    if value["additionalProperties"].is_object() {
        message(21, |item| message(1, |inner| schema(&value["additionalProperties"], inner), item), out);
    }
    if let Some(kind) = value["type"].as_str() {
        message(22, |item| bytes(1, kind.as_bytes(), item), out);
    }
    if value["items"].is_object() {
        message(23, |item| message(1, |inner| schema(&value["items"], inner), item), out);
    }
    if let Some(properties) = value["properties"].as_object() {
        message(25, |all| properties.iter().for_each(|(name, property)| named_schema(name, property, all)), out);
    }
    for (name, extension) in value.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-")) {
        // JSON is YAML: the extension's value is read by a YAML parser.
        let yaml = extension.to_string();
        let any = |any: &mut Vec<u8>| bytes(2, yaml.as_bytes(), any);
        message(
            31,
            |named| {
                bytes(1, name.as_bytes(), named);
                message(2, any, named);
            },
            out,
        );
    }
}

/// Encodes the JSON document that [`super::v2`] makes.
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    text(1, document["swagger"].as_str(), &mut out);
    message(
        2,
        |info| {
            text(1, document["info"]["title"].as_str(), info);
            text(2, document["info"]["version"].as_str(), info);
        },
        &mut out,
    );
    message(8, |_| {}, &mut out);
    let definitions = document["definitions"].as_object();
    message(
        9,
        |all| definitions.into_iter().flatten().for_each(|(name, definition)| named_schema(name, definition, all)),
        &mut out,
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_definition_is_written_with_gnostics_tags() {
        let document = json!({"swagger": "2.0", "info": {"title": "K", "version": "v1"},
            "definitions": {"a": {"type": "object", "required": ["b"], "properties": {"b": {"$ref": "#/c"}}}}});
        let expected = b"\x0a\x032.0\x12\x07\x0a\x01K\x12\x02v1\x42\x00";
        let encoded = encode(&document);
        assert!(encoded.starts_with(expected), "{encoded:?}");
        let has = |needle: &[u8]| encoded.windows(needle.len()).any(|window| window == needle);
        assert!(has(b"\x9a\x01\x01b"), "required is tag 19: {encoded:?}");
        assert!(has(b"\xb2\x01\x08\x0a\x06object"), "type is tag 22: {encoded:?}");
        assert!(has(b"\xca\x01\x0c\x0a\x0a\x0a\x01b\x12\x05\x0a\x03#/c"), "properties is tag 25: {encoded:?}");
    }
}
