//! Reads the generated table: lines of a type and its fields, lines of a resource. `gen/` tells how it is made.
//!
//! `T name flags gvks unions`, then a field a line: `name tag shape marks…` (tag `2/1`: inside message 2); `R group
//! version kind plural singular short categories scope verbs hash type subresources…`; cells are parted by tabs.
//! Shapes: b i l f s B t u D Q I * scalars, `[x` list, `{x` map, `#name` struct.

use crate::catalog::Catalog;
use crate::table::{Empty, Field, Gvk, ListType, Name, Resource, Shape, Subresource, TypeDef, TypeRef, Union};

pub mod storage;

static TABLE: &str = include_str!("../generated/table.tsv");

/// Builds the built-in catalog. Types are only indexed here; each is parsed at first use.
pub fn load() -> Catalog {
    let mut catalog = Catalog::default();
    let mut rest = TABLE;
    while let Some(end) = rest.find('\n') {
        let line = &rest[..end];
        if line.starts_with("T\t") {
            let len = type_block_len(rest);
            add_type(&mut catalog, &rest[..len]);
            rest = &rest[len..];
            continue;
        }
        if line.starts_with("R\t") {
            add_resource(&mut catalog, line);
        }
        rest = &rest[end + 1..];
    }
    catalog
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

fn add_type(catalog: &mut Catalog, block: &'static str) {
    let mut cells = block.lines().next().unwrap_or_default().split('\t').skip(1);
    let name = cells.next().unwrap_or_default();
    let gvks = cells.nth(1).unwrap_or_default();
    let t = TypeRef::lazy(Name::Borrowed(name), move || parse_type(block));
    for gvk in gvks.split(',').filter(|s| !s.is_empty()) {
        catalog.add_kind(parse_gvk(gvk), t.clone());
    }
    catalog.add_type(t);
}

fn parse_gvk(text: &'static str) -> Gvk {
    let mut parts = text.splitn(3, '/').map(Name::Borrowed);
    let mut next = || parts.next().unwrap_or_default();
    Gvk { group: next(), version: next(), kind: next() }
}

fn names(cell: &'static str) -> Vec<Name> {
    cell.split(',').filter(|s| !s.is_empty()).map(Name::Borrowed).collect()
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
        // Types are parsed on first use, long after the catalog stands, so this look-up cannot recurse into `load`.
        Some(b'#') => Catalog::builtin()
            .type_ref(text.get(1..).unwrap_or_default())
            .map_or(Shape::Any, |t| Shape::Struct(t.clone())),
        _ => Shape::Any,
    }
}

fn add_resource(catalog: &mut Catalog, line: &'static str) {
    let mut cells = line.split('\t').skip(1);
    let mut cell = || cells.next().unwrap_or_default();
    let (group, version, kind, plural, singular) = (cell(), cell(), cell(), cell(), cell());
    let (short, categories, scope, verbs, hash, type_name) = (cell(), cell(), cell(), cell(), cell(), cell());
    let Some(type_ref) = catalog.type_ref(type_name).cloned() else { return };
    let (storage_group, storage_version) = storage::version(group, version, plural);
    let verbs = names(verbs);
    let list_kind =
        if verbs.iter().any(|v| v == "list") { Name::Owned(format!("{kind}List")) } else { Name::Borrowed("") };
    catalog.add_resource(Resource {
        group: group.into(),
        version: version.into(),
        kind: kind.into(),
        list_kind,
        plural: plural.into(),
        singular: singular.into(),
        short_names: names(short),
        categories: names(categories),
        namespaced: scope == "N",
        verbs,
        subresources: cells.filter_map(parse_subresource).collect(),
        storage_version: storage_version.into(),
        storage_group: storage_group.into(),
        storage_version_hash: hash.into(),
        selectable: storage::selectable(group, plural).iter().map(|s| Name::Borrowed(s)).collect(),
        type_ref,
        custom: false,
        definition: None,
    });
}

fn parse_subresource(cell: &'static str) -> Option<Subresource> {
    let mut parts = cell.splitn(3, ':');
    let (name, kind, verbs) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Subresource { name: name.into(), kind: parse_gvk(kind), verbs: names(verbs) })
}

#[cfg(test)]
mod tests;
