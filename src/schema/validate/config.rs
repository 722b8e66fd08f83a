//! ConfigMaps and Secrets.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use model::meta;
use model::names::config_key_errors;
use serde_json::Value;

use crate::decode;
use crate::read;
use crate::validate::checks::{Errors, immutable, invalid_each};
use crate::validate::error::FieldError;
use crate::validate::path::Path;

const BYTES_MAX: usize = 1024 * 1024;
const FROZEN: &str = "field is immutable when `immutable` is set";

fn keys(object: &Value, field: &str, errors: &mut Errors) {
    for key in read::map(object, field).into_iter().flatten().map(|(k, _)| k) {
        invalid_each(Path(&format!("{field}[{key}]")), key.as_str(), config_key_errors(key), errors);
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
    ("kubernetes.io/tls", &["tls.crt", "tls.key"]),
];

/// Why Go's `json.Unmarshal` makes no map of these bytes.
fn no_map(bytes: &[u8]) -> Option<String> {
    if let Err(mistake) = decode::syntax::check(bytes) {
        return Some(mistake.to_string());
    }
    match serde_json::from_slice::<Value>(bytes) {
        // Go leaves the map as it was for a null.
        Ok(Value::Object(_) | Value::Null) => None,
        Ok(other) => {
            let kind = decode::go_kind(&other);
            Some(format!("json: cannot unmarshal {kind} into Go value of type map[string]interface {{}}"))
        }
        Err(err) => Some(err.to_string()),
    }
}

pub(crate) fn secret(object: &Value, errors: &mut Errors) {
    keys(object, "data", errors);
    if bytes(object, "data", decoded_len) > BYTES_MAX {
        errors.push(FieldError::too_long("data", BYTES_MAX));
    }
    let has = |key: &str| read::map(object, "data").is_some_and(|d| d.contains_key(key));
    let filled = |key: &str| read::map(object, "data").and_then(|d| d.get(key)).is_some_and(|value| value != "");
    let kind = read::text(object, "type");
    let needed = TYPES.iter().find(|(t, _)| *t == kind).map_or(&[][..], |(_, keys)| keys);
    for key in needed.iter().filter(|k| !has(k)) {
        errors.push(FieldError::required(format!("data[{key}]"), ""));
    }
    for key in needed.iter().filter(|k| k.starts_with(".docker") && has(k)) {
        let bytes = STANDARD
            .decode(read::map(object, "data").map_or("", |d| d[*key].as_str().unwrap_or_default()))
            .unwrap_or_default();
        if let Some(why) = no_map(&bytes) {
            errors.push(FieldError::invalid(format!("data[{key}]"), "<secret contents redacted>", why));
        }
    }
    match kind {
        "kubernetes.io/service-account-token" => {
            let annotation = "kubernetes.io/service-account.name";
            if meta::annotation(object, annotation).is_none_or(str::is_empty) {
                errors.push(FieldError::required(format!("metadata.annotations[{annotation}]"), ""));
            }
        }
        // An empty key is none.
        "kubernetes.io/ssh-auth" if !filled("ssh-privatekey") => {
            errors.push(FieldError::required("data[ssh-privatekey]", ""));
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::validate::testing::{replaced, wrong};

    fn base64(text: &str) -> String {
        STANDARD.encode(text)
    }

    /// Spec: `ValidateSecret` of upstream v1.36.
    #[test]
    fn a_typed_secret_has_the_keys_of_its_type() {
        let docker = "kubernetes.io/dockerconfigjson";
        let redacted =
            |why: &str| format!("data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": {why}");
        for (kind, data, said) in [
            ("Opaque", json!({}), vec![]),
            ("example.com/own", json!({}), vec![]),
            ("kubernetes.io/dockercfg", json!({}), vec!["data[.dockercfg]: Required value".to_owned()]),
            (docker, json!({}), vec!["data[.dockerconfigjson]: Required value".to_owned()]),
            (docker, json!({".dockerconfigjson": base64("{\"auths\": {}}")}), vec![]),
            (docker, json!({".dockerconfigjson": base64("null")}), vec![]),
            (docker, json!({".dockerconfigjson": ""}), vec![redacted("unexpected end of JSON input")]),
            (
                docker,
                json!({".dockerconfigjson": base64("{bad")}),
                vec![redacted("invalid character 'b' looking for beginning of object key string")],
            ),
            (
                docker,
                json!({".dockerconfigjson": base64("[]")}),
                vec![redacted("json: cannot unmarshal array into Go value of type map[string]interface {}")],
            ),
            ("kubernetes.io/ssh-auth", json!({}), vec!["data[ssh-privatekey]: Required value".to_owned()]),
            (
                "kubernetes.io/ssh-auth",
                json!({"ssh-privatekey": ""}),
                vec!["data[ssh-privatekey]: Required value".to_owned()],
            ),
            ("kubernetes.io/ssh-auth", json!({"ssh-privatekey": base64("k")}), vec![]),
            (
                "kubernetes.io/tls",
                json!({}),
                vec!["data[tls.crt]: Required value".to_owned(), "data[tls.key]: Required value".to_owned()],
            ),
            ("kubernetes.io/tls", json!({"tls.crt": "", "tls.key": ""}), vec![]),
            (
                "kubernetes.io/basic-auth",
                json!({"other": ""}),
                vec!["data[username]: Required value".to_owned(), "data[password]: Required value".to_owned()],
            ),
            ("kubernetes.io/basic-auth", json!({"password": ""}), vec![]),
            (
                "kubernetes.io/service-account-token",
                json!({}),
                vec!["metadata.annotations[kubernetes.io/service-account.name]: Required value".to_owned()],
            ),
        ] {
            assert_eq!(wrong(secret, json!({"type": kind, "data": data})), said, "{kind} {data}");
        }
    }

    #[test]
    fn keys_of_data_are_names_of_files() {
        for key in ["a/b", "..", "", &"a".repeat(254)] {
            let said = wrong(config_map, json!({"data": {key: "x"}}));
            assert!(
                !said.is_empty() && said[0].starts_with(&format!("data[{key}]: Invalid value: ")),
                "{key} {said:?}"
            );
        }
        let both = json!({"data": {"a": "x"}, "binaryData": {"a": "eA=="}});
        assert_eq!(wrong(config_map, both), ["data[a]: Invalid value: \"a\": duplicate of key present in binaryData"]);
    }

    #[test]
    fn a_mebibyte_fits_and_a_byte_more_does_not() {
        let text = |n: usize| "x".repeat(n);
        assert_eq!(wrong(config_map, json!({"data": {"a": text(BYTES_MAX)}})), [""; 0]);
        let more = json!({"data": {"a": text(BYTES_MAX)}, "binaryData": {"b": "eA=="}});
        assert_eq!(wrong(config_map, more), ["[]: Too long: may not be more than 1048576 bytes"]);
        assert_eq!(wrong(secret, json!({"data": {"a": STANDARD.encode(text(BYTES_MAX))}})), [""; 0]);
        assert_eq!(
            wrong(secret, json!({"data": {"a": STANDARD.encode(text(BYTES_MAX + 1))}})),
            ["data: Too long: may not be more than 1048576 bytes"]
        );
    }

    #[test]
    fn what_is_immutable_stays() {
        let map = |immutable: bool, value: &str| json!({"immutable": immutable, "data": {"a": value}});
        assert_eq!(replaced(config_map_update, map(true, "2"), map(false, "1")), [""; 0]);
        assert_eq!(
            replaced(config_map_update, map(false, "2"), map(true, "1")),
            [format!("immutable: Forbidden: {FROZEN}"), format!("data: Forbidden: {FROZEN}")]
        );
        let kind = |kind: &str| json!({"type": kind});
        assert_eq!(replaced(secret_update, kind("b"), kind("a")), ["type: Invalid value: \"b\": field is immutable"]);
    }
}
