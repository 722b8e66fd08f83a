//! Protobuf as Kubernetes writes it, both ways, driven by the tags of the table: `k8s\0`, then a `runtime.Unknown` with
//! apiVersion, kind and the object's message. What is decoded has the form that JSON decoding gives once it is
//! conformed.
//!
//! A Go field without a pointer is written even if it is zero; a struct that Go embeds is a message of its own
//! (`Field::within`) though JSON shows its fields in the parent. CRDs have no tags: they are never protobuf.

use std::sync::OnceLock;

use serde_json::{Map, Value};

use crate::catalog::Catalog;
use crate::table::{Empty, Field, GroupVersion, Shape, TypeDef};

mod decode;
mod encode;
mod schemas;
#[cfg(test)]
mod tests;
mod wire;

use wire::{Reader, Wire};

/// The media type.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The media type of a watch.
pub const WATCH_MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf;stream=watch";

/// The bytes that every protobuf body of Kubernetes starts with.
const MAGIC: &[u8] = b"k8s\0";

/// Why bytes are no object, or an object cannot be bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    /// No envelope.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NotProtobuf,
    /// The bytes end too early or are of no known wire form.
    #[error("{0}")]
    Broken(&'static str),
    /// A field holds what its type forbids.
    #[error("{field}: {why}")]
    Field {
        /// JSON name.
        field: String,
        /// The fault, in words.
        why: String,
    },
    /// More messages inside each other, or more values in all, than are read.
    #[error("the message is nested too deeply or holds too many values")]
    TooLarge,
    /// Kinds without tags are JSON only.
    #[error(
        "object of kind {0:?} does not implement the protobuf marshalling interface and cannot be encoded to a \
        protobuf message"
    )]
    NoTags(String),
}

/// An opened body: a `runtime.Unknown`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// May be empty.
    pub api_version: String,
    /// May be empty.
    pub kind: String,
    /// The object's message.
    pub raw: &'a [u8],
}

/// True if values of this type can be protobuf.
pub fn speaks(t: &TypeDef) -> bool {
    !t.wire.is_empty()
}

/// The type of a kind that can be protobuf.
pub fn type_of(of: GroupVersion<'_>, kind: &str) -> Option<&'static TypeDef> {
    match (of.group, kind) {
        ("meta.k8s.io", "PartialObjectMetadata") => Some(&partial()[0]),
        ("meta.k8s.io", "PartialObjectMetadataList") => Some(&partial()[1]),
        // Discovery's oldest kind has no apiVersion.
        ("", "APIVersions") => Catalog::builtin().type_of_kind(GroupVersion::CORE, kind),
        _ => Catalog::builtin().type_of_kind(of, kind).filter(|t| speaks(t)),
    }
}

/// A list that is a named type in Go is a message with its items in field 1. As a field there is only this one.
fn is_named_list(owner: &TypeDef, field: &Field) -> bool {
    field.name == "verbs" && owner.name == "io.k8s.apimachinery.pkg.apis.meta.v1.APIResource"
}

/// PartialObjectMetadata and its list: no document of OpenAPI names them.
fn partial() -> &'static [TypeDef; 2] {
    static TYPES: OnceLock<[TypeDef; 2]> = OnceLock::new();
    TYPES.get_or_init(|| {
        let meta =
            |name: &str| Catalog::builtin().type_ref(&format!("io.k8s.apimachinery.pkg.apis.meta.v1.{name}")).cloned();
        let of = |name: &str| meta(name).map_or(Shape::Any, Shape::Struct);
        let field = |name: &'static str, tag, shape| Field { tag, empty: Empty::Always, ..Field::new(name, shape) };
        let make = |name: &'static str, mut fields: Vec<Field>| {
            fields.extend([Field::new("apiVersion", Shape::String), Field::new("kind", Shape::String)]);
            fields.sort_by(|a, b| a.name.cmp(&b.name));
            let mut t = TypeDef { name: name.into(), fields, ..TypeDef::default() };
            t.order_wire();
            t
        };
        let one = make("PartialObjectMetadata", vec![field("metadata", 1, of("ObjectMeta"))]);
        let item = Shape::Struct(crate::table::TypeRef::of(one.clone()));
        let fields = vec![field("items", 2, Shape::List(Box::new(item))), field("metadata", 1, of("ListMeta"))];
        [one, make("PartialObjectMetadataList", fields)]
    })
}

/// Opens the envelope.
///
/// Errors: [`ProtobufError::NotProtobuf`] and [`ProtobufError::Broken`].
pub fn open(body: &[u8]) -> Result<Envelope<'_>, ProtobufError> {
    let mut reader = Reader(body.strip_prefix(MAGIC).ok_or(ProtobufError::NotProtobuf)?);
    let mut out = Envelope::default();
    while let Some((tag, field)) = reader.field()? {
        match (tag, field) {
            (1, Wire::Bytes(type_meta)) => {
                let mut inner = Reader(type_meta);
                while let Some((tag, field)) = inner.field()? {
                    match (tag, field) {
                        (1, Wire::Bytes(b)) => out.api_version = wire::text(b)?.to_owned(),
                        (2, Wire::Bytes(b)) => out.kind = wire::text(b)?.to_owned(),
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(b)) => out.raw = b,
            (3, Wire::Bytes(b)) if !b.is_empty() => {
                return Err(ProtobufError::Broken("the envelope's content encoding is not supported"));
            }
            (4, Wire::Bytes(b)) if !b.is_empty() && b != MEDIA_TYPE.as_bytes() => {
                return Err(ProtobufError::Broken("the envelope's content type is not supported"));
            }
            _ => {}
        }
    }
    Ok(out)
}

/// Reads a body as a value of `of`, with the envelope's apiVersion and kind where it has them.
///
/// The value holds every field that the bytes name: [`crate::decode::conform`] drops the zeros.
/// Errors: see [`ProtobufError`]; all are the sender's fault.
pub fn decode(body: &[u8], of: &TypeDef) -> Result<Value, ProtobufError> {
    if !speaks(of) {
        return Err(ProtobufError::NoTags(of.go_name().to_owned()));
    }
    let envelope = open(body)?;
    let mut object = decode::object(envelope.raw, of)?;
    for (key, text) in [("apiVersion", envelope.api_version), ("kind", envelope.kind)] {
        if !text.is_empty() {
            object.insert(key.to_owned(), text.into());
        }
    }
    Ok(Value::Object(object))
}

/// Writes an object of a built-in kind with its envelope.
///
/// Errors: [`ProtobufError::NoTags`] for a kind that is JSON only, [`ProtobufError::Field`] for a value that is not of
/// its type.
pub fn encode(object: &Value) -> Result<Vec<u8>, ProtobufError> {
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let of = type_of(GroupVersion::parse(text("apiVersion")), text("kind"))
        .ok_or_else(|| ProtobufError::NoTags(text("kind").to_owned()))?;
    encode_as(object, of)
}

/// Writes a value of `of` with its envelope.
pub fn encode_as(object: &Value, of: &TypeDef) -> Result<Vec<u8>, ProtobufError> {
    if !speaks(of) {
        return Err(ProtobufError::NoTags(of.go_name().to_owned()));
    }
    let empty = Map::new();
    let fields = object.as_object().unwrap_or(&empty);
    let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default();
    let mut out = MAGIC.to_vec();
    wire::delimited(&mut out, 1, |out| {
        wire::bytes(out, 1, text("apiVersion").as_bytes());
        wire::bytes(out, 2, text("kind").as_bytes());
        Ok(())
    })?;
    wire::delimited(&mut out, 2, |out| encode::message(out, of, fields))?;
    wire::bytes(&mut out, 3, b"");
    wire::bytes(&mut out, 4, b"");
    Ok(out)
}

/// Writes a list with its envelope as [`encode`] does, item by item: the values of one item are in memory at a time.
pub struct ListWriter {
    api_version: String,
    kind: String,
    items: &'static Field,
    pieces: Vec<Vec<u8>>,
}

/// Pieces of a list are about this long.
const PIECE_BYTES: usize = 64 * 1024;

impl ListWriter {
    /// Begins with the fields of the list but for its items.
    ///
    /// Errors: [`ProtobufError::NoTags`] for a kind that is JSON only or no list, [`ProtobufError::Field`] as in
    /// [`encode`].
    pub fn new(fields: Map<String, Value>) -> Result<ListWriter, ProtobufError> {
        let text = |key: &str| fields.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        let of =
            type_of(GroupVersion::parse(&api_version), &kind).ok_or_else(|| ProtobufError::NoTags(kind.clone()))?;
        let items = of.field("items").ok_or_else(|| ProtobufError::NoTags(kind.clone()))?;
        let mut first = Vec::new();
        encode::message(&mut first, of, &fields)?;
        Ok(ListWriter { api_version, kind, items, pieces: vec![first] })
    }

    /// Writes the next item. True if a piece is full: a moment to let others work.
    ///
    /// Errors: [`ProtobufError::Field`] for a value that is not of its type.
    pub fn push(&mut self, item: &Value) -> Result<bool, ProtobufError> {
        let is_full = self.pieces.last().is_none_or(|piece| piece.len() >= PIECE_BYTES);
        if is_full {
            self.pieces.push(Vec::with_capacity(PIECE_BYTES * 5 / 4));
        }
        let Shape::List(shape) = &self.items.shape else { return Err(ProtobufError::NoTags(self.kind.clone())) };
        if let Some(piece) = self.pieces.last_mut() {
            encode::element(piece, self.items.tag, shape, item)?;
        }
        Ok(is_full)
    }

    /// The bytes, in pieces.
    pub fn finish(self) -> Vec<Vec<u8>> {
        let mut head = MAGIC.to_vec();
        let mut of_type = Vec::new();
        wire::bytes(&mut of_type, 1, self.api_version.as_bytes());
        wire::bytes(&mut of_type, 2, self.kind.as_bytes());
        wire::bytes(&mut head, 1, &of_type);
        wire::put(&mut head, 2 << 3 | 2);
        wire::put(&mut head, self.pieces.iter().map(Vec::len).sum::<usize>() as u64);
        let mut tail = Vec::new();
        wire::bytes(&mut tail, 3, b"");
        wire::bytes(&mut tail, 4, b"");
        std::iter::once(head).chain(self.pieces).chain(std::iter::once(tail)).collect()
    }
}

/// One frame of a watch: its length in four bytes, then a bare WatchEvent around an object that [`encode`] wrote.
pub fn watch_frame(event: &str, object: &[u8]) -> Vec<u8> {
    let mut out = vec![0; 4];
    wire::bytes(&mut out, 1, event.as_bytes());
    // RawExtension{raw = 1}
    let mut raw = Vec::with_capacity(object.len() + 8);
    wire::bytes(&mut raw, 1, object);
    wire::bytes(&mut out, 2, &raw);
    let length = u32::try_from(out.len() - 4).unwrap_or(u32::MAX);
    out[..4].copy_from_slice(&length.to_be_bytes());
    out
}
