//! Volumes of CSI drivers: a node takes only so many of each driver's (CSINode's `allocatable.count`).

use std::collections::{BTreeMap, BTreeSet};

use model::pod::Pod;

use super::candidate::{Candidate, Reasons, because, claims_of};
use crate::snapshot::{NodeState, Snapshot};

/// How many volumes of each driver the node takes.
fn limits(node: &NodeState, snapshot: &Snapshot) -> BTreeMap<String, usize> {
    let Some(object) = snapshot.csi.nodes.get(node.name()) else { return BTreeMap::new() };
    let of = |d: &k8s_openapi::api::storage::v1::CSINodeDriver| {
        let count = d.allocatable.as_ref()?.count?;
        Some((d.name.clone(), usize::try_from(count).ok()?))
    };
    object.spec.drivers.iter().filter_map(of).collect()
}

/// The volumes of drivers behind a pod's claims, as pairs of driver and something that names the volume.
fn driven(pod: &Pod, snapshot: &Snapshot) -> BTreeSet<(String, String)> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let one = |name: String| {
        let claim = snapshot.claims.get(&(namespace.clone(), name.clone()))?;
        let spec = claim.spec.as_ref()?;
        match spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
            Some(volume) => {
                let csi = snapshot.volumes.get(volume)?.spec.as_ref()?.csi.as_ref()?;
                Some((csi.driver.clone(), csi.volume_handle.clone()))
            }
            // It will be of its class's driver.
            None => {
                let class = snapshot.classes.get(spec.storage_class_name.as_ref()?)?;
                Some((class.provisioner.clone(), format!("{namespace}/{name}")))
            }
        }
    };
    claims_of(pod).filter_map(one).collect()
}

/// Whether the node takes the pod's volumes beside those that it has.
pub(super) fn filter(candidate: &Candidate<'_>, node: &NodeState, snapshot: &Snapshot) -> Reasons {
    let limits = limits(node, snapshot);
    if limits.is_empty() {
        return Reasons::new();
    }
    let mut fresh = driven(candidate.pod, snapshot);
    if fresh.is_empty() {
        return Reasons::new();
    }
    let there: BTreeSet<(String, String)> = node.pods.iter().flat_map(|pod| driven(pod, snapshot)).collect();
    fresh.retain(|volume| !there.contains(volume));
    let full = fresh.iter().map(|(driver, _)| driver).collect::<BTreeSet<_>>().into_iter().any(|driver| {
        let count = |set: &BTreeSet<(String, String)>| set.iter().filter(|(of, _)| of == driver).count();
        limits.get(driver).is_some_and(|limit| count(&there) + count(&fresh) > *limit)
    });
    because(full, "node(s) exceed max volume count")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use std::sync::Arc;

    use super::*;
    use crate::cycle::{Decision, decide};

    fn snapshot(limit: i32) -> (Snapshot, Pod) {
        let typed = |name: &str| {
            json!({"metadata": {"name": name, "namespace": "d", "uid": name}, "spec": {"containers": [],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]}})
        };
        let mut running = typed("one");
        running["spec"]["nodeName"] = json!("n");
        let node =
            json!({"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "9"}}});
        let nodes = [Arc::new(serde_json::from_value(node).unwrap())];
        let mut snapshot =
            Snapshot::build(&nodes, &[Arc::new(serde_json::from_value(running).unwrap())], &BTreeMap::new());
        for name in ["one", "two"] {
            let bound = json!({"pv.kubernetes.io/bind-completed": "yes"});
            let claim = json!({"metadata": {"name": name, "namespace": "d", "annotations": bound},
                "spec": {"volumeName": name}, "status": {"phase": "Bound"}});
            let volume = json!({"metadata": {"name": name}, "spec": {"csi": {"driver": "d.io", "volumeHandle": name}}});
            snapshot.claims.insert(("d".to_owned(), name.to_owned()), Arc::new(serde_json::from_value(claim).unwrap()));
            snapshot.volumes.insert(name.to_owned(), Arc::new(serde_json::from_value(volume).unwrap()));
        }
        let object = json!({"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d.io", "nodeID": "n",
            "allocatable": {"count": limit}}]}});
        snapshot.csi.nodes.insert("n".to_owned(), Arc::new(serde_json::from_value(object).unwrap()));
        (snapshot, serde_json::from_value(typed("two")).unwrap())
    }

    #[test]
    fn a_node_takes_as_many_volumes_as_its_driver_says() {
        let (room, pod) = snapshot(2);
        assert!(matches!(decide(&pod, &room, 0), Decision::Bind { .. }));
        let (full, pod) = snapshot(1);
        match decide(&pod, &full, 0) {
            Decision::Unschedulable { message, .. } => {
                assert!(message.contains("1 node(s) exceed max volume count"), "{message}")
            }
            other => panic!("{other:?}"),
        }
    }
}
