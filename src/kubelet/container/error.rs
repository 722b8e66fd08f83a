//! A container that cannot be configured.

/// A container that cannot be configured: upstream's reason and text.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ConfigError {
    /// e.g. `CreateContainerConfigError`.
    pub(crate) reason: &'static str,
    /// The fault.
    pub(crate) message: String,
}

impl ConfigError {
    pub(crate) fn new(message: impl Into<String>) -> ConfigError {
        ConfigError { reason: "CreateContainerConfigError", message: message.into() }
    }
}
