//! Label selectors: the query syntax and the `LabelSelector` object, in one form.

mod parse;

use std::collections::BTreeSet;
use std::fmt;

use serde_json::{Map, Value};

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

/// All requirements must hold. No requirement selects everything; [`Selector::nothing`] selects nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
    nothing: bool,
}

/// Why a selector could not be read, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SelectorError(pub String);

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
        let mut requirements = parse::Parser::new(text).selector().map_err(SelectorError)?;
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Selector { requirements, nothing: false })
    }

    /// From a `metav1.LabelSelector`: null selects nothing, an empty one everything.
    pub fn from_label_selector(selector: Option<&Value>) -> Result<Selector, SelectorError> {
        let Some(selector) = selector.and_then(Value::as_object) else { return Ok(Selector::nothing()) };
        let mut requirements = Vec::new();
        for (key, value) in selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten() {
            let values = BTreeSet::from([value.as_str().unwrap_or_default().to_owned()]);
            requirements.push(Requirement { key: key.clone(), operator: Operator::In, values });
        }
        for expression in selector.get("matchExpressions").and_then(Value::as_array).into_iter().flatten() {
            let text = |name: &str| expression.get(name).and_then(Value::as_str).unwrap_or_default();
            let operator = match text("operator") {
                "In" => Operator::In,
                "NotIn" => Operator::NotIn,
                "Exists" => Operator::Exists,
                "DoesNotExist" => Operator::DoesNotExist,
                other => return Err(SelectorError(format!("{other:?} is not a valid label selector operator"))),
            };
            let values = expression.get("values").and_then(Value::as_array).into_iter().flatten();
            let values = values.filter_map(Value::as_str).map(str::to_owned).collect();
            requirements.push(new_requirement(text("key"), operator, values).map_err(SelectorError)?);
        }
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Ok(Selector { requirements, nothing: false })
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
        !self.nothing && self.requirements.iter().all(|r| r.matches(get(&r.key)))
    }

    /// The same for an object's `metadata.labels`.
    pub fn matches_object(&self, object: &Value) -> bool {
        self.matches(crate::meta::labels(object))
    }
}

impl Requirement {
    fn matches(&self, value: Option<&str>) -> bool {
        match (self.operator, value) {
            (Operator::Exists, value) => value.is_some(),
            (Operator::DoesNotExist, value) => value.is_none(),
            (Operator::NotIn | Operator::NotEquals, None) => true,
            (_, None) => false,
            (Operator::In | Operator::Equals | Operator::DoubleEquals, Some(value)) => self.values.contains(value),
            (Operator::NotIn | Operator::NotEquals, Some(value)) => !self.values.contains(value),
            (Operator::GreaterThan | Operator::LessThan, Some(value)) => {
                let bound = self.values.first().and_then(|v| v.parse::<i64>().ok());
                match (value.parse::<i64>(), bound) {
                    (Ok(have), Some(bound)) if self.operator == Operator::GreaterThan => have > bound,
                    (Ok(have), Some(bound)) => have < bound,
                    _ => false,
                }
            }
        }
    }
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

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, requirement) in self.requirements.iter().enumerate() {
            write!(f, "{}{requirement}", if idx > 0 { "," } else { "" })?;
        }
        Ok(())
    }
}

/// Renders a `metav1.LabelSelector` as kubectl shows it: `app=web,tier in (a,b)`; `<none>` and `<error>` as upstream.
pub fn format_label_selector(selector: Option<&Value>) -> String {
    match Selector::from_label_selector(selector) {
        Ok(s) if s.nothing || s.requirements.is_empty() => "<none>".to_owned(),
        Ok(s) => {
            let show = |r: &Requirement| match (r.operator, r.values.len()) {
                (Operator::In, 1) => {
                    Requirement { operator: Operator::Equals, key: r.key.clone(), values: r.values.clone() }.to_string()
                }
                _ => r.to_string(),
            };
            s.requirements.iter().map(show).collect::<Vec<_>>().join(",")
        }
        Err(_) => "<error>".to_owned(),
    }
}

fn new_requirement(key: &str, operator: Operator, values: BTreeSet<String>) -> Result<Requirement, String> {
    let errors = qualified_name_errors(key);
    if !errors.is_empty() {
        return Err(format!("key: Invalid value: {key:?}: {}", errors.join("; ")));
    }
    let list = || format!("[{}]", values.iter().map(|v| format!("{v:?}")).collect::<Vec<_>>().join(","));
    match operator {
        Operator::In | Operator::NotIn if values.is_empty() => {
            return Err(format!(
                "values: Invalid value: {}: for 'in', 'notin' operators, values set can't be empty",
                list()
            ));
        }
        Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if values.len() != 1 => {
            return Err(format!(
                "values: Invalid value: {}: exact-match compatibility requires one single value",
                list()
            ));
        }
        Operator::Exists | Operator::DoesNotExist if !values.is_empty() => {
            return Err(format!(
                "values: Invalid value: {}: values set must be empty for exists and does not exist",
                list()
            ));
        }
        Operator::GreaterThan | Operator::LessThan => {
            if values.len() != 1 {
                return Err(format!(
                    "values: Invalid value: {}: for 'Gt', 'Lt' operators, exactly one value is required",
                    list()
                ));
            }
            if let Some(bad) = values.iter().find(|v| v.parse::<i64>().is_err()) {
                return Err(format!(
                    "values[0]: Invalid value: {bad:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                ));
            }
        }
        _ => {}
    }
    for (idx, value) in values.iter().enumerate() {
        let errors = label_value_errors(value);
        if !errors.is_empty() {
            return Err(format!("values[{idx}][{key}]: Invalid value: {value:?}: {}", errors.join("; ")));
        }
    }
    Ok(Requirement { key: key.to_owned(), operator, values })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn round(text: &str) -> String {
        Selector::parse(text).map_or_else(|e| format!("error: {e}"), |s| s.to_string())
    }

    #[test]
    fn query_syntax_reads_and_prints_canonically() {
        for (input, want) in [
            ("", ""),
            ("a=b", "a=b"),
            ("x in (b,a) , !y,z", "x in (a,b),!y,z"),
            ("b==c,a!=d", "a!=d,b==c"),
            (
                "a notin ()",
                "error: unable to parse requirement: values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty",
            ),
            ("a in (,x)", "a in (,x)"),
            ("a=", "a="),
            ("n>5", "n>5"),
            ("in in (in)", "in in (in)"),
        ] {
            assert_eq!(round(input), want, "{input}");
        }
    }

    #[test]
    fn refusals_are_upstreams() {
        assert_eq!(round("a in x"), "error: unable to parse requirement: found 'x' expected: '('");
        assert_eq!(round("a=b c"), "error: found 'c', expected: ',' or 'end of string'");
        assert_eq!(round("a=b,"), "error: found '', expected: identifier after ','");
        assert_eq!(round("=a"), "error: found '=', expected: !, identifier, or 'end of string'");
        assert!(
            round("a_/b=c")
                .starts_with("error: unable to parse requirement: <nil>: Invalid value: \"a_/b\": prefix part")
        );
    }

    #[test]
    fn absence_meets_negative_requirements() {
        let labels = json!({"a": "1"});
        let labels = labels.as_object();
        for (text, want) in
            [("b!=1", true), ("b notin (1)", true), ("!b", true), ("a>0", true), ("a<1", false), ("b in (1)", false)]
        {
            assert_eq!(Selector::parse(text).unwrap().matches(labels), want, "{text}");
        }
    }

    #[test]
    fn a_missing_label_selector_selects_nothing_and_an_empty_one_everything() {
        assert!(!Selector::from_label_selector(None).unwrap().matches(None));
        assert!(Selector::from_label_selector(Some(&json!({}))).unwrap().matches(None));
        let s = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["x", "y"]}]});
        assert_eq!(format_label_selector(Some(&s)), "a=b,c in (x,y)");
    }
}
