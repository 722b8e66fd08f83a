//! Errors about fields, in the form and words of upstream's `field.Error`.

use std::collections::HashSet;
use std::fmt;

use serde_json::Value;

/// The class of a field error; [`Kind::reason`] is its wire name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that had to be given.
    Required,
    /// A malformed value.
    Invalid,
    /// A value outside a fixed set.
    NotSupported,
    /// A well-formed value that is not allowed here.
    Forbidden,
    /// A value that occurs twice.
    Duplicate,
    /// A value that names something missing.
    NotFound,
    /// A text that is too long.
    TooLong,
    /// A list with too many items.
    TooMany,
    /// A list with too few items.
    TooFew,
    /// A value of the wrong JSON type.
    TypeInvalid,
    /// Our own failure.
    Internal,
}

impl Kind {
    /// The `reason` of the cause in a `Status`.
    pub fn reason(self) -> &'static str {
        match self {
            Kind::Required => "FieldValueRequired",
            Kind::Invalid => "FieldValueInvalid",
            Kind::NotSupported => "FieldValueNotSupported",
            Kind::Forbidden => "FieldValueForbidden",
            Kind::Duplicate => "FieldValueDuplicate",
            Kind::NotFound => "FieldValueNotFound",
            Kind::TooLong => "FieldValueTooLong",
            Kind::TooMany => "FieldValueTooMany",
            Kind::TooFew => "FieldValueTooFew",
            Kind::TypeInvalid => "FieldValueTypeInvalid",
            Kind::Internal => "InternalError",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Kind::Required => "Required value",
            Kind::Invalid | Kind::TypeInvalid => "Invalid value",
            Kind::NotSupported => "Unsupported value",
            Kind::Forbidden => "Forbidden",
            Kind::Duplicate => "Duplicate value",
            Kind::NotFound => "Not found",
            Kind::TooLong => "Too long",
            Kind::TooMany => "Too many",
            Kind::TooFew => "Too few",
            Kind::Internal => "Internal error",
        }
    }
}

/// One thing wrong with one field. `Display` is `field: body`, exactly as upstream prints it.
#[derive(Clone, Debug, PartialEq)]
pub struct FieldError {
    /// The class.
    pub kind: Kind,
    /// The path, like `spec.containers[0].name`.
    pub field: String,
    /// The value that was given; None when the text does not show it.
    pub bad_value: Option<Value>,
    /// Why it is wrong.
    pub detail: String,
}

impl FieldError {
    fn new(kind: Kind, field: impl Into<String>, bad_value: Option<Value>, detail: impl Into<String>) -> FieldError {
        FieldError { kind, field: field.into(), bad_value, detail: detail.into() }
    }

    /// `field: Required value: detail`
    pub fn required(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
        FieldError::new(Kind::Required, field, None, detail)
    }

    /// `field: Invalid value: "bad": detail`
    pub fn invalid(field: impl Into<String>, bad: impl Into<Value>, detail: impl Into<String>) -> FieldError {
        FieldError::new(Kind::Invalid, field, Some(bad.into()), detail)
    }

    /// `field: Unsupported value: "bad": supported values: "A", "B"`
    pub fn not_supported(field: impl Into<String>, bad: impl Into<Value>, supported: &[&str]) -> FieldError {
        let quoted = supported.iter().map(|s| format!("{s:?}")).collect::<Vec<_>>().join(", ");
        let detail = if quoted.is_empty() { quoted } else { format!("supported values: {quoted}") };
        FieldError::new(Kind::NotSupported, field, Some(bad.into()), detail)
    }

    /// `field: Forbidden: detail`
    pub fn forbidden(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
        FieldError::new(Kind::Forbidden, field, None, detail)
    }

    /// `field: Duplicate value: "bad"`
    pub fn duplicate(field: impl Into<String>, bad: impl Into<Value>) -> FieldError {
        FieldError::new(Kind::Duplicate, field, Some(bad.into()), "")
    }

    /// `field: Not found: "bad"`
    pub fn not_found(field: impl Into<String>, bad: impl Into<Value>) -> FieldError {
        FieldError::new(Kind::NotFound, field, Some(bad.into()), "")
    }

    /// `field: Too long: may not be more than N bytes`
    pub fn too_long(field: impl Into<String>, bytes_max: usize) -> FieldError {
        let unit = if bytes_max == 1 { "byte" } else { "bytes" };
        FieldError::new(Kind::TooLong, field, None, format!("may not be more than {bytes_max} {unit}"))
    }

    /// `field: Too many: actual: must have at most N items`
    pub fn too_many(field: impl Into<String>, actual: usize, max: usize) -> FieldError {
        let unit = if max == 1 { "item" } else { "items" };
        FieldError::new(Kind::TooMany, field, Some(Value::from(actual)), format!("must have at most {max} {unit}"))
    }

    /// `field: Internal error: detail`
    pub fn internal(field: impl Into<String>, detail: impl Into<String>) -> FieldError {
        FieldError::new(Kind::Internal, field, None, detail)
    }

    /// The text without the field's name: the `message` of the cause in a `Status`.
    pub fn body(&self) -> String {
        let mut body = self.kind.words().to_owned();
        if let Some(bad) = &self.bad_value {
            body.push_str(": ");
            match bad {
                Value::String(s) => body.push_str(&format!("{s:?}")),
                other => in_go_order(other, &mut body),
            }
        }
        if !self.detail.is_empty() {
            body.push_str(": ");
            body.push_str(&self.detail);
        }
        body
    }
}

/// Fields that upstream's types declare in another order than the alphabet's.
const DECLARED: [&str; 20] = [
    "Rules",
    "Partition",
    "SucceededIndexes",
    "matchLabels",
    "matchExpressions",
    "Type",
    "RollingUpdate",
    "MaxUnavailable",
    "MaxSurge",
    "MatchExpressions",
    "ScopeName",
    "Name",
    "Protocol",
    "AppProtocol",
    "Port",
    "TargetPort",
    "NodePort",
    "Key",
    "Operator",
    "Values",
];

/// JSON with the fields of an object in the order in which upstream's types have them.
fn in_go_order(value: &Value, out: &mut String) {
    let rank = |key: &str| DECLARED.iter().position(|name| *name == key).unwrap_or(DECLARED.len());
    match value {
        Value::Object(map) => {
            let mut fields: Vec<_> = map.iter().collect();
            fields.sort_by_key(|(key, _)| rank(key));
            out.push('{');
            for (idx, (key, child)) in fields.into_iter().enumerate() {
                out.push_str(if idx > 0 { "," } else { "" });
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                in_go_order(child, out);
            }
            out.push('}');
        }
        Value::Array(list) => {
            out.push('[');
            for (idx, child) in list.iter().enumerate() {
                out.push_str(if idx > 0 { "," } else { "" });
                in_go_order(child, out);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

impl std::error::Error for FieldError {}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

/// All errors in the text of an `Invalid` status: one alone, several in brackets, repeats once.
pub fn aggregate(errors: &[FieldError]) -> String {
    let all: Vec<String> = errors.iter().map(FieldError::to_string).collect();
    let mut seen = HashSet::new();
    let texts: Vec<&str> = all.iter().map(String::as_str).filter(|text| seen.insert(*text)).collect();
    match texts.as_slice() {
        [one] => (*one).to_owned(),
        many => format!("[{}]", many.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_upstreams() {
        let supported = FieldError::not_supported("spec.type", "X", &["A", "B"]);
        assert_eq!(supported.to_string(), r#"spec.type: Unsupported value: "X": supported values: "A", "B""#);
        assert_eq!(FieldError::required("a", "").to_string(), "a: Required value");
        assert_eq!(FieldError::invalid("a", 5, "no").to_string(), "a: Invalid value: 5: no");
        assert_eq!(FieldError::too_many("a", 3, 1).to_string(), "a: Too many: 3: must have at most 1 item");
        let selector = serde_json::json!({"matchExpressions": [{"values": ["b"], "key": "a"}],
            "matchLabels": {"z": "1", "a": "2"}});
        let shown = "s: Invalid value: {\"matchLabels\":{\"a\":\"2\",\"z\":\"1\"},\
                     \"matchExpressions\":[{\"key\":\"a\",\"values\":[\"b\"]}]}: no";
        assert_eq!(FieldError::invalid("s", selector, "no").to_string(), shown);
        let two = [FieldError::required("a", ""), FieldError::required("b", ""), FieldError::required("a", "")];
        assert_eq!(aggregate(&two), "[a: Required value, b: Required value]");
    }
}
