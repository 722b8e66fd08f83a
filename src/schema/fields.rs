//! Field selectors: `metadata.name=web,status.phase!=Running`.

use std::fmt;

use serde_json::Value;

/// One condition on one field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Dotted path, as the client wrote it.
    pub field: String,
    /// The text that the field's is compared with.
    pub value: String,
    /// `!=` rather than `=`.
    pub negated: bool,
}

/// All terms must hold; no term selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

/// Why a field selector could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSelectorError {
    /// A part without an operator.
    #[error("invalid selector: '{selector}'; can't understand '{part}'")]
    NoOperator {
        /// The whole text.
        selector: String,
        /// The part that could not be read.
        part: String,
    },
    /// A backslash before something else than `\`, `,` or `=`.
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// A bare `,` or `=` in a value.
    #[error("invalid field selector: unescaped character in value: {0}")]
    Unescaped(char),
}

impl FieldSelector {
    /// Reads `a=b,c!=d`; `\` escapes `,`, `=` and itself in values.
    pub fn parse(text: &str) -> Result<FieldSelector, FieldSelectorError> {
        let mut terms = Vec::new();
        for part in split_terms(text).into_iter().filter(|p| !p.is_empty()) {
            let Some((field, negated, raw)) = split_term(part) else {
                return Err(FieldSelectorError::NoOperator { selector: text.to_owned(), part: part.to_owned() });
            };
            terms.push(Term { field: field.to_owned(), value: unescape(raw)?, negated });
        }
        Ok(FieldSelector { terms })
    }

    /// The selector that demands one value of one field.
    pub fn one(field: &str, value: &str) -> FieldSelector {
        FieldSelector { terms: vec![Term { field: field.to_owned(), value: value.to_owned(), negated: false }] }
    }

    /// The same conditions on fields of other names.
    pub fn renamed(mut self, name: impl Fn(&str) -> String) -> FieldSelector {
        self.terms.iter_mut().for_each(|term| term.field = name(&term.field));
        self
    }

    /// The terms in the order written.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Selects everything.
    pub fn is_empty(&self) -> bool {
        self.terms.is_empty()
    }

    /// The one value that `field` must have, if the selector says so: lets a list become a lookup.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.terms.iter().find(|t| t.field == field && !t.negated).map(|t| t.value.as_str())
    }

    /// Whether all terms hold, given the text of each field (missing fields are empty).
    pub fn matches(&self, text_of: &dyn Fn(&str) -> String) -> bool {
        self.terms.iter().all(|t| (text_of(&t.field) == t.value) != t.negated)
    }

    /// Whether all terms hold for the object, each field read by its dotted path.
    pub fn matches_object(&self, object: &Value) -> bool {
        self.matches(&|field| field_text(object, field))
    }
}

/// The text of a scalar at a dotted path; empty when missing. False booleans that were never written read as `false`.
pub fn field_text(object: &Value, path: &str) -> String {
    let mut at = object;
    for name in path.split('.') {
        match at.get(name) {
            Some(next) => at = next,
            None if path == "spec.unschedulable" || path == "spec.hostNetwork" => return "false".to_owned(),
            None => return String::new(),
        }
    }
    match at {
        Value::String(s) => s.clone(),
        Value::Number(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
        _ => String::new(),
    }
}

fn split_terms(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            ',' => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

fn split_term(part: &str) -> Option<(&str, bool, &str)> {
    for (at, _) in part.char_indices() {
        let rest = &part[at..];
        for (operator, negated) in [("!=", true), ("==", false), ("=", false)] {
            if let Some(value) = rest.strip_prefix(operator) {
                return Some((&part[..at], negated, value));
            }
        }
    }
    None
}

fn unescape(raw: &str) -> Result<String, FieldSelectorError> {
    let mut out = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next @ ('\\' | ',' | '=')) => out.push(next),
                Some(next) => return Err(FieldSelectorError::Escape(format!("\\{next}"))),
                None => return Err(FieldSelectorError::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(FieldSelectorError::Unescaped(c)),
            _ => out.push(c),
        }
    }
    Ok(out)
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (idx, term) in self.terms.iter().enumerate() {
            let value = term.value.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
            let operator = if term.negated { "!=" } else { "=" };
            write!(f, "{}{}{operator}{value}", if idx > 0 { "," } else { "" }, term.field)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_operators_and_escapes() {
        let s = FieldSelector::parse("a.b=x,c!=y,d==z\\,\\=\\\\,").unwrap();
        assert_eq!(s.to_string(), "a.b=x,c!=y,d=z\\,\\=\\\\");
        assert_eq!(s.exact("a.b"), Some("x"));
    }

    #[test]
    fn refuses_what_it_cannot_read() {
        assert_eq!(
            FieldSelector::parse("abc").unwrap_err().to_string(),
            "invalid selector: 'abc'; can't understand 'abc'"
        );
        assert!(FieldSelector::parse("a=b\\x").is_err());
        assert!(FieldSelector::parse("a=b=c").is_err());
    }

    #[test]
    fn missing_fields_are_empty_text() {
        let pod = serde_json::json!({"metadata": {"name": "web"}, "status": {"phase": "Running"}});
        assert!(FieldSelector::parse("status.phase=Running,spec.nodeName=").unwrap().matches_object(&pod));
        assert!(!FieldSelector::parse("status.phase!=Running").unwrap().matches_object(&pod));
    }
}
