//! Node selector terms of a node in a snapshot, and label selectors that may be absent.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use model::selectors;

use crate::snapshot::NodeState;

static NO_LABELS: BTreeMap<String, String> = BTreeMap::new();

fn labels(node: &NodeState) -> &BTreeMap<String, String> {
    node.node.metadata.labels.as_ref().unwrap_or(&NO_LABELS)
}

/// Whether any term matches; a selector without terms matches nothing.
pub fn node_selector_matches(selector: &NodeSelector, node: &NodeState) -> bool {
    selectors::picks_node(selector, node.name(), labels(node))
}

/// Whether all requirements of one term hold; an empty term matches nothing.
pub fn term_matches(term: &NodeSelectorTerm, node: &NodeState) -> bool {
    selectors::term_picks_node(term, node.name(), labels(node))
}

/// Whether a label selector picks these labels; an absent selector picks nothing, an empty one everything.
pub fn label_selector_matches(selector: Option<&LabelSelector>, labels: Option<&BTreeMap<String, String>>) -> bool {
    selector.is_some_and(|selector| selectors::selects(selector, labels))
}
