//! Node selectors and affinity over a node in a snapshot, and label selectors that may be absent.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Affinity, NodeSelectorTerm, PersistentVolume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use model::selectors;

use crate::snapshot::NodeState;

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

fn labels(node: &NodeState) -> &BTreeMap<String, String> {
    node.node.metadata.labels.as_ref().unwrap_or(&NO_LABELS)
}

/// Whether a pod's required node affinity, if it has any, lets it be on the node.
pub fn is_allowed(affinity: Option<&Affinity>, node: &NodeState) -> bool {
    selectors::affinity_allows(affinity, node.name(), labels(node))
}

/// Whether a volume can be reached from the node.
pub fn is_reached(volume: &PersistentVolume, node: &NodeState) -> bool {
    selectors::reaches(volume, node.name(), labels(node))
}

/// Whether all requirements of one term hold; an empty term matches nothing.
pub fn term_matches(term: &NodeSelectorTerm, node: &NodeState) -> bool {
    selectors::term_picks_node(term, node.name(), labels(node))
}

/// Whether a label selector picks these labels; an absent selector picks nothing, an empty one everything.
pub fn label_selector_matches(selector: Option<&LabelSelector>, labels: Option<&BTreeMap<String, String>>) -> bool {
    selector.is_some_and(|selector| selectors::selects(selector, labels))
}
