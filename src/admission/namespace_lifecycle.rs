//! Nothing is created in a namespace that is not there or is going; the first namespaces stay.

use async_trait::async_trait;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::{Cause, Status};
use serde_json::Value;

use super::{Operation, Plugin, Review};

/// Namespaces that cannot be deleted.
const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

/// Upstream's `NamespaceLifecycle`.
pub struct NamespaceLifecycle;

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        match operation {
            Operation::Delete => a.is(GroupResource::core("namespaces")),
            Operation::Create | Operation::Update => {
                !a.namespace.is_empty() && (!a.group.is_empty() || a.resource != "namespaces")
            }
            Operation::Connect => false,
        }
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        judge(review).await
    }
}

async fn judge(review: &Review<'_>) -> Result<(), Status> {
    let a = review.attributes;
    if review.operation == Operation::Delete {
        return if IMMORTAL.contains(&a.name.as_str()) {
            Err(review.forbidden("this namespace may not be deleted"))
        } else {
            Ok(())
        };
    }
    // An access review asks about a namespace; it need not be there.
    if a.group == "authorization.k8s.io" {
        return Ok(());
    }
    let Some(namespace) =
        review.lookup.sure(GroupResource::core("namespaces"), NamespacedName::cluster(&a.namespace)).await
    else {
        return Err(Status::not_found(GroupResource::core("namespaces"), &a.namespace));
    };
    if review.operation == Operation::Create && terminating(&namespace) {
        let why = format!("unable to create new content in namespace {} because it is being terminated", a.namespace);
        let mut status = review.forbidden(&why);
        status.causes = vec![Cause {
            reason: "NamespaceTerminating".to_owned(),
            message: format!("namespace {} is being terminated", a.namespace),
            field: "metadata.namespace".to_owned(),
        }];
        return Err(status);
    }
    Ok(())
}

fn terminating(namespace: &Value) -> bool {
    namespace["status"]["phase"] == "Terminating" || !namespace["metadata"]["deletionTimestamp"].is_null()
}
