//! Why a pod fails or a container waits, as a status says it.

/// Reason and message of a status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    /// One word for programs, e.g. `Evicted`.
    pub(crate) reason: String,
    /// A text for people.
    pub(crate) message: String,
}

impl Cause {
    pub(crate) fn new(reason: &str, message: impl Into<String>) -> Cause {
        Cause { reason: reason.to_owned(), message: message.into() }
    }
}
