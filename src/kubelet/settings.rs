//! The kubelet's own settings: upstream's flags, as `--kubelet-arg` spells them, and fields of KubeletConfiguration.

mod file;
mod form;
mod merged;
#[cfg(test)]
mod page_tests;
pub mod read;
mod row;
mod rows;
mod shown;
mod table;
mod tree;
mod value;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Taint;
use model::quantity::Quantity;
use serde_json::{Map, Value};

use crate::providers::Providers;
use crate::runtime::driver::CgroupDriver;

/// The settings that an operator may tune. The defaults are upstream's, but for the disk's thresholds, which are k3s's
/// 5 %: small machines run full.
#[derive(Clone, Debug)]
pub struct Settings {
    /// `maxPods`.
    pub max_pods: u32,
    /// `podsPerCore`, 0 is no limit.
    pub pods_per_core: u32,
    /// `podPidsLimit`: processes of one pod; `None` is no limit of the pod's own.
    pub pod_max_pids: Option<i64>,
    /// `seccompDefault`: containers without a profile have the runtime's.
    pub seccomp_default: bool,
    /// `imageGCHighThresholdPercent`: per cent of the disk above which images go.
    pub image_gc_high_percent: u64,
    /// `imageGCLowThresholdPercent`: down to which they go.
    pub image_gc_low_percent: u64,
    /// `imageMinimumGCAge`.
    pub image_age_min: Duration,
    /// `imageMaximumGCAge`: images that nobody used for so long go in any case; zero is never.
    pub image_age_max: Duration,
    /// `serializeImagePulls`, if it is said.
    serial_pulls: Option<bool>,
    /// `maxParallelImagePulls`, if it is said.
    pulls_max: Option<usize>,
    /// `registryPullQPS`: pulls in a second, 0 is no limit; and `registryBurst` at once.
    pub(crate) pull_qps: u32,
    pub(crate) pull_burst: u32,
    /// `eventRecordQPS`: events in a second, 0 is no limit; and `eventBurst` at once.
    pub(crate) event_qps: u32,
    pub(crate) event_burst: u32,
    /// `evictionHard`: signal → threshold.
    pub eviction_hard: BTreeMap<String, Threshold>,
    /// `evictionSoft`: signal → threshold that must be met for its grace period.
    pub eviction_soft: BTreeMap<String, Threshold>,
    /// `evictionSoftGracePeriod`: signal → period.
    pub eviction_soft_grace: BTreeMap<String, Duration>,
    /// `evictionMinimumReclaim`: signal → the amount beyond the threshold that is reclaimed.
    pub eviction_reclaim: BTreeMap<String, Threshold>,
    /// `evictionMaxPodGracePeriod`: seconds that a pod has at most after a soft threshold; below zero its own.
    pub eviction_grace_max_secs: i64,
    /// `kernelMemcgNotification`: the kernel wakes the eviction manager when memory runs short.
    pub memory_alarm: bool,
    /// `enforceNodeAllocatable`: all pods together are held to what is not set aside.
    pub enforce_allocatable: bool,
    /// `evictionPressureTransitionPeriod`.
    pub pressure_transition: Duration,
    /// `containerLogMaxSize` in bytes.
    pub log_bytes_max: u64,
    /// `containerLogMaxFiles`.
    pub log_files_max: usize,
    /// `containerLogMaxWorkers`: logs that are moved at a time.
    pub(crate) log_workers: usize,
    /// `containerLogMonitorInterval`.
    pub(crate) log_period: Duration,
    /// `allowedUnsafeSysctls`: names, or prefixes that end in `*`.
    pub unsafe_sysctls: Vec<String>,
    /// `protectKernelDefaults`: refuse to run where the kernel's settings are not upstream's.
    pub protect_kernel_defaults: bool,
    /// `failSwapOn`: refuse to run where the machine has swap.
    pub(crate) fail_swap_on: bool,
    /// `memorySwap.swapBehavior`.
    pub(crate) swap: SwapBehavior,
    /// `failCgroupV1`: refuse to run on control groups of version 1.
    pub(crate) fail_cgroup_v1: bool,
    /// `cgroupDriver`, if it is said: must be the machine's.
    pub(crate) cgroup_driver: Option<CgroupDriver>,
    /// `cpuCFSQuota`: limits of CPU are quotas.
    pub(crate) cpu_quota: bool,
    /// `crashLoopBackOff.maxContainerRestartPeriod`.
    pub(crate) restart_pause_max: Duration,
    /// `root-dir`: where volumes and plugins lie.
    pub root_dir: Option<PathBuf>,
    /// `staticPodPath`, if it is another than kedge's.
    pub static_pods: Option<PathBuf>,
    /// `fileCheckFrequency`: the folder of static pods is read this often where the kernel cannot watch it.
    pub(crate) file_check: Duration,
    /// `kubeReserved`: resource → amount.
    kube_reserved: BTreeMap<String, Quantity>,
    /// `systemReserved`: resource → amount.
    system_reserved: BTreeMap<String, Quantity>,
    /// `image-credential-provider-config` and `image-credential-provider-bin-dir`.
    provider_config: Option<PathBuf>,
    provider_bin_dir: Option<PathBuf>,
    /// The programs and rules that these two name.
    pub providers: Option<Arc<Providers>>,
    /// `node-labels`: at registration.
    pub labels: BTreeMap<String, String>,
    /// `registerWithTaints`.
    pub taints: Vec<Taint>,
    /// `providerID`.
    pub(crate) provider_id: String,
    /// `cloud-provider`.
    pub(crate) cloud: Cloud,
    /// `featureGates`: whoever knows the gates judges them.
    pub feature_gates: BTreeMap<String, bool>,
    /// `port`, if it is said.
    pub port: Option<u16>,
    /// `tlsMinVersion` and `tlsCipherSuites`.
    pub tls: pki::tls::Policy,
    /// `enableDebuggingHandlers`: exec, attach, port-forward, run and logs of containers.
    pub(crate) debugging_handlers: bool,
    /// `enableSystemLogHandler`: files of `/var/log`.
    pub(crate) log_handler: bool,
    /// `streamingConnectionIdleTimeout`; zero is never.
    pub(crate) stream_idle: Duration,
    /// `clusterDomain`, if it is another than the cluster's.
    pub cluster_domain: Option<String>,
    /// `clusterDNS`, if it is another than the cluster's.
    pub cluster_dns: Vec<IpAddr>,
    /// `resolvConf`, if it is said; an empty one names no resolver.
    pub resolv_conf: Option<PathBuf>,
    /// `nodeStatusUpdateFrequency`.
    pub(crate) status_period: Duration,
    /// `nodeStatusReportFrequency`.
    pub(crate) report_period: Duration,
    /// `nodeLeaseDurationSeconds`.
    pub(crate) lease_secs: i32,
    /// `nodeStatusMaxImages`; below zero all.
    pub(crate) status_images_max: i64,
    /// All that was said, as KubeletConfiguration.
    given: Map<String, Value>,
}

/// When a signal says that something runs out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// Less than this is left, in bytes or pieces.
    Amount(u64),
    /// Less than this part of all is left, in thousandths of a per cent.
    Share(u64),
}

/// Use of swap by containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapBehavior {
    /// None has any.
    No,
    /// Burstable pods have a part of the machine's, by their requests of memory.
    Limited,
}

/// The cloud that a node is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    /// None that anybody knows of.
    No,
    /// A cloud controller of somebody else completes the Node object.
    External,
}

impl Threshold {
    /// The amount, where `capacity` is all.
    pub(crate) fn of(self, capacity: u64) -> u64 {
        match self {
            Threshold::Amount(amount) => amount,
            Threshold::Share(share) => {
                u64::try_from(u128::from(capacity) * u128::from(share) / 100_000).unwrap_or(u64::MAX)
            }
        }
    }
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Threshold::Amount(amount) => write!(f, "{amount}"),
            Threshold::Share(share) if share % 1000 == 0 => write!(f, "{}%", share / 1000),
            Threshold::Share(share) => write!(f, "{}.{:03}%", share / 1000, share % 1000),
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        let hard = [
            ("memory.available", Threshold::Amount(100 << 20)),
            ("nodefs.available", Threshold::Share(5_000)),
            ("nodefs.inodesFree", Threshold::Share(5_000)),
            ("imagefs.available", Threshold::Share(5_000)),
            ("imagefs.inodesFree", Threshold::Share(5_000)),
        ];
        Settings {
            max_pods: 110,
            pods_per_core: 0,
            pod_max_pids: None,
            seccomp_default: false,
            image_gc_high_percent: 85,
            image_gc_low_percent: 80,
            image_age_min: Duration::from_secs(120),
            image_age_max: Duration::ZERO,
            serial_pulls: None,
            pulls_max: None,
            pull_qps: 5,
            pull_burst: 10,
            event_qps: 50,
            event_burst: 100,
            eviction_hard: hard.map(|(name, at)| (name.to_owned(), at)).into(),
            eviction_soft: BTreeMap::new(),
            eviction_soft_grace: BTreeMap::new(),
            eviction_reclaim: BTreeMap::new(),
            eviction_grace_max_secs: 0,
            memory_alarm: true,
            enforce_allocatable: true,
            pressure_transition: Duration::from_secs(300),
            log_bytes_max: 10 << 20,
            log_files_max: 5,
            log_workers: 1,
            log_period: Duration::from_secs(10),
            unsafe_sysctls: Vec::new(),
            protect_kernel_defaults: false,
            fail_swap_on: false,
            swap: SwapBehavior::No,
            fail_cgroup_v1: false,
            cgroup_driver: None,
            cpu_quota: true,
            restart_pause_max: Duration::from_secs(300),
            root_dir: None,
            static_pods: None,
            file_check: Duration::from_secs(20),
            kube_reserved: BTreeMap::new(),
            system_reserved: BTreeMap::new(),
            provider_config: None,
            provider_bin_dir: None,
            providers: None,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            provider_id: String::new(),
            cloud: Cloud::No,
            feature_gates: BTreeMap::new(),
            port: None,
            tls: pki::tls::Policy::default(),
            debugging_handlers: true,
            log_handler: true,
            stream_idle: Duration::from_secs(4 * 3600),
            cluster_domain: None,
            cluster_dns: Vec::new(),
            resolv_conf: None,
            status_period: Duration::from_secs(10),
            report_period: Duration::from_secs(300),
            lease_secs: 40,
            status_images_max: 50,
            given: Map::new(),
        }
    }
}

impl Settings {
    /// Images pulled at a time. Three, unless somebody says otherwise: one after another is upstream's default, which
    /// k3s changes, too.
    pub(crate) fn parallel_pulls(&self) -> usize {
        match (self.serial_pulls, self.pulls_max) {
            (Some(true), _) => 1,
            (_, Some(max)) => max,
            _ => 3,
        }
    }

    /// Pods that a machine of so many CPUs takes.
    pub(crate) fn pods_max(&self, cpus: i64) -> u32 {
        let by_core = self.pods_per_core.saturating_mul(u32::try_from(cpus).unwrap_or(u32::MAX));
        if by_core == 0 { self.max_pods } else { self.max_pods.min(by_core) }
    }

    /// The amount of a resource that is set aside.
    pub(crate) fn reserved_of(&self, resource: &str) -> i64 {
        let of = |amounts: &BTreeMap<String, Quantity>| {
            amounts.get(resource).map_or(0, |q| if resource == "cpu" { q.milli_value() } else { q.value() })
        };
        of(&self.kube_reserved).saturating_add(of(&self.system_reserved))
    }

    /// The thresholds of eviction with their periods: hard ones have none.
    pub(crate) fn soft_grace(&self, signal: &str) -> Option<Duration> {
        self.eviction_soft.get(signal)?;
        self.eviction_soft_grace.get(signal).copied()
    }
}

#[cfg(test)]
mod names;

#[cfg(test)]
mod tests;
