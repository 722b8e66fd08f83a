//! A Secret's fields, read as text.

use k8s_openapi::api::core::v1::Secret;

/// The text of a field; empty where there is none, and where it is no text.
pub fn text(secret: &Secret, field: &str) -> String {
    let bytes = secret.data.as_ref().and_then(|data| data.get(field)).map(|bytes| bytes.0.clone()).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}
