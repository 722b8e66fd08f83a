//! A volume that cannot be mounted.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The phases of a volume, as upstream names them in events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    VerifyAttached,
    WaitForAttach,
    NewMounter,
    MountDevice,
    SetUp,
    NodeExpand,
    TearDown,
    /// The volume is a device, also in those that follow.
    SetUpDevice,
    MapPodDevice,
    UnmapPodDevice,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::VerifyAttached => "VerifyControllerAttachedVolume",
            Phase::WaitForAttach => "MountVolume.WaitForAttach",
            Phase::NewMounter => "MountVolume.NewMounter initialization",
            Phase::MountDevice => "MountVolume.MountDevice",
            Phase::SetUp => "MountVolume.SetUp",
            Phase::NodeExpand => "MountVolume.NodeExpandVolume",
            Phase::TearDown => "UnmountVolume.TearDown",
            Phase::SetUpDevice => "MapVolume.SetUpDevice",
            Phase::MapPodDevice => "MapVolume.MapPodDevice",
            Phase::UnmapPodDevice => "UnmapVolume.UnmapPodDevice",
        })
    }
}

/// A volume that cannot be mounted, with upstream's text for the event `FailedMount`: upstream has a blank before the
/// colon that a chain puts between an error and its cause.
#[derive(Debug, thiserror::Error)]
#[error("{phase} failed for volume \"{volume}\" ")]
pub(crate) struct VolumeError {
    phase: Phase,
    volume: String,
    /// Of the plugin that has the volume, or of its driver.
    source: Box<dyn Error + Send + Sync>,
    /// Nothing is wrong: the volume is on its way.
    pub(crate) is_waiting: bool,
}

/// The controller has yet to attach the volume.
#[derive(Debug, thiserror::Error)]
#[error("volume is not attached yet")]
struct NotAttached;

/// A volume of which nothing says what it is made of.
#[derive(Debug, thiserror::Error)]
#[error("no volume plugin matched")]
pub(super) struct NoPlugin;

/// The folder of a volume cannot be made ready.
#[derive(Debug, thiserror::Error)]
#[error("{path}", path = path.display())]
pub(super) struct FolderError {
    path: PathBuf,
    source: io::Error,
}

impl FolderError {
    /// For `map_err`: adds where.
    pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> FolderError {
        move |source| FolderError { path: path.to_owned(), source }
    }
}

impl VolumeError {
    pub(crate) fn new(phase: Phase, volume: &str, source: impl Into<Box<dyn Error + Send + Sync>>) -> VolumeError {
        VolumeError { phase, volume: volume.to_owned(), source: source.into(), is_waiting: false }
    }

    /// For `map_err`: the volume could not be set up.
    pub(super) fn set_up<E: Into<Box<dyn Error + Send + Sync>>>(volume: &str) -> impl Fn(E) -> VolumeError {
        move |source| VolumeError::new(Phase::SetUp, volume, source)
    }

    /// Somebody else must do something first.
    pub(crate) fn waiting(volume: &str) -> VolumeError {
        VolumeError { is_waiting: true, ..VolumeError::new(Phase::VerifyAttached, volume, NotAttached) }
    }

    /// The reason of its event.
    pub(crate) fn reason(&self) -> &'static str {
        match self.phase {
            Phase::SetUpDevice | Phase::MapPodDevice => "FailedMapVolume",
            _ => "FailedMount",
        }
    }
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;
    use base::files::FileError;

    use super::*;

    #[test]
    fn the_event_of_a_volume_holds_all_causes_and_upstreams_blank_before_the_colon() {
        let cause = FileError::at("cannot write", Path::new("/v"))(io::ErrorKind::NotFound.into());
        let err = VolumeError::new(Phase::SetUp, "v", cause);
        assert_eq!(
            Chain(&err).to_string(),
            "MountVolume.SetUp failed for volume \"v\" : cannot write /v: entity not found"
        );
        assert!(!err.is_waiting);
        let folder = FolderError::at(Path::new("/v"))(io::ErrorKind::NotFound.into());
        let err = VolumeError::set_up("v")(folder);
        assert_eq!(Chain(&err).to_string(), "MountVolume.SetUp failed for volume \"v\" : /v: entity not found");
    }

    #[test]
    fn a_volume_that_is_on_its_way_is_waited_for() {
        let err = VolumeError::waiting("v");
        assert!(err.is_waiting);
        let text = "VerifyControllerAttachedVolume failed for volume \"v\" : volume is not attached yet";
        assert_eq!(Chain(&err).to_string(), text);
    }

    #[test]
    fn the_reason_of_the_event_tells_devices_from_mounts() {
        let reason = |phase| VolumeError::new(phase, "v", NotAttached).reason();
        assert_eq!(reason(Phase::SetUpDevice), "FailedMapVolume");
        assert_eq!(reason(Phase::SetUp), "FailedMount");
    }
}
