//! `matchConditions` of webhooks and policies: CEL expressions that must all be true.

use std::cell::Cell;

use base::chain::Chain;
use cel::admission::{Extras, names};
use cel::types::Ty;
use cel::value::Val;
use cel::{OBJECT_BUDGET, Program, Surroundings};
use registry::status::Status;
use serde_json::Value;

use super::Review;
use super::expressions::{self, CompileError, Compiled, ExpressionError, Facts};
use super::matching::Matched;

/// Why it is not known whether conditions hold.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConditionsError {
    /// The object has no form in the version that they see.
    #[error(transparent)]
    Version(#[from] Status),
    /// These went wrong, and no other was false.
    #[error("{}", listed(.0))]
    Faults(Vec<ConditionFault>),
}

/// One condition that is neither true nor false.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("matchCondition {name:?}")]
pub struct ConditionFault {
    name: String,
    source: ExpressionError,
}

fn listed(faults: &[ConditionFault]) -> String {
    faults.iter().map(|fault| Chain(fault).to_string()).collect::<Vec<_>>().join(", ")
}

/// Conditions by name.
pub struct Conditions(Vec<(String, Compiled)>);

impl Conditions {
    /// Reads `matchConditions`.
    pub fn compile(conditions: &Value) -> Conditions {
        Conditions::with(conditions, &names(Extras { params: false, authorizer: true }))
    }

    /// The same with other names: policies know `params` and `variables` too.
    pub fn with(conditions: &Value, names: &[(String, Ty)]) -> Conditions {
        let text = |c: &Value, field: &str| c[field].as_str().unwrap_or_default().to_owned();
        let program = |c: &Value| {
            let compiled = Program::compile(&text(c, "expression"), names);
            expressions::condition(compiled.map_err(CompileError::Refused))
        };
        Conditions(conditions.as_array().into_iter().flatten().map(|c| (text(c, "name"), program(c))).collect())
    }

    /// Whether all are true. One false one settles it, whatever errors the others make.
    pub async fn hold(&self, review: &Review<'_>, matched: &Matched) -> Result<bool, ConditionsError> {
        if self.0.is_empty() {
            return Ok(true);
        }
        let facts = Facts::of(review, matched).await?;
        self.hold_with(&facts.surroundings(None, Val::Null), &Cell::new(OBJECT_BUDGET))
    }

    /// The same for values that were made before.
    pub fn hold_with(&self, surroundings: &Surroundings<'_>, budget: &Cell<i64>) -> Result<bool, ConditionsError> {
        let mut faults = Vec::new();
        for (name, program) in &self.0 {
            match expressions::holds(program, surroundings, budget) {
                Ok(false) => return Ok(false),
                Ok(true) => {}
                Err(source) => faults.push(ConditionFault { name: name.clone(), source }),
            }
        }
        if faults.is_empty() { Ok(true) } else { Err(ConditionsError::Faults(faults)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(expressions: &[(&str, &str)]) -> Result<bool, String> {
        let all = expressions.iter().map(|(name, text)| serde_json::json!({"name": name, "expression": text}));
        let conditions = Conditions::compile(&all.collect());
        conditions.hold_with(&Surroundings::default(), &Cell::new(OBJECT_BUDGET)).map_err(|err| Chain(&err).to_string())
    }

    /// As upstream's matchconditions.matcher (v1.36): a false one settles it, errors count only beside true ones.
    #[test]
    fn one_false_condition_settles_it_whatever_errors_the_others_make() {
        assert_eq!(hold(&[]), Ok(true));
        assert_eq!(hold(&[("a", "true"), ("b", "1 < 2")]), Ok(true));
        assert_eq!(hold(&[("a", "true"), ("b", "false")]), Ok(false));
        assert_eq!(hold(&[("a", "1 / 0 == 1"), ("b", "false")]), Ok(false));
        assert_eq!(hold(&[("a", "'text'"), ("b", "false")]), Ok(false), "one that is no condition is an error too");
    }

    #[test]
    fn each_condition_that_went_wrong_is_named() {
        let why = hold(&[("a", "1 / 0 == 1"), ("b", "true"), ("c", "'text'")]).unwrap_err();
        assert!(why.starts_with("matchCondition \"a\": division by zero"), "{why}");
        assert!(why.ends_with(", matchCondition \"c\": compilation failed: must evaluate to bool"), "{why}");
        let why = hold(&[("a", "nothing")]).unwrap_err();
        assert!(why.starts_with("matchCondition \"a\": compilation failed: "), "{why}");
    }
}
