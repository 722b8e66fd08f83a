//! All that is known when a container is made.

use std::path::Path;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};

/// All that is known when a container is made.
pub(crate) struct Making<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    pub(crate) attempt: u32,
    pub(crate) image: &'a cri::Image,
    pub(crate) envs: Vec<(String, String)>,
    pub(crate) mounts: Vec<cri::Mount>,
    pub(crate) termination_file: &'a Path,
    /// Container whose process namespace is joined, for ephemeral containers.
    pub(crate) target: Option<String>,
    pub(crate) memory_capacity: i64,
    pub(crate) restrict_oom_score_adj: bool,
    pub(crate) unified: bool,
    /// The pod's own user namespace.
    pub(crate) userns: Option<cri::UserNamespace>,
    /// Block devices of `volumeDevices`.
    pub(crate) devices: Vec<cri::Device>,
    pub(crate) seccomp_root: &'a Path,
}
