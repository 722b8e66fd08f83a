//! Why the pods that a budget counts on cannot be counted. The texts are upstream's: the budget's condition and its
//! event show them, causes after a colon.

/// The number of expected pods is not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum CountError {
    /// The API refused or was not reached.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// A pod's controller is gone, or of a kind that the API does not have.
    #[error("found no controllers for pod {pod:?}")]
    NoController { pod: String },
    /// A pod's controller is of a kind without number of replicas.
    #[error("{resource} does not implement the scale subresource")]
    NoScale { resource: String },
    /// The budget's bound is neither a number nor a percentage.
    #[error(transparent)]
    Bound(#[from] BoundError),
}

/// A bound is neither a number nor a percentage.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid value for IntOrString: {text}")]
pub(super) struct BoundError {
    pub(super) text: String,
}
