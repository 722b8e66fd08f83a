//! Bytes to objects: JSON and YAML are parsed, unknown and repeated fields reported, wrong types refused with Go's
//! texts, and the rest is put into the form that a Go server would write back.

use serde_json::{Map, Value};

use crate::table::{GroupVersionKind, Resource, TypeDef};

pub(crate) mod bounds;
mod conform;
mod parse;
pub(crate) mod syntax;
#[cfg(test)]
mod tests;

/// The way to treat unknown and repeated fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Drop them silently.
    Ignore,
    /// Drop them and say so.
    #[default]
    Warn,
    /// Refuse the object.
    Strict,
}

impl FieldValidation {
    /// Parses the query parameter `fieldValidation`; empty is `Warn`.
    pub fn parse(text: &str) -> Option<FieldValidation> {
        match text {
            "Ignore" => Some(FieldValidation::Ignore),
            "" | "Warn" => Some(FieldValidation::Warn),
            "Strict" => Some(FieldValidation::Strict),
            _ => None,
        }
    }
}

/// Encoding of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// application/json
    Json,
    /// application/yaml
    Yaml,
}

/// A decoded object and what there is to warn about.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The object, pruned and normalised.
    pub value: Value,
    /// Texts for Warning headers, such as `unknown field "spec.foo"`; empty unless `FieldValidation::Warn`.
    pub warnings: Vec<String>,
}

/// Why a body is no object of the type. All are the client's fault (400).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are not JSON or YAML; the text is Go's.
    #[error("{0}")]
    Syntax(String),
    /// A value has the wrong type; the text is Go's.
    #[error("{0}")]
    Type(String),
    /// `FieldValidation::Strict` found these.
    #[error("strict decoding error: {}", .0.join(", "))]
    Strict(Vec<String>),
    /// apiVersion and kind are not those of the request.
    #[error("{0}")]
    Kind(String),
}

impl DecodeError {
    /// The whole sentence of a Status: `Pod in version "v1" cannot be handled as a Pod: …`.
    pub fn message(&self, of: GroupVersionKind<'_>) -> String {
        let (version, kind) = (of.group_version.version, of.kind);
        match self {
            DecodeError::Type(_) | DecodeError::Strict(_) => {
                format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {self}")
            }
            DecodeError::Kind(_) | DecodeError::Syntax(_) => self.to_string(),
        }
    }

    /// The same about a body as it was sent, whose beginning is shown if it cannot be read at all.
    pub fn message_about(&self, of: GroupVersionKind<'_>, body: &[u8]) -> String {
        match self {
            DecodeError::Syntax(_) => {
                format!("the object provided is unrecognized (must be of type {}): {self} ({})", of.kind, summary(body))
            }
            _ => self.message(of),
        }
    }
}

/// The beginning of a body: text if it looks like JSON, hexadecimal otherwise.
fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let (shown, more) = (&body[..body.len().min(SHOWN)], if body.len() > SHOWN { " ..." } else { "" });
    match shown.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(shown)),
        Some(_) => format!("{}{more}", base::hex::encode(shown)),
    }
}

/// Decodes one object of a type.
///
/// Errors: see [`DecodeError`]; none is a server's fault.
pub fn decode(bytes: &[u8], format: Format, t: &TypeDef, validation: FieldValidation) -> Result<Decoded, DecodeError> {
    let (value, repeated) = parse::parse(bytes, format, validation)?;
    let mut outcome = conform::run(value, t, validation, repeated);
    if format == Format::Json {
        match &mut outcome {
            Ok(Decoded { warnings, .. }) | Err(DecodeError::Strict(warnings)) => parse::in_order_of(bytes, warnings),
            Err(_) => {}
        }
    }
    outcome
}

/// Decodes one object of a resource, custom or built in.
///
/// Errors: see [`DecodeError`]; none is a server's fault.
pub fn decode_resource(
    bytes: &[u8],
    format: Format,
    r: &Resource,
    validation: FieldValidation,
) -> Result<Decoded, DecodeError> {
    let (value, repeated) = parse::parse(bytes, format, validation)?;
    match &r.definition {
        Some(definition) => definition.decode(value, validation, repeated),
        None => conform::run(value, r.type_def(), validation, repeated),
    }
}

/// [`conform`] for a resource, custom or built in.
pub fn conform_resource(value: Value, r: &Resource, validation: FieldValidation) -> Result<Decoded, DecodeError> {
    match &r.definition {
        Some(definition) => definition.decode(value, validation, Vec::new()),
        None => conform(value, r.type_def(), validation),
    }
}

/// Brings a value that is already parsed (the result of a patch) into the type's form.
pub fn conform(value: Value, t: &TypeDef, validation: FieldValidation) -> Result<Decoded, DecodeError> {
    conform::run(value, t, validation, Vec::new())
}

/// Parses bytes without any type: for patches.
pub fn untyped(bytes: &[u8], format: Format) -> Result<Value, DecodeError> {
    parse::parse(bytes, format, FieldValidation::Ignore).map(|(value, _)| value)
}

/// Fills in apiVersion and kind where the body has none and refuses a body of another kind.
pub fn check_kind(value: &mut Value, of: GroupVersionKind<'_>) -> Result<(), DecodeError> {
    let (api_version, kind) = (of.group_version.to_string(), of.kind);
    let Value::Object(map) = value else {
        return Err(DecodeError::Type(format!(
            "json: cannot unmarshal {} into Go value of type {kind}",
            go_kind(value)
        )));
    };
    let text =
        |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (said_version, said_kind) = (text(map, "apiVersion"), text(map, "kind"));
    if !said_version.is_empty() && said_version != api_version {
        return Err(DecodeError::Kind(format!(
            "the API version in the data ({said_version}) does not match the expected API version ({api_version})"
        )));
    }
    if !said_kind.is_empty() && said_kind != kind {
        let version = of.group_version.version;
        return Err(DecodeError::Kind(format!(
            "{said_kind} in version \"{version}\" cannot be handled as a {kind}: kinds differ"
        )));
    }
    map.insert("apiVersion".into(), api_version.into());
    map.insert("kind".into(), kind.into());
    Ok(())
}

/// [`check_kind`] for a resource's own kind.
pub fn check_resource(value: &mut Value, r: &Resource) -> Result<(), DecodeError> {
    check_kind(value, r.group_version_kind())
}

/// The name that Go's decoder has for a JSON value.
pub fn go_kind(v: &Value) -> &'static str {
    match v {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Go's zero value of a shape, as it is written to JSON; null where nothing is written for it.
pub(crate) fn zero(shape: &crate::table::Shape) -> Value {
    conform::zero(shape)
}
