//! A pod's runtime class brings its overhead and the nodes that have the runtime.

use async_trait::async_trait;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;
use serde_json::{Value, json};

use super::{Operation, Plugin, Review};

/// Upstream's `RuntimeClass`.
pub struct RuntimeClass;

#[async_trait]
impl Plugin for RuntimeClass {
    fn name(&self) -> &'static str {
        "RuntimeClass"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Create && a.is(GroupResource::core("pods"))
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let Some(name) = review.object["spec"]["runtimeClassName"].as_str() else { return Ok(()) };
        let Some(class) = review
            .lookup
            .sure(GroupResource { group: "node.k8s.io", resource: "runtimeclasses" }, NamespacedName::cluster(name))
            .await
        else {
            return Err(review.forbidden(&format!("pod rejected: RuntimeClass {name:?} not found")));
        };
        let overhead = &class["overhead"]["podFixed"];
        let given = &review.object["spec"]["overhead"];
        if overhead.is_object() {
            if given.is_object() && given != overhead {
                return Err(
                    review.forbidden("pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead")
                );
            }
            review.object["spec"]["overhead"] = overhead.clone();
        }
        let scheduling = &class["scheduling"];
        for (key, value) in scheduling["nodeSelector"].as_object().into_iter().flatten() {
            let selector = &review.object["spec"]["nodeSelector"][key];
            if !selector.is_null() && selector != value {
                let (class, pod) = (value.as_str().unwrap_or_default(), selector.as_str().unwrap_or_default());
                let why = format!(
                    "conflict: runtimeClass.scheduling.nodeSelector[{key}] = {class}; pod.spec.nodeSelector[{key}] = \
                     {pod}"
                );
                return Err(review.forbidden(&why));
            }
            if !review.object["spec"]["nodeSelector"].is_object() {
                review.object["spec"]["nodeSelector"] = json!({});
            }
            review.object["spec"]["nodeSelector"][key] = value.clone();
        }
        let mut tolerations = review.object["spec"]["tolerations"].as_array().cloned().unwrap_or_default();
        for toleration in scheduling["tolerations"].as_array().into_iter().flatten() {
            if !tolerations.contains(toleration) {
                tolerations.push(toleration.clone());
            }
        }
        if !tolerations.is_empty() {
            review.object["spec"]["tolerations"] = Value::Array(tolerations);
        }
        Ok(())
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let spec = &review.object["spec"];
        let given = spec["overhead"].as_object().is_some_and(|overhead| !overhead.is_empty());
        let class = spec["runtimeClassName"].as_str().and_then(|name| {
            review
                .lookup
                .get(GroupResource { group: "node.k8s.io", resource: "runtimeclasses" }, NamespacedName::cluster(name))
        });
        if given && !class.is_some_and(|class| class["overhead"]["podFixed"].is_object()) {
            return Err(
                review.forbidden("pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead")
            );
        }
        Ok(())
    }
}
