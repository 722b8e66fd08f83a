//! A volume that cannot be mounted.

/// A volume that cannot be mounted, with upstream's text for the event `FailedMount`.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{phase} failed for volume \"{volume}\" : {why}")]
pub(crate) struct VolumeError {
    pub(crate) phase: &'static str,
    pub(crate) volume: String,
    pub(crate) why: String,
    /// Nothing is wrong: the volume is on its way.
    pub(crate) is_waiting: bool,
}

impl VolumeError {
    pub(crate) fn new(phase: &'static str, volume: &str, why: String) -> VolumeError {
        VolumeError { phase, volume: volume.to_owned(), why, is_waiting: false }
    }

    /// Somebody else must do something first.
    pub(crate) fn waiting(volume: &str) -> VolumeError {
        VolumeError {
            is_waiting: true,
            ..VolumeError::new("VerifyControllerAttachedVolume", volume, "volume is not attached yet".to_owned())
        }
    }

    /// The reason of its event.
    pub(crate) fn reason(&self) -> &'static str {
        if self.phase.starts_with("MapVolume") { "FailedMapVolume" } else { "FailedMount" }
    }
}
