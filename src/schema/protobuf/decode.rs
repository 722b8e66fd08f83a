//! Messages to values: what the tags of a type name is read, everything else is skipped, as Go's decoders do.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Number, Value};

use super::wire::{Reader, Wire, signed, text};
use super::{ProtobufError, schemas};
use crate::decode::bounds::Purse;
use crate::table::{Field, GroupVersion, Shape, TypeDef};

/// Fields, items and entries that one body may hold: two bytes of an empty message become a whole struct of JSON.
const VALUES_MAX: usize = 400_000;

/// Reads the message of an object.
pub(super) fn object(bytes: &[u8], of: &TypeDef) -> Result<Map<String, Value>, ProtobufError> {
    let mut walk = Walk { depth: 0, values: 0, purse: Purse::new() };
    walk.message(bytes, of)
}

/// How far the walk has come: both counts are bounded.
pub(super) struct Walk {
    depth: usize,
    values: usize,
    purse: Purse,
}

impl Walk {
    fn count(&mut self) -> Result<(), ProtobufError> {
        self.values += 1;
        if self.values > VALUES_MAX { Err(ProtobufError::TooLarge) } else { Ok(()) }
    }

    /// A message of a struct.
    pub(super) fn message(&mut self, bytes: &[u8], of: &TypeDef) -> Result<Map<String, Value>, ProtobufError> {
        let mut out = Map::new();
        self.fields(bytes, of, &mut Vec::new(), &mut out)?;
        if !out.is_empty() {
            self.purse.map().map_err(|_| ProtobufError::TooLarge)?;
        }
        Ok(out)
    }

    fn fields(
        &mut self,
        bytes: &[u8],
        of: &TypeDef,
        path: &mut Vec<u32>,
        out: &mut Map<String, Value>,
    ) -> Result<(), ProtobufError> {
        self.depth += 1;
        if self.depth > base::limits::NESTING_DEPTH_MAX {
            return Err(ProtobufError::TooLarge);
        }
        let mut reader = Reader(bytes);
        while let Some((tag, wire)) = reader.field()? {
            self.count()?;
            path.push(tag);
            match (known(of, path), wire) {
                (Some(field), wire) if field.within.len() + 1 == path.len() => self.add(out, of, field, wire)?,
                (Some(_), Wire::Bytes(embedded)) => self.fields(embedded, of, path, out)?,
                _ => {}
            }
            path.pop();
        }
        self.depth -= 1;
        Ok(())
    }

    fn add(
        &mut self,
        out: &mut Map<String, Value>,
        owner: &TypeDef,
        field: &Field,
        wire: Wire<'_>,
    ) -> Result<(), ProtobufError> {
        let union = schemas::union_of(owner, field);
        let named = |err: ProtobufError| match err {
            ProtobufError::Field { field: inner, why } if inner.is_empty() => {
                ProtobufError::Field { field: field.name.to_string(), why }
            }
            other => other,
        };
        match (&field.shape, wire) {
            (shape, wire) if super::is_named_list(owner, field) => {
                let v = self.element(shape, wire).map_err(named)?;
                out.insert(field.name.to_string(), v);
            }
            (Shape::List(item), wire) => {
                let Value::Array(list) = out.entry(field.name.as_ref()).or_insert_with(|| Value::Array(Vec::new()))
                else {
                    return Ok(());
                };
                self.items(list, item, wire).map_err(named)?;
            }
            (Shape::Map(item), Wire::Bytes(entry)) => {
                let (key, payload) = self.entry(entry)?;
                let v = match (union, payload) {
                    (Some(union), Wire::Bytes(b)) => schemas::decode(self, b, union, owner)?,
                    _ => self.element(item, payload).map_err(named)?,
                };
                let Value::Object(map) = out.entry(field.name.as_ref()).or_insert_with(|| Value::Object(Map::new()))
                else {
                    return Ok(());
                };
                map.insert(key.to_owned(), v);
            }
            (_, Wire::Bytes(b)) if union.is_some_and(|u| u != schemas::Union::Dependencies) => {
                let v = schemas::decode(self, b, union.unwrap_or(schemas::Union::Additional), owner)?;
                out.insert(field.name.to_string(), v);
            }
            (shape, wire) => {
                let v = self.value(shape, wire).map_err(named)?;
                // A zero time and an empty RawExtension are how Go's encoders write "none".
                if !v.is_null() || matches!(shape, Shape::Any) && !is_empty(wire) {
                    out.insert(field.name.to_string(), v);
                }
            }
        }
        Ok(())
    }

    /// Repeated numbers come one by one from Go, packed from others.
    fn items(&mut self, list: &mut Vec<Value>, item: &Shape, wire: Wire<'_>) -> Result<(), ProtobufError> {
        match (item, wire) {
            (Shape::Bool | Shape::Int32 | Shape::Int64, Wire::Bytes(packed)) => {
                let mut reader = Reader(packed);
                while !reader.0.is_empty() {
                    self.count()?;
                    list.push(self.value(item, Wire::Varint(reader.varint()?))?);
                }
            }
            (Shape::Float, Wire::Bytes(packed)) => {
                let mut reader = Reader(packed);
                while !reader.0.is_empty() {
                    self.count()?;
                    list.push(self.value(item, Wire::Fixed64(reader.fixed64()?))?);
                }
            }
            _ => list.push(self.element(item, wire)?),
        }
        Ok(())
    }

    fn entry<'b>(&mut self, bytes: &'b [u8]) -> Result<(&'b str, Wire<'b>), ProtobufError> {
        let (mut key, mut payload) = ("", Wire::Bytes(&[]));
        let mut reader = Reader(bytes);
        while let Some((tag, wire)) = reader.field()? {
            match (tag, wire) {
                (1, Wire::Bytes(b)) => key = text(b)?,
                (2, wire) => payload = wire,
                _ => {}
            }
        }
        Ok((key, payload))
    }

    fn element(&mut self, shape: &Shape, wire: Wire<'_>) -> Result<Value, ProtobufError> {
        let (Shape::List(item), Wire::Bytes(bytes)) = (shape, wire) else { return self.value(shape, wire) };
        let mut list = Vec::new();
        let mut reader = Reader(bytes);
        while let Some((tag, wire)) = reader.field()? {
            self.count()?;
            if tag == 1 {
                self.items(&mut list, item, wire)?;
            }
        }
        Ok(Value::Array(list))
    }

    /// JSON, or an object in an envelope of its own.
    fn raw(&mut self, bytes: &[u8]) -> Result<Value, ProtobufError> {
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        if !bytes.starts_with(super::MAGIC) {
            return serde_json::from_slice(bytes)
                .map_err(|err| ProtobufError::Field { field: String::new(), why: err.to_string() });
        }
        let inner = super::open(bytes)?;
        let of = super::type_of(GroupVersion::parse(&inner.api_version), &inner.kind)
            .ok_or_else(|| ProtobufError::NoTags(inner.kind.clone()))?;
        let mut object = self.message(inner.raw, of)?;
        object.insert("apiVersion".to_owned(), inner.api_version.into());
        object.insert("kind".to_owned(), inner.kind.into());
        Ok(Value::Object(object))
    }

    fn value(&mut self, shape: &Shape, wire: Wire<'_>) -> Result<Value, ProtobufError> {
        let wrong = |why: &str| ProtobufError::Field { field: String::new(), why: why.to_owned() };
        Ok(match (shape, wire) {
            (Shape::Bool, Wire::Varint(n)) => (n != 0).into(),
            // Go keeps the low 32 bits.
            (Shape::Int32, Wire::Varint(n)) => i64::from(signed(n) as i32).into(),
            (Shape::Int64, Wire::Varint(n)) => signed(n).into(),
            (Shape::Float, Wire::Fixed64(n)) => {
                float(f64::from_bits(n)).ok_or_else(|| wrong("the number is not finite"))?
            }
            (Shape::Float, Wire::Fixed32(n)) => {
                float(f32::from_bits(n).into()).ok_or_else(|| wrong("the number is not finite"))?
            }
            (Shape::String, Wire::Bytes(b)) => text(b)?.into(),
            (Shape::Bytes, Wire::Bytes(b)) => STANDARD.encode(b).into(),
            (Shape::Time | Shape::MicroTime, Wire::Bytes([])) => Value::Null,
            (Shape::Time, Wire::Bytes(b)) => base::time::rfc3339_secs(instant(b, false)?).into(),
            (Shape::MicroTime, Wire::Bytes(b)) => base::time::rfc3339_micros(instant(b, true)?).into(),
            (Shape::Quantity, Wire::Bytes(b)) => text(first(b)?)?.into(),
            (Shape::IntOrString, Wire::Bytes(b)) => int_or_string(b)?,
            (Shape::Any, Wire::Bytes(b)) => self.raw(first(b)?)?,
            (Shape::Struct(of), Wire::Bytes(b)) => Value::Object(self.message(b, of.get())?),
            _ => return Err(wrong("proto: wrong wireType")),
        })
    }
}

fn is_empty(wire: Wire<'_>) -> bool {
    matches!(wire, Wire::Bytes([]))
}

fn float(n: f64) -> Option<Value> {
    Number::from_f64(n).map(Value::Number)
}

/// The field at this path of tags, or one inside the embedded message at it.
fn known<'t>(of: &'t TypeDef, path: &[u32]) -> Option<&'t Field> {
    let at = of.wire.partition_point(|i| of.fields[usize::from(*i)].tags().lt(path.iter().copied()));
    let field = &of.fields[usize::from(*of.wire.get(at)?)];
    field.tags().take(path.len()).eq(path.iter().copied()).then_some(field)
}

/// The bytes of field 1: all there is in a Quantity, a RawExtension, a JSON and a FieldsV1.
fn first(bytes: &[u8]) -> Result<&[u8], ProtobufError> {
    let mut reader = Reader(bytes);
    let mut found: &[u8] = &[];
    while let Some((tag, wire)) = reader.field()? {
        if let (1, Wire::Bytes(b)) = (tag, wire) {
            found = b;
        }
    }
    Ok(found)
}

fn instant(bytes: &[u8], micros: bool) -> Result<jiff::Timestamp, ProtobufError> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader(bytes);
    while let Some((tag, wire)) = reader.field()? {
        match (tag, wire) {
            (1, Wire::Varint(n)) => seconds = signed(n),
            (2, Wire::Varint(n)) if micros => nanos = signed(n) as i32,
            _ => {}
        }
    }
    let out_of_range = |_| ProtobufError::Field { field: String::new(), why: "the time is out of range".to_owned() };
    jiff::Timestamp::new(seconds, nanos).map_err(out_of_range)
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    let (mut is_text, mut number, mut string) = (false, 0, "");
    let mut reader = Reader(bytes);
    while let Some((tag, wire)) = reader.field()? {
        match (tag, wire) {
            (1, Wire::Varint(n)) => is_text = n == 1,
            (2, Wire::Varint(n)) => number = signed(n) as i32,
            (3, Wire::Bytes(b)) => string = text(b)?,
            _ => {}
        }
    }
    Ok(if is_text { string.into() } else { number.into() })
}
