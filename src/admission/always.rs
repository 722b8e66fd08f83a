//! The plugins that say yes or no to everything.

use async_trait::async_trait;
use registry::attributes::Attributes;
use registry::status::Status;

use super::{Operation, Plugin, Review};

/// Upstream's `AlwaysAdmit`.
pub struct AlwaysAdmit;

/// Upstream's `AlwaysDeny`.
pub struct AlwaysDeny;

#[async_trait]
impl Plugin for AlwaysAdmit {
    fn name(&self) -> &'static str {
        "AlwaysAdmit"
    }

    fn handles(&self, _operation: Operation, _a: &Attributes) -> bool {
        false
    }
}

#[async_trait]
impl Plugin for AlwaysDeny {
    fn name(&self) -> &'static str {
        "AlwaysDeny"
    }

    fn handles(&self, _operation: Operation, _a: &Attributes) -> bool {
        true
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        Err(review.forbidden("admission control is denying all modifications"))
    }
}
