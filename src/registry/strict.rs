//! Strict decoding of files of configuration.

use serde_json::Value;

/// Refuses a field that nobody reads: it is never ignored.
///
/// Errors: the words of upstream's strict decoder.
pub fn known(value: &Value, path: &str, fields: &[&str]) -> Result<(), String> {
    let stray = value.as_object().into_iter().flatten().map(|(k, _)| k).find(|k| !fields.contains(&k.as_str()));
    let joint = if path.is_empty() { "" } else { "." };
    stray.map_or(Ok(()), |k| Err(format!("strict decoding error: unknown field \"{path}{joint}{k}\"")))
}
