//! Local storage of pods: their use of the node's disk, and those that go over limits of their own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Pod, Volume};
use model::quantity::{Notation, Quantity};

use crate::cgroups::limits;
use crate::config::Config;
use crate::container;
use crate::disk::{By, Disks};
use crate::pods::desired::Notice;
use crate::pods::map::Pods;
use crate::runtime::Runtime;
use crate::runtime::labels;
use crate::sandbox::log_dir;
use crate::volumes;
use crate::volumes::plugin::Plugin;

/// Throws out pods whose emptyDirs, containers or whole local storage grew over their limits.
pub(super) async fn over_limits(runtime: &Runtime, config: &Config, disks: &Disks, pods: &Pods) {
    let limited: Vec<Arc<Pod>> = pods
        .all()
        .into_iter()
        .filter(|(pod, s)| has_local_limit(pod) && s.observed.running().next().is_some())
        .map(|(p, _)| p)
        .collect();
    if limited.is_empty() {
        return;
    }
    let stats = runtime.cri.container_stats().await.unwrap_or_default();
    for pod in limited {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let volumes = local_volumes(config, disks, &pod).await;
        let mut layers: BTreeMap<String, i64> = BTreeMap::new();
        for stat in &stats {
            let Some(attributes) =
                stat.attributes.as_ref().filter(|a| a.labels.get(labels::POD_UID).map(String::as_str) == Some(uid))
            else {
                continue;
            };
            let name = attributes.labels.get(labels::CONTAINER_NAME).cloned().unwrap_or_default();
            let layer = stat.writable_layer.as_ref().and_then(|l| l.used_bytes.as_ref()).map_or(0, |v| v.value);
            let logs = disks.measures.of(&log_dir(config, &pod).join(&name), By::Tree).await;
            layers.insert(name, amount(layer.saturating_add(logs.map_or(0, |measure| measure.bytes))));
        }
        if let Some(text) = local_breach(&pod, &volumes, &layers) {
            pods.evict(&pod, text, Notice::Hard);
        }
    }
}

pub(super) fn binary(bytes: i64) -> String {
    Quantity::from_units(bytes, Notation::BinarySi).to_string()
}

pub(super) fn amount(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// Bytes and inodes of a pod's volumes on the node's disk, and of its logs.
pub(super) async fn volumes_and_logs(config: &Config, disks: &Disks, pod: &Pod) -> (u64, u64) {
    let mut total = (0, 0);
    let dirs = disk_backed(pod).map(|name| empty_dir(config, pod, name)).chain([log_dir(config, pod)]);
    for dir in dirs {
        if let Some(measure) = disks.measures.of(&dir, By::Tree).await {
            total = (total.0 + measure.bytes, total.1 + measure.inodes);
        }
    }
    total
}

/// Names of the emptyDirs that lie on disk.
fn disk_backed(pod: &Pod) -> impl Iterator<Item = &str> {
    let on_disk =
        |v: &&Volume| v.empty_dir.as_ref().is_some_and(|e| e.medium.as_deref().unwrap_or_default().is_empty());
    pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()).filter(on_disk).map(|v| v.name.as_str())
}

fn empty_dir(config: &Config, pod: &Pod, name: &str) -> PathBuf {
    volumes::plugin_dir(config, pod, Plugin::EmptyDir, name)
}

/// Bytes of each emptyDir on disk.
async fn local_volumes(config: &Config, disks: &Disks, pod: &Pod) -> Vec<(String, i64)> {
    let mut all = Vec::new();
    for name in disk_backed(pod) {
        let bytes = disks.measures.of(&empty_dir(config, pod, name), By::Tree).await.map_or(0, |measure| measure.bytes);
        all.push((name.to_owned(), amount(bytes)));
    }
    all
}

fn has_local_limit(pod: &Pod) -> bool {
    let sized = pod
        .spec
        .iter()
        .flat_map(|s| s.volumes.iter().flatten())
        .any(|v| v.empty_dir.as_ref().is_some_and(|e| e.size_limit.is_some()));
    sized || container::all(pod).iter().any(|(c, _)| limits::limit(c.resources.as_ref(), "ephemeral-storage").is_some())
}

/// Upstream's text when a limit of local storage is broken. Pure.
pub(super) fn local_breach(pod: &Pod, volumes: &[(String, i64)], layers: &BTreeMap<String, i64>) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    for volume in spec.volumes.iter().flatten() {
        let Some(limit) = volume.empty_dir.as_ref().and_then(|e| e.size_limit.as_ref()) else { continue };
        let used = volumes.iter().find(|(name, _)| *name == volume.name).map_or(0, |(_, bytes)| *bytes);
        let bytes = limits::parse(limit).value();
        if bytes > 0 && used > bytes {
            return Some(format!("Usage of EmptyDir volume \"{}\" exceeds the limit \"{}\". ", volume.name, limit.0));
        }
    }
    let limit_of = |c: &Container| limits::limit(c.resources.as_ref(), "ephemeral-storage").map(|q| q.value());
    // Those that have one, as upstream's PodLimits.
    let limits = spec.containers.iter().filter_map(limit_of).reduce(i64::saturating_add);
    let total: i64 = volumes.iter().map(|(_, b)| b).sum::<i64>() + layers.values().sum::<i64>();
    if let Some(limit) = limits.filter(|limit| total > *limit) {
        return Some(format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
            binary(limit)
        ));
    }
    spec.containers.iter().find_map(|c| {
        let limit = limit_of(c)?;
        let text = c.resources.as_ref()?.limits.as_ref()?.get("ephemeral-storage")?.0.clone();
        (layers.get(&c.name).copied().unwrap_or(0) > limit)
            .then(|| format!("Container {} exceeded its local ephemeral storage limit \"{text}\". ", c.name))
    })
}
