//! Label selectors: the query syntax and the `LabelSelector` object, in one form.

pub mod error;
mod parse;
pub mod requirement;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use self::error::SelectorError;
use self::requirement::{Operator, Requirement};

/// All requirements must hold. No requirement selects everything; [`Selector::nothing`] selects nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

type Labels = Map<String, Value>;

impl Selector {
    /// Selects everything.
    pub fn everything() -> Selector {
        Selector::default()
    }

    /// Selects nothing: what a missing `LabelSelector` means.
    pub fn nothing() -> Selector {
        Selector { requirements: Vec::new(), nothing: true }
    }

    /// Reads the query syntax: `a=b,a!=b,a in (x,y),a notin (x),!a,a,a>1`.
    pub fn parse(text: &str) -> Result<Selector, SelectorError> {
        Ok(Selector::of(parse::Parser::new(text).selector()?))
    }

    /// From a `metav1.LabelSelector`: none selects nothing, an empty one everything.
    ///
    /// Spec: upstream's `LabelSelectorAsSelector` (apimachinery/pkg/apis/meta/v1/helpers.go).
    pub fn from_label_selector(selector: Option<&LabelSelector>) -> Result<Selector, SelectorError> {
        let Some(selector) = selector else { return Ok(Selector::nothing()) };
        let mut requirements = Vec::new();
        for (key, value) in selector.match_labels.iter().flatten() {
            requirements.push(Requirement::checked(key, Operator::Equals, BTreeSet::from([value.clone()]))?);
        }
        for expression in selector.match_expressions.iter().flatten() {
            let operator = Operator::of_label_selector(&expression.operator)
                .ok_or_else(|| SelectorError::Operator(expression.operator.clone()))?;
            let values = expression.values.iter().flatten().cloned().collect();
            requirements.push(Requirement::checked(&expression.key, operator, values)?);
        }
        Ok(Selector::of(requirements))
    }

    /// The same of a `LabelSelector` in JSON; null is none.
    pub fn from_json(selector: Option<&Value>) -> Result<Selector, SelectorError> {
        let typed = Option::<LabelSelector>::deserialize(selector.unwrap_or(&Value::Null));
        let typed = typed.map_err(|err| SelectorError::Shape(err.to_string()))?;
        Selector::from_label_selector(typed.as_ref())
    }

    fn of(mut requirements: Vec<Requirement>) -> Selector {
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Selector { requirements, nothing: false }
    }

    /// From a plain map (`Service.spec.selector`, `nodeSelector`): each must be equal; an empty map selects everything.
    pub fn from_map(labels: &Labels) -> Selector {
        let requirement = |(key, value): (&String, &Value)| Requirement {
            key: key.clone(),
            operator: Operator::Equals,
            values: BTreeSet::from([value.as_str().unwrap_or_default().to_owned()]),
        };
        Selector { requirements: labels.iter().map(requirement).collect(), nothing: false }
    }

    /// The requirements, sorted by key.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Selects everything.
    pub fn is_empty(&self) -> bool {
        !self.nothing && self.requirements.is_empty()
    }

    /// Whether the labels (`metadata.labels`, None if there are none) meet every requirement.
    pub fn matches(&self, labels: Option<&Labels>) -> bool {
        self.matches_with(&|key| labels.and_then(|l| l.get(key)).and_then(Value::as_str))
    }

    /// The same over any store of labels.
    pub fn matches_with<'a>(&self, get: &dyn Fn(&str) -> Option<&'a str>) -> bool {
        !self.nothing && self.requirements.iter().all(|r| r.holds(get(&r.key)))
    }

    /// The same for an object's `metadata.labels`.
    pub fn matches_object(&self, object: &Value) -> bool {
        self.matches(crate::meta::labels(object))
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, requirement) in self.requirements.iter().enumerate() {
            write!(f, "{}{requirement}", if idx > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Renders a `metav1.LabelSelector` in JSON as kubectl shows it: `app=web,tier in (a,b)`; `<none>` and `<error>` as
/// upstream.
pub fn format_label_selector(selector: Option<&Value>) -> String {
    match Selector::from_json(selector) {
        Ok(selector) if selector.requirements.is_empty() => "<none>".to_owned(),
        Ok(selector) => selector.to_string(),
        Err(_) => "<error>".to_owned(),
    }
}
