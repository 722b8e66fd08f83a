//! Rows about pods: how many, what they may, how they are confined and how they end.

use super::super::form::Form::{Bool, Duration, Int, Text, Texts, Whole};
use super::super::form::{I32, put};
use super::super::row::{Row, any, done, fixed, refused};

const SHUTDOWN: &str = "a node's shutdown does not end pods one by one yet; drain the node first";
const CHAINS: &str = "the rules of Services are kedge's own nftables table, which the kubelet has no part in";

pub(in super::super) const ROWS: &[Row] = &[
    done(("maxPods", "max-pods"), "110", Int(0, I32), |s, v| put(&mut s.max_pods, v)),
    done(("podsPerCore", "pods-per-core"), "0", Int(0, I32), |s, v| put(&mut s.pods_per_core, v)),
    done(("podPidsLimit", "pod-max-pids"), "-1", Int(i64::MIN, i64::MAX), |s, v| {
        s.pod_max_pids = v.as_i64().filter(|n| *n > 0);
        Ok(())
    }),
    done(("seccompDefault", "seccomp-default"), "false", Bool, |s, v| put(&mut s.seccomp_default, v)),
    done(("allowedUnsafeSysctls", "allowed-unsafe-sysctls"), "", Texts, |s, v| put(&mut s.unsafe_sysctls, v)),
    done(("protectKernelDefaults", "protect-kernel-defaults"), "false", Bool, |s, v| {
        put(&mut s.protect_kernel_defaults, v)
    }),
    any(("makeIPTablesUtilChains", "make-iptables-util-chains"), "true", Bool, CHAINS),
    fixed(("iptablesMasqueradeBit", ""), "14", Int(0, 31), CHAINS).keeps_zero(),
    fixed(("iptablesDropBit", ""), "15", Int(0, 31), CHAINS).keeps_zero(),
    fixed(
        ("hairpinMode", "hairpin-mode"),
        "hairpin-veth",
        Text,
        "a pod reaches itself through its Service by the rules of the service proxy",
    )
    .also(&["promiscuous-bridge"]),
    fixed(("userNamespaces.idsPerPod", ""), "65536", Int(0, i64::MAX), "a pod's user namespace has 65536 ids"),
    fixed(("singleProcessOOMKill", ""), "false", Bool, "all processes of a container end together"),
    fixed(("runOnce", "runonce"), "false", Bool, "the kubelet is a part of the node and runs as long as that"),
    fixed(
        ("enableControllerAttachDetach", "enable-controller-attach-detach"),
        "true",
        Bool,
        "volumes are attached by the controller",
    ),
    fixed(
        ("configMapAndSecretChangeDetectionStrategy", ""),
        "Watch",
        Text,
        "the objects that a node's pods use are watched",
    ),
    fixed(
        ("localStorageCapacityIsolation", "local-storage-capacity-isolation"),
        "true",
        Bool,
        "limits of ephemeral storage are kept",
    ),
    any(
        ("volumeStatsAggPeriod", "volume-stats-agg-period"),
        "1m",
        Duration,
        "volumes are measured when somebody asks, or a limit must be kept",
    ),
    done(("crashLoopBackOff.maxContainerRestartPeriod", ""), "5m", Duration, |s, v| put(&mut s.restart_pause_max, v)),
    fixed(("shutdownGracePeriod", ""), "0s", Duration, SHUTDOWN),
    fixed(("shutdownGracePeriodCriticalPods", ""), "0s", Duration, SHUTDOWN),
    refused(("shutdownGracePeriodByPodPriority", ""), Whole, SHUTDOWN),
    fixed(
        ("runtimeRequestTimeout", "runtime-request-timeout"),
        "2m",
        Duration,
        "calls of the runtime have deadlines of their own, from 30 s for questions to 4 min for what makes a container",
    ),
];
