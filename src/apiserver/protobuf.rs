//! Reading protobuf bodies by the table's tags: what `kubectl create` sends. Answers are JSON still; a body with a
//! field whose tag the table does not know is refused, never read by half.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use schema::table::{Field, Shape, TypeDef};
use serde_json::{Map, Value, json};

/// What every protobuf body of Kubernetes starts with.
const MAGIC: &[u8] = b"k8s\0";

/// One field on the wire.
enum Wire<'a> {
    Varint(u64),
    Fixed(u64),
    Bytes(&'a [u8]),
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn varint(&mut self) -> Result<u64, String> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (first, rest) = self.0.split_first().ok_or("unexpected EOF")?;
            self.0 = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err("integer overflow".to_owned())
    }

    fn take(&mut self, n: usize) -> Result<&'a [u8], String> {
        if n > self.0.len() {
            return Err("unexpected EOF".to_owned());
        }
        let (head, rest) = self.0.split_at(n);
        self.0 = rest;
        Ok(head)
    }

    fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let tag = u32::try_from(key >> 3).map_err(|_| "tag out of range")?;
        let little = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let wire = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed(little(self.take(8)?)),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| "length out of range")?;
                Wire::Bytes(self.take(length)?)
            }
            5 => Wire::Fixed(little(self.take(4)?)),
            other => return Err(format!("wire type {other} is not supported")),
        };
        Ok(Some((tag, wire)))
    }
}

/// Opens the envelope and reads the object inside; `apiVersion` and `kind` are those of the envelope.
///
/// Errors: a sentence about the first thing that cannot be read.
pub fn decode(body: &[u8], of: &TypeDef) -> Result<Value, String> {
    let envelope = body.strip_prefix(MAGIC).ok_or("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    let mut reader = Reader(envelope);
    while let Some((tag, wire)) = reader.next()? {
        match (tag, wire) {
            (1, Wire::Bytes(type_meta)) => {
                let mut inner = Reader(type_meta);
                while let Some((tag, wire)) = inner.next()? {
                    match (tag, wire) {
                        (1, Wire::Bytes(b)) => api_version = text(b)?,
                        (2, Wire::Bytes(b)) => kind = text(b)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(b)) => raw = b,
            _ => {}
        }
    }
    let mut object = message(raw, of, 0)?;
    object.insert("apiVersion".to_owned(), json!(api_version));
    object.insert("kind".to_owned(), json!(kind));
    Ok(Value::Object(object))
}

fn text(bytes: &[u8]) -> Result<String, String> {
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "a text is not UTF-8".to_owned())
}

fn message(bytes: &[u8], of: &TypeDef, depth: usize) -> Result<Map<String, Value>, String> {
    if depth > base::limits::NESTING_DEPTH_MAX {
        return Err("the message is nested too deeply".to_owned());
    }
    let mut out = Map::new();
    let mut reader = Reader(bytes);
    while let Some((tag, wire)) = reader.next()? {
        let known = of.fields.iter().find(|f| f.tag == tag);
        let Some(field) = known else { return Err(format!("field {tag} of {} cannot be read from protobuf yet: send JSON", of.go_name())) };
        add(&mut out, field, &wire, depth)?;
    }
    Ok(out)
}

fn add(out: &mut Map<String, Value>, field: &Field, wire: &Wire<'_>, depth: usize) -> Result<(), String> {
    let name = field.name.to_string();
    match &field.shape {
        Shape::List(item) => {
            let value = scalar(item, wire, depth)?;
            if let Value::Array(list) = out.entry(name).or_insert_with(|| json!([])) {
                list.push(value);
            }
        }
        Shape::Map(item) => {
            let Wire::Bytes(entry) = wire else { return Err(format!("{name} is no map")) };
            let (mut key, mut value) = (String::new(), None);
            let mut reader = Reader(entry);
            while let Some((tag, wire)) = reader.next()? {
                match (tag, &wire) {
                    (1, Wire::Bytes(b)) => key = text(b)?,
                    (2, _) => value = Some(scalar(item, &wire, depth)?),
                    _ => {}
                }
            }
            let value = value.map_or_else(|| scalar(item, &Wire::Bytes(&[]), depth), Ok)?;
            if let Value::Object(map) = out.entry(name).or_insert_with(|| json!({})) {
                map.insert(key, value);
            }
        }
        shape => {
            let value = scalar(shape, wire, depth)?;
            // A zero time is how Go's encoder writes "none".
            if !value.is_null() {
                out.insert(name, value);
            }
        }
    }
    Ok(())
}

fn scalar(shape: &Shape, wire: &Wire<'_>, depth: usize) -> Result<Value, String> {
    let signed = |n: u64| i64::from_le_bytes(n.to_le_bytes());
    Ok(match (shape, wire) {
        (Shape::Bool, Wire::Varint(n)) => json!(*n != 0),
        (Shape::Int32 | Shape::Int64, Wire::Varint(n)) => json!(signed(*n)),
        (Shape::Float, Wire::Fixed(n)) => json!(f64::from_bits(*n)),
        (Shape::String, Wire::Bytes(b)) => json!(text(b)?),
        (Shape::Bytes, Wire::Bytes(b)) => json!(STANDARD.encode(b)),
        (Shape::Time, Wire::Bytes(b)) => time(b)?.map_or(Value::Null, |at| json!(base::time::rfc3339_secs(at))),
        (Shape::MicroTime, Wire::Bytes(b)) => time(b)?.map_or(Value::Null, |at| json!(base::time::rfc3339_micros(at))),
        (Shape::Quantity, Wire::Bytes(b)) => json!(text(inner(b, 1)?)?),
        (Shape::IntOrString, Wire::Bytes(b)) => int_or_string(b)?,
        (Shape::Any, Wire::Bytes(b)) => serde_json::from_slice(inner(b, 1)?).map_err(|err| err.to_string())?,
        (Shape::Struct(of), Wire::Bytes(b)) => Value::Object(message(b, of.get(), depth + 1)?),
        (shape, _) => return Err(format!("a {shape:?} cannot be read from protobuf yet: send JSON")),
    })
}

/// The bytes of one field of a small message.
fn inner(bytes: &[u8], wanted: u32) -> Result<&[u8], String> {
    let mut reader = Reader(bytes);
    while let Some((tag, wire)) = reader.next()? {
        if let (true, Wire::Bytes(b)) = (tag == wanted, wire) {
            return Ok(b);
        }
    }
    Ok(&[])
}

fn time(bytes: &[u8]) -> Result<Option<Timestamp>, String> {
    let (mut seconds, mut nanos) = (0, 0);
    let mut reader = Reader(bytes);
    while let Some((tag, wire)) = reader.next()? {
        match (tag, wire) {
            (1, Wire::Varint(n)) => seconds = i64::from_le_bytes(n.to_le_bytes()),
            (2, Wire::Varint(n)) => nanos = i32::try_from(n).unwrap_or(0),
            _ => {}
        }
    }
    if seconds == 0 && nanos == 0 {
        return Ok(None);
    }
    Timestamp::new(seconds, nanos).map(Some).map_err(|err| err.to_string())
}

fn int_or_string(bytes: &[u8]) -> Result<Value, String> {
    let (mut is_text, mut number, mut string) = (false, 0, String::new());
    let mut reader = Reader(bytes);
    while let Some((tag, wire)) = reader.next()? {
        match (tag, wire) {
            (1, Wire::Varint(n)) => is_text = n == 1,
            (2, Wire::Varint(n)) => number = i64::from_le_bytes(n.to_le_bytes()),
            (3, Wire::Bytes(b)) => string = text(b)?,
            _ => {}
        }
    }
    Ok(if is_text { json!(string) } else { json!(number) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_as_kubectl_sends_it_is_read() {
        let mut body = MAGIC.to_vec();
        body.extend_from_slice(b"\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x0c\x0a\x06\x0a\x02t1\x12\x00\x12\x00\x1a\x00");
        let of = schema::catalog::Catalog::builtin().type_of_kind("", "v1", "Namespace").unwrap();
        let object = decode(&body, of).unwrap();
        assert_eq!((&object["kind"], &object["metadata"]["name"]), (&json!("Namespace"), &json!("t1")));
        assert!(decode(b"{}", of).is_err());
        assert!(decode(&body[..body.len() - 5], of).is_err());
    }
}
