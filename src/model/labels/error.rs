//! Why a selector cannot be read, in upstream's words.

/// Errors of a selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// The text goes on with something else than the syntax allows.
    #[error("found '{found}', expected: {wanted}")]
    Unexpected {
        /// The text that stands there, empty at the end.
        found: String,
        /// The texts that might stand there.
        wanted: &'static str,
    },
    /// Values in brackets begin with something else; upstream's text has no comma here.
    #[error("found '{0}' expected: '('")]
    NoBracket(String),
    /// A key, a value or the number of values.
    #[error("{field}: Invalid value: {value}: {why}")]
    Invalid {
        /// Path of the field, `<nil>` for a key in a text.
        field: String,
        /// The value as Go prints it.
        value: String,
        /// The rule that a value breaks.
        why: String,
    },
    /// A `LabelSelector` with an operator that there is not.
    #[error("{0:?} is not a valid label selector operator")]
    Operator(String),
    /// JSON that has not the shape of a `LabelSelector`.
    #[error("{0}")]
    Shape(String),
    /// One of the requirements of a text.
    #[error("unable to parse requirement: {0}")]
    Requirement(Box<SelectorError>),
}
