//! Text to a tree, with the paths of repeated keys.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::bounds::{Purse, TOO_LARGE};
use super::{DecodeError, FieldValidation, Format, syntax};

/// Sentences about one body; upstream reports as many.
const REPORTED_MAX: usize = 100;
/// A path that is longer is not told: keys are the client's, and each sentence repeats all of them.
const PATH_BYTES_MAX: usize = 4096;

/// The tree and one sentence for each repeated key. JSON nesting is bounded by serde_json (128, as NESTING_DEPTH_MAX).
pub(super) fn parse(
    bytes: &[u8],
    format: Format,
    validation: FieldValidation,
) -> Result<(Value, Vec<String>), DecodeError> {
    match format {
        Format::Json => json(bytes),
        Format::Yaml => yaml(bytes, validation),
    }
}

fn json(bytes: &[u8]) -> Result<(Value, Vec<String>), DecodeError> {
    let repeated = RefCell::new(Vec::new());
    let mut de = serde_json::Deserializer::from_slice(bytes);
    let purse = Purse::new();
    let seed = Tree { path: &Path::Root, repeated: &repeated, order: None, purse: &purse };
    let value = seed.deserialize(&mut de).and_then(|v| de.end().map(|()| v)).map_err(|e| not_json(bytes, &e))?;
    Ok((value, repeated.into_inner()))
}

/// Puts complaints about keys of a JSON text into the order of the text, as Go's decoder meets them. The text was
/// parsed before.
pub(super) fn in_order_of(bytes: &[u8], complaints: &mut [String]) {
    if complaints.len() < 2 {
        return;
    }
    let (repeated, purse) = (RefCell::default(), Purse::new());
    let order = Order { complaints, found: RefCell::default() };
    let seed = Tree { path: &Path::Root, repeated: &repeated, order: Some(&order), purse: &purse };
    if seed.deserialize(&mut serde_json::Deserializer::from_slice(bytes)).is_err() {
        return;
    }
    let found = order.found.into_inner();
    complaints.sort_by_cached_key(|complaint| found.iter().position(|said| said == complaint).unwrap_or(usize::MAX));
}

fn not_json(bytes: &[u8], err: &serde_json::Error) -> DecodeError {
    if err.to_string().starts_with(TOO_LARGE) {
        return DecodeError::Syntax(TOO_LARGE.to_owned());
    }
    let mistake = syntax::check(bytes).map_or_else(|mistake| mistake.to_string(), |()| err.to_string());
    DecodeError::Syntax(format!("couldn't get version/kind; json parse error: {mistake}"))
}

fn yaml(bytes: &[u8], validation: FieldValidation) -> Result<(Value, Vec<String>), DecodeError> {
    let text = std::str::from_utf8(bytes).map_err(|e| DecodeError::Syntax(e.to_string()))?;
    let lenient = serde_saphyr::options! { duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::LastWins };
    let value: Value = match serde_saphyr::from_str(text) {
        Ok(value) => return depth_checked(value).map(|v| (v, Vec::new())),
        Err(strict) => match serde_saphyr::from_str_with_options(text, lenient) {
            Ok(value) if validation == FieldValidation::Ignore => value,
            Ok(value) => return depth_checked(value).map(|v| (v, vec![syntax::repeated_key(&strict)])),
            Err(e) => return Err(DecodeError::Syntax(syntax::yaml_mistake(&e.to_string()))),
        },
    };
    depth_checked(value).map(|v| (v, Vec::new()))
}

fn depth_checked(value: Value) -> Result<Value, DecodeError> {
    fn fits(v: &Value, left: usize) -> bool {
        match v {
            Value::Array(a) => left > 0 && a.iter().all(|v| fits(v, left - 1)),
            Value::Object(o) => left > 0 && o.values().all(|v| fits(v, left - 1)),
            _ => true,
        }
    }
    if fits(&value, base::limits::NESTING_DEPTH_MAX) {
        Ok(value)
    } else {
        Err(DecodeError::Syntax("exceeded max depth".into()))
    }
}

/// Where we are, as a chain on the stack: no text is made unless something is to be reported.
enum Path<'a> {
    Root,
    Key(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Root => Ok(()),
            Path::Key(Path::Root, key) => f.write_str(key),
            Path::Key(up, key) => write!(f, "{up}.{key}"),
            Path::Index(up, i) => write!(f, "{up}[{i}]"),
        }
    }
}

impl Path<'_> {
    fn len(&self) -> usize {
        match self {
            Path::Root => 0,
            Path::Key(up, key) => up.len() + key.len() + 1,
            Path::Index(up, _) => up.len() + 8,
        }
    }
}

/// The complaints whose order is asked for, and those that were met so far.
struct Order<'a> {
    complaints: &'a [String],
    found: RefCell<Vec<String>>,
}

impl Order<'_> {
    /// Notes the complaint about this key, if there is one. Its text is made for the few keys that one ends with.
    fn meet(&self, what: &str, path: &Path<'_>, key: &str) {
        let is_last = |said: &&String| said.strip_suffix('"').is_some_and(|said| said.ends_with(key));
        if path.len() <= PATH_BYTES_MAX && self.complaints.iter().any(|said| is_last(&said)) {
            let said = format!("{what} field \"{path}\"");
            let mut found = self.found.borrow_mut();
            if self.complaints.contains(&said) && !found.contains(&said) {
                found.push(said);
            }
        }
    }
}

struct Tree<'a> {
    path: &'a Path<'a>,
    repeated: &'a RefCell<Vec<String>>,
    order: Option<&'a Order<'a>>,
    purse: &'a Purse,
}

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;
    fn deserialize<D: serde::Deserializer<'de>>(self, d: D) -> Result<Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E: Error>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }
    fn visit_i64<E: Error>(self, v: i64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_u64<E: Error>(self, v: u64) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_f64<E: Error>(self, v: f64) -> Result<Value, E> {
        Ok(Number::from_f64(v).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E: Error>(self, v: &str) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_string<E: Error>(self, v: String) -> Result<Value, E> {
        Ok(v.into())
    }
    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let path = Path::Index(self.path, items.len());
            self.purse.value(0).map_err(A::Error::custom)?;
            match seq.next_element_seed(Tree {
                path: &path,
                repeated: self.repeated,
                order: self.order,
                purse: self.purse,
            })? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            if map.is_empty() {
                self.purse.map().map_err(A::Error::custom)?;
            }
            self.purse.value(key.len()).map_err(A::Error::custom)?;
            let path = Path::Key(self.path, &key);
            if let Some(order) = self.order {
                order.meet(if map.contains_key(&key) { "duplicate" } else { "unknown" }, &path, &key);
            }
            let value = entries.next_value_seed(Tree {
                path: &path,
                repeated: self.repeated,
                order: self.order,
                purse: self.purse,
            })?;
            let is_told = self.repeated.borrow().len() < REPORTED_MAX && path.len() <= PATH_BYTES_MAX;
            if map.contains_key(&key) && is_told {
                self.repeated.borrow_mut().push(format!("duplicate field \"{path}\""));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
