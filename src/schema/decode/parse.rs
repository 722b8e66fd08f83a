//! Text to a tree, with the paths of repeated keys.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use super::{DecodeError, FieldValidation, Format, syntax};

/// The tree and one sentence for each repeated key. JSON nesting is bounded by serde_json (128, as NESTING_DEPTH_MAX).
pub(super) fn parse(bytes: &[u8], format: Format, validation: FieldValidation) -> Result<(Value, Vec<String>), DecodeError> {
    match format {
        Format::Json => json(bytes),
        Format::Yaml => yaml(bytes, validation),
    }
}

fn json(bytes: &[u8]) -> Result<(Value, Vec<String>), DecodeError> {
    let repeated = RefCell::new(Vec::new());
    let mut de = serde_json::Deserializer::from_slice(bytes);
    let seed = Tree { path: &Path::Root, repeated: &repeated, keys: None };
    let value = seed.deserialize(&mut de).and_then(|v| de.end().map(|()| v)).map_err(|e| not_json(bytes, &e))?;
    Ok((value, repeated.into_inner()))
}

/// Puts complaints about keys of a JSON text into the order of the text, as Go's decoder meets them. The text was parsed before.
pub(super) fn in_order_of(bytes: &[u8], complaints: &mut [String]) {
    if complaints.len() < 2 {
        return;
    }
    let (repeated, keys) = (RefCell::default(), RefCell::default());
    let seed = Tree { path: &Path::Root, repeated: &repeated, keys: Some(&keys) };
    if seed.deserialize(&mut serde_json::Deserializer::from_slice(bytes)).is_err() {
        return;
    }
    let keys: Vec<String> = keys.into_inner();
    complaints.sort_by_cached_key(|complaint| keys.iter().position(|key| key == complaint).unwrap_or(usize::MAX));
}

fn not_json(bytes: &[u8], err: &serde_json::Error) -> DecodeError {
    let mistake = syntax::mistake(bytes);
    let mistake = if mistake.is_empty() { err.to_string() } else { mistake };
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
    if fits(&value, base::limits::NESTING_DEPTH_MAX) { Ok(value) } else { Err(DecodeError::Syntax("exceeded max depth".into())) }
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

struct Tree<'a> {
    path: &'a Path<'a>,
    repeated: &'a RefCell<Vec<String>>,
    /// Every key as a complaint about it, where their order is asked for.
    keys: Option<&'a RefCell<Vec<String>>>,
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
            match seq.next_element_seed(Tree { path: &path, repeated: self.repeated, keys: self.keys })? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = entries.next_key::<String>()? {
            let path = Path::Key(self.path, &key);
            if let Some(keys) = self.keys {
                let what = if map.contains_key(&key) { "duplicate" } else { "unknown" };
                keys.borrow_mut().push(format!("{what} field \"{path}\""));
            }
            let value = entries.next_value_seed(Tree { path: &path, repeated: self.repeated, keys: self.keys })?;
            if map.contains_key(&key) {
                self.repeated.borrow_mut().push(format!("duplicate field \"{path}\""));
            }
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}
