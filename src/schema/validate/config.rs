//! ConfigMaps and Secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::meta;
use model::names::config_key_errors;
use serde_json::Value;

use crate::read;
use crate::validate::checks::{Errors, immutable, invalid_each};
use crate::validate::error::FieldError;

const BYTES_MAX: usize = 1024 * 1024;
const FROZEN: &str = "field is immutable when `immutable` is set";

fn keys(object: &Value, field: &str, errors: &mut Errors) {
    for key in read::map(object, field).into_iter().flatten().map(|(k, _)| k) {
        invalid_each(&format!("{field}[{key}]"), key.as_str(), config_key_errors(key), errors);
    }
}

/// Length of base64 once decoded.
fn decoded_len(text: &str) -> usize {
    text.len() / 4 * 3 - text.bytes().rev().take_while(|b| *b == b'=').count().min(text.len() / 4 * 3)
}

fn bytes(object: &Value, field: &str, len: fn(&str) -> usize) -> usize {
    read::map(object, field).into_iter().flatten().map(|(_, v)| v.as_str().map_or(0, len)).sum()
}

pub(crate) fn config_map(object: &Value, errors: &mut Errors) {
    keys(object, "data", errors);
    if let (Some(data), Some(binary)) = (read::map(object, "data"), read::map(object, "binaryData")) {
        for key in data.keys().filter(|k| binary.contains_key(*k)) {
            let message = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(format!("data[{key}]"), key.as_str(), message));
        }
    }
    keys(object, "binaryData", errors);
    if bytes(object, "data", str::len) + bytes(object, "binaryData", decoded_len) > BYTES_MAX {
        // Upstream names no field here.
        errors.push(FieldError::too_long("[]", BYTES_MAX));
    }
}

fn frozen(new: &Value, old: &Value, fields: &[&str], errors: &mut Errors) {
    if !read::flag(old, "immutable") {
        return;
    }
    if !read::flag(new, "immutable") {
        errors.push(FieldError::forbidden("immutable", FROZEN));
    }
    for field in fields {
        let of = |object| read::map(object, field).cloned().unwrap_or_default();
        if of(new) != of(old) {
            errors.push(FieldError::forbidden(*field, FROZEN));
        }
    }
}

pub(crate) fn config_map_update(new: &Value, old: &Value, errors: &mut Errors) {
    frozen(new, old, &["data", "binaryData"], errors);
}

/// Keys that a type of secret must have; for basic-auth one of them.
const TYPES: &[(&str, &[&str])] = &[
    ("kubernetes.io/dockercfg", &[".dockercfg"]),
    ("kubernetes.io/dockerconfigjson", &[".dockerconfigjson"]),
    ("kubernetes.io/ssh-auth", &["ssh-privatekey"]),
    ("kubernetes.io/tls", &["tls.crt", "tls.key"]),
];

pub(crate) fn secret(object: &Value, errors: &mut Errors) {
    keys(object, "data", errors);
    if bytes(object, "data", decoded_len) > BYTES_MAX {
        errors.push(FieldError::too_long("data", BYTES_MAX));
    }
    let has = |key: &str| read::map(object, "data").is_some_and(|d| d.contains_key(key));
    let kind = read::text(object, "type");
    let needed = TYPES.iter().find(|(t, _)| *t == kind).map_or(&[][..], |(_, keys)| keys);
    for key in needed.iter().filter(|k| !has(k)) {
        errors.push(FieldError::required(format!("data[{key}]"), ""));
    }
    for key in needed.iter().filter(|k| k.starts_with(".docker") && has(k)) {
        let bytes = STANDARD
            .decode(read::map(object, "data").map_or("", |d| d[*key].as_str().unwrap_or_default()))
            .unwrap_or_default();
        if let Err(why) = serde_json::from_slice::<serde_json::Map<String, Value>>(&bytes) {
            errors.push(FieldError::invalid(format!("data[{key}]"), "<secret contents redacted>", why.to_string()));
        }
    }
    match kind {
        "kubernetes.io/service-account-token" => {
            let annotation = "kubernetes.io/service-account.name";
            if meta::annotation(object, annotation).is_none_or(str::is_empty) {
                errors.push(FieldError::required(format!("metadata.annotations[{annotation}]"), ""));
            }
        }
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            errors.push(FieldError::required("data[username]", ""));
            errors.push(FieldError::required("data[password]", ""));
        }
        _ => {}
    }
}

pub(crate) fn secret_update(new: &Value, old: &Value, errors: &mut Errors) {
    immutable(new, old, "type", errors);
    frozen(new, old, &["data"], errors);
}
