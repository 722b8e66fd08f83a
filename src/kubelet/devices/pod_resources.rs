//! The devices of each pod, for programs that measure and show them (`v1` of the pod resources API).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use proto::plugins as pb;

use crate::container::{self, Role};
use crate::devices::allocations::Given;
use crate::devices::registry::Devices;

impl Devices {
    /// The resources of a pod: every container that runs, with or without devices.
    pub(super) fn of_pod(&self, pod: &Pod) -> pb::PodResources {
        let uid = pod.metadata.uid.clone().unwrap_or_default();
        let allocations = self.with(|state| state.allocations.get(&uid).cloned().unwrap_or_default());
        let running = container::all(pod).into_iter().filter(|(_, role)| *role != Role::Init);
        let containers = running.map(|(c, _)| pb::ContainerResources {
            name: c.name.clone(),
            devices: allocations.get(&c.name).map(|given| self.spread(given)).unwrap_or_default(),
        });
        pb::PodResources {
            name: pod.metadata.name.clone().unwrap_or_default(),
            namespace: pod.metadata.namespace.clone().unwrap_or_default(),
            containers: containers.collect(),
        }
    }

    /// By resource and by where the devices are.
    fn spread(&self, given: &BTreeMap<String, Given>) -> Vec<pb::ContainerDevices> {
        given.iter().flat_map(|(resource, given)| self.grouped(resource, given.ids.iter().cloned().collect())).collect()
    }

    fn grouped(&self, resource: &str, ids: Vec<String>) -> Vec<pb::ContainerDevices> {
        let mut groups: BTreeMap<Vec<i64>, Vec<String>> = BTreeMap::new();
        self.with(|state| {
            for id in ids {
                let seen = state.resources.get(resource).and_then(|r| r.devices.get(&id));
                groups.entry(seen.map(|s| s.numa.iter().copied().collect()).unwrap_or_default()).or_default().push(id);
            }
        });
        let one = |(numa, device_ids): (Vec<i64>, Vec<String>)| pb::ContainerDevices {
            resource_name: resource.to_owned(),
            device_ids,
            topology: (!numa.is_empty())
                .then(|| pb::TopologyInfo { nodes: numa.iter().map(|id| pb::NumaNode { id: *id }).collect() }),
        };
        groups.into_iter().map(one).collect()
    }

    /// All devices of the node.
    pub(super) fn all(&self) -> Vec<pb::ContainerDevices> {
        let resources: Vec<(String, Vec<String>)> = self.with(|s| {
            s.resources.iter().map(|(name, r)| (name.clone(), r.devices.keys().cloned().collect())).collect()
        });
        resources.into_iter().flat_map(|(name, ids)| self.grouped(&name, ids)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::devices::registry::Seen;

    #[test]
    fn devices_are_told_by_container_and_by_numa_node() {
        let dir = tempfile::tempdir().unwrap();
        let devices = Devices::new(dir.path());
        let ids = || ["a", "b", "c"].map(str::to_owned);
        devices.with(|state| {
            let resource = state.resources.entry("x.io/d".to_owned()).or_default();
            for (id, numa) in ids().into_iter().zip([&[0][..], &[1], &[]]) {
                resource.devices.insert(id, Seen { healthy: true, numa: numa.iter().copied().collect() });
            }
            let given = Given { ids: BTreeSet::from(ids()), ..Given::default() };
            let container = BTreeMap::from([("c".to_owned(), BTreeMap::from([("x.io/d".to_owned(), given)]))]);
            state.allocations.insert("u".to_owned(), container);
        });
        let pod = serde_json::from_value(serde_json::json!({"metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"initContainers": [{"name": "i"}], "containers": [{"name": "c"}, {"name": "plain"}]}}))
        .unwrap();
        let told = devices.of_pod(&pod);
        assert_eq!((told.name.as_str(), told.namespace.as_str()), ("p", "d"));
        let names: Vec<&str> = told.containers.iter().map(|container| container.name.as_str()).collect();
        assert_eq!(names, ["c", "plain"], "init containers have ended");
        let nodes = |one: &pb::ContainerDevices| {
            let nodes = one.topology.iter().flat_map(|topology| &topology.nodes).map(|node| node.id);
            (one.device_ids.clone(), nodes.collect::<Vec<_>>())
        };
        let groups: Vec<_> = told.containers[0].devices.iter().map(nodes).collect();
        let group = |id: &str, nodes: &[i64]| (vec![id.to_owned()], nodes.to_vec());
        assert_eq!(groups, [group("c", &[]), group("a", &[0]), group("b", &[1])]);
        assert!(told.containers[1].devices.is_empty());
        assert_eq!(devices.all().len(), 3);
    }
}
