//! A request to the API server that failed, as a cause.

/// A request to the API server that failed, in the words of its client. They hold their causes already, so this error
/// has no source: a chain would print the causes twice.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct ApiError(pub(crate) kube::Error);
