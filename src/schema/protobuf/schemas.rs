//! The three unions of JSONSchemaProps, which JSON writes as one of two forms and protobuf as a message with a field
//! for each.

use serde_json::Value;

use super::ProtobufError;
use super::decode::Walk;
use super::encode::message;
use super::wire::{Reader, Wire, bytes, delimited, text, varint};
use crate::decode::FieldValidation;
use crate::table::{Field, TypeDef};

/// The form of a value that may stand instead of a schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Union {
    /// `items`: a list of schemas.
    Items,
    /// `additionalItems`, `additionalProperties`: true or false.
    Additional,
    /// Each entry of `dependencies`: names of properties.
    Dependencies,
}

/// The union that this field is.
pub(super) fn union_of(owner: &TypeDef, field: &Field) -> Option<Union> {
    if owner.name != "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps" {
        return None;
    }
    match field.name.as_ref() {
        "items" => Some(Union::Items),
        "additionalItems" | "additionalProperties" => Some(Union::Additional),
        "dependencies" => Some(Union::Dependencies),
        _ => None,
    }
}

/// Writes the field; `of` is JSONSchemaProps itself.
pub(super) fn encode(out: &mut Vec<u8>, tag: u32, union: Union, of: &TypeDef, v: &Value) -> Result<(), ProtobufError> {
    match (union, v) {
        (Union::Dependencies, Value::Object(entries)) => {
            let mut sorted: Vec<_> = entries.iter().collect();
            sorted.sort_by(|a, b| a.0.cmp(b.0));
            sorted.into_iter().try_for_each(|(key, v)| {
                delimited(out, tag, |out| {
                    bytes(out, 1, key.as_bytes());
                    delimited(out, 2, |out| either(out, union, of, v))
                })
            })
        }
        _ => delimited(out, tag, |out| either(out, union, of, v)),
    }
}

fn either(out: &mut Vec<u8>, union: Union, of: &TypeDef, v: &Value) -> Result<(), ProtobufError> {
    match (union, v) {
        (Union::Additional, Value::Bool(b)) => varint(out, 1, i64::from(*b)),
        (Union::Additional, Value::Object(schema)) => {
            varint(out, 1, 1);
            delimited(out, 2, |out| message(out, of, schema))?;
        }
        (_, Value::Object(schema)) => delimited(out, 1, |out| message(out, of, schema))?,
        (Union::Items, Value::Array(items)) => {
            for schema in items.iter().filter_map(Value::as_object) {
                delimited(out, 2, |out| message(out, of, schema))?;
            }
        }
        (Union::Dependencies, Value::Array(items)) => {
            items.iter().filter_map(Value::as_str).for_each(|s| bytes(out, 2, s.as_bytes()))
        }
        _ => {
            return Err(ProtobufError::Field {
                field: String::new(),
                why: "the value is neither of the two forms".to_owned(),
            });
        }
    }
    Ok(())
}

/// Reads one message of a union.
pub(super) fn decode(walk: &mut Walk, bytes: &[u8], union: Union, of: &TypeDef) -> Result<Value, ProtobufError> {
    let (mut schema, mut list, mut allows) = (None, Vec::new(), false);
    let mut reader = Reader(bytes);
    while let Some((tag, wire)) = reader.field()? {
        match (union, tag, wire) {
            (Union::Additional, 1, Wire::Varint(n)) => allows = n != 0,
            (Union::Additional, 2, Wire::Bytes(b)) | (Union::Items | Union::Dependencies, 1, Wire::Bytes(b)) => {
                schema = Some(plain(walk, b, of)?)
            }
            (Union::Items, 2, Wire::Bytes(b)) => list.push(plain(walk, b, of)?),
            (Union::Dependencies, 2, Wire::Bytes(b)) => list.push(text(b)?.into()),
            _ => {}
        }
    }
    Ok(match (schema, union) {
        // As upstream's JSON encoder: a list of schemas goes before a single one.
        (Some(_), Union::Items) | (Some(_), Union::Dependencies) if !list.is_empty() => Value::Array(list),
        (Some(schema), _) => schema,
        (None, Union::Additional) => allows.into(),
        (None, _) => Value::Array(list),
    })
}

/// A schema without its zeros: the table calls the union "anything", so nobody would drop them later.
fn plain(walk: &mut Walk, bytes: &[u8], of: &TypeDef) -> Result<Value, ProtobufError> {
    let schema = Value::Object(walk.message(bytes, of)?);
    let decoded = crate::decode::conform(schema, of, FieldValidation::Ignore);
    decoded.map(|d| d.value).map_err(|err| ProtobufError::Field { field: String::new(), why: err.to_string() })
}
