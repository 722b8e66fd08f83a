//! The types of CEL, as far as they are known before anything runs.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ty {
    /// Not known before it runs.
    Dyn,
    /// Of what is wrong; it fits everywhere, so that one mistake is told once.
    Wrong,
    /// null
    Null,
    /// Scalars and library types, by cel-go's names.
    Named(&'static str),
    /// list
    List(Box<Ty>),
    /// map
    Map(Box<Ty>, Box<Ty>),
    /// An object with known fields.
    Object(Arc<Object>),
    /// optional_type
    Optional(Box<Ty>),
    /// The type that `Object{…}`, `Object.spec{…}` and `JSONPatch{…}` make, by that name.
    Made(Arc<str>),
    /// Stands for one type in a signature.
    Param(char),
    /// Stands for one type in an expression, until it is known; see `unify.rs`.
    Var(u32),
}

/// The fields of an object.
#[derive(Debug, PartialEq, Eq)]
pub struct Object {
    /// Shown in messages.
    pub name: String,
    /// By the name that expressions use.
    pub fields: BTreeMap<String, Ty>,
}

/// bool
pub const BOOL: Ty = Ty::Named("bool");
/// int
pub const INT: Ty = Ty::Named("int");
/// string
pub const TEXT: Ty = Ty::Named("string");

impl Ty {
    /// Reads a signature's word.
    pub fn read(word: &str) -> Ty {
        let inner = |prefix: &str| word.strip_prefix(prefix).and_then(|w| w.strip_suffix('>'));
        if let Some(item) = inner("list<") {
            return Ty::List(Box::new(Ty::read(item)));
        }
        if let Some(item) = inner("optional<") {
            return Ty::Optional(Box::new(Ty::read(item)));
        }
        if let Some((key, value)) = inner("map<").and_then(|w| w.split_once(',')) {
            return Ty::Map(Box::new(Ty::read(key)), Box::new(Ty::read(value)));
        }
        Ty::Named(match word {
            "A" => return Ty::Param('A'),
            "B" => return Ty::Param('B'),
            "bool" => "bool",
            "int" => "int",
            "uint" => "uint",
            "double" => "double",
            "string" => "string",
            "bytes" => "bytes",
            "time" => "timestamp",
            "duration" => "duration",
            "type" => "type",
            "quantity" => "kubernetes.Quantity",
            "ip" => "net.IP",
            "cidr" => "net.CIDR",
            "url" => "kubernetes.URL",
            "semver" => "kubernetes.Semver",
            "format" => "kubernetes.NamedFormat",
            "authorizer" => "kubernetes.authorization.Authorizer",
            "pathcheck" => "kubernetes.authorization.PathCheck",
            "groupcheck" => "kubernetes.authorization.GroupCheck",
            "resourcecheck" => "kubernetes.authorization.ResourceCheck",
            "decision" => "kubernetes.authorization.Decision",
            _ => return Ty::Dyn,
        })
    }
}

impl std::fmt::Display for Ty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ty::Dyn => f.write_str("dyn"),
            Ty::Wrong => f.write_str("!error!"),
            Ty::Null => f.write_str("null"),
            Ty::Named("timestamp") => f.write_str("timestamp"),
            Ty::Named(name) => f.write_str(name),
            Ty::List(a) => write!(f, "list({a})"),
            Ty::Map(a, b) => write!(f, "map({a}, {b})"),
            Ty::Object(o) => f.write_str(&o.name),
            Ty::Optional(a) => write!(f, "optional_type({a})"),
            Ty::Made(name) => f.write_str(name),
            Ty::Param(p) => write!(f, "{p}"),
            Ty::Var(_) => f.write_str("dyn"),
        }
    }
}
