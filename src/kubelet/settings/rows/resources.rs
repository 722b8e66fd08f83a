//! Rows about control groups, what is set aside, CPUs, NUMA nodes and swap.

use super::super::form::Form::{Bool, Duration, Int, Map, Ratio, Text, Texts, Whole};
use super::super::form::put;
use super::super::row::{Row, any, done, fixed, refused};
use super::super::value;

const NO_CPUS: &str = "CPUs are shared by all pods: cpuManagerPolicy is none";
const NO_NUMA: &str = "pods are not aligned with NUMA nodes: topologyManagerPolicy is none";
const NO_GROUPS: &str = "kedge's service and those of the machine have the groups that their units choose";
const ASIDE: &str =
    "what is set aside bounds all pods together; services of the machine have the limits of their units";

pub(in super::super) const ROWS: &[Row] = &[
    done(("cgroupDriver", "cgroup-driver"), "", Text, |s, v| {
        s.cgroup_driver = Some(value::driver(v)?);
        Ok(())
    }),
    fixed(("cgroupRoot", "cgroup-root"), "/", Text, "the groups of pods lie below kubepods, in the root"),
    fixed(("cgroupsPerQOS", "cgroups-per-qos"), "true", Bool, "each class of pods has a group"),
    refused(("kubeletCgroups", "kubelet-cgroups"), Text, NO_GROUPS),
    refused(("systemCgroups", "system-cgroups"), Text, NO_GROUPS),
    refused(("systemReservedCgroup", "system-reserved-cgroup"), Text, ASIDE),
    refused(("kubeReservedCgroup", "kube-reserved-cgroup"), Text, ASIDE),
    done(("enforceNodeAllocatable", "enforce-node-allocatable"), "pods", Texts, |s, v| {
        s.enforce_allocatable = value::enforced(v)?;
        Ok(())
    })
    .keeps_zero(),
    done(("systemReserved", "system-reserved"), "", Map, |s, v| {
        s.system_reserved = value::amounts(v)?;
        Ok(())
    }),
    done(("kubeReserved", "kube-reserved"), "", Map, |s, v| {
        s.kube_reserved = value::amounts(v)?;
        Ok(())
    }),
    refused(("reservedSystemCPUs", "reserved-cpus"), Text, NO_CPUS),
    refused(
        ("reservedMemory", "reserved-memory"),
        Whole,
        "it divides among NUMA nodes for memoryManagerPolicy Static; set systemReserved and kubeReserved",
    ),
    refused(("qosReserved", "qos-reserved"), Map, "requests are not reserved by class of pods"),
    fixed(("cpuManagerPolicy", "cpu-manager-policy"), "none", Text, NO_CPUS),
    refused(("cpuManagerPolicyOptions", "cpu-manager-policy-options"), Map, NO_CPUS),
    any(("cpuManagerReconcilePeriod", "cpu-manager-reconcile-period"), "10s", Duration, NO_CPUS),
    fixed(("memoryManagerPolicy", "memory-manager-policy"), "None", Text, "memory is not pinned to NUMA nodes"),
    fixed(("topologyManagerPolicy", "topology-manager-policy"), "none", Text, NO_NUMA),
    fixed(("topologyManagerScope", "topology-manager-scope"), "container", Text, NO_NUMA).also(&["pod"]),
    refused(("topologyManagerPolicyOptions", "topology-manager-policy-options"), Map, NO_NUMA),
    done(("cpuCFSQuota", "cpu-cfs-quota"), "true", Bool, |s, v| put(&mut s.cpu_quota, v)),
    fixed(("cpuCFSQuotaPeriod", "cpu-cfs-quota-period"), "100ms", Duration, "quotas have the kernel's usual period"),
    done(("failSwapOn", "fail-swap-on"), "false", Bool, |s, v| put(&mut s.fail_swap_on, v)),
    done(("memorySwap.swapBehavior", ""), "NoSwap", Text, |s, v| {
        s.swap = value::swap(v)?;
        Ok(())
    }),
    done(("failCgroupV1", "fail-cgroupv1"), "false", Bool, |s, v| put(&mut s.fail_cgroup_v1, v)),
    fixed(("memoryThrottlingFactor", ""), "0.9", Ratio, "there is no MemoryQoS"),
    fixed(("memoryReservationPolicy", ""), "None", Text, "there is no MemoryQoS"),
    fixed(("oomScoreAdj", "oom-score-adj"), "-999", Int(-1000, 1000), "kedge and containerd end last").keeps_zero(),
    fixed(
        ("maxOpenFiles", "max-open-files"),
        "1000000",
        Int(0, i64::MAX),
        "the limit of open files is that of kedge's unit",
    ),
];
