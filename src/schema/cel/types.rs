//! The types of CEL, as far as they are known before anything runs.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A type.
#[derive(Clone, Debug, PartialEq)]
pub enum Ty {
    /// Not known before it runs.
    Dyn,
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
    /// What `Object{…}`, `Object.spec{…}` and `JSONPatch{…}` make, by that name.
    Made(Arc<str>),
    /// Stands for one type in a signature.
    Param(char),
}

/// The fields of an object.
#[derive(Debug, PartialEq)]
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
            _ => return Ty::Dyn,
        })
    }

    /// Whether a value of type `given` fits here; parameters are bound on the way.
    pub fn takes(&self, given: &Ty, bound: &mut BTreeMap<char, Ty>) -> bool {
        match (self, given) {
            (Ty::Param(p), given) => match bound.get(p).cloned() {
                Some(Ty::Dyn) => true,
                Some(before) if before == *given || *given == Ty::Dyn => true,
                // null fits what may be absent, and a more exact type replaces a vague one.
                Some(before) if nullable(&before, given) => true,
                Some(before) if vague(&before, given) => {
                    bound.insert(*p, given.clone());
                    true
                }
                Some(_) => false,
                None => {
                    bound.insert(*p, given.clone());
                    true
                }
            },
            (Ty::Dyn, _) | (_, Ty::Dyn) => true,
            (Ty::List(a), Ty::List(b)) | (Ty::Optional(a), Ty::Optional(b)) => a.takes(b, bound),
            (Ty::Map(ka, va), Ty::Map(kb, vb)) => ka.takes(kb, bound) && va.takes(vb, bound),
            // An object with fields may be used as a map.
            (Ty::Map(..), Ty::Object(_)) => false,
            (a, b) => a == b,
        }
    }

    /// With the parameters filled in.
    pub fn filled(&self, bound: &BTreeMap<char, Ty>) -> Ty {
        match self {
            Ty::Param(p) => bound.get(p).cloned().unwrap_or(Ty::Dyn),
            Ty::List(a) => Ty::List(Box::new(a.filled(bound))),
            Ty::Optional(a) => Ty::Optional(Box::new(a.filled(bound))),
            Ty::Map(a, b) => Ty::Map(Box::new(a.filled(bound)), Box::new(b.filled(bound))),
            other => other.clone(),
        }
    }
}

fn nullable(a: &Ty, b: &Ty) -> bool {
    let may = |t: &Ty| {
        matches!(t, Ty::Object(_) | Ty::Optional(_) | Ty::Null | Ty::Made(_))
            || matches!(t, Ty::Named(n) if !matches!(*n, "bool" | "int" | "uint" | "double" | "string" | "bytes"))
    };
    (*a == Ty::Null && may(b)) || (*b == Ty::Null && may(a))
}

fn vague(a: &Ty, b: &Ty) -> bool {
    a.takes(b, &mut BTreeMap::new()) || b.takes(a, &mut BTreeMap::new())
}

impl std::fmt::Display for Ty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Ty::Dyn => f.write_str("dyn"),
            Ty::Null => f.write_str("null"),
            Ty::Named("timestamp") => f.write_str("timestamp"),
            Ty::Named(name) => f.write_str(name),
            Ty::List(a) => write!(f, "list({a})"),
            Ty::Map(a, b) => write!(f, "map({a}, {b})"),
            Ty::Object(o) => f.write_str(&o.name),
            Ty::Optional(a) => write!(f, "optional_type({a})"),
            Ty::Made(name) => f.write_str(name),
            Ty::Param(p) => write!(f, "{p}"),
        }
    }
}
