//! The typed walk: prune what the type does not know, refuse wrong types, write values as Go would.

use model::quantity::Quantity;
use serde_json::{Map, Value};

use super::bounds::Purse;
use super::{DecodeError, Decoded, FieldValidation, go_kind};
use crate::table::{Empty, Field, Shape, TypeDef};

/// As many problems as upstream reports at most.
const PROBLEMS_MAX: usize = 100;

pub(super) fn run(
    value: Value,
    t: &TypeDef,
    validation: FieldValidation,
    repeated: Vec<String>,
) -> Result<Decoded, DecodeError> {
    let Value::Object(map) = value else {
        return Err(DecodeError::Type(format!(
            "json: cannot unmarshal {} into Go value of type {}",
            go_kind(&value),
            go_type_name(t)
        )));
    };
    let mut walk = Walk { path: Vec::new(), problems: repeated, purse: Purse::new() };
    let value = Value::Object(walk.fields(map, t)?);
    walk.problems.truncate(PROBLEMS_MAX);
    match validation {
        FieldValidation::Strict if !walk.problems.is_empty() => Err(DecodeError::Strict(walk.problems)),
        FieldValidation::Warn => Ok(Decoded { value, warnings: walk.problems }),
        _ => Ok(Decoded { value, warnings: Vec::new() }),
    }
}

enum Step {
    Key(String),
    Index(usize),
}

struct Walk {
    path: Vec<Step>,
    problems: Vec<String>,
    purse: Purse,
}

fn too_large(why: &str) -> DecodeError {
    DecodeError::Syntax(why.to_owned())
}

impl Walk {
    /// `spec.containers[0].foo`, as unknown fields are named.
    fn path_of(&self, last: &str) -> String {
        let mut text = String::new();
        for step in &self.path {
            match step {
                Step::Key(k) if text.is_empty() => text.push_str(k),
                Step::Key(k) => {
                    text.push('.');
                    text.push_str(k);
                }
                Step::Index(i) => text.push_str(&format!("[{i}]")),
            }
        }
        if text.is_empty() { last.to_owned() } else { format!("{text}.{last}") }
    }

    /// `spec.containers.ports`, as Go's decoder names fields in errors of type.
    fn go_path(&self) -> String {
        let keys = self.path.iter().filter_map(|s| if let Step::Key(k) = s { Some(k.as_str()) } else { None });
        keys.collect::<Vec<_>>().join(".")
    }

    fn fields(&mut self, mut map: Map<String, Value>, t: &TypeDef) -> Result<Map<String, Value>, DecodeError> {
        let mut out = Map::new();
        for field in &t.fields {
            let given = map.remove(field.name.as_ref());
            let kept = match given {
                Some(Value::Null) if field.nullable => Some(Value::Null),
                None | Some(Value::Null) => None,
                Some(value) => {
                    self.path.push(Step::Key(field.name.to_string()));
                    let value = self.value(value, &field.shape, t)?;
                    self.path.pop();
                    Some(value)
                }
            };
            let is_zero = kept.is_none();
            if let Some(value) = written(kept, field) {
                // What was sent was paid when it was read; a struct that is written although nobody sent it is new.
                if is_zero {
                    self.purse.tree(&value).map_err(too_large)?;
                }
                if out.is_empty() {
                    self.purse.map().map_err(too_large)?;
                }
                out.insert(field.name.to_string(), value);
            }
        }
        for (key, value) in map {
            // An embedded object and a custom object's root carry these without naming them in their schema.
            let implied = t.embedded && matches!(key.as_str(), "apiVersion" | "kind" | "metadata");
            if t.open || implied {
                out.insert(key, value);
            } else if self.problems.len() < PROBLEMS_MAX {
                let path = self.path_of(&key);
                self.problems.push(format!("unknown field \"{path}\""));
            }
        }
        Ok(out)
    }

    fn value(&mut self, value: Value, shape: &Shape, owner: &TypeDef) -> Result<Value, DecodeError> {
        match (shape, value) {
            (Shape::Any, v) => Ok(v),
            (Shape::Struct(t), Value::Object(map)) => Ok(Value::Object(self.fields(map, t.get())?)),
            (Shape::List(item), Value::Array(values)) => self.items(values, item, owner),
            (Shape::Map(entry), Value::Object(map)) => self.entries(map, entry, owner),
            (Shape::Struct(_) | Shape::List(_) | Shape::Map(_), v) => Err(self.wrong(&v, shape, owner)),
            (_, v) => match scalar(&v, shape) {
                Ok(Some(other)) => Ok(other),
                Ok(None) => Ok(v),
                Err(Some(text)) => Err(DecodeError::Type(text)),
                Err(None) => Err(self.wrong(&v, shape, owner)),
            },
        }
    }

    /// The value that a null in a list or map stands for.
    fn zero(&self, shape: &Shape) -> Result<Value, DecodeError> {
        let value = zero(shape);
        self.purse.tree(&value).map_err(too_large)?;
        Ok(value)
    }

    fn items(&mut self, values: Vec<Value>, item: &Shape, owner: &TypeDef) -> Result<Value, DecodeError> {
        let mut out = Vec::with_capacity(values.len());
        for (i, value) in values.into_iter().enumerate() {
            self.path.push(Step::Index(i));
            out.push(match value {
                Value::Null => self.zero(item)?,
                value => self.value(value, item, owner)?,
            });
            self.path.pop();
        }
        Ok(Value::Array(out))
    }

    fn entries(&mut self, map: Map<String, Value>, entry: &Shape, owner: &TypeDef) -> Result<Value, DecodeError> {
        let mut out = Map::new();
        for (key, value) in map {
            self.path.push(Step::Key(key));
            let value = match value {
                Value::Null => self.zero(entry)?,
                value => self.value(value, entry, owner)?,
            };
            if let Some(Step::Key(key)) = self.path.pop() {
                out.insert(key, value);
            }
        }
        Ok(Value::Object(out))
    }

    fn wrong(&self, value: &Value, shape: &Shape, owner: &TypeDef) -> DecodeError {
        let what = match (value, shape) {
            (Value::Number(n), Shape::Int32 | Shape::Int64) => format!("number {n}"),
            _ => go_kind(value).to_owned(),
        };
        let text = format!(
            "json: cannot unmarshal {what} into Go struct field {}.{} of type {}",
            owner.go_name(),
            self.go_path(),
            go_type(shape)
        );
        DecodeError::Type(text)
    }
}

/// Checks a scalar: `Ok(Some)` is its canonical form, `Err(Some)` a parser's own text, `Err(None)` a wrong JSON type.
fn scalar(v: &Value, shape: &Shape) -> Result<Option<Value>, Option<String>> {
    let fits = |ok: bool| if ok { Ok(None) } else { Err(None) };
    match (shape, v) {
        (Shape::Bool, v) => fits(v.is_boolean()),
        (Shape::Int32, v) => fits(v.as_i64().is_some_and(|n| i32::try_from(n).is_ok())),
        (Shape::Int64, v) => fits(v.is_i64()),
        (Shape::Float, v) => fits(v.is_number()),
        (Shape::String, v) => fits(v.is_string()),
        (Shape::Bytes, Value::String(s)) => bytes(s),
        (Shape::Time, Value::String(s)) => time(s),
        (Shape::MicroTime, Value::String(s)) => micro_time(s),
        (Shape::Duration, v) => fits(v.is_string()),
        (Shape::Quantity, Value::String(s)) => quantity(s),
        (Shape::Quantity, Value::Number(n)) => quantity(&n.to_string()),
        (Shape::IntOrString, Value::String(_)) => Ok(None),
        (Shape::IntOrString, v) => fits(v.as_i64().is_some_and(|n| i32::try_from(n).is_ok())),
        _ => Err(None),
    }
}

fn quantity(text: &str) -> Result<Option<Value>, Option<String>> {
    match text.parse::<Quantity>() {
        Ok(q) => Ok(Some(Value::String(q.to_string()))),
        Err(_) => Err(Some(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'".into(),
        )),
    }
}

fn bytes(text: &str) -> Result<Option<Value>, Option<String>> {
    use base64::Engine as _;
    // Go's decoder skips line breaks, and what is stored has none.
    let plain: String = text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect();
    match base64::engine::general_purpose::STANDARD.decode(&plain) {
        Ok(_) if plain.len() == text.len() => Ok(None),
        Ok(_) => Ok(Some(Value::String(plain))),
        Err(base64::DecodeError::InvalidByte(at, _)) => Err(Some(format!("illegal base64 data at input byte {at}"))),
        Err(_) => Err(Some(format!("illegal base64 data at input byte {}", plain.len() / 4 * 4))),
    }
}

fn instant(text: &str) -> Result<jiff::Timestamp, Option<String>> {
    let refused = || {
        let rest = text
            .get(..4)
            .filter(|y| y.bytes().all(|b| b.is_ascii_digit()))
            .map_or(text, |_| text.get(4..).unwrap_or_default());
        let part = if rest.len() == text.len() { "2006" } else { "-" };
        Some(format!("parsing time \"{text}\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"{rest}\" as \"{part}\""))
    };
    if text.as_bytes().get(10) != Some(&b'T') {
        return Err(refused());
    }
    text.parse().map_err(|_| refused())
}

fn time(text: &str) -> Result<Option<Value>, Option<String>> {
    if text.is_empty() {
        return Ok(Some(Value::Null));
    }
    Ok(Some(instant(text)?.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into()))
}

fn micro_time(text: &str) -> Result<Option<Value>, Option<String>> {
    if text.is_empty() {
        return Ok(Some(Value::Null));
    }
    Ok(Some(instant(text)?.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string().into()))
}

/// The value that Go would write for this field, given its decoded value.
fn written(value: Option<Value>, field: &Field) -> Option<Value> {
    match (value, field.empty) {
        (Some(Value::Null), _) if !field.nullable => None,
        (Some(v), Empty::Drop) if is_zero(&v) => None,
        // Lists and maps pass through protobuf in the store, where empty and absent are one.
        (Some(v), Empty::Always)
            if is_empty_collection(&v) && !matches!(field.shape, Shape::Struct(_) | Shape::Any) =>
        {
            None
        }
        (Some(v), _) => Some(v),
        (None, Empty::Always) => Some(zero(&field.shape)).filter(|v| !v.is_null()),
        (None, _) => None,
    }
}

fn is_empty_collection(v: &Value) -> bool {
    match v {
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => false,
    }
}

fn is_zero(v: &Value) -> bool {
    match v {
        Value::Null => true,
        Value::Bool(b) => !b,
        Value::Number(n) => n.as_f64() == Some(0.0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
    }
}

/// Go's zero value; null where nothing is written for it.
pub(super) fn zero(shape: &Shape) -> Value {
    match shape {
        Shape::Bool => false.into(),
        Shape::Int32 | Shape::Int64 | Shape::Float | Shape::IntOrString => 0.into(),
        Shape::String => "".into(),
        Shape::Quantity | Shape::Duration => "0".into(),
        Shape::Struct(t) => {
            let fields = t.get().fields.iter();
            Value::Object(fields.filter_map(|f| written(None, f).map(|v| (f.name.to_string(), v))).collect())
        }
        Shape::Bytes | Shape::Time | Shape::MicroTime | Shape::Any | Shape::List(_) | Shape::Map(_) => Value::Null,
    }
}

fn go_type(shape: &Shape) -> String {
    match shape {
        Shape::Bool => "bool".into(),
        Shape::Int32 => "int32".into(),
        Shape::Int64 => "int64".into(),
        Shape::Float => "float64".into(),
        Shape::String => "string".into(),
        Shape::Bytes => "[]uint8".into(),
        Shape::Time => "v1.Time".into(),
        Shape::MicroTime => "v1.MicroTime".into(),
        Shape::Duration => "v1.Duration".into(),
        Shape::Quantity => "resource.Quantity".into(),
        Shape::IntOrString => "intstr.IntOrString".into(),
        Shape::Any => "runtime.RawExtension".into(),
        Shape::List(e) => format!("[]{}", go_type(e)),
        Shape::Map(e) => format!("map[string]{}", go_type(e)),
        Shape::Struct(t) => go_type_name(t.get()),
    }
}

/// `v1.PodSpec`: the last two parts of the OpenAPI name.
fn go_type_name(t: &TypeDef) -> String {
    let mut parts = t.name.rsplitn(3, '.');
    match (parts.next(), parts.next()) {
        (Some(name), Some(package)) => format!("{package}.{name}"),
        _ => t.name.to_string(),
    }
}
