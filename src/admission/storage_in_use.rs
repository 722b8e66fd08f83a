//! Volumes and claims do not go while they are used: a finalizer that a controller takes off.

use async_trait::async_trait;
use model::meta;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;

use super::{Operation, Plugin, Review};

/// Upstream's `StorageObjectInUseProtection`.
pub struct StorageObjectInUseProtection;

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Create
            && (a.is(GroupResource::core("persistentvolumes")) || a.is(GroupResource::core("persistentvolumeclaims")))
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let ours = if review.attributes.resource == "persistentvolumes" {
            "kubernetes.io/pv-protection"
        } else {
            "kubernetes.io/pvc-protection"
        };
        let mut finalizers: Vec<String> = meta::finalizers(review.object).into_iter().map(str::to_owned).collect();
        if !finalizers.iter().any(|name| name == ours) {
            finalizers.push(ours.to_owned());
            let names: Vec<&str> = finalizers.iter().map(String::as_str).collect();
            meta::set_finalizers(review.object, &names);
        }
        Ok(())
    }
}
