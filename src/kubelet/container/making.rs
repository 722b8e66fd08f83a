//! All that is known when a container is made.

use std::path::Path;

use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::cgroups::Cgroups;
use crate::machine::Machine;
use crate::runtime::Runtime;
use crate::settings::{Settings, SwapBehavior};

/// The machine and its runtime, as far as a container's limits depend on them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFacts {
    /// Bytes.
    pub(crate) memory: i64,
    /// Without `CAP_SYS_RESOURCE` a lower `oom_score_adj` than our own cannot be set.
    pub(crate) restrict_oom_score_adj: bool,
    /// Control groups are of version 2.
    pub(crate) unified: bool,
    /// Limits of CPU are quotas.
    pub(crate) cpu_quota: bool,
    /// Containers without a seccomp profile have the runtime's.
    pub(crate) seccomp_default: bool,
    pub(crate) swap: Swap,
}

/// The machine's swap, as containers may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swap {
    /// The kernel does not bound it.
    Unbounded,
    /// No container has any.
    None,
    /// Burstable pods have a part of so many bytes, by their requests of memory.
    Shared(i64),
}

impl HostFacts {
    pub(crate) fn of(machine: &Machine, runtime: &Runtime, cgroups: &Cgroups, settings: &Settings) -> HostFacts {
        let swap = match settings.swap {
            _ if !cgroups.bounds_swap() => Swap::Unbounded,
            SwapBehavior::No => Swap::None,
            SwapBehavior::Limited => Swap::Shared(crate::machine::swap_of_machine()),
        };
        HostFacts {
            memory: machine.memory,
            restrict_oom_score_adj: runtime.restrict_oom_score_adj,
            unified: cgroups.is_unified(),
            cpu_quota: settings.cpu_quota,
            seccomp_default: settings.seccomp_default,
            swap,
        }
    }

    /// A machine without peculiarities.
    #[cfg(test)]
    pub(crate) fn of_tests() -> HostFacts {
        HostFacts {
            memory: 1 << 30,
            restrict_oom_score_adj: false,
            unified: true,
            cpu_quota: true,
            seccomp_default: false,
            swap: Swap::Unbounded,
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
            host: HostFacts::of_tests(),
            userns: None,
            devices: Vec::new(),
            seccomp_root: Path::new("/seccomp"),
        }
    }
}
