//! Annotations of claims and volumes, and where a volume can be reached.

use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use kube::ResourceExt as _;
use model::selectors;

pub(super) const BOUND_BY_US: &str = "pv.kubernetes.io/bound-by-controller";
pub(super) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(super) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
pub(super) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";

/// Whether a volume can be reached from a node.
pub(super) fn reaches(volume: &PersistentVolume, node: &Node) -> bool {
    selectors::reaches(volume, &node.name_any(), node.labels())
}
