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
            if !tolerations[..before].iter().any(|toleration| speaks_of(toleration, key)) {
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

/// Whether the pod has said something of this taint: by key and effect alone, whatever the operator and the value. So
/// it is not the question of `model::taints`, whether the taint is tolerated.
///
/// Spec: upstream v1.36, plugin/pkg/admission/defaulttolerationseconds/admission.go.
fn speaks_of(toleration: &Value, key: &str) -> bool {
    let text = |field: &str| toleration[field].as_str().unwrap_or_default();
    (text("key") == key || text("key").is_empty()) && (text("effect") == "NoExecute" || text("effect").is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_toleration_of_the_key_and_effect_is_the_pods_own_word_whatever_its_operator() {
        let own = |toleration: Value| KEYS.map(|key| speaks_of(&toleration, key));
        for (toleration, wanted) in [
            (json!({"key": KEYS[0], "operator": "Exists", "effect": "NoExecute"}), [true, false]),
            (json!({"key": KEYS[1], "operator": "Exists"}), [false, true]),
            (json!({"operator": "Exists"}), [true, true]),
            (json!({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9}), [true, true]),
            // It does not tolerate the taint, which has no value, and is left alone nevertheless.
            (json!({"key": KEYS[0], "operator": "Equal", "value": "x", "effect": "NoExecute"}), [true, false]),
            (json!({"key": KEYS[0], "operator": "Exists", "effect": "NoSchedule"}), [false, false]),
            (json!({"key": "other", "operator": "Exists"}), [false, false]),
        ] {
            assert_eq!(own(toleration.clone()), wanted, "{toleration}");
        }
    }
}
