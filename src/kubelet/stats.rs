//! What pods and node use, for `/stats/summary`, and the choice of whom to evict when memory runs out.

use std::collections::BTreeMap;
use std::fs;

use base::time::rfc3339_secs;
use k8s_cri::v1 as cri;
use serde_json::{Value, json};

use crate::cgroups::{self, Qos};
use crate::manager::Pods;
use crate::node::Node;
use crate::runtime::labels;

/// `MemAvailable` of the machine in bytes.
pub(crate) fn memory_available() -> i64 {
    meminfo("MemAvailable:")
}

fn meminfo(field: &str) -> i64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.and_then(|l| l.split_whitespace().next()).and_then(|n| n.parse::<i64>().ok()).map_or(i64::MAX, |kib| kib.saturating_mul(1024))
}

/// The answer of `/stats/summary`, upstream's `stats/v1alpha1.Summary`.
pub(crate) async fn summary(node: &Node, pods: &Pods) -> Result<Value, crate::runtime::cri::CriError> {
    let now = rfc3339_secs(node.clock.now());
    let mut by_pod: BTreeMap<String, Vec<cri::ContainerStats>> = BTreeMap::new();
    for stats in node.runtime.cri.container_stats().await? {
        let uid = stats.attributes.as_ref().and_then(|a| a.labels.get(labels::POD_UID)).cloned().unwrap_or_default();
        by_pod.entry(uid).or_default().push(stats);
    }
    let mut listed = Vec::new();
    for (pod, snapshot) in pods.all() {
        let Some(stats) = by_pod.get(pod.metadata.uid.as_deref().unwrap_or_default()) else { continue };
        let containers: Vec<Value> = stats.iter().map(|s| container(s, &now)).collect();
        let sum = |path: &[&str]| -> u64 {
            let at = |c: &Value| path.iter().try_fold(c, |v, key| v.get(key)).and_then(Value::as_u64);
            containers.iter().filter_map(at).sum()
        };
        listed.push(json!({
            "podRef": {"name": pod.metadata.name, "namespace": pod.metadata.namespace, "uid": pod.metadata.uid},
            "startTime": snapshot.status.start_time,
            "cpu": {"time": now, "usageNanoCores": sum(&["cpu", "usageNanoCores"]), "usageCoreNanoSeconds": sum(&["cpu", "usageCoreNanoSeconds"])},
            "memory": {"time": now, "usageBytes": sum(&["memory", "usageBytes"]), "workingSetBytes": sum(&["memory", "workingSetBytes"]), "rssBytes": sum(&["memory", "rssBytes"])},
            "containers": containers,
        }));
    }
    Ok(json!({"node": machine(node, &now), "pods": listed}))
}

fn container(stats: &cri::ContainerStats, now: &str) -> Value {
    let value = |v: &Option<cri::UInt64Value>| v.as_ref().map(|v| v.value);
    let name = stats.attributes.as_ref().and_then(|a| a.metadata.as_ref()).map(|m| m.name.clone());
    let cpu = stats.cpu.clone().unwrap_or_default();
    let memory = stats.memory.clone().unwrap_or_default();
    let rootfs = stats.writable_layer.clone().unwrap_or_default();
    json!({
        "name": name,
        "startTime": now,
        "cpu": {"time": now, "usageNanoCores": value(&cpu.usage_nano_cores), "usageCoreNanoSeconds": value(&cpu.usage_core_nano_seconds)},
        "memory": {"time": now, "usageBytes": value(&memory.usage_bytes), "workingSetBytes": value(&memory.working_set_bytes),
            "rssBytes": value(&memory.rss_bytes), "pageFaults": value(&memory.page_faults), "majorPageFaults": value(&memory.major_page_faults)},
        "rootfs": {"time": now, "usedBytes": value(&rootfs.used_bytes), "inodesUsed": value(&rootfs.inodes_used)},
    })
}

fn machine(node: &Node, now: &str) -> Value {
    let (total, available) = (node.machine.memory, memory_available());
    let stat = rustix::fs::statvfs(&node.config.root_dir).ok();
    let bytes = |blocks: u64| stat.as_ref().map(|s| blocks.saturating_mul(s.f_frsize));
    let disk = stat.as_ref().map(|s| {
        json!({"time": now, "availableBytes": bytes(s.f_bavail), "capacityBytes": bytes(s.f_blocks), "usedBytes": bytes(s.f_blocks - s.f_bfree),
            "inodesFree": s.f_ffree, "inodes": s.f_files, "inodesUsed": s.f_files - s.f_ffree})
    });
    json!({
        "nodeName": node.config.node_name,
        "cpu": {"time": now, "usageCoreNanoSeconds": cpu_nanos()},
        "memory": {"time": now, "availableBytes": available, "usageBytes": total - available, "workingSetBytes": total - available},
        "fs": disk,
        "runtime": {"imageFs": disk},
    })
}

/// CPU time of the machine that was not idle. /proc/stat counts hundredths of a second.
fn cpu_nanos() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    let busy: u64 = fields.iter().enumerate().filter(|(i, _)| *i < 8 && *i != 3 && *i != 4).map(|(_, n)| n).sum();
    busy.saturating_mul(10_000_000)
}

/// Under memory pressure one pod goes: best effort first, then the one that is furthest above its request.
pub(crate) async fn evict(node: &Node, pods: &Pods, pressure: bool) {
    if !pressure {
        return;
    }
    let Ok(stats) = node.runtime.cri.container_stats().await else { return };
    let mut used: BTreeMap<String, i64> = BTreeMap::new();
    for stat in stats {
        let uid = stat.attributes.as_ref().and_then(|a| a.labels.get(labels::POD_UID)).cloned().unwrap_or_default();
        let bytes = stat.memory.and_then(|m| m.working_set_bytes).map_or(0, |v| v.value);
        *used.entry(uid).or_default() += i64::try_from(bytes).unwrap_or(0);
    }
    let critical = |pod: &k8s_openapi::api::core::v1::Pod| pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= 2_000_000_000);
    let over = |pod: &k8s_openapi::api::core::v1::Pod| {
        used.get(pod.metadata.uid.as_deref().unwrap_or_default()).map(|bytes| bytes - crate::manager::requests(pod, "memory"))
    };
    let candidates = pods.all().into_iter().map(|(pod, _)| pod).filter(|pod| !critical(pod) && !crate::sources::is_static(pod));
    let ranked = candidates.filter_map(|pod| over(&pod).filter(|bytes| *bytes > 0).map(|bytes| (cgroups::qos(&pod) == Qos::BestEffort, bytes, pod)));
    if let Some((_, _, pod)) = ranked.max_by_key(|(best_effort, bytes, _)| (*best_effort, *bytes)) {
        pods.evict(&pod, "The node was low on resource: memory. ");
    }
}
