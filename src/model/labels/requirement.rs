//! One requirement of a selector: what its operators mean, and which requirements can be made.

use std::collections::BTreeSet;
use std::fmt;

use super::error::SelectorError;
use crate::names::{label_value_errors, qualified_name_errors};

/// How a requirement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `key in (a,b)`
    In,
    /// `key notin (a,b)`
    NotIn,
    /// `key=a`
    Equals,
    /// `key==a`
    DoubleEquals,
    /// `key!=a`
    NotEquals,
    /// `key`
    Exists,
    /// `!key`
    DoesNotExist,
    /// `key>1`
    GreaterThan,
    /// `key<1`
    LessThan,
}

impl Operator {
    /// The operator that a `LabelSelector` calls so.
    pub fn of_label_selector(name: &str) -> Option<Operator> {
        match name {
            "In" => Some(Operator::In),
            "NotIn" => Some(Operator::NotIn),
            "Exists" => Some(Operator::Exists),
            "DoesNotExist" => Some(Operator::DoesNotExist),
            _ => None,
        }
    }

    /// The operator that a `NodeSelectorRequirement` calls so: those of a `LabelSelector`, `Gt` and `Lt`.
    pub fn of_node_selector(name: &str) -> Option<Operator> {
        match name {
            "Gt" => Some(Operator::GreaterThan),
            "Lt" => Some(Operator::LessThan),
            other => Operator::of_label_selector(other),
        }
    }

    /// Whether a requirement with this operator may have so many values.
    fn takes(self, n_values: usize) -> bool {
        match self {
            Operator::In | Operator::NotIn => n_values > 0,
            Operator::Exists | Operator::DoesNotExist => n_values == 0,
            Operator::Equals | Operator::DoubleEquals | Operator::NotEquals => n_values == 1,
            Operator::GreaterThan | Operator::LessThan => n_values == 1,
        }
    }

    /// Whether a requirement with this operator and these values holds for the value of a label, `None` without it. A
    /// requirement that cannot be made (`In` without values, `Gt` with a word) never holds.
    ///
    /// Spec: upstream's `Requirement.Matches` and `NewRequirement` (apimachinery/pkg/labels/selector.go).
    pub fn holds<'v>(self, actual: Option<&str>, mut values: impl ExactSizeIterator<Item = &'v str>) -> bool {
        if !self.takes(values.len()) {
            return false;
        }
        match (self, actual) {
            (Operator::Exists, actual) => actual.is_some(),
            (Operator::DoesNotExist, actual) => actual.is_none(),
            (Operator::NotIn | Operator::NotEquals, None) => true,
            (_, None) => false,
            (Operator::In | Operator::Equals | Operator::DoubleEquals, Some(actual)) => values.any(|v| v == actual),
            (Operator::NotIn | Operator::NotEquals, Some(actual)) => values.all(|v| v != actual),
            (Operator::GreaterThan | Operator::LessThan, Some(actual)) => {
                let bound = values.next().and_then(|v| v.parse::<i64>().ok());
                match (actual.parse::<i64>(), bound) {
                    (Ok(actual), Some(bound)) if self == Operator::GreaterThan => actual > bound,
                    (Ok(actual), Some(bound)) => actual < bound,
                    _ => false,
                }
            }
        }
    }
}

/// One condition on one label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Label key.
    pub key: String,
    /// Comparison.
    pub operator: Operator,
    /// Operands; empty for existence.
    pub values: BTreeSet<String>,
}

impl Requirement {
    /// Whether it holds for the value that an object has under the key.
    pub fn holds(&self, actual: Option<&str>) -> bool {
        self.operator.holds(actual, self.values.iter().map(String::as_str))
    }

    /// A requirement that can be made. Spec: upstream's `NewRequirement`.
    ///
    /// Errors: the key or a value is no label's, or there are more or fewer values than the operator takes.
    pub(super) fn checked(
        key: &str,
        operator: Operator,
        values: BTreeSet<String>,
    ) -> Result<Requirement, SelectorError> {
        invalid_for("key", key, &qualified_name_errors(key))?;
        if !operator.takes(values.len()) {
            let why = match operator {
                Operator::In | Operator::NotIn => "for 'in', 'notin' operators, values set can't be empty",
                Operator::Exists | Operator::DoesNotExist => "values set must be empty for exists and does not exist",
                Operator::GreaterThan | Operator::LessThan => "for 'Gt', 'Lt' operators, exactly one value is required",
                Operator::Equals | Operator::DoubleEquals | Operator::NotEquals => {
                    "exact-match compatibility requires one single value"
                }
            };
            let list = values.iter().map(|v| format!("{v:?}")).collect::<Vec<_>>().join(",");
            return Err(SelectorError::Invalid {
                field: "values".to_owned(),
                value: format!("[{list}]"),
                why: why.to_owned(),
            });
        }
        if matches!(operator, Operator::GreaterThan | Operator::LessThan) {
            let why = "for 'Gt', 'Lt' operators, the value must be an integer".to_owned();
            let bad = values.iter().find(|v| v.parse::<i64>().is_err());
            bad.map_or(Ok(()), |bad| invalid_for("values[0]", bad, &[why]))?;
        }
        for (idx, value) in values.iter().enumerate() {
            invalid_for(&format!("values[{idx}][{key}]"), value, &label_value_errors(value))?;
        }
        Ok(Requirement { key: key.to_owned(), operator, values })
    }
}

/// The error that a text of a requirement is no label's key or value, if any reason says so.
pub(super) fn invalid_for(field: &str, text: &str, reasons: &[String]) -> Result<(), SelectorError> {
    if reasons.is_empty() {
        return Ok(());
    }
    Err(SelectorError::Invalid { field: field.to_owned(), value: format!("{text:?}"), why: reasons.join("; ") })
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.iter().map(String::as_str).collect::<Vec<_>>().join(",");
        let key = &self.key;
        match self.operator {
            Operator::Exists => f.write_str(key),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}
