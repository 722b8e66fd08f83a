//! Values to messages. Fields are written in the order of their tags and map entries in the order of their keys, as Go
//! writes them, so that equal objects are equal bytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::wire::{bytes, delimited, double, varint};
use super::{ProtobufError, schemas};
use crate::table::{Empty, Field, Shape, TypeDef};

/// The fields of one object.
pub(super) fn message(out: &mut Vec<u8>, of: &TypeDef, object: &Map<String, Value>) -> Result<(), ProtobufError> {
    group(out, of, &of.wire, 0, object)
}

/// Those fields at `positions`, which share the first `level` tags.
fn group(
    out: &mut Vec<u8>,
    of: &TypeDef,
    positions: &[u16],
    level: usize,
    object: &Map<String, Value>,
) -> Result<(), ProtobufError> {
    let field_at = |position: &u16| &of.fields[usize::from(*position)];
    let mut rest = positions;
    while let Some((first, others)) = rest.split_first() {
        let field = field_at(first);
        let Some(tag) = field.within.get(level) else {
            write_field(out, of, field, object.get(field.name.as_ref()))?;
            rest = others;
            continue;
        };
        // A struct that Go embeds is no pointer: it is written even if nothing in it is.
        let n = rest.iter().take_while(|p| field_at(p).within.get(level) == Some(tag)).count();
        let (inside, after) = rest.split_at(n);
        delimited(out, *tag, |out| group(out, of, inside, level + 1, object))?;
        rest = after;
    }
    Ok(())
}

fn write_field(out: &mut Vec<u8>, owner: &TypeDef, field: &Field, given: Option<&Value>) -> Result<(), ProtobufError> {
    let named = |why: ProtobufError| match why {
        ProtobufError::Field { field: inner, why } if inner.is_empty() => {
            ProtobufError::Field { field: field.name.to_string(), why }
        }
        other => other,
    };
    match given {
        Some(v) if !v.is_null() => match schemas::union_of(owner, field) {
            Some(union) => schemas::encode(out, field.tag, union, owner, v),
            None if super::is_named_list(owner, field) => element(out, field.tag, &field.shape, v),
            None => value(out, field.tag, &field.shape, v),
        }
        .map_err(named),
        _ if field.empty == Empty::Keep => Ok(()),
        _ => zero(out, field.tag, &field.shape),
    }
}

fn wrong(shape: &Shape) -> ProtobufError {
    ProtobufError::Field { field: String::new(), why: format!("the value is no {shape:?}") }
}

/// One value; a list writes each item under the same tag.
fn value(out: &mut Vec<u8>, tag: u32, shape: &Shape, v: &Value) -> Result<(), ProtobufError> {
    match (shape, v) {
        (Shape::List(item), Value::Array(items)) => items.iter().try_for_each(|v| element(out, tag, item, v))?,
        (Shape::Map(item), Value::Object(entries)) => {
            let mut sorted: Vec<_> = entries.iter().collect();
            sorted.sort_by(|a, b| a.0.cmp(b.0));
            for (key, v) in sorted {
                delimited(out, tag, |out| {
                    bytes(out, 1, key.as_bytes());
                    element(out, 2, item, v)
                })?;
            }
        }
        (Shape::Struct(of), Value::Object(object)) => delimited(out, tag, |out| message(out, of.get(), object))?,
        (Shape::Any, v) => {
            let raw = serde_json::to_vec(v).map_err(|_| wrong(shape))?;
            delimited(out, tag, |out| {
                bytes(out, 1, &raw);
                Ok(())
            })?;
        }
        _ => scalar(out, tag, shape, v).ok_or_else(|| wrong(shape))?,
    }
    Ok(())
}

/// An item of a list or the value of a map's entry.
pub(super) fn element(out: &mut Vec<u8>, tag: u32, shape: &Shape, v: &Value) -> Result<(), ProtobufError> {
    match (shape, v) {
        (Shape::Any, _) => value(out, tag, shape, v),
        (_, Value::Null) => zero(out, tag, shape),
        // A named list type of Go (ExtraValue) is a message with the items in it.
        (Shape::List(item), Value::Array(items)) => {
            delimited(out, tag, |out| items.iter().try_for_each(|v| element(out, 1, item, v)))
        }
        _ => value(out, tag, shape, v),
    }
}

/// `None` if the value is not of the shape.
fn scalar(out: &mut Vec<u8>, tag: u32, shape: &Shape, v: &Value) -> Option<()> {
    match shape {
        Shape::Bool => varint(out, tag, i64::from(v.as_bool()?)),
        Shape::Int32 | Shape::Int64 => varint(out, tag, v.as_i64()?),
        Shape::Float => double(out, tag, v.as_f64()?),
        Shape::String => bytes(out, tag, v.as_str()?.as_bytes()),
        Shape::Bytes => bytes(out, tag, &STANDARD.decode(v.as_str()?).ok()?),
        Shape::Time => time(out, tag, v.as_str()?, |_| 0)?,
        Shape::MicroTime => time(out, tag, v.as_str()?, |nanos| nanos / 1000 * 1000)?,
        Shape::Quantity => small(out, tag, |out| bytes(out, 1, v.as_str().unwrap_or("0").as_bytes())),
        Shape::IntOrString => {
            let (kind, number, text) = match v {
                Value::String(s) => (1, 0, s.as_str()),
                v => (0, v.as_i64()?, ""),
            };
            small(out, tag, |out| int_or_string(out, kind, number, text));
        }
        Shape::Any | Shape::Duration | Shape::List(_) | Shape::Map(_) | Shape::Struct(_) => return None,
    }
    Some(())
}

fn small(out: &mut Vec<u8>, tag: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::with_capacity(24);
    write(&mut inner);
    bytes(out, tag, &inner);
}

fn int_or_string(out: &mut Vec<u8>, kind: i64, number: i64, text: &str) {
    varint(out, 1, kind);
    varint(out, 2, number);
    bytes(out, 3, text.as_bytes());
}

fn time(out: &mut Vec<u8>, tag: u32, text: &str, keep: impl Fn(i32) -> i32) -> Option<()> {
    let at: jiff::Timestamp = text.parse().ok()?;
    // Before 1970 the seconds are floored and the nanoseconds count up from there.
    let (mut seconds, mut nanos) = (at.as_second(), at.subsec_nanosecond());
    if nanos < 0 {
        (seconds, nanos) = (seconds - 1, nanos + 1_000_000_000);
    }
    small(out, tag, |out| {
        varint(out, 1, seconds);
        varint(out, 2, i64::from(keep(nanos)));
    });
    Some(())
}

/// The value that Go writes for a field without a pointer that holds nothing. Lists, maps and bytes are nil then, and
/// not written.
fn zero(out: &mut Vec<u8>, tag: u32, shape: &Shape) -> Result<(), ProtobufError> {
    match shape {
        Shape::Bool | Shape::Int32 | Shape::Int64 => varint(out, tag, 0),
        Shape::Float => double(out, tag, 0.0),
        Shape::String | Shape::Time | Shape::MicroTime | Shape::Any => bytes(out, tag, b""),
        Shape::Quantity => small(out, tag, |out| bytes(out, 1, b"0")),
        Shape::IntOrString => small(out, tag, |out| int_or_string(out, 0, 0, "")),
        Shape::Duration => small(out, tag, |out| varint(out, 1, 0)),
        Shape::Struct(of) => delimited(out, tag, |out| message(out, of.get(), &Map::new()))?,
        Shape::Bytes | Shape::List(_) | Shape::Map(_) => {}
    }
    Ok(())
}
