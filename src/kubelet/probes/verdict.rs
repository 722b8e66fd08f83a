//! The outcome of one try of a probe.

/// The verdict of one try.
pub(super) enum Verdict {
    Success,
    /// Good, but a person should look: the text for the event.
    Warning(String),
    /// With the text for the event.
    Failure(String),
    /// The probe itself could not be done; counts as neither, as upstream.
    Error(String),
}
