//! A pod that is bound carries its node's zone and region, so that it can read them through the downward API.

use async_trait::async_trait;
use model::meta;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;

use super::{Operation, Plugin, Review};

const LABELS: [&str; 2] = ["topology.kubernetes.io/zone", "topology.kubernetes.io/region"];

/// Upstream's `PodTopologyLabels`.
pub struct PodTopologyLabels;

#[async_trait]
impl Plugin for PodTopologyLabels {
    fn name(&self) -> &'static str {
        "PodTopologyLabels"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Create
            && a.group.is_empty()
            && matches!(a.resource_path().as_str(), "pods" | "pods/binding" | "bindings")
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let path = if review.kind == "Binding" { "target.name" } else { "spec.nodeName" };
        let node = schema::read::some_text(review.object, path)
            .and_then(|node| review.lookup.get(GroupResource::core("nodes"), NamespacedName::cluster(node)));
        for label in LABELS {
            if let Some(value) = node.as_ref().and_then(|node| meta::label(node, label)) {
                meta::set_label(review.object, label, value);
            }
        }
        Ok(())
    }
}
