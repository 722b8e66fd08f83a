//! `matchConditions` of webhooks: CEL expressions that must all be true before the webhook is asked.

use serde_json::Value;

use super::Review;
use super::matching::Matched;

/// Conditions by name.
pub struct Conditions(Vec<(String, String)>);

impl Conditions {
    /// Reads `matchConditions`.
    pub fn compile(conditions: &Value) -> Conditions {
        let text = |c: &Value, field: &str| c[field].as_str().unwrap_or_default().to_owned();
        Conditions(conditions.as_array().into_iter().flatten().map(|c| (text(c, "name"), text(c, "expression"))).collect())
    }

    /// Whether all are true. One false one settles it, whatever errors the others make.
    ///
    /// Errors: a text that names the condition.
    pub async fn hold(&self, _review: &Review<'_>, _matched: &Matched) -> Result<bool, String> {
        match self.0.first() {
            None => Ok(true),
            Some((name, expression)) => Err(format!("matchCondition {name:?} ({expression}): this server cannot evaluate it yet")),
        }
    }
}
