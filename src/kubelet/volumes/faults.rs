//! Faults of the volumes that lie on this machine, on a share, behind a claim or in an image.

use std::io;
use std::path::PathBuf;

use base::task::Fatal;

use crate::api_error::ApiError;
use crate::runtime::cri::CriError;

/// A path of the host that is not what its volume says; texts as upstream's `validateHostPathType`.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HostPathError {
    #[error("hostPath {path} must not contain '..'")]
    Parent { path: String },
    #[error("{path}")]
    Make { path: String, source: io::Error },
    #[error("hostPath type check failed: {path} is not {wanted}")]
    OtherType { path: String, wanted: &'static str },
    #[error("{name} is an invalid volume type")]
    UnknownType { name: String },
    /// The host does not answer.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A program of the machine that did not do its work.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    /// It did not start, or did not end in time.
    #[error(transparent)]
    NotRun(#[from] io::Error),
    #[error("exit status {status}: {output}")]
    Failed { status: i32, output: String },
}

/// A `mount` that failed. The text has upstream's shape, with the cause in its first line.
#[derive(Debug, thiserror::Error)]
#[error("mount failed: {why}\nMounting command: mount\nMounting arguments: {arguments}\nOutput: {output}")]
pub(crate) struct MountError {
    pub(crate) why: String,
    pub(crate) arguments: String,
    pub(crate) output: String,
}

/// A share that cannot be mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NfsError {
    #[error("invalid NFS share {server:?}:{path:?}: want a host name or an address, and an absolute path")]
    Share { server: String, path: String },
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] Fatal),
}

/// A block device of this machine that cannot be mounted, or made larger.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalError {
    #[error("local volume {path:?}: want an absolute path")]
    Relative { path: String },
    #[error("local: an operation with the device of volume {volume} is still under way")]
    Busy { volume: String },
    #[error("local: failed to mount device {device} at {place}", place = place.display())]
    Mount { device: String, place: PathBuf, source: Box<DeviceError> },
    #[error("resize of format {fs_type} is not supported for device {device} mounted at {place}")]
    NoGrower { fs_type: String, device: String, place: String },
    #[error("resize of device {device} failed")]
    NotRun { device: String, source: io::Error },
    #[error("resize of device {device} failed: {program}")]
    Resize { device: String, program: &'static str, source: ProgramError },
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Bind(#[from] nix::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] Fatal),
}

/// A block device whose filesystem cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeviceError {
    #[error("invalid fsType {fs_type:?}: want letters and digits")]
    FsType { fs_type: String },
    #[error("cannot mount unformatted disk {device} as we are manipulating it in read-only mode")]
    Unformatted { device: String },
    #[error("failed to get disk format of disk {device}")]
    Look { device: String, source: LookError },
    #[error("format of disk {device:?} failed: type:({fs_type:?}) {why}")]
    Make { device: String, fs_type: String, why: ProgramError },
    #[error("'fsck' found errors on device {device} but could not correct them: {output}")]
    Check { device: String, output: String },
    #[error(transparent)]
    Mount(#[from] MountError),
}

/// A device of which nobody knows what is on it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookError {
    #[error(transparent)]
    NotRun(#[from] io::Error),
    #[error("blkid")]
    Blkid(#[source] ProgramError),
    #[error("it has a table of partitions ({table}) and no filesystem")]
    Partitioned { table: String },
}

/// A claim that leads to no volume, or to one that the pod may not use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("persistentvolumeclaim \"{name}\" not found")]
    NoClaim { name: String },
    #[error("PVC {ns}/{name} is being deleted")]
    Leaving { ns: String, name: String },
    #[error("PVC {ns}/{name} is not bound")]
    Unbound { ns: String, name: String },
    /// Text as upstream's `VolumeIsForPod`.
    #[error("PVC {ns}/{name} was not created for pod {pod_ns}/{pod} (pod is not owner)")]
    NotOwned { ns: String, name: String, pod_ns: String, pod: String },
    #[error("persistentvolume \"{name}\" not found")]
    NoVolume { name: String },
    /// Text as upstream's `getPVSpec`, also the next.
    #[error(
        "found PV object \"{name}\" but it has a nil pvc.Spec.ClaimRef indicating it is not yet bound to the claim"
    )]
    NoReference { name: String },
    #[error(
        "found PV object \"{name}\" but its pvc.Spec.ClaimRef.UID \"{own}\" does not point to claim.UID \"{claim}\""
    )]
    OtherClaim { name: String, own: String, claim: String },
    /// Text as upstream's `createVolumeSpec`.
    #[error("volume {volume} has volumeMode {mode}, but is specified in {field}")]
    OtherMode { volume: String, mode: String, field: &'static str },
    #[error("persistentvolume \"{name}\": no volume plugin matched")]
    NoPlugin { name: String },
    /// Whether a device is there could not be learnt.
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    HostPath(#[from] HostPathError),
    #[error(transparent)]
    Local(#[from] LocalError),
    #[error(transparent)]
    Nfs(#[from] NfsError),
}

/// An image whose files cannot be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageVolumeError {
    #[error("the runtime does not tell where the files of image \"{image}\" are")]
    NoSnapshot { image: String },
    #[error("the runtime gives no view of the image: {message}")]
    NoView { message: String },
    #[error("cannot mount an image at {target}", target = target.display())]
    Mount { target: PathBuf, source: nix::Error },
    #[error(transparent)]
    Cri(#[from] CriError),
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] Fatal),
}

#[cfg(test)]
mod tests {
    use base::chain::Chain;

    use super::*;

    #[test]
    fn each_fault_of_a_device_is_told_in_upstreams_words() {
        let (device, path) = (|| "/dev/sdb".to_owned(), || PathBuf::from("/m"));
        let ended = |status: i32| ProgramError::Failed { status, output: "no".to_owned() };
        let mount = |source| LocalError::Mount { device: device(), place: path(), source: Box::new(source) };
        let look = |source| LocalError::from(DeviceError::Look { device: device(), source });
        let table = "it has a table of partitions (gpt) and no filesystem";
        for (err, text) in [
            (LocalError::Relative { path: "sdb".to_owned() }, "local volume \"sdb\": want an absolute path"),
            (
                mount(DeviceError::FsType { fs_type: "../sh".to_owned() }),
                "local: failed to mount device /dev/sdb at /m: invalid fsType \"../sh\": want letters and digits",
            ),
            (
                mount(DeviceError::Make { device: device(), fs_type: "ext4".to_owned(), why: ended(1) }),
                "local: failed to mount device /dev/sdb at /m: \
                 format of disk \"/dev/sdb\" failed: type:(\"ext4\") exit status 1: no",
            ),
            (look(LookError::Blkid(ended(4))), "failed to get disk format of disk /dev/sdb: blkid: exit status 4: no"),
            (
                look(LookError::Partitioned { table: "gpt".to_owned() }),
                &format!("failed to get disk format of disk /dev/sdb: {table}"),
            ),
            (
                LocalError::Resize { device: device(), program: "resize2fs", source: ended(1) },
                "resize of device /dev/sdb failed: resize2fs: exit status 1: no",
            ),
            (
                LocalError::NotRun { device: device(), source: io::Error::other("late") },
                "resize of device /dev/sdb failed: late",
            ),
        ] {
            assert_eq!(Chain(&err).to_string(), text);
        }
    }
}
