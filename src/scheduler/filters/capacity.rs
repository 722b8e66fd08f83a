//! Storage capacity: a new volume goes where its CSI driver has room (CSIStorageCapacity).

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use model::quantity::Quantity;

use crate::affinity;
use crate::snapshot::{NodeState, Snapshot};

/// Whether the driver of a class says that it has room for the claim near the node. One that says nothing is believed
/// to have it.
pub(super) fn has_room(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &NodeState,
    snapshot: &Snapshot,
) -> bool {
    let tells = snapshot.csi.drivers.get(&class.provisioner).and_then(|d| d.spec.storage_capacity) == Some(true);
    if !tells {
        return true;
    }
    let bytes =
        |q: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| q.0.parse::<Quantity>().ok().map(|q| q.value());
    let wanted = claim
        .spec
        .as_ref()
        .and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get("storage"))
        .and_then(bytes)
        .unwrap_or(0);
    snapshot.csi.capacities.iter().any(|room| {
        let left = room.maximum_volume_size.as_ref().or(room.capacity.as_ref()).and_then(bytes);
        Some(&room.storage_class_name) == class.metadata.name.as_ref()
            && left.is_some_and(|left| left >= wanted)
            && room.node_topology.is_some()
            && affinity::label_selector_matches(room.node_topology.as_ref(), node.node.metadata.labels.as_ref())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_new_volume_goes_where_its_driver_has_room() {
        let node = serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap();
        let mut snapshot = Snapshot::build(&[Arc::new(node)], &[], &BTreeMap::new());
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}})).unwrap();
        let class: StorageClass =
            serde_json::from_value(json!({"metadata": {"name": "c"}, "provisioner": "d.io"})).unwrap();
        assert!(has_room(&claim, &class, &snapshot.nodes["n"].clone(), &snapshot), "no driver says that it has none");
        let driver = json!({"metadata": {"name": "d.io"}, "spec": {"storageCapacity": true}});
        snapshot.csi.drivers.insert("d.io".to_owned(), Arc::new(serde_json::from_value(driver).unwrap()));
        assert!(!has_room(&claim, &class, &snapshot.nodes["n"].clone(), &snapshot));
        let room = |size: &str| {
            json!({"metadata": {"name": "r"}, "storageClassName": "c", "nodeTopology": {},
            "capacity": size})
        };
        snapshot.csi.capacities = vec![Arc::new(serde_json::from_value(room("1Gi")).unwrap())];
        assert!(!has_room(&claim, &class, &snapshot.nodes["n"].clone(), &snapshot));
        snapshot.csi.capacities = vec![Arc::new(serde_json::from_value(room("3Gi")).unwrap())];
        assert!(has_room(&claim, &class, &snapshot.nodes["n"].clone(), &snapshot));
    }
}
