//! Pods keep others off their own node at most, not off whole zones.

use async_trait::async_trait;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;
use schema::read;

use super::{Operation, Plugin, Review};

const HOSTNAME: &str = "kubernetes.io/hostname";

/// Upstream's `LimitPodHardAntiAffinityTopology`.
pub struct LimitPodHardAntiAffinityTopology;

#[async_trait]
impl Plugin for LimitPodHardAntiAffinityTopology {
    fn name(&self) -> &'static str {
        "LimitPodHardAntiAffinityTopology"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        a.is(GroupResource::core("pods")) && matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let terms =
            read::list(review.object, "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution");
        let wide = terms.iter().map(|term| read::text(term, "topologyKey")).find(|key| *key != HOSTNAME);
        wide.map_or(Ok(()), |key| {
            Err(review.forbidden(&format!(
                "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOSTNAME} is \
                 allowed"
            )))
        })
    }
}
