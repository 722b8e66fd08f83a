//! State that every step of a run shares: the names in scope, the budget, and why a step fails.

use std::cell::Cell;

use super::authz::Host;
use super::value::Val;

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An error of the expression, in cel-go's words.
    Error(String),
    /// The budget is used up.
    Budget,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::Error(text) => f.write_str(text),
            Fault::Budget => f.write_str("operation cancelled: actual cost limit exceeded"),
        }
    }
}

/// The result of a step.
pub type Outcome = Result<Val, Fault>;

/// A fault in words.
pub fn error<T>(text: impl Into<String>) -> Result<T, Fault> {
    Err(Fault::Error(text.into()))
}

/// Values that are made when they are first asked for: a policy's `variables`.
pub type Lazy<'a> = dyn Fn(&str) -> Option<Outcome> + 'a;

/// One run.
pub struct Run<'a> {
    /// Names and values, inner ones last.
    pub scope: Vec<(String, Val)>,
    /// The cost that is left to spend.
    pub budget: &'a Cell<i64>,
    /// Answers `variables.NAME`.
    pub lazy: Option<&'a Lazy<'a>>,
    /// Answers questions to the authorizer.
    pub host: Option<&'a dyn Host>,
}

impl Run<'_> {
    /// Takes from the budget.
    ///
    /// Errors: nothing is left.
    pub fn pay(&self, cost: usize) -> Result<(), Fault> {
        let left = self.budget.get() - i64::try_from(cost).unwrap_or(i64::MAX);
        self.budget.set(left);
        if left < 0 { Err(Fault::Budget) } else { Ok(()) }
    }
}
