//! The pages that Prometheus and metrics-server read: `/metrics`, `/metrics/cadvisor`, `/metrics/resource`,
//! `/metrics/probes`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::Pod;

use super::{PodUse, boot_time, cpu_nanos, look, name_of};
use crate::csi;
use crate::disk::{By, Disk};
use crate::machine::{meminfo, memory_available};
use crate::node::Counters;
use crate::node::Node;
use crate::pods::map::Pods;
use crate::pods::observed::State;
use crate::pods::snapshot::Snapshot;
use crate::runtime::cri::CriError;
use crate::volumes;

/// A page of metrics in Prometheus's text format.
#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        let _never_fails = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let list: Vec<String> = labels.iter().map(|(key, value)| format!("{key}=\"{}\"", quoted(value))).collect();
        let labels = if list.is_empty() { String::new() } else { format!("{{{}}}", list.join(",")) };
        let _never_fails = writeln!(self.0, "{name}{labels} {value}");
    }

    fn one(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.head(name, kind, help);
        self.value(name, &[], value);
    }
}

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
    let all = look(node, pods).await?;
    let mut page = Page::default();
    let each = |page: &mut Page,
                name: &str,
                kind: &str,
                help: &str,
                of: &dyn Fn(&PodUse, &cri::ContainerStats) -> Option<String>| {
        page.head(name, kind, help);
        for used in &all {
            let (ns, pod) = names(used);
            for stats in &used.containers {
                if let Some(value) = of(used, stats) {
                    page.value(name, &[("container", &name_of(stats)), ("namespace", ns), ("pod", pod)], value);
                }
            }
        }
    };
    let cpu = |_: &PodUse, s: &cri::ContainerStats| number(&s.cpu.as_ref()?.usage_core_nano_seconds).map(secs);
    each(
        &mut page,
        "container_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
        &cpu,
    );
    let memory =
        |_: &PodUse, s: &cri::ContainerStats| number(&s.memory.as_ref()?.working_set_bytes).map(|n| n.to_string());
    each(
        &mut page,
        "container_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the container in bytes",
        &memory,
    );
    let began = |u: &PodUse, s: &cri::ContainerStats| {
        u.snapshot.observed.latest(&name_of(s)).map(|c| since_epoch(c.started_at))
    };
    each(
        &mut page,
        "container_start_time_seconds",
        "gauge",
        "[STABLE] Start time of the container since unix epoch in seconds",
        &began,
    );
    node_and_pods(&mut page, node, &all);
    page.one(
        "resource_scrape_error",
        "gauge",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
        0,
    );
    Ok(page.0)
}

/// The node's and each pod's part of the page.
fn node_and_pods(page: &mut Page, node: &Node, all: &[PodUse]) {
    page.one(
        "node_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
        secs(cpu_nanos()),
    );
    let used = node.machine.memory - memory_available();
    page.one("node_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the node in bytes", used);
    page.head(
        "pod_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
    );
    for used in all {
        let (ns, pod) = names(used);
        if let Some(nanos) = used.usage.cpu_nanos {
            page.value("pod_cpu_usage_seconds_total", &[("namespace", ns), ("pod", pod)], secs(nanos));
        }
    }
    page.head("pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes");
    for used in all {
        let (ns, pod) = names(used);
        if let Some(bytes) = used.usage.working_set {
            page.value("pod_memory_working_set_bytes", &[("namespace", ns), ("pod", pod)], bytes);
        }
    }
}

fn since_epoch(at: Timestamp) -> String {
    secs(u64::try_from(at.as_nanosecond()).unwrap_or(0))
}

/// One of cAdvisor's measures of a container: name, kind, help and where it is found.
type Measure = (&'static str, &'static str, &'static str, Found);

/// Where a measure is found, in a container's figures or in those of the file system that its layer lies on.
type Found = fn(&cri::ContainerStats, Option<&Disk>) -> Option<String>;

const MEASURES: [Measure; 7] = [
    ("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.", |s, _| {
        number(&s.cpu.as_ref()?.usage_core_nano_seconds).map(secs)
    }),
    (
        "container_memory_usage_bytes",
        "gauge",
        "Current memory usage in bytes, including all memory regardless of when it was accessed",
        |s, _| number(&s.memory.as_ref()?.usage_bytes).map(|n| n.to_string()),
    ),
    ("container_memory_working_set_bytes", "gauge", "Current working set in bytes.", |s, _| {
        number(&s.memory.as_ref()?.working_set_bytes).map(|n| n.to_string())
    }),
    ("container_memory_rss", "gauge", "Size of RSS in bytes.", |s, _| {
        number(&s.memory.as_ref()?.rss_bytes).map(|n| n.to_string())
    }),
    (
        "container_fs_usage_bytes",
        "gauge",
        "Number of bytes that are consumed by the container on this filesystem.",
        |s, _| number(&s.writable_layer.as_ref()?.used_bytes).map(|n| n.to_string()),
    ),
    ("container_fs_inodes_free", "gauge", "Number of available Inodes", |_, disk| Some(disk?.inodes_free.to_string())),
    ("container_fs_inodes_total", "gauge", "Number of Inodes", |_, disk| Some(disk?.inodes.to_string())),
];

/// `/metrics/cadvisor`.
pub(crate) async fn cadvisor(node: &Node, pods: &Pods) -> Result<String, CriError> {
    let all = look(node, pods).await?;
    let (mut page, disk) = (Page::default(), node.disks.of_images());
    for (name, kind, help, of) in MEASURES {
        page.head(name, kind, help);
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
                    page.value(name, &labels, value);
                }
            }
        }
    }
    pod_measures(&mut page, &all);
    spec_measures(&mut page, &all);
    page.one("machine_cpu_cores", "gauge", "Number of logical CPU cores.", node.machine.cpus);
    page.one("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.", node.machine.memory);
    Ok(page.0)
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
        page.head(name, "counter", help);
        for used in all {
            let (ns, pod) = names(used);
            for interface in &used.interfaces {
                page.value(
                    name,
                    &[("container", ""), ("interface", &interface.name), ("namespace", ns), ("pod", pod)],
                    of(interface),
                );
            }
        }
    }
    let groups: [(&str, &str, &str, fn(&super::Usage) -> Option<u64>); 3] = [
        ("container_processes", "gauge", "Number of processes running inside the container.", |u| u.pids),
        ("container_cpu_cfs_periods_total", "counter", "Number of elapsed enforcement period intervals.", |u| {
            u.periods
        }),
        ("container_cpu_cfs_throttled_periods_total", "counter", "Number of throttled period intervals.", |u| {
            u.throttled_periods
        }),
    ];
    for (name, kind, help, of) in groups {
        page.head(name, kind, help);
        for used in all {
            let (ns, pod) = names(used);
            if let Some(value) = of(&used.usage) {
                page.value(name, &[("container", ""), ("namespace", ns), ("pod", pod)], value);
            }
        }
    }
}

fn spec_measures(page: &mut Page, all: &[PodUse]) {
    page.head("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds.");
    for used in all {
        let (ns, pod) = names(used);
        for seen in used.snapshot.observed.running() {
            let labels = [("container", seen.name.as_str()), ("id", &seen.id), ("namespace", ns), ("pod", pod)];
            page.value("container_start_time_seconds", &labels, since_epoch(seen.started_at));
        }
    }
    page.head("container_spec_memory_limit_bytes", "gauge", "Memory limit for the container.");
    for used in all {
        let (ns, pod) = names(used);
        for (container, _) in crate::container::all(&used.pod) {
            let limit = crate::cgroups::limits::limit(container.resources.as_ref(), "memory").map_or(0, |q| q.value());
            page.value(
                "container_spec_memory_limit_bytes",
                &[("container", &container.name), ("namespace", ns), ("pod", pod)],
                limit,
            );
        }
    }
}

/// `/metrics`: the kubelet of itself.
pub(crate) async fn own(node: &Node, pods: &Pods, version: &str) -> String {
    let mut page = Page::default();
    page.head("kubernetes_build_info", "gauge", "[ALPHA] A metric with a constant '1' value labeled by version.");
    page.value("kubernetes_build_info", &[("git_version", version), ("major", "1"), ("minor", "36")], 1);
    page.head("kubelet_node_name", "gauge", "[ALPHA] The node's name. The count is always 1.");
    page.value("kubelet_node_name", &[("node", &node.config.node_name)], 1);
    let all = pods.all();
    let running = all.iter().filter(|(_, s)| s.observed.sandbox().is_some()).count();
    page.one("kubelet_running_pods", "gauge", "[BETA] Number of pods that have a running pod sandbox", running);
    page.one(
        "kubelet_desired_pods",
        "gauge",
        "[ALPHA] The number of pods the kubelet is being instructed to run.",
        all.len(),
    );
    page.head("kubelet_running_containers", "gauge", "[BETA] Number of containers currently running");
    for (name, state) in [
        ("created", State::Created),
        ("exited", State::Exited),
        ("running", State::Running),
        ("unknown", State::Unknown),
    ] {
        let n = all.iter().flat_map(|(_, s)| &s.observed.containers).filter(|c| c.state == state).count();
        page.value("kubelet_running_containers", &[("container_state", name)], n);
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib = status.lines().find_map(|l| l.strip_prefix("VmRSS:")?.split_whitespace().next()?.parse::<u64>().ok());
    page.one("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", kib.unwrap_or(0) * 1024);
    let fds = std::fs::read_dir("/proc/self/fd").map_or(0, |d| d.count());
    page.one("process_open_fds", "gauge", "Number of open file descriptors.", fds);
    page.one(
        "machine_boot_time_seconds",
        "gauge",
        "Start of the machine since unix epoch in seconds.",
        boot_time().map_or(0, Timestamp::as_second),
    );
    page.one("machine_memory_free_bytes", "gauge", "Free memory of the machine.", meminfo("MemFree:"));
    claims(node, &mut page, &all).await;
    page.0.push_str(&base::metrics::render_those("kubelet_"));
    page.0
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
async fn claims(node: &Node, page: &mut Page, all: &[(Arc<Pod>, Snapshot)]) {
    let mut disks: BTreeMap<(&str, String), Disk> = BTreeMap::new();
    for (pod, snapshot) in all {
        for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
            let Some(claim) = volumes::claim_name(pod, volume) else { continue };
            let Some(path) = snapshot.volumes.get(&volume.name) else { continue };
            let told = csi::stats::of(&node.config.root_dir, &node.csi, path).await.map(|usage| usage.disk());
            let disk = match told {
                Some(disk) => Some(disk),
                None => node.disks.measures.of(path, By::FileSystem).await.map(|measure| measure.disk),
            };
            if let Some(disk) = disk {
                disks.insert((pod.metadata.namespace.as_deref().unwrap_or_default(), claim), disk);
            }
        }
    }
    for (name, help, of) in CLAIM_MEASURES {
        page.head(name, "gauge", help);
        for ((ns, claim), disk) in &disks {
            page.value(name, &[("namespace", ns), ("persistentvolumeclaim", claim)], of(disk));
        }
    }
}

/// `/metrics/probes`.
pub(crate) fn probes(stats: &Counters) -> String {
    let mut page = Page::default();
    page.head(
        "prober_probe_total",
        "counter",
        "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
    );
    for (key, n) in stats.probes.0.lock().iter() {
        let [ns, pod, uid, container, kind, result] = key;
        let labels = [
            ("container", container),
            ("namespace", ns),
            ("pod", pod),
            ("pod_uid", uid),
            ("probe_type", kind),
            ("result", result),
        ];
        page.value("prober_probe_total", &labels.map(|(k, v)| (k, v.as_str())), n);
    }
    page.0
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn values_of_labels_are_quoted() {
        let mut page = Page::default();
        page.value("m", &[("a", "x\"y\n")], 1);
        assert_eq!(page.0, "m{a=\"x\\\"y\\n\"} 1\n");
        assert_eq!(secs(1_500_000_000), "1.500000000");
    }
}
