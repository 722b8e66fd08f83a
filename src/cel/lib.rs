//! CEL with Kubernetes's libraries: parsed and type checked once, run within a budget. In: a text, the types of the
//! names that it may use, their values. Out: a [`Program`], then a value or a fault. It never knows objects, schemas or
//! requests.
//!
//! Why not a crate: none checks types or meters cost, and both are what an API server promises about its expressions.

mod addresses;
pub mod admission;
pub mod authz;
pub mod check;
#[cfg(test)]
mod check_tests;
mod eval;
pub mod formats;
mod functions;
#[cfg(test)]
mod fuzz_tests;
mod issue;
mod lexer;
#[cfg(test)]
mod library_tests;
mod lists;
pub mod moment;
mod network;
mod operators;
pub mod patterns;
pub mod run;
pub mod semver;
pub mod signatures;
mod strings;
pub mod syntax;
mod templates;
#[cfg(test)]
mod tests;
pub mod time;
pub mod types;
mod unify;
#[cfg(test)]
mod upstream_tests;
pub mod url;
pub mod value;

use std::cell::Cell;

use issue::{Issue, show_all};
use run::{Fault, Lazy, Outcome, Run, error};
use syntax::{Dialect, Expr, Kind};
use types::Ty;
use value::Val;

/// The cost that one expression may have, as upstream's `PerCallLimit`.
pub const CALL_BUDGET: i64 = 1_000_000;
/// The cost that all expressions about one object may have, as upstream's `RuntimeCELCostBudget`.
pub const OBJECT_BUDGET: i64 = 10_000_000;

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Program {
    /// As it was written.
    pub text: String,
    expr: Expr,
    /// The type that it makes.
    pub result: Ty,
}

/// Everything that an expression sees while it runs.
#[derive(Default)]
pub struct Surroundings<'a> {
    /// Names and values.
    pub values: Vec<(String, Val)>,
    /// `variables.NAME`.
    pub lazy: Option<&'a Lazy<'a>>,
    /// Answers questions to the authorizer.
    pub host: Option<&'a dyn authz::Host>,
}

/// An expression that is none, or uses what there is not. Printed as cel-go prints it, with the places shown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", show_all(.issues, .text))]
pub struct CompileError {
    text: String,
    issues: Vec<Issue>,
}

impl Program {
    /// Compiles an expression that may use these names.
    ///
    /// Errors: see [`CompileError`].
    pub fn compile(text: &str, names: &[(String, Ty)]) -> Result<Program, CompileError> {
        Program::compile_in(Dialect::Common, text, names)
    }

    /// The same for those that may use a little more.
    ///
    /// Errors: see [`CompileError`].
    pub fn compile_in(dialect: Dialect, text: &str, names: &[(String, Ty)]) -> Result<Program, CompileError> {
        let wrong = |issues| CompileError { text: text.to_owned(), issues };
        let expr = syntax::parse(text, dialect).map_err(|issue| wrong(vec![issue]))?;
        let result = check::check(&expr, names, dialect).map_err(wrong)?;
        Ok(Program { text: text.to_owned(), expr, result })
    }

    /// Runs it. What it costs is taken from `budget`, and no call may cost more than [`CALL_BUDGET`].
    ///
    /// Errors: see [`Fault`].
    pub fn run(&self, surroundings: &Surroundings<'_>, budget: &Cell<i64>) -> Outcome {
        let allowed = budget.get().min(CALL_BUDGET);
        let own = Cell::new(allowed);
        let mut run =
            Run { scope: surroundings.values.clone(), budget: &own, lazy: surroundings.lazy, host: surroundings.host };
        let result = run.eval(&self.expr);
        budget.set(budget.get() - (allowed - own.get().max(0)));
        result
    }

    /// The same for an expression that says yes or no.
    ///
    /// Errors: see [`Fault`].
    pub fn holds(&self, surroundings: &Surroundings<'_>, budget: &Cell<i64>) -> Result<bool, Fault> {
        match self.run(surroundings, budget)? {
            Val::Bool(b) => Ok(b),
            other => error(format!("expected bool, got {}", other.type_name())),
        }
    }

    /// As it was read.
    pub fn expr(&self) -> &Expr {
        &self.expr
    }

    /// Whether it makes a value of this type for certain: what is only known when it runs does not count, as upstream.
    pub fn makes(&self, wanted: &Ty) -> bool {
        self.result == *wanted
    }

    /// Whether the expression uses a name anywhere.
    pub fn uses(&self, name: &str) -> bool {
        uses(&self.expr, name)
    }
}

fn uses(expr: &Expr, name: &str) -> bool {
    match &expr.kind {
        Kind::Literal(_) => false,
        Kind::Ident(n) => n == name,
        Kind::Select { of, .. } => uses(of, name),
        Kind::Call { target, args, .. } => {
            target.as_ref().is_some_and(|t| uses(t, name)) || args.iter().any(|a| uses(a, name))
        }
        Kind::Chain(first, rest) => uses(first, name) || rest.iter().any(|(.., e)| uses(e, name)),
        Kind::List(items) => items.iter().any(|(e, _)| uses(e, name)),
        Kind::Map(entries) => entries.iter().any(|(k, v, _)| uses(k, name) || uses(v, name)),
        Kind::Struct { fields, .. } => fields.iter().any(|(_, _, v, _)| uses(v, name)),
        Kind::Macro(m) => uses(&m.range, name) || m.body.iter().any(|b| uses(b, name)),
    }
}
