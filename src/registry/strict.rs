//! Strict decoding of files of configuration.

use serde_json::Value;

/// A field that nobody reads, in the words of upstream's strict decoder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("strict decoding error: unknown field \"{0}\"")]
pub struct UnknownField(String);

/// Refuses a field that nobody reads: it is never ignored.
pub fn known(value: &Value, path: &str, fields: &[&str]) -> Result<(), UnknownField> {
    let stray = value.as_object().into_iter().flatten().map(|(k, _)| k).find(|k| !fields.contains(&k.as_str()));
    let joint = if path.is_empty() { "" } else { "." };
    stray.map_or(Ok(()), |k| Err(UnknownField(format!("{path}{joint}{k}"))))
}
