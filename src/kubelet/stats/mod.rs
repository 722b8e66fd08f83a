//! Resources that pods and node use, for `/stats/summary` (upstream's `stats/v1alpha1.Summary`) and for the pages of
//! metrics.

pub(crate) mod metrics;

pub(crate) mod rates;
pub(crate) mod read;

mod system;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use base::time::rfc3339_secs;
use jiff::Timestamp;
use k8s_cri::v1 as cri;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

use self::rates::Rates;
use self::read::{Interface, Usage};
use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::csi::{self, Csi};
use crate::disk::{By, Disk, Disks};
use crate::machine::{meminfo, memory_available, processes_max, processes_running};
use crate::node::Node;
use crate::pods::map::Pods;
use crate::pods::snapshot::Snapshot;
use crate::pods::spec::host_network;
use crate::runtime::cri::{Cri, CriError};
use crate::runtime::labels;
use crate::volumes;

/// The use of all pods together.
pub(crate) fn of_pods(cgroups: &Cgroups) -> Usage {
    read::group(cgroups.hierarchy(), |controller| cgroups.all_pods_dir(controller))
}

/// The use of the control groups of the whole machine; on v2 the root does not say.
pub(crate) fn of_machine(cgroups: &Cgroups) -> Usage {
    read::group(cgroups.hierarchy(), |controller| cgroups.machine_dir(controller))
}

/// How many processes a pod has.
pub(crate) fn processes(cgroups: &Cgroups, pod: &Pod) -> u64 {
    read::pod(cgroups, pod).pids.unwrap_or(0)
}

/// Everything known of one pod's use.
pub(crate) struct PodUse {
    pub(crate) pod: Arc<Pod>,
    pub(crate) snapshot: Snapshot,
    pub(crate) usage: Usage,
    pub(crate) interfaces: Vec<Interface>,
    pub(crate) containers: Vec<cri::ContainerStats>,
}

/// The measures that a summary has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// All: disks and networks, too.
    Whole,
    /// Only what is read without looking at any disk.
    CpuAndMemory,
}

/// The parts of the kubelet by which the storage of pods is measured.
#[derive(Clone, Copy)]
struct Storage<'a> {
    config: &'a Config,
    csi: &'a Csi,
    disks: &'a Disks,
}

impl<'a> Storage<'a> {
    fn of(node: &'a Node) -> Storage<'a> {
        Storage { config: &node.config, csi: &node.csi, disks: &node.disks }
    }
}

/// Looks at every pod that has something running.
pub(crate) async fn look(cri: &Cri, cgroups: &Cgroups, rates: &Rates, pods: &Pods) -> Result<Vec<PodUse>, CriError> {
    let mut by_pod: BTreeMap<String, Vec<cri::ContainerStats>> = BTreeMap::new();
    for stats in cri.container_stats().await? {
        let uid = stats.attributes.as_ref().and_then(|a| a.labels.get(labels::POD_UID)).cloned().unwrap_or_default();
        by_pod.entry(uid).or_default().push(stats);
    }
    let mut all = Vec::new();
    for (pod, snapshot) in pods.all() {
        if snapshot.observed.sandbox().is_none() {
            continue;
        }
        let containers = by_pod.remove(pod.metadata.uid.as_deref().unwrap_or_default()).unwrap_or_default();
        let pid = (!host_network(&pod)).then(|| read::any_pid(&cgroups.dir_of(&pod, "memory"))).flatten();
        let interfaces = pid.map(|pid| read::interfaces(Some(pid))).unwrap_or_default();
        all.push(PodUse { usage: read::pod(cgroups, &pod), pod, snapshot, interfaces, containers });
    }
    let known: Vec<String> = all.iter().map(|p| p.pod.metadata.uid.clone().unwrap_or_default()).collect();
    rates.keep(|key| !key.contains('/') || known.iter().any(|uid| key.starts_with(uid.as_str())));
    Ok(all)
}

/// The answer of `/stats/summary`.
pub(crate) async fn summary(node: &Node, pods: &Pods, scope: Scope) -> Result<Value, CriError> {
    let (at, rates) = (node.clock.now(), &node.stats.rates);
    let mut listed = Vec::new();
    for used in look(&node.runtime.cri, &node.cgroups, rates, pods).await? {
        listed.push(pod_value(Storage::of(node), rates, used, at, scope).await);
    }
    let runtime = system::runtime_pid(&node.runtime.socket).await;
    Ok(json!({"node": machine(node, at, runtime), "pods": listed}))
}

async fn pod_value(storage: Storage<'_>, rates: &Rates, used: PodUse, at: Timestamp, scope: Scope) -> Value {
    let now = rfc3339_secs(at);
    let (meta, usage) = (&used.pod.metadata, &used.usage);
    let uid = meta.uid.clone().unwrap_or_default();
    let started = |name: &str| used.snapshot.observed.latest(name).map(|s| rfc3339_secs(s.started_at));
    let mut containers: Vec<Value> = Vec::new();
    for stats in &used.containers {
        containers.push(container(storage, rates, &uid, stats, at, started(&name_of(stats))).await);
    }
    let mut value = json!({
        "podRef": {"name": meta.name, "namespace": meta.namespace, "uid": uid},
        "startTime": used.snapshot.status.start_time,
        "containers": containers,
        "cpu": cpu(&now, usage.cpu_nanos, usage.cpu_nanos.and_then(|n| rates.rate(&format!("{uid}/"), n))),
        "memory": memory(&now, usage),
    });
    if scope == Scope::Whole {
        value["process_stats"] = json!({"process_count": usage.pids});
        value["network"] = network(&now, &used.interfaces);
        let volumes = volumes_of(storage, &used, &now).await;
        let sum = |list: &[Value], path: &str| list.iter().filter_map(|v| v.pointer(path)?.as_u64()).sum::<u64>();
        let bytes =
            sum(&containers, "/rootfs/usedBytes") + sum(&containers, "/logs/usedBytes") + sum(&volumes, "/usedBytes");
        let mut of_pod = disk_value(&now, storage.disks.of_pods());
        of_pod.insert("usedBytes".to_owned(), json!(bytes));
        value["ephemeral-storage"] = Value::Object(of_pod);
        value["volume"] = Value::Array(volumes);
    }
    value
}

fn name_of(stats: &cri::ContainerStats) -> String {
    stats.attributes.as_ref().and_then(|a| a.metadata.as_ref()).map(|m| m.name.clone()).unwrap_or_default()
}

fn cpu(now: &str, nanos: Option<u64>, rate: Option<u64>) -> Value {
    without_null(json!({"time": now, "usageNanoCores": rate, "usageCoreNanoSeconds": nanos}))
}

fn memory(now: &str, usage: &Usage) -> Value {
    without_null(
        json!({"time": now, "usageBytes": usage.memory, "workingSetBytes": usage.working_set, "rssBytes": usage.rss,
        "pageFaults": usage.page_faults, "majorPageFaults": usage.major_page_faults}),
    )
}

fn network(now: &str, interfaces: &[Interface]) -> Value {
    let one = |i: &Interface| {
        json!({"name": i.name, "rxBytes": i.rx_bytes, "rxErrors": i.rx_errors, "txBytes": i.tx_bytes,
            "txErrors": i.tx_errors})
    };
    let Some(first) = interfaces.iter().find(|i| i.name == "eth0").or(interfaces.first()) else { return Value::Null };
    let mut value = one(first);
    value["time"] = json!(now);
    value["interfaces"] = interfaces.iter().map(one).collect();
    value
}

fn without_null(mut value: Value) -> Value {
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, v| !v.is_null());
    }
    value
}

async fn container(
    storage: Storage<'_>,
    rates: &Rates,
    uid: &str,
    stats: &cri::ContainerStats,
    at: Timestamp,
    started: Option<String>,
) -> Value {
    let value = |v: &Option<cri::UInt64Value>| v.as_ref().map(|v| v.value);
    let (name, now) = (name_of(stats), rfc3339_secs(at));
    let used = stats.cpu.as_ref().and_then(|c| value(&c.usage_core_nano_seconds));
    let rate = used.and_then(|n| rates.rate(&format!("{uid}/{name}"), n));
    let m = stats.memory.unwrap_or_default();
    let usage = Usage {
        memory: value(&m.usage_bytes),
        working_set: value(&m.working_set_bytes),
        rss: value(&m.rss_bytes),
        page_faults: value(&m.page_faults),
        major_page_faults: value(&m.major_page_faults),
        ..Usage::default()
    };
    let layer = stats.writable_layer.clone().unwrap_or_default();
    let mut rootfs = disk_value(&now, storage.disks.of_images());
    rootfs.insert("usedBytes".to_owned(), json!(value(&layer.used_bytes)));
    rootfs.insert("inodesUsed".to_owned(), json!(value(&layer.inodes_used)));
    let mut logs = disk_value(&now, storage.disks.of_pods());
    let dir = stats.attributes.as_ref().map(|a| {
        let label = |key: &str| a.labels.get(key).cloned().unwrap_or_default();
        let of_pod = [labels::POD_NAMESPACE, labels::POD_NAME, labels::POD_UID].map(label).join("_");
        storage.config.log_dir.join(of_pod).join(&name)
    });
    if let Some(dir) = dir
        && let Some(measure) = storage.disks.measures.of(&dir, By::Tree).await
    {
        logs.insert("usedBytes".to_owned(), json!(measure.bytes));
        logs.insert("inodesUsed".to_owned(), json!(measure.inodes));
    }
    json!({
        "name": name,
        "startTime": started.unwrap_or(now.clone()),
        "cpu": cpu(&now, used, rate),
        "memory": memory(&now, &usage),
        "rootfs": without_null(Value::Object(rootfs)),
        "logs": logs,
    })
}

fn disk_value(now: &str, disk: Option<Disk>) -> Map<String, Value> {
    let Some(d) = disk else { return Map::new() };
    let value = json!({"time": now, "availableBytes": d.available, "capacityBytes": d.capacity, "usedBytes": d.used,
        "inodesFree": d.inodes_free, "inodes": d.inodes, "inodesUsed": d.inodes.saturating_sub(d.inodes_free)});
    value.as_object().cloned().unwrap_or_default()
}

/// Every volume that has a file system: what it occupies, and what is left where it lies.
async fn volumes_of(storage: Storage<'_>, used: &PodUse, now: &str) -> Vec<Value> {
    let pod = &used.pod;
    let mut all = Vec::new();
    // A folder of the host is not the pod's.
    for volume in
        pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).filter(|v| v.host_path.is_none() && v.image.is_none())
    {
        let Some(path) = used.snapshot.volumes.get(&volume.name).cloned() else { continue };
        let mut value = match csi::stats::of(&storage.config.root_dir, storage.csi, &path).await {
            Some(u) => driver_value(now, u),
            None => {
                // What has a file system of its own is not walked, as upstream: a share may hold millions of files.
                let by = if volumes::claim_name(pod, volume).is_some() || volume.nfs.is_some() {
                    By::FileSystem
                } else {
                    By::Tree
                };
                let Some(measure) = storage.disks.measures.of(&path, by).await else { continue };
                let mut value = disk_value(now, Some(measure.disk));
                value.insert("usedBytes".to_owned(), json!(measure.bytes));
                value.insert("inodesUsed".to_owned(), json!(measure.inodes));
                value
            }
        };
        value.insert("name".to_owned(), json!(volume.name));
        if let Some(claim) = volumes::claim_name(pod, volume) {
            value.insert("pvcRef".to_owned(), json!({"name": claim, "namespace": pod.metadata.namespace}));
        }
        all.push(Value::Object(value));
    }
    all
}

/// A volume as its driver tells of it.
fn driver_value(now: &str, u: csi::stats::Usage) -> Map<String, Value> {
    let value = json!({"time": now, "availableBytes": u.available, "capacityBytes": u.capacity, "usedBytes": u.used,
        "inodesFree": u.inodes_free, "inodes": u.inodes, "inodesUsed": u.inodes_used});
    value.as_object().cloned().unwrap_or_default()
}

fn machine(node: &Node, at: Timestamp, runtime: Option<i32>) -> Value {
    let now = rfc3339_secs(at);
    let (total, available) = (node.machine.memory, memory_available());
    let nanos = cpu_nanos();
    let disk = without_null(Value::Object(disk_value(&now, node.disks.of_pods())));
    let images = without_null(Value::Object(disk_value(&now, node.disks.of_images())));
    let (maxpid, curproc) = (processes_max(), processes_running());
    json!({
        "nodeName": node.config.node_name,
        "startTime": boot_time().map(rfc3339_secs),
        "cpu": cpu(&now, Some(nanos), node.stats.rates.rate("node", nanos)),
        "memory": {"time": now, "availableBytes": available, "usageBytes": total - meminfo("MemFree:"),
            "workingSetBytes": total - available, "rssBytes": meminfo("AnonPages:")},
        "network": network(&now, &read::interfaces(None)),
        "fs": disk,
        "runtime": {"imageFs": images, "containerFs": images},
        "rlimit": {"time": now, "maxpid": maxpid, "curproc": curproc},
        "systemContainers": system_containers(&node.cgroups, &node.stats.rates, &now, runtime),
    })
}

/// All pods together, and the two programs that run them. `misc`, the machine's rest, is not told: nobody asks for it.
fn system_containers(cgroups: &Cgroups, rates: &Rates, now: &str, runtime: Option<i32>) -> Vec<Value> {
    let booted = boot_time();
    let pods = system::Program { name: "pods", started: booted, usage: of_pods(cgroups) };
    let programs = system::programs(cgroups.hierarchy(), booted, runtime);
    let one = |program: system::Program| {
        let nanos = program.usage.cpu_nanos;
        without_null(json!({"name": program.name, "startTime": program.started.map(rfc3339_secs),
            "memory": memory(now, &program.usage),
            "cpu": cpu(now, nanos, nanos.and_then(|n| rates.rate(program.name, n)))}))
    };
    std::iter::once(pods).chain(programs).map(one).collect()
}

fn boot_time() -> Option<Timestamp> {
    let text = fs::read_to_string(Path::new("/proc/stat")).ok()?;
    let secs = text.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    Timestamp::from_second(secs).ok()
}

/// CPU time of the machine that was not idle. /proc/stat counts hundredths of a second.
fn cpu_nanos() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    let busy: u64 = fields.iter().enumerate().filter(|(i, _)| *i < 8 && *i != 3 && *i != 4).map(|(_, n)| n).sum();
    busy.saturating_mul(10_000_000)
}
