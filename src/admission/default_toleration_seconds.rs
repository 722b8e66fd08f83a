//! Pods stay five minutes on a node that is not ready or not reachable, unless they say otherwise.

use async_trait::async_trait;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;
use serde_json::{Value, json};

use super::{Operation, Plugin, Review};

const KEYS: [&str; 2] = ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"];

/// Upstream's `DefaultTolerationSeconds`.
pub struct DefaultTolerationSeconds {
    /// For nodes that are not ready and for those that cannot be reached.
    pub secs: (i64, i64),
}

#[async_trait]
impl Plugin for DefaultTolerationSeconds {
    fn name(&self) -> &'static str {
        "DefaultTolerationSeconds"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        a.is(GroupResource::core("pods")) && matches!(operation, Operation::Create | Operation::Update)
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let mut tolerations = review.object["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
        let before = tolerations.len();
        for (key, secs) in KEYS.into_iter().zip([self.secs.0, self.secs.1]) {
            if !tolerations[..before].iter().any(|toleration| tolerates(toleration, key)) {
                tolerations
                    .push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": secs}));
            }
        }
        if tolerations.len() > before {
            review.object["spec"]["tolerations"] = Value::Array(tolerations);
        }
        Ok(())
    }
}

fn tolerates(toleration: &Value, key: &str) -> bool {
    let text = |field: &str| toleration[field].as_str().unwrap_or_default();
    (text("key") == key || text("key").is_empty()) && (text("effect") == "NoExecute" || text("effect").is_empty())
}
