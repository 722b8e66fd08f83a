//! Why a configuration of plugins cannot be used.

use std::io;
use std::path::PathBuf;

use registry::strict::UnknownField;
use schema::read;
use schema::validate::error::{FieldError, aggregate};
use serde_json::Value;

use super::names::UnknownPlugin;

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    /// Something is wrong at this place: a file, a field in it, or a file that the field names.
    #[error("{place}")]
    At { place: String, source: Box<ConfigurationError> },
    /// It is no YAML. The parser's text has its causes in it, so they are no source.
    #[error("{0}")]
    Syntax(Box<serde_saphyr::Error>),
    /// It is something else.
    #[error("no kind {kind:?} is registered for version {version:?}")]
    Kind { kind: String, version: String },
    /// It has a field that nobody reads.
    #[error(transparent)]
    UnknownField(#[from] UnknownField),
    /// A field of it is wrong.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// Several fields of it are wrong.
    #[error("invalid config: {}", aggregate(.0))]
    Fields(Vec<FieldError>),
    /// It configures a plugin that is none.
    #[error(transparent)]
    UnknownPlugin(#[from] UnknownPlugin),
    /// It configures a plugin that has no configuration here.
    #[error("kedge's {plugin} has nothing to configure")]
    NothingToConfigure { plugin: String },
    /// A number outside its bounds.
    #[error("{number} must be between {min} and {max}")]
    OutOfBounds { number: i64, min: u64, max: u64 },
    /// A selector of PodNodeSelector that is no text.
    #[error("want a text such as key=value")]
    NoSelector,
    /// A selector of PodNodeSelector that cannot be read.
    #[error(transparent)]
    Selector(#[from] InvalidSelector),
}

impl From<serde_saphyr::Error> for ConfigurationError {
    fn from(err: serde_saphyr::Error) -> ConfigurationError {
        ConfigurationError::Syntax(Box::new(err))
    }
}

impl ConfigurationError {
    /// The same, with the place where it was found.
    pub(crate) fn at(self, place: impl Into<String>) -> ConfigurationError {
        ConfigurationError::At { place: place.into(), source: Box::new(self) }
    }

    /// A configuration at `place` is of another kind than the plugin's.
    pub(crate) fn kind(value: &Value, place: &str) -> ConfigurationError {
        let text = |field: &str| read::text(value, field).to_owned();
        ConfigurationError::Kind { kind: text("kind"), version: text("apiVersion") }.at(place)
    }
}

/// A selector that is no list of `key=value`; the part that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid selector: [{0}]")]
pub struct InvalidSelector(pub String);
