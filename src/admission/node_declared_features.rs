//! A change of a running pod that its node's kubelet could not carry out is refused at once.

use async_trait::async_trait;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;
use schema::read;
use serde_json::Value;

use super::{Operation, Plugin, Review};

/// Changes of what a pod as a whole may use.
const POD_LEVEL: &str = "InPlacePodLevelResourcesVerticalScaling";
/// Changes of what an init container that ends may use.
const INIT_CONTAINERS: &str = "InPlacePodVerticalScalingInitContainers";

/// Upstream's `NodeDeclaredFeatureValidator`.
pub struct NodeDeclaredFeatureValidator;

#[async_trait]
impl Plugin for NodeDeclaredFeatureValidator {
    fn name(&self) -> &'static str {
        "NodeDeclaredFeatureValidator"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Update
            && a.group.is_empty()
            && a.resource == "pods"
            && matches!(a.subresource.as_str(), "" | "resize")
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let node = read::text(review.object, "spec.nodeName");
        let Some(old) = review.old.filter(|old| !node.is_empty() && old["spec"] != review.object["spec"]) else {
            return Ok(());
        };
        let needed = needed(old, review.object);
        if needed.is_empty() {
            return Ok(());
        }
        let Some(found) = review.lookup.get(GroupResource::core("nodes"), NamespacedName::cluster(node)) else {
            return Err(review.forbidden(&format!("node {node:?} not found")));
        };
        let declared = read::texts(&found, "status.declaredFeatures");
        let missing: Vec<&str> = needed.into_iter().filter(|feature| !declared.contains(feature)).collect();
        match missing.is_empty() {
            true => Ok(()),
            false => {
                let features = missing.join(", ");
                Err(review.forbidden(&format!(
                    "pod update requires features {features} which are not available on node {node:?}"
                )))
            }
        }
    }
}

/// The features of a kubelet that such a change asks for, in upstream's order.
fn needed(old: &Value, new: &Value) -> Vec<&'static str> {
    let resources = |object: &Value, path: &str| read::map(object, path).filter(|map| !map.is_empty()).cloned();
    let mut out = Vec::new();
    if resources(old, "spec.resources") != resources(new, "spec.resources") {
        out.push(POD_LEVEL);
    }
    let (before, after) = (read::list(old, "spec.initContainers"), read::list(new, "spec.initContainers"));
    let changed = |(old, new): (&Value, &Value)| {
        read::text(old, "restartPolicy") != "Always" && resources(old, "resources") != resources(new, "resources")
    };
    if before.iter().zip(after).any(changed) {
        out.push(INIT_CONTAINERS);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_changes_of_the_kinds_that_kubelets_may_lack_ask_for_a_feature() {
        let pod = |pod_cpu: u32, init_cpu: u32, cpu: u32, restart: &str| {
            let asks = |cpu: u32| json!({"requests": {"cpu": cpu}});
            json!({"spec": {"resources": asks(pod_cpu), "containers": [{"resources": asks(cpu)}],
                            "initContainers": [{"restartPolicy": restart, "resources": asks(init_cpu)}]}})
        };
        let old = pod(1, 1, 1, "");
        assert!(needed(&old, &pod(1, 1, 2, "")).is_empty());
        assert_eq!(needed(&old, &pod(2, 2, 1, "")), [POD_LEVEL, INIT_CONTAINERS]);
        assert!(needed(&pod(1, 1, 1, "Always"), &pod(1, 2, 1, "Always")).is_empty());
    }
}
