//! An owner reference lets the garbage collector delete the object: only a user who may delete it may set one. And a
//! user who blocks the owner's deletion must be allowed to set its finalizers.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use authz::{Authorizer, Decision};
use registry::attributes::Attributes;
use registry::status::Status;
use schema::table::{GroupVersion, Resource};
use serde_json::Value;

use super::{Operation, Plugin, Review};

/// Upstream's `OwnerReferencesPermissionEnforcement`.
pub struct OwnerReferencesPermissionEnforcement(pub Arc<dyn Authorizer>);

#[async_trait]
impl Plugin for OwnerReferencesPermissionEnforcement {
    fn name(&self) -> &'static str {
        "OwnerReferencesPermissionEnforcement"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
            && (a.group.as_str(), a.resource_path().as_str()) != ("", "pods/status")
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let owners = |object: Option<&Value>| {
            object.map(|o| schema::read::list(o, "metadata.ownerReferences").to_vec()).unwrap_or_default()
        };
        let (now, before) = (owners(Some(review.object)), owners(review.old));
        if now == before {
            return Ok(());
        }
        let delete = Attributes { verb: "delete".to_owned(), ..asked(review.attributes) };
        self.require(review, &delete, "cannot set an ownerRef on a resource you can't delete").await?;
        let blocks = |owner: &&Value| owner["blockOwnerDeletion"] == true;
        let blocked: HashSet<&Value> = before.iter().filter(blocks).map(|owner| &owner["uid"]).collect();
        for owner in now.iter().filter(blocks).filter(|owner| !blocked.contains(&owner["uid"])) {
            let resource = self.resource_of(review, owner)?;
            let finalizers = Attributes {
                verb: "update".to_owned(),
                group: resource.group.to_string(),
                version: resource.version.to_string(),
                resource: resource.plural.to_string(),
                subresource: "finalizers".to_owned(),
                namespace: if resource.namespaced { review.attributes.namespace.clone() } else { String::new() },
                name: owner["name"].as_str().unwrap_or_default().to_owned(),
                ..asked(review.attributes)
            };
            let why =
                "cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on";
            self.require(review, &finalizers, why).await?;
        }
        Ok(())
    }
}

/// The same user about the same object.
fn asked(a: &Attributes) -> Attributes {
    Attributes {
        user: Arc::clone(&a.user),
        group: a.group.clone(),
        version: a.version.clone(),
        resource: a.resource.clone(),
        subresource: a.subresource.clone(),
        namespace: a.namespace.clone(),
        name: a.name.clone(),
        is_resource: true,
        ..Attributes::default()
    }
}

impl OwnerReferencesPermissionEnforcement {
    async fn require(&self, review: &Review<'_>, asked: &Attributes, text: &str) -> Result<(), Status> {
        match self.0.authorize(asked).await {
            Decision::Allow { .. } => Ok(()),
            Decision::Deny { reason } | Decision::NoOpinion { reason } => {
                Err(review.forbidden(&format!("{text}: {reason}, <nil>")))
            }
        }
    }

    fn resource_of<'r>(&self, review: &'r Review<'_>, owner: &Value) -> Result<&'r Resource, Status> {
        let text = |field: &str| owner[field].as_str().unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        review.catalog.by_kind(GroupVersion::parse(version), kind).map(Arc::as_ref).ok_or_else(|| {
            review.forbidden(&format!(
                "cannot set blockOwnerDeletion in this case because cannot find RESTMapping for APIVersion {version} \
                 Kind {kind}: no matches for kind {kind:?} in version {version:?}"
            ))
        })
    }
}
