//! Strict decoding of the configuration of plugins.

use serde_json::Value;

/// What nobody reads here is refused, never ignored.
pub(in crate::admission) fn known(value: &Value, path: &str, fields: &[&str]) -> Result<(), String> {
    let stray = value.as_object().into_iter().flatten().map(|(k, _)| k).find(|k| !fields.contains(&k.as_str()));
    let joint = if path.is_empty() { "" } else { "." };
    stray.map_or(Ok(()), |k| Err(format!("strict decoding error: unknown field \"{path}{joint}{k}\"")))
}
