//! When memory, disk or processes run out: the node's conditions, what is reclaimed, and which pod has to go.
//! Upstream's eviction manager.

mod local;
mod thresholds;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::Stopwatch;
use k8s_openapi::api::core::v1::Pod;
use model::phase::is_terminal;
use tracing::{info, warn};

use self::local::{amount, binary, over_limits, volumes_and_logs};
use self::thresholds::{Kind as Threshold, Met, Tracker};
use crate::alarm::{Alarm, Level};
use crate::cgroups::limits;
use crate::config::Config;
use crate::container;
use crate::disk::{Disks, Layout};
use crate::events::Kind;
use crate::images;
use crate::node::Node;
use crate::pods::map::Pods;
use crate::pods::observed::{Seen, State};
use crate::pods::snapshot::Snapshot;
use crate::pods::spec::requests;
use crate::runtime::Runtime;
use crate::runtime::labels;
use crate::settings::Settings;
use crate::stats::read::Usage;
use crate::volumes;

/// Between two looks, as upstream's housekeeping; the kernel wakes sooner where memory runs short (alarm.rs).
const PERIOD: Duration = Duration::from_secs(10);
/// At least between two looks, however often it does.
const REST: Duration = Duration::from_secs(1);
/// An evicted pod has this long to give back what it used, before the next one goes. Upstream's `podCleanupTimeout`.
const CLEANUP_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks whether it has.
const CLEANUP_LOOK: Duration = Duration::from_millis(250);
/// After containers or images were removed the disk is looked at so often: for 15 s.
const LAYER_LOOKS: u32 = 60;

/// The reading of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Observation {
    available: u64,
    capacity: u64,
}

/// The memory that all pods together may still take, where something is set aside for the system. It has the threshold
/// of the machine's memory. Upstream's name for it.
const OF_PODS: &str = "allocatableMemory.available";

/// The condition of the node that a signal raises.
fn condition_of(signal: &str) -> &'static str {
    match signal {
        "memory.available" | OF_PODS => "MemoryPressure",
        "pid.available" => "PIDPressure",
        _ => "DiskPressure",
    }
}

/// The resource of upstream's texts.
fn resource_of(signal: &str) -> &'static str {
    match signal {
        "memory.available" | OF_PODS => "memory",
        "pid.available" => "pids",
        "nodefs.inodesFree" | "imagefs.inodesFree" => "inodes",
        _ => "ephemeral-storage",
    }
}

fn observe(node: &Node) -> BTreeMap<&'static str, Observation> {
    let mut all = BTreeMap::new();
    let available =
        u64::try_from(crate::machine::memory_available()).unwrap_or(0).saturating_sub(crate::shelter::held_back());
    all.insert("memory.available", Observation { available, capacity: unsigned(node.machine.memory) });
    let of_pods = unsigned(node.capacity().memory_of_pods());
    if let Some(used) = crate::stats::of_pods(&node.cgroups)
        .working_set
        .filter(|_| node.capacity().memory_of_pods() < node.machine.memory)
    {
        all.insert(OF_PODS, Observation { available: of_pods.saturating_sub(used), capacity: of_pods });
    }
    if let Some(disk) = node.disks.of_pods() {
        all.insert("nodefs.available", Observation { available: disk.available, capacity: disk.capacity });
        all.insert("nodefs.inodesFree", Observation { available: disk.inodes_free, capacity: disk.inodes });
    }
    if let Some(disk) = node.disks.of_images() {
        all.insert("imagefs.available", Observation { available: disk.available, capacity: disk.capacity });
        all.insert("imagefs.inodesFree", Observation { available: disk.inodes_free, capacity: disk.inodes });
    }
    if let (Some(max), Some(running)) = (crate::machine::processes_max(), crate::machine::processes_running()) {
        all.insert("pid.available", Observation { available: max.saturating_sub(running), capacity: max });
    }
    all
}

fn unsigned(bytes: i64) -> u64 {
    u64::try_from(bytes).unwrap_or(0)
}

/// Starts the watch over the machine's resources.
pub(crate) fn start(node: Arc<Node>, pods: Pods, group: &Group) {
    // Beside the node's own signals: a volume with a million files must not keep memory waiting.
    let (of_limits, limited) = (Arc::clone(&node), pods.clone());
    group.spawn("local-limits", async move {
        loop {
            over_limits(&of_limits.runtime, &of_limits.config, &of_limits.disks, &limited).await;
            tokio::time::sleep(PERIOD).await;
        }
    });
    group.spawn("evictions", async move {
        let mut last_seen: BTreeMap<&'static str, Stopwatch> = BTreeMap::new();
        let mut tracker = Tracker::default();
        let is_told = node.config.settings.memory_alarm;
        let mut alarm = if is_told { Alarm::new(&node.cgroups) } else { Alarm::silent() };
        loop {
            learn_image_dir(&node.disks, &node.runtime).await;
            if is_told {
                set(&mut alarm, &node);
            }
            let done = round(&node, &pods, &mut tracker, &mut last_seen).await;
            tokio::time::sleep(REST).await;
            if done == Round::Done {
                // Either way it is time for a look.
                let _rang = tokio::time::timeout(PERIOD - REST, alarm.rings()).await;
            }
        }
    });
}

/// Has the kernel ring where the thresholds of memory are crossed: usage counts page cache, the signals do not.
fn set(alarm: &mut Alarm, node: &Node) {
    let level = |signal: &'static str, capacity: i64, usage: &Usage| {
        let at = |kind| Met { signal, kind }.threshold(&node.config.settings, unsigned(capacity));
        // The one that is met first.
        let kept = at(Threshold::Hard).max(at(Threshold::Soft))?;
        let cache = usage.memory?.saturating_sub(usage.working_set?);
        Some(unsigned(capacity).saturating_sub(kept).saturating_add(cache))
    };
    let (machine, pods) = (node.cgroups.machine_dir("memory"), node.cgroups.all_pods_dir("memory"));
    let of_machine = level("memory.available", node.machine.memory, &crate::stats::of_machine(&node.cgroups));
    let of_pods = level(OF_PODS, node.capacity().memory_of_pods(), &crate::stats::of_pods(&node.cgroups));
    let levels: Vec<Level<'_>> = [(&machine, of_machine), (&pods, of_pods)]
        .into_iter()
        .filter_map(|(group, bytes)| Some(Level { group, bytes: bytes? }))
        .collect();
    alarm.set(&node.cgroups, &levels);
}

/// The outcome of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Round {
    /// A pod had to go: what it leaves may not be enough, the next look follows soon.
    Evicted,
    Done,
}

async fn learn_image_dir(disks: &Disks, runtime: &Runtime) {
    if disks.knows_images() {
        return;
    }
    let Ok(answer) = runtime.cri.image_fs().await else { return };
    let dir = answer.image_filesystems.into_iter().find_map(|f| f.fs_id).map(|id| id.mountpoint);
    if let Some(dir) = dir.filter(|d| !d.is_empty()) {
        disks.note_images(dir.into());
    }
}

async fn round(
    node: &Node,
    pods: &Pods,
    tracker: &mut Tracker,
    last_seen: &mut BTreeMap<&'static str, Stopwatch>,
) -> Round {
    let settings = &node.config.settings;
    let seen = observe(node);
    let met = tracker.met(settings, &seen);
    for at in &met {
        last_seen.insert(condition_of(at.signal), Stopwatch::start());
    }
    // A condition stays for a while, so that a node that swings does not invite pods in between.
    last_seen.retain(|_, at| at.elapsed() <= settings.pressure_transition);
    node.signals.set_pressure(last_seen.keys().map(|c| (*c).to_owned()).collect());
    let Some(at) = tracker.due(settings, &met) else { return Round::Done };
    let (signal, resource) = (at.signal, resource_of(at.signal));
    node.events.node(
        &node.config.node_name,
        Kind::Warning,
        "EvictionThresholdMet",
        format!("Attempting to reclaim {resource}"),
    );
    warn!(signal, "the node runs low, reclaiming");
    if condition_of(signal) == "DiskPressure" {
        let mut is_low = || tracker.met(settings, &observe(node)).contains(&at);
        let removed = remove_dead_containers(&node.runtime, pods).await;
        if is_enough(&mut is_low, looks(removed), CLEANUP_LOOK).await {
            info!(signal, "enough was reclaimed by removing dead containers");
            return Round::Done;
        }
        let freed = images::gc::free(node, u64::MAX).await.unwrap_or_else(|err| {
            warn!(err = %Chain(&err), "cannot delete unused images");
            0
        });
        if is_enough(&mut is_low, looks(freed), CLEANUP_LOOK).await {
            info!(signal, "enough was reclaimed by deleting images");
            return Round::Done;
        }
    }
    evict_one(node, pods, at, &seen).await
}

/// Removes containers that nobody needs any more, with their layers: all of a pod that has ended, and of others those
/// that are older than the last one of their name. Upstream's `DeleteAllUnusedContainers`. Returns how many went.
async fn remove_dead_containers(runtime: &Runtime, pods: &Pods) -> u64 {
    let mut removed = 0;
    for (pod, snapshot) in pods.all() {
        for id in unused(&snapshot) {
            info!(pod = ?pod.metadata.name, ns = ?pod.metadata.namespace, container = %id, "removing a dead container");
            match runtime.cri.remove_container(&id).await {
                Ok(()) => removed += 1,
                Err(err) => warn!(container = %id, err = %Chain(&err), "cannot remove a dead container"),
            }
        }
    }
    removed
}

/// How often the disk is looked at after so much was removed: the runtime gives layers back some seconds after its
/// answer, and meanwhile no other pod has to go. Where nothing was removed there is nothing to wait for.
fn looks(removed: u64) -> u32 {
    if removed > 0 { LAYER_LOOKS } else { 1 }
}

/// Whether the disk is low no more at one of so many looks.
async fn is_enough(mut is_low: impl FnMut() -> bool, looks: u32, pause: Duration) -> bool {
    for look in 0..looks {
        if look > 0 {
            tokio::time::sleep(pause).await;
        }
        if !is_low() {
            return true;
        }
    }
    false
}

/// The ids of a pod's containers that may go. Pure.
fn unused(snapshot: &Snapshot) -> Vec<String> {
    let observed = &snapshot.observed;
    let has_ended = snapshot.status.phase.as_deref().is_some_and(is_terminal) && observed.running().next().is_none();
    let is_last = |seen: &Seen| observed.latest(&seen.name).is_some_and(|latest| latest.id == seen.id);
    let dead = observed.containers.iter().filter(|seen| seen.state == State::Exited && (has_ended || !is_last(seen)));
    dead.map(|seen| seen.id.clone()).collect()
}

/// The use that one pod makes of the resource, in all and by container.
struct Use {
    pod: Arc<Pod>,
    bytes: i64,
    by_container: Vec<(String, i64)>,
}

async fn evict_one(node: &Node, pods: &Pods, at: Met, seen: &BTreeMap<&'static str, Observation>) -> Round {
    let signal = at.signal;
    let resource = resource_of(signal);
    let uses = usage(node, pods, signal).await;
    let critical = |pod: &Pod| {
        pod.spec.as_ref().and_then(|s| s.priority).is_some_and(|p| p >= 2_000_000_000)
            || crate::sources::annotations::is_static(pod)
    };
    let rank = |u: &Use| {
        let over = u.bytes - requests(&u.pod, resource);
        let priority = u.pod.spec.as_ref().and_then(|s| s.priority).unwrap_or(0);
        (over > 0, std::cmp::Reverse(priority), over)
    };
    let Some(chosen) = uses.into_iter().filter(|u| !critical(&u.pod)).max_by_key(|u| rank(u)) else {
        warn!(signal, "no pod can be evicted");
        return Round::Done;
    };
    // One that was told to go before and takes its time is told again, as upstream does: it is no reason to take the
    // next.
    let settings = &node.config.settings;
    pods.evict(&chosen.pod, reason(settings, &chosen, at, seen), at.notice(settings));
    info!(pod = ?chosen.pod.metadata.name, ns = ?chosen.pod.metadata.namespace, signal, "evicting a pod");
    given_back(&node.config, &chosen.pod).await;
    Round::Evicted
}

/// Upstream's text for a pod that has to go.
fn reason(settings: &Settings, chosen: &Use, at: Met, seen: &BTreeMap<&'static str, Observation>) -> String {
    let (signal, resource) = (at.signal, resource_of(at.signal));
    let mut text = format!("The node was low on resource: {resource}. ");
    if let Some(o) = seen.get(signal) {
        let threshold = at.threshold(settings, o.capacity).unwrap_or(0);
        text += &format!(
            "Threshold quantity: {}, available: {}. ",
            threshold_text(signal, threshold),
            kibibytes(signal, o.available)
        );
    }
    for (name, bytes) in &chosen.by_container {
        let request = container::find(&chosen.pod, name)
            .and_then(|(c, _)| limits::request(c.resources.as_ref(), resource))
            .map_or(0, |q| q.value());
        if *bytes > request {
            let (using, request) = (kibibytes("", u64::try_from(*bytes).unwrap_or(0)), binary(request));
            text += &format!(
                "Container {name} was using {using}, request is {request}, has larger consumption of {resource}. "
            );
        }
    }
    text
}

/// Waits until a pod's worker has given back volumes, containers and, last of all, logs.
async fn given_back(config: &Config, pod: &Pod) {
    let dirs = [
        volumes::pod_dir(config, pod.metadata.uid.as_deref().unwrap_or_default()),
        crate::sandbox::log_dir(config, pod),
    ];
    let waited = Stopwatch::start();
    while waited.elapsed() < CLEANUP_LIMIT && dirs.iter().any(|dir| dir.exists()) {
        tokio::time::sleep(CLEANUP_LOOK).await;
    }
}

fn threshold_text(signal: &str, threshold: u64) -> String {
    if signal.ends_with("inodesFree") || signal == "pid.available" {
        threshold.to_string()
    } else {
        binary(i64::try_from(threshold).unwrap_or(i64::MAX))
    }
}

fn kibibytes(signal: &str, amount: u64) -> String {
    if signal.ends_with("inodesFree") || signal == "pid.available" {
        amount.to_string()
    } else {
        format!("{}Ki", amount / 1024)
    }
}

/// Which parts of a pod's local storage lie in the file system that runs low. Upstream's `rankDiskPressureFunc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parts {
    layers: bool,
    volumes_and_logs: bool,
}

fn parts(signal: &str, layout: Layout) -> Parts {
    let of_images = signal.starts_with("imagefs.");
    match layout {
        Layout::Together => Parts { layers: true, volumes_and_logs: true },
        Layout::Apart => Parts { layers: of_images, volumes_and_logs: !of_images },
    }
}

async fn usage(node: &Node, pods: &Pods, signal: &str) -> Vec<Use> {
    let (resource, parts) = (resource_of(signal), parts(signal, node.disks.layout()));
    let stats = node.runtime.cri.container_stats().await.unwrap_or_default();
    let mut used: BTreeMap<String, Vec<(String, i64)>> = BTreeMap::new();
    for stat in stats {
        let Some(attributes) = &stat.attributes else { continue };
        let uid = attributes.labels.get(labels::POD_UID).cloned().unwrap_or_default();
        let name = attributes.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default();
        let value = match resource {
            "memory" => stat.memory.and_then(|m| m.working_set_bytes),
            "inodes" if parts.layers => stat.writable_layer.and_then(|l| l.inodes_used),
            "ephemeral-storage" if parts.layers => stat.writable_layer.and_then(|l| l.used_bytes),
            _ => None,
        };
        used.entry(uid).or_default().push((name, amount(value.map_or(0, |v| v.value))));
    }
    let live = pods.all().into_iter().filter(|(_, snapshot)| snapshot.observed.running().next().is_some());
    let mut all = Vec::new();
    for (pod, _) in live {
        let by_container = used.remove(pod.metadata.uid.as_deref().unwrap_or_default()).unwrap_or_default();
        let more = match resource {
            "pids" => crate::stats::processes(&node.cgroups, &pod),
            "inodes" | "ephemeral-storage" if parts.volumes_and_logs => {
                let (bytes, inodes) = volumes_and_logs(&node.config, &node.disks, &pod).await;
                if resource == "inodes" { inodes } else { bytes }
            }
            _ => 0,
        };
        let bytes = by_container.iter().map(|(_, bytes)| bytes).sum::<i64>().saturating_add(amount(more));
        all.push(Use { pod, bytes, by_container });
    }
    all
}

#[cfg(test)]
mod tests;
