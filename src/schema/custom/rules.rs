//! `x-kubernetes-validations`.

use serde_json::Value;

use super::node::Node;
use crate::validate::error::FieldError;

/// One rule.
#[derive(Debug)]
pub struct Rule {
    /// As written.
    pub rule: String,
}

/// Compiles the rules of a schema into its nodes.
pub fn attach(_node: &mut Node, _schema: &Value) {}

/// Asks every rule.
pub fn check(_node: &Node, _new: &Value, _old: Option<&Value>, _errors: &mut Vec<FieldError>) {}

/// What is wrong with the rules of a schema.
pub fn problems(_schema: &Value, _path: &str) -> Vec<FieldError> {
    Vec::new()
}
