//! The file that says which devices pods have, in upstream's shape.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use base::files::{read_if_exists, write_atomic};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use proto::plugins as pb;
use serde::{Deserialize, Serialize};

use crate::devices::allocations::{Allocations, Given};

pub(super) const FILE: &str = "kubelet_internal_checkpoint";
/// Upstream's key of devices that are near no NUMA node.
const ANYWHERE: i64 = -1;

/// The contents of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Kept {
    pub(super) allocations: Allocations,
    pub(super) registered: BTreeMap<String, BTreeSet<String>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct File {
    data: Data,
    checksum: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Data {
    #[serde(default)]
    pod_device_entries: Option<Vec<Entry>>,
    #[serde(default)]
    registered_devices: Option<BTreeMap<String, BTreeSet<String>>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(rename = "PodUID")]
    pod_uid: String,
    container_name: String,
    resource_name: String,
    #[serde(rename = "DeviceIDs")]
    device_ids: BTreeMap<i64, BTreeSet<String>>,
    alloc_resp: String,
}

pub(super) fn read(dir: &Path) -> io::Result<Kept> {
    let Some(text) = read_if_exists(&dir.join(FILE)).map_err(io::Error::other)? else { return Ok(Kept::default()) };
    let file: File = serde_json::from_slice(&text).map_err(io::Error::other)?;
    let mut kept = Kept { registered: file.data.registered_devices.unwrap_or_default(), ..Kept::default() };
    for entry in file.data.pod_device_entries.into_iter().flatten() {
        let bytes = STANDARD.decode(&entry.alloc_resp).map_err(io::Error::other)?;
        let needs = pb::ContainerAllocation::decode(bytes.as_slice()).map_err(io::Error::other)?;
        let given = Given { ids: entry.device_ids.into_values().flatten().collect(), needs };
        kept.allocations
            .entry(entry.pod_uid)
            .or_default()
            .entry(entry.container_name)
            .or_default()
            .insert(entry.resource_name, given);
    }
    Ok(kept)
}

pub(super) fn write(dir: &Path, kept: &Kept) -> io::Result<()> {
    let mut entries = Vec::new();
    for (pod, containers) in &kept.allocations {
        for (container, resources) in containers {
            entries.extend(resources.iter().map(|(resource, given)| Entry {
                pod_uid: pod.clone(),
                container_name: container.clone(),
                resource_name: resource.clone(),
                device_ids: [(ANYWHERE, given.ids.clone())].into(),
                alloc_resp: STANDARD.encode(given.needs.encode_to_vec()),
            }));
        }
    }
    let data = Data { pod_device_entries: Some(entries), registered_devices: Some(kept.registered.clone()) };
    // Who reads the file looks at what is in it; the sum has a place, but no meaning beyond this program.
    let text = serde_json::to_string(&data).map_err(io::Error::other)?;
    let checksum = text.bytes().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let file = serde_json::to_vec(&File { data, checksum }).map_err(io::Error::other)?;
    write_atomic(&dir.join(FILE), &file, 0o600).map_err(io::Error::other)
}
