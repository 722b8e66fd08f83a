//! What NamespaceLifecycle's two older sisters do: refuse what is asked of a namespace that is not there, or make it.

use std::sync::{Arc, OnceLock, Weak};

use async_trait::async_trait;
use serde_json::json;

use super::{Operation, Plugin, Review};
use crate::attributes::Attributes;
use crate::serve::ApiServer;
use crate::status::Status;

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
        review.lookup.get("", "namespaces", "", name).map(drop).ok_or_else(|| Status::not_found("", "namespaces", name))
    }
}

/// Upstream's `NamespaceAutoProvision`.
#[derive(Default)]
pub struct NamespaceAutoProvision(OnceLock<Weak<ApiServer>>);

#[async_trait]
impl Plugin for NamespaceAutoProvision {
    fn name(&self) -> &'static str {
        "NamespaceAutoProvision"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Create && inside_a_namespace(a)
    }

    fn serves(&self, server: &Arc<ApiServer>) {
        // A plugin belongs to one server: a second one would be told of the first.
        let _ = self.0.set(Arc::downgrade(server));
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let name = &review.attributes.namespace;
        if review.dry_run || review.lookup.get("", "namespaces", "", name).is_some() {
            return Ok(());
        }
        let server =
            self.0.get().and_then(Weak::upgrade).ok_or_else(|| review.forbidden("not yet ready to handle request"))?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        server.ensure(namespace).await.map(drop).map_err(|status| review.forbidden(&status.message))
    }
}
