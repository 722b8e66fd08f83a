//! The in-memory form of API types and resources. Built-in rows and CRDs use the same form, so one engine serves both.
//!
//! A [`Shape::Struct`] holds a [`TypeRef`]: a handle that resolves to its [`TypeDef`] without a catalog, at first use.
//! Built-in types are parsed from their line of the generated table only then, so that starting costs nothing.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use model::reference::{GroupKind, GroupResource};
use serde_json::Value;

use crate::behaviour::Behaviour;

/// A name: borrowed from the built-in table, or owned by a CRD.
pub type Name = Cow<'static, str>;

/// How a value looks on the wire.
#[derive(Clone, Debug)]
pub enum Shape {
    /// true or false.
    Bool,
    /// An integer of 32 bits.
    Int32,
    /// An integer of 64 bits.
    Int64,
    /// Any JSON number.
    Float,
    /// Text.
    String,
    /// Bytes, base64 in JSON.
    Bytes,
    /// RFC 3339, whole seconds.
    Time,
    /// RFC 3339 with six digits of microseconds.
    MicroTime,
    /// metav1.Duration, Go's text.
    Duration,
    /// resource.Quantity.
    Quantity,
    /// intstr.IntOrString.
    IntOrString,
    /// Anything, kept as it is: RawExtension, JSON, FieldsV1, preserve-unknown-fields.
    Any,
    /// A list of one shape.
    List(Box<Shape>),
    /// A map from text to one shape.
    Map(Box<Shape>),
    /// A struct.
    Struct(TypeRef),
}

impl Shape {
    /// The struct behind this shape, if it is one.
    pub fn as_struct(&self) -> Option<&TypeDef> {
        match self {
            Shape::Struct(t) => Some(t.get()),
            _ => None,
        }
    }

    /// The shape of a list's items or a map's values.
    pub fn element(&self) -> Option<&Shape> {
        match self {
            Shape::List(e) | Shape::Map(e) => Some(e),
            _ => None,
        }
    }

    /// True for everything that holds no fields, items or entries.
    pub fn is_scalar(&self) -> bool {
        !matches!(self, Shape::List(_) | Shape::Map(_) | Shape::Struct(_) | Shape::Any)
    }
}

type Load = dyn Fn() -> TypeDef + Send + Sync;

struct TypeCell {
    name: Name,
    def: OnceLock<TypeDef>,
    load: Option<Box<Load>>,
}

/// A shared handle to a type, cheap to clone, resolved at first use.
#[derive(Clone)]
pub struct TypeRef(Arc<TypeCell>);

impl TypeRef {
    /// A handle to a type that is already known.
    pub fn of(def: TypeDef) -> TypeRef {
        let cell = TypeCell { name: def.name.clone(), def: OnceLock::from(def), load: None };
        TypeRef(Arc::new(cell))
    }

    /// A handle to a type that `load` makes at first use.
    pub fn lazy(name: Name, load: impl Fn() -> TypeDef + Send + Sync + 'static) -> TypeRef {
        TypeRef(Arc::new(TypeCell { name, def: OnceLock::new(), load: Some(Box::new(load)) }))
    }

    /// The name without resolving, such as `io.k8s.api.core.v1.Pod`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The type itself.
    pub fn get(&self) -> &TypeDef {
        self.0.def.get_or_init(|| match &self.0.load {
            Some(load) => load(),
            None => TypeDef { name: self.0.name.clone(), open: true, ..TypeDef::default() },
        })
    }
}

impl std::fmt::Debug for TypeRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TypeRef({})", self.0.name)
    }
}

/// A group, version and kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Gvk {
    /// Empty for the core group.
    pub group: Name,
    /// Such as `v1`.
    pub version: Name,
    /// Such as `Pod`.
    pub kind: Name,
}

impl Gvk {
    /// Group and version.
    pub fn group_version(&self) -> GroupVersion<'_> {
        GroupVersion { group: &self.group, version: &self.version }
    }

    /// The same, borrowed.
    pub fn borrowed(&self) -> GroupVersionKind<'_> {
        GroupVersionKind { group_version: self.group_version(), kind: &self.kind }
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        self.group_version().to_string()
    }
}

/// A group and a version of the API, borrowed, as upstream's `schema.GroupVersion`. It prints as an `apiVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupVersion<'a> {
    /// Empty for the core group.
    pub group: &'a str,
    /// Such as `v1`.
    pub version: &'a str,
}

impl<'a> GroupVersion<'a> {
    /// `v1` of the core group.
    pub const CORE: GroupVersion<'static> = GroupVersion { group: "", version: "v1" };

    /// Reads an `apiVersion`.
    pub fn parse(api_version: &'a str) -> GroupVersion<'a> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        GroupVersion { group, version }
    }
}

/// `v1` or `apps/v1`.
impl std::fmt::Display for GroupVersion<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.group {
            "" => f.write_str(self.version),
            group => write!(f, "{group}/{}", self.version),
        }
    }
}

/// A kind of a group and version, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupVersionKind<'a> {
    /// Where the kind is.
    pub group_version: GroupVersion<'a>,
    /// Such as `Pod`.
    pub kind: &'a str,
}

/// A struct of the API.
#[derive(Clone, Debug, Default)]
pub struct TypeDef {
    /// OpenAPI name, such as `io.k8s.api.core.v1.PodSpec`; for a CRD's inner types, a path.
    pub name: Name,
    /// Sorted by JSON name.
    pub fields: Vec<Field>,
    /// Unknown fields are kept (x-kubernetes-preserve-unknown-fields).
    pub open: bool,
    /// The whole struct is one value for apply (x-kubernetes-map-type: atomic on the type).
    pub atomic: bool,
    /// Holds an apiVersion, kind and metadata of its own (x-kubernetes-embedded-resource).
    pub embedded: bool,
    /// Kinds whose body this type is.
    pub gvks: Vec<Gvk>,
    /// x-kubernetes-unions: the discriminator's JSON name if there is one, and the members.
    pub unions: Vec<Union>,
    /// Positions in `fields` of those with a protobuf tag, in the order in which they are written.
    pub wire: Vec<u16>,
}

impl TypeDef {
    /// The field of this JSON name.
    pub fn field(&self, json_name: &str) -> Option<&Field> {
        self.fields.binary_search_by(|f| f.name.as_ref().cmp(json_name)).ok().map(|i| &self.fields[i])
    }

    /// Sets `wire` by the tags of the fields.
    pub fn order_wire(&mut self) {
        let mut wire: Vec<u16> = (0u16..).zip(&self.fields).filter(|(_, f)| f.tag > 0).map(|(i, _)| i).collect();
        wire.sort_by(|a, b| self.fields[usize::from(*a)].tags().cmp(self.fields[usize::from(*b)].tags()));
        self.wire = wire;
    }

    /// The last part of the name, as Go would call the struct: `PodSpec`.
    pub fn go_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or(&self.name)
    }
}

/// One union of a struct.
#[derive(Clone, Debug, Default)]
pub struct Union {
    /// JSON name of the discriminator.
    pub discriminator: Option<Name>,
    /// JSON name of each member and its discriminator value.
    pub members: Vec<(Name, Name)>,
}

/// The value that a Go server writes for a zero or absent one; objects are normalised to that on the way in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Empty {
    /// A pointer with omitempty: written whenever given, even if zero.
    #[default]
    Keep,
    /// omitempty without a pointer: a zero value, empty list or empty map is dropped.
    Drop,
    /// No omitempty, or a struct by value: an absent value is written as its zero value.
    Always,
}

/// How a list is owned and merged by apply.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum ListType {
    /// One value.
    #[default]
    Atomic,
    /// Scalars without repeats.
    Set,
    /// Structs told apart by these fields.
    Map(Vec<Name>),
}

/// x-kubernetes-patch-strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PatchStrategy {
    /// Lists and structs merge instead of being replaced.
    pub merge: bool,
    /// Said to be replaced whole, though its shape would merge.
    pub replace: bool,
    /// Fields that the patch does not name are cleared.
    pub retain_keys: bool,
}

/// One field of a struct.
#[derive(Clone, Debug)]
pub struct Field {
    /// JSON name.
    pub name: Name,
    /// Protobuf tag, 0 where there is none.
    pub tag: u32,
    /// Tags of the messages around it: a struct that Go embeds is part of the JSON object, but a message of its own.
    pub within: Vec<u32>,
    /// The values that it holds.
    pub shape: Shape,
    /// Named in the schema's `required`.
    pub required: bool,
    /// null is a value (CRDs only).
    pub nullable: bool,
    /// The fate of a zero or absent value.
    pub empty: Empty,
    /// Declarative default.
    pub default: Option<Value>,
    /// x-kubernetes-list-type and keys; `Atomic` for lists without one.
    pub list: ListType,
    /// Said so in the schema (a list without a list type is atomic too, but strategic merge and OpenAPI tell them
    /// apart).
    pub list_said: bool,
    /// x-kubernetes-map-type: atomic on the field: a map or struct that apply owns as one.
    pub atomic: bool,
    /// x-kubernetes-patch-merge-key.
    pub merge_key: Option<Name>,
    /// x-kubernetes-patch-strategy.
    pub patch: PatchStrategy,
    /// Allowed texts, empty for any.
    pub enums: Vec<Name>,
}

impl Field {
    /// The protobuf tags that lead to it, outermost first.
    pub fn tags(&self) -> impl Iterator<Item = u32> + '_ {
        self.within.iter().copied().chain([self.tag])
    }

    /// A field with nothing but a name and a shape.
    pub fn new(name: impl Into<Name>, shape: Shape) -> Field {
        Field {
            name: name.into(),
            tag: 0,
            within: Vec::new(),
            shape,
            required: false,
            nullable: false,
            empty: Empty::Keep,
            default: None,
            list: ListType::Atomic,
            list_said: false,
            atomic: false,
            merge_key: None,
            patch: PatchStrategy::default(),
            enums: Vec::new(),
        }
    }
}

/// A subresource of a resource.
#[derive(Clone, Debug)]
pub struct Subresource {
    /// Such as `status` or `scale`.
    pub name: Name,
    /// Kind of the body.
    pub kind: Gvk,
    /// Sorted.
    pub verbs: Vec<Name>,
}

/// One served resource: a row of the table.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Empty for the core group.
    pub group: Name,
    /// Such as `v1`.
    pub version: Name,
    /// Such as `Deployment`.
    pub kind: Name,
    /// Such as `DeploymentList`; empty for kinds that cannot be listed.
    pub list_kind: Name,
    /// Such as `deployments`.
    pub plural: Name,
    /// Such as `deployment`.
    pub singular: Name,
    /// For kubectl.
    pub short_names: Vec<Name>,
    /// For kubectl, such as `all`.
    pub categories: Vec<Name>,
    /// Lives in a namespace.
    pub namespaced: bool,
    /// Sorted; empty for one that has only subresources or is virtual.
    pub verbs: Vec<Name>,
    /// Sorted by name.
    pub subresources: Vec<Subresource>,
    /// The version in which objects are stored; other versions convert.
    pub storage_version: Name,
    /// The group and plural under which objects are stored: core events for events.k8s.io.
    pub storage_group: Name,
    /// As discovery gives it; empty where upstream gives none.
    pub storage_version_hash: Name,
    /// Field selectors beyond metadata.name and metadata.namespace.
    pub selectable: Vec<Name>,
    /// Type of one object.
    pub type_ref: TypeRef,
    /// Made at run time from a CRD.
    pub custom: bool,
    /// The row of its kind.
    pub behaviour: &'static Behaviour,
    /// Facts of the CRD beyond this row.
    pub definition: Option<Arc<crate::custom::definition::Definition>>,
}

impl Resource {
    /// Type of one object.
    pub fn type_def(&self) -> &TypeDef {
        self.type_ref.get()
    }

    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        self.group_version().to_string()
    }

    /// Group and version.
    pub fn group_version(&self) -> GroupVersion<'_> {
        GroupVersion { group: &self.group, version: &self.version }
    }

    /// The kind of its objects.
    pub fn group_version_kind(&self) -> GroupVersionKind<'_> {
        GroupVersionKind { group_version: self.group_version(), kind: &self.kind }
    }

    /// Group and plural.
    pub fn group_resource(&self) -> GroupResource<'_> {
        GroupResource { group: &self.group, resource: &self.plural }
    }

    /// Group and kind.
    pub fn group_kind(&self) -> GroupKind<'_> {
        GroupKind { group: &self.group, kind: &self.kind }
    }

    /// `pods` or `deployments.apps`, as error texts name it.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() { self.plural.to_string() } else { format!("{}.{}", self.plural, self.group) }
    }

    /// The subresource of this name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|s| s.name == name)
    }

    /// True if this verb is served on the main resource.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }

    /// Group, version and kind.
    pub fn gvk(&self) -> Gvk {
        Gvk { group: self.group.clone(), version: self.version.clone(), kind: self.kind.clone() }
    }

    /// True if `status` is a subresource: main-resource writes leave it alone and status writes leave the rest.
    pub fn has_status(&self) -> bool {
        self.subresource("status").is_some()
    }
}
