//! All that is known when a container is made.

use std::path::Path;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::cgroups::Cgroups;
use crate::machine::Machine;
use crate::runtime::Runtime;

/// The machine and its runtime, as far as a container's limits depend on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFacts {
    /// Bytes.
    pub(crate) memory: i64,
    /// Without `CAP_SYS_RESOURCE` a lower `oom_score_adj` than our own cannot be set.
    pub(crate) restrict_oom_score_adj: bool,
    /// Control groups are of version 2.
    pub(crate) unified: bool,
}

impl HostFacts {
    pub(crate) fn of(machine: &Machine, runtime: &Runtime, cgroups: &Cgroups) -> HostFacts {
        HostFacts {
            memory: machine.memory,
            restrict_oom_score_adj: runtime.restrict_oom_score_adj,
            unified: cgroups.is_unified(),
        }
    }
}

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
    pub(crate) host: HostFacts,
    /// The pod's own user namespace.
    pub(crate) userns: Option<cri::UserNamespace>,
    /// Block devices of `volumeDevices`.
    pub(crate) devices: Vec<cri::Device>,
    pub(crate) seccomp_root: &'a Path,
}

#[cfg(test)]
impl<'a> Making<'a> {
    /// The first container of a pod, on a machine without peculiarities.
    pub(super) fn first_of(pod: &'a Pod, image: &'a cri::Image) -> Making<'a> {
        Making {
            pod,
            container: &pod.spec.as_ref().unwrap().containers[0],
            attempt: 0,
            image,
            envs: Vec::new(),
            mounts: Vec::new(),
            termination_file: Path::new("/t"),
            target: None,
            host: HostFacts { memory: 1 << 30, restrict_oom_score_adj: false, unified: true },
            userns: None,
            devices: Vec::new(),
            seccomp_root: Path::new("/seccomp"),
        }
    }
}
