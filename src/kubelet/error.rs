//! Why the kubelet cannot start, or cannot answer a question about a pod.

use std::path::PathBuf;

use base::files::FileError;

use crate::runtime::cri::CriError;
use crate::runtime::driver::CgroupDriver;

/// The room's error.
#[allow(clippy::error_impl_error, reason = "one Error per room, always written kubelet::error::Error by others")]
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A program that runs containers is not installed.
    #[error(
        "{program} was not found on PATH; install the package {program} (Debian: apt-get install {program}) or name a \
         running one with --container-runtime-endpoint"
    )]
    ProgramMissing {
        /// containerd or runc, which is the name of its package, too.
        program: &'static str,
    },
    /// containerd answers `--version` with something else than a version.
    #[error("cannot learn the version of {path}: {answer}", path = path.display())]
    Version {
        /// The program.
        path: PathBuf,
        /// Its answer.
        answer: String,
    },
    /// containerd was started and does not answer.
    #[error(
        "containerd does not answer on {socket} after {secs} s; see {log}",
        socket = socket.display(),
        log = log.display()
    )]
    NotAnswering {
        /// Its socket.
        socket: PathBuf,
        /// How long we waited.
        secs: u64,
        /// Its log file.
        log: PathBuf,
    },
    /// The folder of images is on a disk that overlayfs cannot use.
    #[error(
        "--snapshotter=overlayfs: the file system of {root} cannot be a layer of overlayfs; take another data folder \
         or --snapshotter=native",
        root = root.display()
    )]
    NoOverlay {
        /// The folder.
        root: PathBuf,
    },
    /// The default runtime is not installed.
    #[error(
        "--default-runtime: this machine has no runtime {name}; found on PATH: runc {found}",
        found = found.join(" ")
    )]
    NoRuntime {
        /// The one asked for.
        name: String,
        /// Those beside runc.
        found: Vec<String>,
    },
    /// The kernel is not set up as upstream's kubelet wants it.
    #[error("--protect-kernel-defaults: {flags}; set them in /etc/sysctl.d and run sysctl --system")]
    KernelFlags {
        /// Each in upstream's words.
        flags: String,
    },
    /// The machine swaps, and must not.
    #[error("failSwapOn (fail-swap-on): this machine has swap on; swapoff -a, or set it to false")]
    SwapOn,
    /// The control groups are of version 1, and must not be.
    #[error("failCgroupV1 (fail-cgroupv1): this machine has control groups of version 1; set it to false")]
    CgroupV1,
    /// Swap cannot be shared here.
    #[error("memorySwap.swapBehavior: LimitedSwap needs control groups of version 2; set NoSwap")]
    NoSharedSwap,
    /// Another driver of control groups is in use.
    #[error("cgroupDriver (cgroup-driver): this machine's is {is}; leave the setting out")]
    CgroupDriver {
        /// The one in use.
        is: CgroupDriver,
    },
    /// The kernel does not offer a controller that pods need.
    #[error(
        "cgroup controller {controller} is not available; enable it on the kernel command line (Raspberry Pi: \
         cgroup_memory=1 cgroup_enable=memory)"
    )]
    CgroupMissing {
        /// cpu, memory or pids.
        controller: &'static str,
    },
    /// A file or folder.
    #[error(transparent)]
    File(#[from] FileError),
    /// A program could not be started.
    #[error("cannot start {program}", program = program.display())]
    Spawn {
        /// Which one.
        program: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// containerd said no.
    #[error(transparent)]
    Cri(#[from] CriError),
    /// No such pod on this node.
    #[error("pod {pod:?} not found in namespace {ns:?}")]
    PodNotFound {
        /// Namespace.
        ns: String,
        /// Name.
        pod: String,
    },
    /// No such container in the pod, or it never ran.
    #[error("container {container:?} in pod {pod:?} is {what}")]
    ContainerNotFound {
        /// Pod name.
        pod: String,
        /// Container name.
        container: String,
        /// `not available`, `waiting to start: …`
        what: String,
    },
    /// Reading a log.
    #[error("cannot read log {path}", path = path.display())]
    Log {
        /// The log file.
        path: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
}
