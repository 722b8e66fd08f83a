//! A claim grows only if it is bound and its class says that its volumes can grow.

use async_trait::async_trait;
use model::quantity::Quantity;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;

use super::{Operation, Plugin, Review};

/// Upstream's `PersistentVolumeClaimResize`.
pub struct PersistentVolumeClaimResize;

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Update && a.is(GroupResource::core("persistentvolumeclaims"))
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let Some(old) = review.old else { return Ok(()) };
        let size =
            |claim: &serde_json::Value| Quantity::from_value(&claim["spec"]["resources"]["requests"]["storage"]).ok();
        if size(review.object) <= size(old) {
            return Ok(());
        }
        if old["status"]["phase"] != "Bound" {
            return Err(review.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let class = review.object["spec"]["storageClassName"].as_str().unwrap_or_default();
        let grows = review
            .lookup
            .get(GroupResource { group: "storage.k8s.io", resource: "storageclasses" }, NamespacedName::cluster(class))
            .is_some_and(|class| class["allowVolumeExpansion"] == true);
        if grows {
            return Ok(());
        }
        let why = "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must \
                   support resize";
        Err(review.forbidden(why))
    }
}
