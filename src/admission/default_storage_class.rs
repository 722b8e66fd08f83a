//! A claim that names no storage class gets the default one.

use std::sync::Arc;

use async_trait::async_trait;
use model::meta;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::lookup::Lookup;
use registry::status::Status;
use serde_json::{Value, json};

use super::{Operation, Plugin, Review};

/// Upstream's `DefaultStorageClass`.
pub struct DefaultStorageClass;

#[async_trait]
impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        operation == Operation::Create && a.is(GroupResource::core("persistentvolumeclaims"))
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        // An empty name is a choice (no class at all); only a missing one is filled in.
        let chosen = !review.object["spec"]["storageClassName"].is_null()
            || meta::annotation(review.object, "volume.beta.kubernetes.io/storage-class").is_some();
        let marks = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
        if let (false, Some(class)) =
            (chosen, newest_marked(review.lookup, ("storage.k8s.io", "storageclasses"), &marks))
        {
            review.object["spec"]["storageClassName"] = json!(meta::name(&class));
        }
        Ok(())
    }
}

/// The newest object that carries one of the annotations with `true`; of equally old ones the first by name.
pub(super) fn newest_marked(lookup: &dyn Lookup, resource: (&str, &str), marks: &[&str]) -> Option<Arc<Value>> {
    let mut marked = lookup.list(GroupResource { group: resource.0, resource: resource.1 }, None);
    marked.retain(|object| marks.iter().any(|mark| meta::annotation(object, mark) == Some("true")));
    let age = |object: &Arc<Value>| meta::creation_timestamp(object).unwrap_or_default().to_owned();
    marked.sort_by(|a, b| age(b).cmp(&age(a)).then_with(|| meta::name(a).cmp(meta::name(b))));
    marked.into_iter().next()
}
