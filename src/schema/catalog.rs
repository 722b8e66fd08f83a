//! All types and resources of one server: the built-in rows, and over them those of custom resources.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use model::reference::GroupResource;

use crate::rows::{self, types};
use crate::table::{GroupVersion, Gvk, Resource, TypeDef, TypeRef};
use crate::versions::version_order;

/// One group with its versions in upstream's order of preference.
#[derive(Clone, Debug)]
pub struct Group {
    /// Empty for the core group.
    pub name: String,
    /// The first is preferred.
    pub versions: Vec<String>,
}

/// Group, version, and a plural name or kind.
type Key = (String, String, String);

fn key(of: GroupVersion<'_>, name: &str) -> Key {
    (of.group.to_owned(), of.version.to_owned(), name.to_owned())
}

/// Types and resources with fast look-ups.
#[derive(Default)]
pub struct Catalog {
    gvks: BTreeMap<Gvk, TypeRef>,
    resources: Vec<Arc<Resource>>,
    /// Kinds that are not found here are looked for there.
    base: Option<&'static Catalog>,
    by_plural: BTreeMap<Key, usize>,
    by_kind: BTreeMap<Key, usize>,
    groups: Vec<Group>,
}

impl Catalog {
    /// The built-in table, read at first use.
    pub fn builtin() -> &'static Catalog {
        static BUILTIN: OnceLock<Catalog> = OnceLock::new();
        BUILTIN.get_or_init(|| {
            let mut catalog = Catalog { gvks: types::all().by_kind.clone(), ..Catalog::default() };
            rows::resources().for_each(|row| catalog.add(Arc::new(row)));
            catalog
        })
    }

    /// The built-in table with more rows: those of custom resources, whose groups follow in order of their names.
    pub fn with(mut custom: Vec<Arc<Resource>>) -> Catalog {
        let base = Catalog::builtin();
        let mut catalog = Catalog { base: Some(base), ..Catalog::default() };
        for row in &base.resources {
            catalog.add(Arc::clone(row));
        }
        custom.sort_by(|a, b| {
            (&a.group, &a.plural).cmp(&(&b.group, &b.plural)).then_with(|| version_order(&a.version, &b.version))
        });
        for row in custom
            .into_iter()
            .filter(|row| base.is_free(GroupResource { group: &row.group, resource: &row.plural }, &row.kind))
        {
            catalog.add(row);
        }
        for group in &mut catalog.groups {
            if !base.groups.iter().any(|g| g.name == group.name) {
                group.versions.sort_by(|a, b| version_order(a, b));
            }
        }
        catalog
    }

    /// Whether no row of this catalog has the plural name or the kind in the group, in any version: only then a
    /// definition may have them, for objects of all versions are stored in one place.
    fn is_free(&self, wanted: GroupResource<'_>, kind: &str) -> bool {
        let is_taken = |row: &Resource| row.plural == wanted.resource || row.kind == kind;
        !self.resources.iter().any(|row| row.group == wanted.group && is_taken(row))
    }

    /// Adds a resource; its group and version are appended to the order if new.
    fn add(&mut self, r: Arc<Resource>) {
        let at = self.resources.len();
        self.by_plural.insert(key(r.group_version(), &r.plural), at);
        // A kind that two rows share (Event in two groups does not) keeps its first row.
        self.by_kind.entry(key(r.group_version(), &r.kind)).or_insert(at);
        if r.custom && r.verbs.is_empty() {
            // Only stored: nobody can ask for this version.
            self.resources.push(r);
            return;
        }
        match self.groups.iter_mut().find(|g| g.name == r.group) {
            Some(g) if g.versions.iter().any(|v| *v == r.version) => {}
            Some(g) => g.versions.push(r.version.to_string()),
            None => self.groups.push(Group { name: r.group.to_string(), versions: vec![r.version.to_string()] }),
        }
        if r.custom || self.base.is_none() {
            self.gvks.entry(r.gvk()).or_insert_with(|| r.type_ref.clone());
        }
        self.resources.push(r);
    }

    /// The row of this group, version and plural name.
    pub fn resource(&self, of: GroupVersion<'_>, plural: &str) -> Option<&Arc<Resource>> {
        self.by_plural.get(&key(of, plural)).map(|at| &self.resources[*at])
    }

    /// The row of this group, version and kind.
    pub fn by_kind(&self, of: GroupVersion<'_>, kind: &str) -> Option<&Arc<Resource>> {
        self.by_kind.get(&key(of, kind)).map(|at| &self.resources[*at])
    }

    /// The row in which objects of `r` are stored (itself for most).
    pub fn storage_of<'a>(&'a self, r: &'a Arc<Resource>) -> &'a Arc<Resource> {
        self.resource(GroupVersion { group: &r.storage_group, version: &r.storage_version }, &r.plural).unwrap_or(r)
    }

    /// All rows in upstream's group and version order.
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// Rows of one group and version.
    pub fn of_version<'a>(&'a self, of: GroupVersion<'a>) -> impl Iterator<Item = &'a Resource> + 'a {
        self.resources.iter().map(AsRef::as_ref).filter(move |row| row.group_version() == of)
    }

    /// Groups in upstream's order, the core group first.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// A type by its OpenAPI name.
    pub fn type_of(&self, name: &str) -> Option<&TypeDef> {
        self.type_ref(name).map(TypeRef::get)
    }

    /// A handle to a type by its OpenAPI name.
    pub fn type_ref(&self, name: &str) -> Option<&TypeRef> {
        types::type_ref(name)
    }

    /// The type of a body of this kind, for kinds without a resource too.
    pub fn type_of_kind(&self, of: GroupVersion<'_>, kind: &str) -> Option<&TypeDef> {
        let (group, version) = (of.group.to_owned().into(), of.version.to_owned().into());
        let gvk = Gvk { group, version, kind: kind.to_owned().into() };
        self.gvks.get(&gvk).or_else(|| self.base?.gvks.get(&gvk)).map(TypeRef::get)
    }

    /// All types, by name.
    pub fn types(&self) -> impl Iterator<Item = &TypeRef> {
        types::all().by_name.values()
    }
}
