//! The types of the generated table: indexed at first use, each parsed when somebody looks at it.
//!
//! `T name flags gvks unions`, then a field a line: `name tag shape marks…` (tag `2/1`: inside message 2). Shapes: b i
//! l f s B t u D Q I * scalars, `[x` list, `{x` map, `#name` struct.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::table::{Empty, Field, Gvk, ListType, Name, Shape, TypeDef, TypeRef, Union};

/// The generated table; `gen/` tells how it is made.
pub(super) static TABLE: &str = include_str!("../generated/table.tsv");

/// The types of the table by their names and by the kinds whose bodies they are.
#[derive(Default)]
pub struct Types {
    /// By OpenAPI name.
    pub by_name: BTreeMap<String, TypeRef>,
    /// By kind, also those of kinds that are no resource.
    pub by_kind: BTreeMap<Gvk, TypeRef>,
}

/// All types of the table.
pub fn all() -> &'static Types {
    static TYPES: OnceLock<Types> = OnceLock::new();
    TYPES.get_or_init(load)
}

/// The type of this OpenAPI name.
pub fn type_ref(name: &str) -> Option<&'static TypeRef> {
    all().by_name.get(name)
}

fn load() -> Types {
    let mut types = Types::default();
    let mut rest = TABLE;
    while let Some(end) = rest.find('\n') {
        if rest.starts_with("T\t") {
            let len = type_block_len(rest);
            add_type(&mut types, &rest[..len]);
            rest = &rest[len..];
        } else {
            rest = &rest[end + 1..];
        }
    }
    types
}

/// Bytes up to the next type or resource; a field's name is lower case, so its line never begins like one.
fn type_block_len(text: &str) -> usize {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        if at > 0 && (line.starts_with("T\t") || line.starts_with("R\t")) {
            break;
        }
        at += line.len();
    }
    at
}

fn add_type(types: &mut Types, block: &'static str) {
    let mut cells = block.lines().next().unwrap_or_default().split('\t').skip(1);
    let name = cells.next().unwrap_or_default();
    let gvks = cells.nth(1).unwrap_or_default();
    let t = TypeRef::lazy(Name::Borrowed(name), move || parse_type(block));
    for gvk in gvks.split(',').filter(|s| !s.is_empty()) {
        types.by_kind.insert(parse_gvk(gvk), t.clone());
    }
    types.by_name.insert(t.name().to_owned(), t);
}

/// `group/version/Kind`.
pub(super) fn parse_gvk(text: &'static str) -> Gvk {
    let mut parts = text.splitn(3, '/').map(Name::Borrowed);
    let mut next = || parts.next().unwrap_or_default();
    Gvk { group: next(), version: next(), kind: next() }
}

fn parse_type(block: &'static str) -> TypeDef {
    let mut lines = block.lines();
    let mut head = lines.next().unwrap_or_default().split('\t').skip(1);
    let mut cell = || head.next().unwrap_or_default();
    let (name, flags, gvks, unions) = (cell(), cell(), cell(), cell());
    let mut t = TypeDef {
        name: Name::Borrowed(name),
        fields: lines.map(parse_field).collect(),
        open: false,
        atomic: flags.contains('a'),
        embedded: false,
        gvks: gvks.split(',').filter(|s| !s.is_empty()).map(parse_gvk).collect(),
        unions: unions.split(' ').filter(|s| !s.is_empty()).map(parse_union).collect(),
        wire: Vec::new(),
    };
    t.order_wire();
    t
}

fn parse_union(text: &'static str) -> Union {
    let (by, members) = text.split_once(':').unwrap_or(("", text));
    let member = |m: &'static str| m.split_once('=').map(|(a, b)| (Name::Borrowed(a), Name::Borrowed(b)));
    Union {
        discriminator: (!by.is_empty()).then_some(Name::Borrowed(by)),
        members: members.split(',').filter_map(member).collect(),
    }
}

fn parse_field(line: &'static str) -> Field {
    let mut cells = line.split('\t');
    let mut cell = || cells.next().unwrap_or_default();
    let (name, tag, shape) = (cell(), cell(), cell());
    let mut f = Field::new(name, parse_shape(shape));
    let (within, tag) = tag.rsplit_once('/').unwrap_or(("", tag));
    f.tag = tag.parse().unwrap_or(0);
    f.within = within.split('/').filter_map(|t| t.parse().ok()).collect();
    for mark in cells {
        let (key, value) = mark.split_once(':').unwrap_or((mark, ""));
        match key {
            "r" => f.required = true,
            "=D" => f.empty = Empty::Drop,
            "=A" => f.empty = Empty::Always,
            "m" => f.atomic = true,
            "d" => f.default = serde_json::from_str(value).ok(),
            "k" => f.merge_key = Some(Name::Borrowed(value)),
            "p" => {
                f.patch.merge = value.contains("merge");
                f.patch.replace = value.contains("replace");
                f.patch.retain_keys = value.contains("retainKeys");
            }
            "e" => f.enums = names(value),
            "l" => {
                f.list_said = true;
                f.list = match value.split_once(':') {
                    Some((_, keys)) => ListType::Map(names(keys)),
                    None if value == "set" => ListType::Set,
                    None => ListType::Atomic,
                };
            }
            _ => {}
        }
    }
    f
}

fn parse_shape(text: &'static str) -> Shape {
    let inner = || Box::new(parse_shape(text.get(1..).unwrap_or_default()));
    match text.as_bytes().first() {
        Some(b'b') => Shape::Bool,
        Some(b'i') => Shape::Int32,
        Some(b'l') => Shape::Int64,
        Some(b'f') => Shape::Float,
        Some(b's') => Shape::String,
        Some(b'B') => Shape::Bytes,
        Some(b't') => Shape::Time,
        Some(b'u') => Shape::MicroTime,
        Some(b'D') => Shape::Duration,
        Some(b'Q') => Shape::Quantity,
        Some(b'I') => Shape::IntOrString,
        Some(b'[') => Shape::List(inner()),
        Some(b'{') => Shape::Map(inner()),
        // A type is parsed on its first use, long after all are indexed, so this look-up cannot recurse into `load`.
        Some(b'#') => type_ref(text.get(1..).unwrap_or_default()).map_or(Shape::Any, |t| Shape::Struct(t.clone())),
        _ => Shape::Any,
    }
}

/// The names of a cell.
pub(super) fn names(cell: &'static str) -> Vec<Name> {
    cell.split(',').filter(|s| !s.is_empty()).map(Name::Borrowed).collect()
}
