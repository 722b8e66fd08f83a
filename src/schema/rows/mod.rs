//! Reads the generated table: lines of a type and its fields ([`types`]), lines of a resource. `gen/` tells how it is
//! made.
//!
//! `R group version kind plural singular short categories scope verbs hash type subresources…`; cells are parted by
//! tabs.

pub mod types;

use self::types::{TABLE, names, parse_gvk};
use crate::kinds;
use crate::table::{Name, Resource, Subresource};

/// The built-in resources, in upstream's order of groups and versions.
pub fn resources() -> impl Iterator<Item = Resource> {
    TABLE.lines().filter(|line| line.starts_with("R\t")).filter_map(resource)
}

fn resource(line: &'static str) -> Option<Resource> {
    let mut cells = line.split('\t').skip(1);
    let mut cell = || cells.next().unwrap_or_default();
    let (group, version, kind, plural, singular) = (cell(), cell(), cell(), cell(), cell());
    let (short, categories, scope, verbs, hash, type_name) = (cell(), cell(), cell(), cell(), cell(), cell());
    let type_ref = types::type_ref(type_name)?.clone();
    let behaviour = kinds::of((group, kind));
    let (storage_group, storage_version) = behaviour.stored.unwrap_or((group, version));
    let verbs = names(verbs);
    let list_kind =
        if verbs.iter().any(|v| v == "list") { Name::Owned(format!("{kind}List")) } else { Name::Borrowed("") };
    Some(Resource {
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
        selectable: behaviour.selectable.iter().map(|s| Name::Borrowed(s)).collect(),
        type_ref,
        custom: false,
        behaviour,
        definition: None,
    })
}

fn parse_subresource(cell: &'static str) -> Option<Subresource> {
    let mut parts = cell.splitn(3, ':');
    let (name, kind, verbs) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Subresource { name: name.into(), kind: parse_gvk(kind), verbs: names(verbs) })
}

#[cfg(test)]
mod tests;
