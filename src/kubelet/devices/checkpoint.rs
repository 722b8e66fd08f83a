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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checkpoint_is_read_back_and_spelt_as_upstreams() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), Kept::default(), "there is none yet");
        let needs = pb::ContainerAllocation { envs: [("E".to_owned(), "1".to_owned())].into(), ..Default::default() };
        let given = Given { ids: ["a".to_owned(), "b".to_owned()].into(), needs };
        let container = BTreeMap::from([("x.io/d".to_owned(), given)]);
        let kept = Kept {
            allocations: BTreeMap::from([("u".to_owned(), BTreeMap::from([("c".to_owned(), container)]))]),
            registered: BTreeMap::from([("x.io/d".to_owned(), BTreeSet::from(["a".to_owned()]))]),
        };
        write(dir.path(), &kept).unwrap();
        assert_eq!(read(dir.path()).unwrap(), kept);
        let file: serde_json::Value = serde_json::from_slice(&std::fs::read(dir.path().join(FILE)).unwrap()).unwrap();
        let entry = &file["Data"]["PodDeviceEntries"][0];
        assert_eq!(
            (&entry["PodUID"], &entry["ContainerName"], &entry["ResourceName"]),
            (&"u".into(), &"c".into(), &"x.io/d".into())
        );
        assert_eq!(entry["DeviceIDs"], serde_json::json!({"-1": ["a", "b"]}));
        assert_eq!(file["Data"]["RegisteredDevices"], serde_json::json!({"x.io/d": ["a"]}));
    }

    #[test]
    fn a_checkpoint_that_is_none_is_an_error_and_not_an_empty_one() {
        let dir = tempfile::tempdir().unwrap();
        for text in ["", "{", "{\"Data\": {}}"] {
            std::fs::write(dir.path().join(FILE), text).unwrap();
            assert!(read(dir.path()).is_err(), "{text}");
        }
    }
}
