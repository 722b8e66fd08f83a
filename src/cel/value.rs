//! The values of CEL.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use model::quantity::Quantity;
use serde_json::{Map, Value};

use super::moment::Moment;

/// One value. Cloning is cheap.
#[derive(Clone, Debug)]
pub enum Val {
    /// null
    Null,
    /// bool
    Bool(bool),
    /// int
    Int(i64),
    /// uint
    Uint(u64),
    /// double
    Double(f64),
    /// string
    Text(Arc<str>),
    /// bytes
    Bytes(Arc<[u8]>),
    /// list
    List(Arc<Vec<Val>>),
    /// map, also objects
    Map(Arc<BTreeMap<Key, Val>>),
    /// google.protobuf.Timestamp
    Time(Moment),
    /// google.protobuf.Duration, in nanoseconds
    Duration(i64),
    /// type
    Type(Arc<str>),
    /// optional_type
    Optional(Option<Arc<Val>>),
    /// kubernetes.Quantity
    Quantity(Arc<Quantity>),
    /// net.IP
    Ip(IpAddr),
    /// net.CIDR
    Cidr(IpNet),
    /// kubernetes.URL
    Url(Arc<super::url::Url>),
    /// kubernetes.Semver
    Semver(Arc<super::semver::Semver>),
    /// kubernetes.NamedFormat
    Format(Arc<str>),
    /// kubernetes.authorization.*: a question that is being put together, or its answer
    Authz(Arc<super::authz::Authz>),
    /// Something made by `Object{…}` or `JSONPatch{…}`.
    Struct(Arc<(String, BTreeMap<String, Val>)>),
}

/// A key of a map. Numbers of different sorts are different keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// null
    Null,
    /// bool
    Bool(bool),
    /// int
    Int(i64),
    /// uint
    Uint(u64),
    /// double
    Double(Double),
    /// string
    Text(Arc<str>),
}

/// A double as a key; zero has no sign there.
#[derive(Clone, Copy, Debug)]
pub struct Double(f64);

impl PartialEq for Double {
    fn eq(&self, other: &Double) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Double {}

impl PartialOrd for Double {
    fn partial_cmp(&self, other: &Double) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Double {
    fn cmp(&self, other: &Double) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialEq for Val {
    fn eq(&self, other: &Val) -> bool {
        self.same(other)
    }
}

impl Val {
    /// A string.
    pub fn text(text: &str) -> Val {
        Val::Text(text.into())
    }

    /// A list.
    pub fn list(items: Vec<Val>) -> Val {
        Val::List(Arc::new(items))
    }

    /// A map with string keys.
    pub fn object(fields: impl IntoIterator<Item = (String, Val)>) -> Val {
        Val::Map(Arc::new(fields.into_iter().map(|(k, v)| (Key::Text(k.into()), v)).collect()))
    }

    /// JSON without a schema, as admission policies see objects.
    pub fn from_json(value: &Value) -> Val {
        match value {
            Value::Null => Val::Null,
            Value::Bool(b) => Val::Bool(*b),
            Value::Number(n) => n
                .as_i64()
                .map(Val::Int)
                .or_else(|| n.as_u64().map(Val::Uint))
                .unwrap_or_else(|| Val::Double(n.as_f64().unwrap_or(0.0))),
            Value::String(s) => Val::text(s),
            Value::Array(items) => Val::list(items.iter().map(Val::from_json).collect()),
            Value::Object(map) => Val::object(map.iter().map(|(k, v)| (k.clone(), Val::from_json(v)))),
        }
    }

    /// As JSON; `None` for what has no such form.
    pub fn to_json(&self) -> Option<Value> {
        Some(match self {
            Val::Null => Value::Null,
            Val::Bool(b) => (*b).into(),
            Val::Int(n) => (*n).into(),
            Val::Uint(n) => (*n).into(),
            Val::Double(n) => (*n).into(),
            Val::Text(s) => s.as_ref().into(),
            Val::List(items) => items.iter().map(Val::to_json).collect::<Option<Vec<_>>>()?.into(),
            Val::Map(map) => {
                let mut out = Map::new();
                for (key, value) in map.iter() {
                    out.insert(key.to_string(), value.to_json()?);
                }
                out.into()
            }
            Val::Struct(fields) => {
                let mut out = Map::new();
                for (key, value) in &fields.1 {
                    out.insert(key.clone(), value.to_json()?);
                }
                out.into()
            }
            Val::Bytes(bytes) => {
                use base64::Engine as _;
                base64::engine::general_purpose::STANDARD.encode(bytes).into()
            }
            Val::Time(at) => at.to_string().into(),
            Val::Duration(nanos) => super::time::show_duration(*nanos).into(),
            Val::Optional(Some(inner)) => inner.to_json()?,
            Val::Optional(None) => Value::Null,
            Val::Quantity(q) => q.to_string().into(),
            _ => return None,
        })
    }

    /// As `type()` names it.
    pub fn type_name(&self) -> &str {
        match self {
            Val::Null => "null_type",
            Val::Bool(_) => "bool",
            Val::Int(_) => "int",
            Val::Uint(_) => "uint",
            Val::Double(_) => "double",
            Val::Text(_) => "string",
            Val::Bytes(_) => "bytes",
            Val::List(_) => "list",
            Val::Map(_) => "map",
            Val::Time(_) => "google.protobuf.Timestamp",
            Val::Duration(_) => "google.protobuf.Duration",
            Val::Type(_) => "type",
            Val::Optional(_) => "optional_type",
            Val::Quantity(_) => "kubernetes.Quantity",
            Val::Ip(_) => "net.IP",
            Val::Cidr(_) => "net.CIDR",
            Val::Url(_) => "kubernetes.URL",
            Val::Semver(_) => "kubernetes.Semver",
            Val::Format(_) => "kubernetes.NamedFormat",
            Val::Authz(a) => a.type_name(),
            Val::Struct(fields) => &fields.0,
        }
    }

    /// As cel-go's own type is named.
    pub(super) fn go_name(&self) -> &'static str {
        match self {
            Val::Null => "types.Null",
            Val::Bool(_) => "types.Bool",
            Val::Int(_) => "types.Int",
            Val::Uint(_) => "types.Uint",
            Val::Double(_) => "types.Double",
            Val::Text(_) => "types.String",
            Val::Bytes(_) => "types.Bytes",
            Val::Time(_) => "types.Timestamp",
            Val::Duration(_) => "types.Duration",
            _ => "ref.Val",
        }
    }

    /// A map's key of this value.
    pub fn key(&self) -> Option<Key> {
        Some(match self {
            Val::Null => Key::Null,
            Val::Bool(b) => Key::Bool(*b),
            Val::Int(n) => Key::Int(*n),
            Val::Uint(n) => Key::Uint(*n),
            Val::Double(n) => Key::Double(Double(n + 0.0)),
            Val::Text(s) => Key::Text(Arc::clone(s)),
            _ => return None,
        })
    }

    /// The value that a map has for this key. A whole number is also found under the same of another sort, but not
    /// under a double.
    pub fn entry<'m>(&self, map: &'m BTreeMap<Key, Val>) -> Option<&'m Val> {
        let int = |n: u64| i64::try_from(n).ok().map(Key::Int);
        let uint = |n: i64| u64::try_from(n).ok().map(Key::Uint);
        let others = match self {
            Val::Int(n) => [uint(*n), None],
            Val::Uint(n) => [int(*n), None],
            Val::Double(n) if n.fract() == 0.0 && n.abs() < 9.0e15 => [Some(Key::Int(*n as i64)), uint(*n as i64)],
            Val::Double(n) if n.is_nan() => return None,
            _ => [None, None],
        };
        map.get(&self.key()?).or_else(|| others.into_iter().flatten().find_map(|key| map.get(&key)))
    }

    /// `==`: numbers of all sorts compare by value, other different sorts are unequal.
    pub fn same(&self, other: &Val) -> bool {
        match (self, other) {
            (Val::List(a), Val::List(b)) => a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| a.same(b)),
            (Val::Map(a), Val::Map(b)) => {
                a.len() == b.len() && a.iter().all(|(k, v)| k.to_val().entry(b).is_some_and(|o| v.same(o)))
            }
            (Val::Struct(a), Val::Struct(b)) => {
                a.0 == b.0 && a.1.len() == b.1.len() && a.1.iter().all(|(k, v)| b.1.get(k).is_some_and(|o| v.same(o)))
            }
            (Val::Null, Val::Null) => true,
            (Val::Bytes(a), Val::Bytes(b)) => a == b,
            (Val::Type(a), Val::Type(b)) => a == b,
            (Val::Optional(a), Val::Optional(b)) => match (a, b) {
                (Some(a), Some(b)) => a.same(b),
                (None, None) => true,
                _ => false,
            },
            (Val::Ip(a), Val::Ip(b)) => a == b,
            (Val::Cidr(a), Val::Cidr(b)) => a == b,
            (Val::Url(a), Val::Url(b)) => a == b,
            (Val::Format(a), Val::Format(b)) => a == b,
            (Val::Semver(a), Val::Semver(b)) => a == b,
            _ => self.order(other) == Some(Ordering::Equal),
        }
    }

    /// `<`, for what has an order.
    pub fn order(&self, other: &Val) -> Option<Ordering> {
        match (self, other) {
            (Val::Bool(a), Val::Bool(b)) => Some(a.cmp(b)),
            (Val::Text(a), Val::Text(b)) => Some(a.cmp(b)),
            (Val::Bytes(a), Val::Bytes(b)) => Some(a.cmp(b)),
            (Val::Time(a), Val::Time(b)) => Some(a.cmp(b)),
            (Val::Duration(a), Val::Duration(b)) => Some(a.cmp(b)),
            (Val::Quantity(a), Val::Quantity(b)) => Some(a.cmp(b)),
            (Val::Semver(a), Val::Semver(b)) => Some(a.cmp(b)),
            (Val::Double(_), _) | (_, Val::Double(_)) => self.double()?.partial_cmp(&other.double()?),
            _ => Some(self.whole()?.cmp(&other.whole()?)),
        }
    }

    fn whole(&self) -> Option<i128> {
        match self {
            Val::Int(n) => Some(i128::from(*n)),
            Val::Uint(n) => Some(i128::from(*n)),
            _ => None,
        }
    }

    /// A number as a double.
    pub fn double(&self) -> Option<f64> {
        match self {
            Val::Int(n) => Some(*n as f64),
            Val::Uint(n) => Some(*n as f64),
            Val::Double(n) => Some(*n),
            _ => None,
        }
    }
}

impl Key {
    /// As a value.
    pub fn to_val(&self) -> Val {
        match self {
            Key::Bool(b) => Val::Bool(*b),
            Key::Null => Val::Null,
            Key::Int(n) => Val::Int(*n),
            Key::Uint(n) => Val::Uint(*n),
            Key::Double(n) => Val::Double(n.0),
            Key::Text(s) => Val::Text(Arc::clone(s)),
        }
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Key::Bool(b) => write!(f, "{b}"),
            Key::Null => f.write_str("null"),
            Key::Int(n) => write!(f, "{n}"),
            Key::Uint(n) => write!(f, "{n}"),
            Key::Double(n) => write!(f, "{}", n.0),
            Key::Text(s) => f.write_str(s),
        }
    }
}
