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
        /// The count that the patch had.
        got: usize,
        /// The count that is allowed.
        max: usize,
    },
}

const OPERATIONS_MAX: usize = 10_000;
/// Bytes that the `copy` operations of a JSON patch may copy altogether, as upstream.
const COPIED_BYTES_MAX: usize = 3 << 20;

/// The items of lists that the operations of a JSON patch may push aside altogether: one at the front of a list moves
/// all of it. As many as 10,000 operations on a list of 6,700 items move.
const MOVED_ITEMS_MAX: usize = 1 << 26;

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
        Value::Object(map) => {
            format!("map[{}]", map.iter().map(|(k, v)| format!("{k}:{}", go_text(v))).collect::<Vec<_>>().join(" "))
        }
        other => other.to_string(),
    }
}

/// RFC 6902, all operations or none.
pub fn json(object: &Value, patch: &[u8]) -> Result<Value, PatchError> {
    let list = read(patch)?;
    let typed = |of: &Value, what: &str| {
        let kind = crate::decode::go_kind(of);
        PatchError::BadRequest(format!(
            "error decoding patch: json: cannot unmarshal {kind} into Go value of type {what}"
        ))
    };
    match list.as_array() {
        None => return Err(typed(&list, "jsonpatch.Patch")),
        Some(all) => {
            if let Some(odd) = all.iter().find(|o| !o.is_object()) {
                return Err(typed(odd, "jsonpatch.Operation"));
            }
        }
    }
    // What an operation lacks is found when it is applied, upstream too.
    let operations: json_patch::Patch =
        serde_json::from_value(list).map_err(|e| PatchError::Rejected(e.to_string()))?;
    if operations.0.len() > OPERATIONS_MAX {
        return Err(PatchError::TooManyOperations { got: operations.0.len(), max: OPERATIONS_MAX });
    }
    let mut out = object.clone();
    lay_on(&mut out, &operations).map_err(|e| PatchError::Rejected(e.to_string()))?;
    Ok(out)
}

/// Operations of a policy that do not apply.
#[derive(Debug, thiserror::Error)]
pub enum OperationsError {
    /// They are no JSON Patch.
    #[error("JSON Patch: {0}")]
    Unreadable(serde_json::Error),
    /// There are too many.
    #[error("JSON Patch: more than {OPERATIONS_MAX} operations")]
    TooMany,
    /// One of them fails. The crate's error shows its cause itself, so it is no source here.
    #[error("JSON Patch: {0}")]
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

/// RFC 6902 operations that a policy made; `None` if a `test` among them failed.
///
/// Errors: they do not apply.
pub fn operations(object: &Value, operations: Value) -> Result<Option<Value>, OperationsError> {
    let operations: json_patch::Patch = serde_json::from_value(operations).map_err(OperationsError::Unreadable)?;
    if operations.0.len() > OPERATIONS_MAX {
        return Err(OperationsError::TooMany);
    }
    let mut out = object.clone();
    match lay_on(&mut out, &operations) {
        Ok(()) => Ok(Some(out)),
        Err(Unlaid::Operation(err)) if matches!(err.kind, json_patch::PatchErrorKind::TestFailed) => Ok(None),
        Err(err) => Err(OperationsError::Failed(err.into())),
    }
}

/// Why operations could not be laid on.
#[derive(Debug, thiserror::Error)]
enum Unlaid {
    #[error(transparent)]
    Operation(#[from] json_patch::PatchError),
    #[error(
        "Unable to copy, the accumulated size increase of JSON patch copy operations is {got}, exceeding the limit \
        {max}"
    )]
    Copied { got: usize, max: usize },
    #[error("The operations of a JSON patch move more than {max} items of lists")]
    Moved { max: usize },
}

/// Changes `doc`, which is half changed after an error: the crate's way to undo panics where a move went into itself.
fn lay_on(doc: &mut Value, operations: &[json_patch::PatchOperation]) -> Result<(), Unlaid> {
    let (mut copied, mut moved) = (0, 0);
    for (at, operation) in operations.iter().enumerate() {
        moved += moves(doc, operation);
        if moved > MOVED_ITEMS_MAX {
            return Err(Unlaid::Moved { max: MOVED_ITEMS_MAX });
        }
        // Thirty copies of everything into itself would be more than there is memory.
        if let json_patch::PatchOperation::Copy(copy) = operation {
            copied += doc.pointer(copy.from.as_str()).map_or(0, |v| v.to_string().len());
            if copied > COPIED_BYTES_MAX {
                return Err(Unlaid::Copied { got: copied, max: COPIED_BYTES_MAX });
            }
        }
        json_patch::patch_unsafe(doc, std::slice::from_ref(operation)).map_err(|mut err| {
            err.operation = at;
            err
        })?;
    }
    Ok(())
}

/// How many items an operation moves at most: those of the lists that it puts something into or takes something out of.
fn moves(doc: &Value, operation: &json_patch::PatchOperation) -> usize {
    let of = |path: &str| {
        let list = path.rsplit_once('/').and_then(|(list, _)| doc.pointer(list));
        list.and_then(Value::as_array).map_or(0, Vec::len)
    };
    match operation {
        json_patch::PatchOperation::Add(add) if add.path.as_str().ends_with("/-") => 0,
        json_patch::PatchOperation::Add(add) => of(add.path.as_str()),
        json_patch::PatchOperation::Remove(remove) => of(remove.path.as_str()),
        json_patch::PatchOperation::Move(step) => of(step.from.as_str()) + of(step.path.as_str()),
        json_patch::PatchOperation::Copy(copy) => of(copy.path.as_str()),
        json_patch::PatchOperation::Replace(_) | json_patch::PatchOperation::Test(_) => 0,
    }
}

/// RFC 7386: null removes, objects merge, everything else replaces.
pub fn merge(object: &Value, patch: &Value) -> Result<Value, PatchError> {
    if !patch.is_object() {
        return Err(PatchError::BadRequest(
            "error decoding patch: json: cannot unmarshal a value that is no object".to_owned(),
        ));
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
        return Err(PatchError::BadRequest(
            "error decoding patch: a strategic merge patch must be an object".to_owned(),
        ));
    };
    let (type_at, purse) = (strategic::TypeAt::Struct(type_def), strategic::Purse::new());
    strategic::merge_maps(type_at, original.clone(), patch, strategic::Depth::Object, &purse).map(Value::Object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_patch_is_all_or_nothing_and_refuses_with_upstreams_text() {
        let object = json!({"a": {"b": 1}});
        let ok = br#"[{"op":"test","path":"/a/b","value":1},{"op":"replace","path":"/a/b","value":2},
            {"op":"add","path":"/c","value":[]}]"#;
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
