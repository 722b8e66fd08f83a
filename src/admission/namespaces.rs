//! NamespaceExists and NamespaceAutoProvision: a request for a namespace that is not there is refused, or makes it.

use std::sync::Arc;

use async_trait::async_trait;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::objects::Objects;
use registry::status::Status;
use serde_json::json;

use super::{Operation, Plugin, Review};

fn inside_a_namespace(a: &Attributes) -> bool {
    !a.namespace.is_empty() && (!a.group.is_empty() || a.resource != "namespaces")
}

/// Upstream's `NamespaceExists`.
pub struct NamespaceExists;

#[async_trait]
impl Plugin for NamespaceExists {
    fn name(&self) -> &'static str {
        "NamespaceExists"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation != Operation::Connect && inside_a_namespace(a)
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let name = &review.attributes.namespace;
        review
            .lookup
            .get(GroupResource::core("namespaces"), NamespacedName::cluster(name))
            .map(drop)
            .ok_or_else(|| Status::not_found(GroupResource::core("namespaces"), name))
    }
}

/// Upstream's `NamespaceAutoProvision`.
pub struct NamespaceAutoProvision(pub Arc<Objects>);

#[async_trait]
impl Plugin for NamespaceAutoProvision {
    fn name(&self) -> &'static str {
        "NamespaceAutoProvision"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Create && inside_a_namespace(a)
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let name = &review.attributes.namespace;
        if review.dry_run
            || review.lookup.get(GroupResource::core("namespaces"), NamespacedName::cluster(name)).is_some()
        {
            return Ok(());
        }
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.0.ensure(namespace).await.map(drop).map_err(|status| review.forbidden(&status.message))
    }
}
