//! The three patch formats that are not apply: JSON patch, JSON merge patch, strategic merge patch.

pub mod strategic;

use serde_json::{Map, Value};

use crate::table::TypeDef;

/// Why a patch was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// 400: the patch itself could not be read.
    #[error("{0}")]
    BadRequest(String),
    /// 422, reason `Invalid`; upstream does not tell the client why.
    #[error("the server rejected our request due to an error in our request")]
    Rejected(String),
    /// 500 upstream, without a reason: the patch does not fit the type.
    #[error("{0}")]
    Unmergeable(String),
    /// 413
    #[error("The allowed maximum operations in a JSON patch is {max}, got {got}")]
    TooManyOperations {
        /// What the patch had.
        got: usize,
        /// What is allowed.
        max: usize,
    },
}

const OPERATIONS_MAX: usize = 10_000;

/// A patch's own text.
///
/// Errors: 400 in Go's words.
pub fn read(patch: &[u8]) -> Result<Value, PatchError> {
    crate::decode::untyped(patch, crate::decode::Format::Json).map_err(|err| {
        let why = err.to_string();
        let why = why.rsplit_once("json parse error: ").map_or(why.as_str(), |(_, why)| why);
        PatchError::BadRequest(format!("error decoding patch: {why}"))
    })
}

/// A value as Go's `%v` prints it: `map[a:1 b:[x y]]`.
pub fn go_text(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".to_owned(),
        Value::String(s) => s.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_text).collect::<Vec<_>>().join(" ")),
        Value::Object(map) => format!("map[{}]", map.iter().map(|(k, v)| format!("{k}:{}", go_text(v))).collect::<Vec<_>>().join(" ")),
        other => other.to_string(),
    }
}

/// RFC 6902, all operations or none.
pub fn json(object: &Value, patch: &[u8]) -> Result<Value, PatchError> {
    let operations: json_patch::Patch =
        serde_json::from_value(read(patch)?).map_err(|e| PatchError::BadRequest(format!("error decoding patch: {e}")))?;
    if operations.0.len() > OPERATIONS_MAX {
        return Err(PatchError::TooManyOperations { got: operations.0.len(), max: OPERATIONS_MAX });
    }
    let mut out = object.clone();
    json_patch::patch(&mut out, &operations).map_err(|e| PatchError::Rejected(e.to_string()))?;
    Ok(out)
}

/// RFC 7386: null removes, objects merge, everything else replaces.
pub fn merge(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    if !patch.is_object() {
        return Err(PatchError::BadRequest("error decoding patch: json: cannot unmarshal a value that is no object".to_owned()));
    }
    let mut out = object.clone();
    merge_into(&mut out, patch);
    Ok(out)
}

fn merge_into(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge_into(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

/// kubectl's default format: lists merge by their key where the type says so.
///
/// Custom resources have no patch strategies: upstream answers 415 for them, so the caller must not come here with one.
pub fn strategic(type_def: &TypeDef, object: &Value, patch: &Value) -> Result<Value, PatchError> {
    let (Some(original), Some(patch)) = (object.as_object(), patch.as_object()) else {
        return Err(PatchError::BadRequest("error decoding patch: a strategic merge patch must be an object".to_owned()));
    };
    strategic::merge_maps(strategic::Place::Struct(type_def), original.clone(), patch, strategic::Depth::Object).map(Value::Object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_patch_is_all_or_nothing_and_refuses_with_upstreams_text() {
        let object = json!({"a": {"b": 1}});
        let ok = br#"[{"op":"test","path":"/a/b","value":1},{"op":"replace","path":"/a/b","value":2},{"op":"add","path":"/c","value":[]}]"#;
        assert_eq!(json(&object, ok).unwrap(), json!({"a": {"b": 2}, "c": []}));
        let failing = br#"[{"op":"test","path":"/a/b","value":7}]"#;
        let error = json(&object, failing).unwrap_err();
        assert_eq!(error.to_string(), "the server rejected our request due to an error in our request");
        assert!(matches!(json(&object, b"{"), Err(PatchError::BadRequest(_))));
    }

    #[test]
    fn merge_patch_drops_nulls_even_in_new_objects() {
        let out = merge(&json!({"a": 1, "l": [1]}), &json!({"a": null, "n": {"x": null, "y": 1}, "l": [2]})).unwrap();
        assert_eq!(out, json!({"n": {"y": 1}, "l": [2]}));
    }
}
