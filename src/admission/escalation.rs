//! Escalation checks on roles and bindings. Upstream makes them in the storage of these kinds; here they are one more
//! plugin.

use async_trait::async_trait;
use authz::escalation::Escalation;
use authz::rbac::GROUP;
use registry::attributes::Attributes;
use registry::status::Status;

use super::{Operation, Plugin, Review};

/// See [`authz::escalation`].
pub struct RbacEscalation(pub Escalation);

#[async_trait]
impl Plugin for RbacEscalation {
    fn name(&self) -> &'static str {
        "RBACEscalation"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        a.group == GROUP && matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        self.0.check(review.attributes, review.object, review.old).await
    }
}
