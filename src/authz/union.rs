//! Asking several authorizers in order, and the one that lets the masters through.

use std::sync::Arc;

use async_trait::async_trait;
use registry::attributes::Attributes;
use registry::user::GROUP_MASTERS;

use super::{Authorizer, Decision};

/// Asks each in turn; the first that allows or denies is believed.
pub struct Union(pub Vec<Arc<dyn Authorizer>>);

#[async_trait]
impl Authorizer for Union {
    async fn authorize(&self, a: &Attributes) -> Decision {
        let mut reasons: Vec<String> = Vec::new();
        for authorizer in &self.0 {
            match authorizer.authorize(a).await {
                Decision::NoOpinion { reason } if reason.is_empty() => {}
                Decision::NoOpinion { reason } => reasons.push(reason),
                decided => return decided,
            }
        }
        Decision::NoOpinion { reason: reasons.join("\n") }
    }
}

/// `system:masters` may do everything, whatever roles say: the way back into a cluster whose roles are broken.
pub struct Masters;

#[async_trait]
impl Authorizer for Masters {
    async fn authorize(&self, a: &Attributes) -> Decision {
        let reason = String::new();
        if a.user.in_group(GROUP_MASTERS) { Decision::Allow { reason } } else { Decision::NoOpinion { reason } }
    }
}
