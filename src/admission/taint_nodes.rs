//! A new node takes no pods until it has said that it is ready.

use async_trait::async_trait;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;
use serde_json::{Value, json};

use super::{Operation, Plugin, Review};

const NOT_READY: &str = "node.kubernetes.io/not-ready";

/// Upstream's `TaintNodesByCondition`.
pub struct TaintNodesByCondition;

#[async_trait]
impl Plugin for TaintNodesByCondition {
    fn name(&self) -> &'static str {
        "TaintNodesByCondition"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Create && a.is(GroupResource::core("nodes"))
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let mut taints = review.object["spec"]["taints"].as_array().cloned().unwrap_or_default();
        if !taints.iter().any(|taint| taint["key"] == NOT_READY && taint["effect"] == "NoSchedule") {
            taints.push(json!({"key": NOT_READY, "effect": "NoSchedule"}));
            review.object["spec"]["taints"] = Value::Array(taints);
        }
        Ok(())
    }
}
