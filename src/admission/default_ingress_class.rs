//! An Ingress that names no class gets the default one.

use async_trait::async_trait;
use model::meta;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;
use serde_json::json;

use super::default_storage_class::newest_marked;
use super::{Operation, Plugin, Review};

const GROUP: &str = "networking.k8s.io";

/// Upstream's `DefaultIngressClass`.
pub struct DefaultIngressClass;

#[async_trait]
impl Plugin for DefaultIngressClass {
    fn name(&self) -> &'static str {
        "DefaultIngressClass"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Create && a.is(GroupResource { group: GROUP, resource: "ingresses" })
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let chosen = !review.object["spec"]["ingressClassName"].is_null()
            || meta::annotation(review.object, "kubernetes.io/ingress.class").is_some();
        let marks = ["ingressclass.kubernetes.io/is-default-class"];
        if let (false, Some(class)) = (chosen, newest_marked(review.lookup, (GROUP, "ingressclasses"), &marks)) {
            review.object["spec"]["ingressClassName"] = json!(meta::name(&class));
        }
        Ok(())
    }
}
