//! The cluster as one scheduling cycle sees it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Service};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use model::phase::has_ended;
use model::pod::Pod;
use model::requests::{self, Amounts};

use crate::resources;

/// A node and everything that already counts against it.
#[derive(Clone, Debug)]
pub struct NodeState {
    /// The node.
    pub node: Arc<Node>,
    /// Pods bound to it, or assumed to be.
    pub pods: Vec<Arc<Pod>>,
    /// Amounts that those pods asked for.
    pub used: Amounts,
    /// The same with upstream's stand-ins, for scores.
    pub used_for_score: Amounts,
    /// Amounts that all pods together may ask for.
    pub allocatable: Amounts,
}

impl NodeState {
    /// The node's name, empty for an object without one.
    pub fn name(&self) -> &str {
        self.node.metadata.name.as_deref().unwrap_or_default()
    }

    /// The value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.node.metadata.labels.as_ref()?.get(key).map(String::as_str)
    }

    /// The same node with other pods on it.
    pub fn with_pods(&self, pods: &[Arc<Pod>]) -> NodeState {
        let mut state = NodeState {
            node: Arc::clone(&self.node),
            pods: Vec::new(),
            used: Amounts::new(),
            used_for_score: Amounts::new(),
            allocatable: self.allocatable.clone(),
        };
        pods.iter().for_each(|pod| state.take(Arc::clone(pod)));
        state
    }

    fn take(&mut self, pod: Arc<Pod>) {
        resources::add_pod(&mut self.used, &pod);
        resources::add_pod_for_score(&mut self.used_for_score, &pod);
        self.pods.push(pod);
    }
}

/// Facts of drivers; empty while no volume is a driver's.
#[derive(Clone, Debug, Default)]
pub struct Drivers {
    /// By name of the node.
    pub nodes: BTreeMap<String, Arc<CSINode>>,
    /// By name.
    pub drivers: BTreeMap<String, Arc<CSIDriver>>,
    /// Capacity that drivers say they have left.
    pub capacities: Vec<Arc<CSIStorageCapacity>>,
}

/// All nodes in name order, with the objects that filters look up.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeState>,
    /// Namespaces by name, for `namespaceSelector`.
    pub namespaces: BTreeMap<String, Arc<Namespace>>,
    /// Claims by `(namespace, name)`.
    pub claims: BTreeMap<(String, String), Arc<PersistentVolumeClaim>>,
    /// Volumes by name.
    pub volumes: BTreeMap<String, Arc<PersistentVolume>>,
    /// Storage classes by name.
    pub classes: BTreeMap<String, Arc<StorageClass>>,
    /// Facts of drivers of volumes.
    pub csi: Drivers,
    /// Services, whose pods are spread.
    pub services: Vec<Arc<Service>>,
    /// Disruption budgets, which a preemption spares if it can.
    pub budgets: Vec<Arc<PodDisruptionBudget>>,
}

impl Snapshot {
    /// Puts nodes and pods together. `assumed` names a node for pods whose Binding is on its way.
    pub fn build(nodes: &[Arc<Node>], pods: &[Arc<Pod>], assumed: &BTreeMap<String, String>) -> Snapshot {
        let mut snapshot = Snapshot::default();
        for node in nodes {
            let state = NodeState {
                node: Arc::clone(node),
                pods: Vec::new(),
                used: Amounts::new(),
                used_for_score: Amounts::new(),
                allocatable: requests::allocatable(node),
            };
            snapshot.nodes.insert(state.name().to_owned(), state);
        }
        // A pod that has ended keeps its node's name but uses nothing.
        for pod in pods.iter().filter(|pod| !has_ended(pod)) {
            let bound = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).filter(|name| !name.is_empty());
            let assumed = pod.metadata.uid.as_ref().and_then(|uid| assumed.get(uid)).map(String::as_str);
            if let Some(state) = bound.or(assumed).and_then(|name| snapshot.nodes.get_mut(name)) {
                state.take(Arc::clone(pod));
            }
        }
        snapshot
    }
}
