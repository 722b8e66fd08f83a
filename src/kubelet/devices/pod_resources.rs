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
