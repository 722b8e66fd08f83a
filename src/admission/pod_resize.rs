//! A pod is not resized to more than its node has.

use async_trait::async_trait;
use model::quantity::Quantity;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::{Cause, Status};
use schema::read;
use serde_json::Value;

use super::{Operation, Plugin, Review};

/// Upstream's `PodResizeValidator`.
pub struct PodResizeValidator;

#[async_trait]
impl Plugin for PodResizeValidator {
    fn name(&self) -> &'static str {
        "PodResizeValidator"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Update && a.group.is_empty() && a.resource == "pods" && a.subresource == "resize"
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let name = read::text(review.object, "spec.nodeName");
        if name.is_empty() || review.old.is_none_or(|old| old["spec"] == review.object["spec"]) {
            return Ok(());
        }
        let Some(node) = review.lookup.get(GroupResource::core("nodes"), NamespacedName::cluster(name)) else {
            return Err(review.forbidden(&format!("node {name:?} not found")));
        };
        let refused = |reason: &str, why: &str| {
            let mut status = review.forbidden(why);
            status.causes.push(Cause { reason: reason.to_owned(), message: String::new(), field: String::new() });
            status
        };
        let os = node["metadata"]["labels"]["kubernetes.io/os"].as_str().unwrap_or("linux");
        if os != "linux" {
            let why = format!("pod resize is only supported on linux nodes, node {name:?} is {os:?}");
            return Err(refused("UnsupportedPlatform", &why));
        }
        match excess(review.object, &node) {
            Some(why) => Err(refused("NodeCapacity", &why)),
            None => Ok(()),
        }
    }
}

/// Which of the pod's requests no pod on this node could have.
fn excess(pod: &Value, node: &Value) -> Option<String> {
    let requests = schema::quota::pod_amounts(pod, "requests");
    let over = |(name, shown): (&str, fn(&Quantity) -> i64)| {
        let has = read::at(node, &format!("status.allocatable.{name}")).and_then(|v| Quantity::from_value(v).ok());
        let has = has.unwrap_or_else(|| Quantity::from_milli(0));
        let asked = requests.get(name).filter(|asked| **asked > has)?;
        Some(format!("{name}, requested: {}, allocatable: {}", shown(asked), shown(&has)))
    };
    let checked: [(&str, fn(&Quantity) -> i64); 2] = [("cpu", Quantity::milli_value), ("memory", Quantity::value)];
    let over: Vec<String> = checked.into_iter().filter_map(over).collect();
    (!over.is_empty()).then(|| format!("node didn't have enough allocatable resources: {}", over.join("; ")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_no_pod_could_have_on_this_node_is_told_in_the_units_of_the_scheduler() {
        let node = json!({"status": {"allocatable": {"cpu": "2", "memory": "1Gi"}}});
        let pod = |cpu: &str, memory: &str| {
            json!({"spec": {"containers": [{"resources": {"requests": {"cpu": cpu,
            "memory": memory}}}]}})
        };
        assert_eq!(excess(&pod("2", "1Gi"), &node), None);
        let both = "node didn't have enough allocatable resources: cpu, requested: 2500, allocatable: 2000; memory, \
                    requested: 2147483648, allocatable: 1073741824";
        assert_eq!(excess(&pod("2500m", "2Gi"), &node).as_deref(), Some(both));
    }
}
