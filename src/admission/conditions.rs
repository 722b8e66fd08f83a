//! `matchConditions` of webhooks and policies: CEL expressions that must all be true.

use std::cell::Cell;

use cel::admission::{Extras, names};
use cel::types::{BOOL, Ty};
use cel::value::Val;
use cel::{OBJECT_BUDGET, Program, Surroundings};
use serde_json::Value;

use super::Review;
use super::expressions::Facts;
use super::matching::Matched;

/// Conditions by name.
pub struct Conditions(Vec<(String, Result<Program, String>)>);

impl Conditions {
    /// Reads `matchConditions`.
    pub fn compile(conditions: &Value) -> Conditions {
        Conditions::with(conditions, &names(Extras { params: false, authorizer: true }))
    }

    /// The same with other names: policies know `params` and `variables` too.
    pub fn with(conditions: &Value, names: &[(String, Ty)]) -> Conditions {
        let text = |c: &Value, field: &str| c[field].as_str().unwrap_or_default().to_owned();
        let program = |c: &Value| {
            Program::compile(&text(c, "expression"), names).map_err(|err| err.to_string()).and_then(|p| {
                if p.result == BOOL || p.result == Ty::Dyn { Ok(p) } else { Err("must evaluate to bool".to_owned()) }
            })
        };
        Conditions(conditions.as_array().into_iter().flatten().map(|c| (text(c, "name"), program(c))).collect())
    }

    /// Whether all are true. One false one settles it, whatever errors the others make.
    ///
    /// Errors: a text that names the condition.
    pub async fn hold(&self, review: &Review<'_>, matched: &Matched) -> Result<bool, String> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let facts = Facts::of(review, matched).await.map_err(|status| status.message.clone())?;
        self.hold_with(&facts.surroundings(None, Val::Null), &Cell::new(OBJECT_BUDGET))
    }

    /// The same for values that were made before.
    ///
    /// Errors: a text that names the condition.
    pub fn hold_with(&self, surroundings: &Surroundings<'_>, budget: &Cell<i64>) -> Result<bool, String> {
        let mut faults = Vec::new();
        for (name, program) in &self.0 {
            let held = match program {
                Ok(program) => program.holds(surroundings, budget).map_err(|fault| fault.to_string()),
                Err(why) => Err(format!("compilation failed: {why}")),
            };
            match held {
                Ok(false) => return Ok(false),
                Ok(true) => {}
                Err(why) => faults.push(format!("matchCondition {name:?}: {why}")),
            }
        }
        if faults.is_empty() { Ok(true) } else { Err(faults.join(", ")) }
    }
}
