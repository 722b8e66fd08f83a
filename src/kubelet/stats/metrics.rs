//! The pages that Prometheus and metrics-server read: `/metrics`, `/metrics/cadvisor`, `/metrics/resource`,
//! `/metrics/probes`.

use std::collections::BTreeMap;
use std::sync::Arc;

use base::exposition::{Kind, Metric, Page};
use jiff::Timestamp;
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::Pod;

use super::{PodUse, Storage, boot_time, cpu_nanos, look, name_of};
use crate::csi;
use crate::disk::{By, Disk};
use crate::machine::{meminfo, memory_available};
use crate::node::Node;
use crate::pods::map::Pods;
use crate::pods::observed::State;
use crate::pods::snapshot::Snapshot;
use crate::probes::counts::ProbeCounts;
use crate::runtime::cri::CriError;
use crate::volumes;

fn secs(nanos: u64) -> String {
    format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000)
}

fn number(value: &Option<cri::UInt64Value>) -> Option<u64> {
    value.as_ref().map(|v| v.value)
}

fn names(used: &PodUse) -> (&str, &str) {
    let meta = &used.pod.metadata;
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}

/// `/metrics/resource`: what metrics-server and autoscalers need.
pub(crate) async fn resource(node: &Node, pods: &Pods) -> Result<String, CriError> {
    let all = look(&node.runtime.cri, &node.cgroups, &node.stats.rates, pods).await?;
    let mut page = Page::default();
    let each =
        |page: &mut Page, kind: Kind, metric: Metric, of: &dyn Fn(&PodUse, &cri::ContainerStats) -> Option<String>| {
            let mut family = page.family(kind, metric);
            for used in &all {
                let (ns, pod) = names(used);
                for stats in &used.containers {
                    if let Some(value) = of(used, stats) {
                        family.sample(&[("container", &name_of(stats)), ("namespace", ns), ("pod", pod)], value);
                    }
                }
            }
        };
    let cpu = |_: &PodUse, s: &cri::ContainerStats| number(&s.cpu.as_ref()?.usage_core_nano_seconds).map(secs);
    each(
        &mut page,
        Kind::Counter,
        Metric {
            name: "container_cpu_usage_seconds_total",
            help: "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
        },
        &cpu,
    );
    let memory =
        |_: &PodUse, s: &cri::ContainerStats| number(&s.memory.as_ref()?.working_set_bytes).map(|n| n.to_string());
    each(
        &mut page,
        Kind::Gauge,
        Metric {
            name: "container_memory_working_set_bytes",
            help: "[STABLE] Current working set of the container in bytes",
        },
        &memory,
    );
    let began = |u: &PodUse, s: &cri::ContainerStats| {
        u.snapshot.observed.latest(&name_of(s)).map(|c| since_epoch(c.started_at))
    };
    each(
        &mut page,
        Kind::Gauge,
        Metric {
            name: "container_start_time_seconds",
            help: "[STABLE] Start time of the container since unix epoch in seconds",
        },
        &began,
    );
    node_and_pods(&mut page, node.machine.memory - memory_available(), &all);
    page.single(
        Kind::Gauge,
        Metric {
            name: "resource_scrape_error",
            help: "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
        },
        0,
    );
    Ok(page.into_text())
}

/// The node's and each pod's part of the page.
fn node_and_pods(page: &mut Page, memory_used: i64, all: &[PodUse]) {
    page.single(
        Kind::Counter,
        Metric {
            name: "node_cpu_usage_seconds_total",
            help: "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
        },
        secs(cpu_nanos()),
    );
    page.single(
        Kind::Gauge,
        Metric { name: "node_memory_working_set_bytes", help: "[STABLE] Current working set of the node in bytes" },
        memory_used,
    );
    let mut family = page.family(
        Kind::Counter,
        Metric {
            name: "pod_cpu_usage_seconds_total",
            help: "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
        },
    );
    for used in all {
        let (ns, pod) = names(used);
        if let Some(nanos) = used.usage.cpu_nanos {
            family.sample(&[("namespace", ns), ("pod", pod)], secs(nanos));
        }
    }
    let mut family = page.family(
        Kind::Gauge,
        Metric { name: "pod_memory_working_set_bytes", help: "[STABLE] Current working set of the pod in bytes" },
    );
    for used in all {
        let (ns, pod) = names(used);
        if let Some(bytes) = used.usage.working_set {
            family.sample(&[("namespace", ns), ("pod", pod)], bytes);
        }
    }
}

fn since_epoch(at: Timestamp) -> String {
    secs(u64::try_from(at.as_nanosecond()).unwrap_or(0))
}

/// One of cAdvisor's measures of a container: name, kind, help and where it is found.
type Measure = (&'static str, Kind, &'static str, Found);

/// Where a measure is found, in a container's figures or in those of the file system that its layer lies on.
type Found = fn(&cri::ContainerStats, Option<&Disk>) -> Option<String>;

const MEASURES: [Measure; 7] = [
    ("container_cpu_usage_seconds_total", Kind::Counter, "Cumulative cpu time consumed in seconds.", |s, _| {
        number(&s.cpu.as_ref()?.usage_core_nano_seconds).map(secs)
    }),
    (
        "container_memory_usage_bytes",
        Kind::Gauge,
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |s, _| number(&s.memory.as_ref()?.usage_bytes).map(|n| n.to_string()),
    ),
    ("container_memory_working_set_bytes", Kind::Gauge, "Current working set in bytes.", |s, _| {
        number(&s.memory.as_ref()?.working_set_bytes).map(|n| n.to_string())
    }),
    ("container_memory_rss", Kind::Gauge, "Size of RSS in bytes.", |s, _| {
        number(&s.memory.as_ref()?.rss_bytes).map(|n| n.to_string())
    }),
    (
        "container_fs_usage_bytes",
        Kind::Gauge,
        "Number of bytes that are consumed by the container on this filesystem.",
        |s, _| number(&s.writable_layer.as_ref()?.used_bytes).map(|n| n.to_string()),
    ),
    ("container_fs_inodes_free", Kind::Gauge, "Number of available Inodes", |_, disk| {
        Some(disk?.inodes_free.to_string())
    }),
    ("container_fs_inodes_total", Kind::Gauge, "Number of Inodes", |_, disk| Some(disk?.inodes.to_string())),
];

/// `/metrics/cadvisor`.
pub(crate) async fn cadvisor(node: &Node, pods: &Pods) -> Result<String, CriError> {
    let all = look(&node.runtime.cri, &node.cgroups, &node.stats.rates, pods).await?;
    let (mut page, disk) = (Page::default(), node.disks.of_images());
    for (name, kind, help, of) in MEASURES {
        let mut family = page.family(kind, Metric { name, help });
        for used in &all {
            let (ns, pod) = names(used);
            for stats in &used.containers {
                let attributes = stats.attributes.clone().unwrap_or_default();
                let image = used.snapshot.observed.latest(&name_of(stats)).map(|c| c.image.clone()).unwrap_or_default();
                let container = name_of(stats);
                let mut labels = vec![
                    ("container", container.as_str()),
                    ("id", &attributes.id),
                    ("image", &image),
                    ("name", &attributes.id),
                ];
                labels.extend([("namespace", ns), ("pod", pod)]);
                if name == "container_cpu_usage_seconds_total" {
                    labels.insert(1, ("cpu", "total"));
                }
                if let Some(value) = of(stats, disk.as_ref()) {
                    family.sample(&labels, value);
                }
            }
        }
    }
    pod_measures(&mut page, &all);
    spec_measures(&mut page, &all);
    page.single(
        Kind::Gauge,
        Metric { name: "machine_cpu_cores", help: "Number of logical CPU cores." },
        node.machine.cpus,
    );
    page.single(
        Kind::Gauge,
        Metric { name: "machine_memory_bytes", help: "Amount of memory installed on the machine." },
        node.machine.memory,
    );
    Ok(page.into_text())
}

fn pod_measures(page: &mut Page, all: &[PodUse]) {
    let counters: [(&str, &str, fn(&super::Interface) -> u64); 4] = [
        ("container_network_receive_bytes_total", "Cumulative count of bytes received", |i| i.rx_bytes),
        ("container_network_receive_errors_total", "Cumulative count of errors encountered while receiving", |i| {
            i.rx_errors
        }),
        ("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted", |i| i.tx_bytes),
        ("container_network_transmit_errors_total", "Cumulative count of errors encountered while transmitting", |i| {
            i.tx_errors
        }),
    ];
    for (name, help, of) in counters {
        let mut family = page.family(Kind::Counter, Metric { name, help });
        for used in all {
            let (ns, pod) = names(used);
            for interface in &used.interfaces {
                family.sample(
                    &[("container", ""), ("interface", &interface.name), ("namespace", ns), ("pod", pod)],
                    of(interface),
                );
            }
        }
    }
    let groups: [(&str, Kind, &str, fn(&super::Usage) -> Option<u64>); 3] = [
        ("container_processes", Kind::Gauge, "Number of processes running inside the container.", |u| u.pids),
        ("container_cpu_cfs_periods_total", Kind::Counter, "Number of elapsed enforcement period intervals.", |u| {
            u.periods
        }),
        ("container_cpu_cfs_throttled_periods_total", Kind::Counter, "Number of throttled period intervals.", |u| {
            u.throttled_periods
        }),
    ];
    for (name, kind, help, of) in groups {
        let mut family = page.family(kind, Metric { name, help });
        for used in all {
            let (ns, pod) = names(used);
            if let Some(value) = of(&used.usage) {
                family.sample(&[("container", ""), ("namespace", ns), ("pod", pod)], value);
            }
        }
    }
}

fn spec_measures(page: &mut Page, all: &[PodUse]) {
    let mut family = page.family(
        Kind::Gauge,
        Metric {
            name: "container_start_time_seconds",
            help: "Start time of the container since unix epoch in seconds.",
        },
    );
    for used in all {
        let (ns, pod) = names(used);
        for seen in used.snapshot.observed.running() {
            let labels = [("container", seen.name.as_str()), ("id", &seen.id), ("namespace", ns), ("pod", pod)];
            family.sample(&labels, since_epoch(seen.started_at));
        }
    }
    let mut family = page.family(
        Kind::Gauge,
        Metric { name: "container_spec_memory_limit_bytes", help: "Memory limit for the container." },
    );
    for used in all {
        let (ns, pod) = names(used);
        for (container, _) in crate::container::all(&used.pod) {
            let limit = crate::cgroups::limits::limit(container.resources.as_ref(), "memory").map_or(0, |q| q.value());
            family.sample(&[("container", &container.name), ("namespace", ns), ("pod", pod)], limit);
        }
    }
}

/// `/metrics`: the kubelet of itself.
pub(crate) async fn own(node: &Node, pods: &Pods, version: &str) -> String {
    let mut page = Page::default();
    let mut family = page.family(
        Kind::Gauge,
        Metric {
            name: "kubernetes_build_info",
            help: "[ALPHA] A metric with a constant '1' value labeled by version.",
        },
    );
    family.sample(&[("git_version", version), ("major", "1"), ("minor", "36")], 1);
    let mut family = page.family(
        Kind::Gauge,
        Metric { name: "kubelet_node_name", help: "[ALPHA] The node's name. The count is always 1." },
    );
    family.sample(&[("node", &node.config.node_name)], 1);
    let all = pods.all();
    let running = all.iter().filter(|(_, s)| s.observed.sandbox().is_some()).count();
    page.single(
        Kind::Gauge,
        Metric { name: "kubelet_running_pods", help: "[BETA] Number of pods that have a running pod sandbox" },
        running,
    );
    page.single(
        Kind::Gauge,
        Metric {
            name: "kubelet_desired_pods",
            help: "[ALPHA] The number of pods the kubelet is being instructed to run.",
        },
        all.len(),
    );
    let mut family = page.family(
        Kind::Gauge,
        Metric { name: "kubelet_running_containers", help: "[BETA] Number of containers currently running" },
    );
    for (name, state) in [
        ("created", State::Created),
        ("exited", State::Exited),
        ("running", State::Running),
        ("unknown", State::Unknown),
    ] {
        let n = all.iter().flat_map(|(_, s)| &s.observed.containers).filter(|c| c.state == state).count();
        family.sample(&[("container_state", name)], n);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    page.single(
        Kind::Gauge,
        Metric { name: "process_resident_memory_bytes", help: "Resident memory size in bytes." },
        kib.unwrap_or(0) * 1024,
    );
    let fds = std::fs::read_dir("/proc/self/fd").map_or(0, |d| d.count());
    page.single(Kind::Gauge, Metric { name: "process_open_fds", help: "Number of open file descriptors." }, fds);
    page.single(
        Kind::Gauge,
        Metric { name: "machine_boot_time_seconds", help: "Start of the machine since unix epoch in seconds." },
        boot_time().map_or(0, Timestamp::as_second),
    );
    page.single(
        Kind::Gauge,
        Metric { name: "machine_memory_free_bytes", help: "Free memory of the machine." },
        meminfo("MemFree:"),
    );
    claims(Storage::of(node), &mut page, &all).await;
    page.append(&base::metrics::render_those("kubelet_"));
    page.into_text()
}

/// One measure of a claim's file system: name, help and where it is found.
type ClaimMeasure = (&'static str, &'static str, fn(&Disk) -> u64);

const CLAIM_MEASURES: [ClaimMeasure; 6] = [
    ("kubelet_volume_stats_available_bytes", "[ALPHA] Number of available bytes in the volume", |d| d.available),
    ("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume", |d| d.capacity),
    ("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume", |d| d.inodes),
    ("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume", |d| d.inodes_free),
    ("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume", |d| {
        d.inodes.saturating_sub(d.inodes_free)
    }),
    ("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume", |d| d.used),
];

/// The file systems of the claims that pods here use, each claim once.
async fn claims(storage: Storage<'_>, page: &mut Page, all: &[(Arc<Pod>, Snapshot)]) {
    let mut disks: BTreeMap<(&str, String), Disk> = BTreeMap::new();
    for (pod, snapshot) in all {
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let Some(claim) = volumes::claim_name(pod, volume) else { continue };
            let Some(path) = snapshot.volumes.get(&volume.name) else { continue };
            let told = csi::stats::of(&storage.config.root_dir, storage.csi, path).await.map(|usage| usage.disk());
            let disk = match told {
                Some(disk) => Some(disk),
                None => storage.disks.measures.of(path, By::FileSystem).await.map(|measure| measure.disk),
            };
            if let Some(disk) = disk {
                disks.insert((pod.metadata.namespace.as_deref().unwrap_or_default(), claim), disk);
            }
        }
    }
    for (name, help, of) in CLAIM_MEASURES {
        let mut family = page.family(Kind::Gauge, Metric { name, help });
        for ((ns, claim), disk) in &disks {
            family.sample(&[("namespace", ns), ("persistentvolumeclaim", claim)], of(disk));
        }
    }
}

/// `/metrics/probes`.
pub(crate) fn probes(counts: &ProbeCounts) -> String {
    let mut page = Page::default();
    let mut family = page.family(
        Kind::Counter,
        Metric {
            name: "prober_probe_total",
            help: "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
        },
    );
    for (key, n) in counts.all() {
        let labels = [
            ("container", key.container.as_str()),
            ("namespace", &key.namespace),
            ("pod", &key.pod),
            ("pod_uid", &key.uid),
            ("probe_type", key.kind),
            ("result", key.result),
        ];
        family.sample(&labels, n);
    }
    page.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probes::counts::ProbeKey;

    // review node.md L5: those in use were told for all there are.
    #[test]
    fn inodes_are_those_of_the_file_system() {
        let disk = Disk { inodes: 9, inodes_free: 4, ..Disk::default() };
        let told = |name: &str| {
            MEASURES.iter().find(|m| m.0 == name).and_then(|m| (m.3)(&cri::ContainerStats::default(), Some(&disk)))
        };
        assert_eq!(told("container_fs_inodes_total").as_deref(), Some("9"));
        assert_eq!(told("container_fs_inodes_free").as_deref(), Some("4"));
    }

    #[test]
    fn the_pages_are_the_same_to_the_letter() {
        let counts = ProbeCounts::default();
        counts.count(ProbeKey {
            namespace: "default".to_owned(),
            pod: "web".to_owned(),
            uid: "u".to_owned(),
            container: "app".to_owned(),
            kind: "Liveness",
            result: "successful",
        });
        let labels = "container=\"app\",namespace=\"default\",pod=\"web\",pod_uid=\"u\",probe_type=\"Liveness\"";
        let expected = [
            "# HELP prober_probe_total [BETA] Cumulative number of a liveness, readiness or startup probe for a \
             container by result.",
            "# TYPE prober_probe_total counter",
            &format!("prober_probe_total{{{labels},result=\"successful\"}} 1"),
        ];
        assert_eq!(probes(&counts).lines().collect::<Vec<_>>(), expected);

        let mut page = Page::default();
        page.single(Kind::Gauge, Metric { name: "machine_cpu_cores", help: "Number of logical CPU cores." }, 4);
        pod_measures(&mut page, &[one_pod()]);
        let pod = "namespace=\"default\",pod=\"web\"";
        let network = format!("container=\"\",interface=\"eth0\",{pod}");
        let expected = [
            "# HELP machine_cpu_cores Number of logical CPU cores.",
            "# TYPE machine_cpu_cores gauge",
            "machine_cpu_cores 4",
            "# HELP container_network_receive_bytes_total Cumulative count of bytes received",
            "# TYPE container_network_receive_bytes_total counter",
            &format!("container_network_receive_bytes_total{{{network}}} 1"),
            "# HELP container_network_receive_errors_total Cumulative count of errors encountered while receiving",
            "# TYPE container_network_receive_errors_total counter",
            &format!("container_network_receive_errors_total{{{network}}} 2"),
            "# HELP container_network_transmit_bytes_total Cumulative count of bytes transmitted",
            "# TYPE container_network_transmit_bytes_total counter",
            &format!("container_network_transmit_bytes_total{{{network}}} 3"),
            "# HELP container_network_transmit_errors_total Cumulative count of errors encountered while transmitting",
            "# TYPE container_network_transmit_errors_total counter",
            &format!("container_network_transmit_errors_total{{{network}}} 4"),
            "# HELP container_processes Number of processes running inside the container.",
            "# TYPE container_processes gauge",
            &format!("container_processes{{container=\"\",{pod}}} 5"),
            "# HELP container_cpu_cfs_periods_total Number of elapsed enforcement period intervals.",
            "# TYPE container_cpu_cfs_periods_total counter",
            "# HELP container_cpu_cfs_throttled_periods_total Number of throttled period intervals.",
            "# TYPE container_cpu_cfs_throttled_periods_total counter",
        ];
        assert_eq!(page.into_text().lines().collect::<Vec<_>>(), expected);
    }

    /// A pod of which the network and the number of processes are known.
    fn one_pod() -> PodUse {
        let mut pod = Pod::default();
        pod.metadata.namespace = Some("default".to_owned());
        pod.metadata.name = Some("web".to_owned());
        let eth0 =
            super::super::Interface { name: "eth0".to_owned(), rx_bytes: 1, rx_errors: 2, tx_bytes: 3, tx_errors: 4 };
        PodUse {
            pod: Arc::new(pod),
            snapshot: Snapshot::default(),
            usage: super::super::Usage { pids: Some(5), ..Default::default() },
            interfaces: vec![eth0],
            containers: Vec::new(),
        }
    }

    #[test]
    fn seconds_have_nine_digits_behind_the_point() {
        assert_eq!(secs(1_500_000_000), "1.500000000");
        assert_eq!((secs(0), secs(7)), ("0.000000000".to_owned(), "0.000000007".to_owned()));
    }
}
