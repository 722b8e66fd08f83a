//! For tests: what a check finds wrong, as texts.

use serde_json::{Value, json};

use crate::validate::checks::Errors;

pub(super) fn wrong(check: fn(&Value, &mut Errors), object: Value) -> Vec<String> {
    let mut errors = Vec::new();
    check(&object, &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

/// Of an object that takes the place of another.
pub(super) fn replaced(check: fn(&Value, &Value, &mut Errors), new: Value, old: Value) -> Vec<String> {
    let mut errors = Vec::new();
    check(&new, &old, &mut errors);
    errors.iter().map(ToString::to_string).collect()
}

/// Of an object that is nothing but this spec.
pub(super) fn wrong_spec(check: fn(&Value, &mut Errors), spec: Value) -> Vec<String> {
    wrong(check, json!({"spec": spec}))
}
