//! Services get no new external addresses: whoever may write a Service could take over somebody else's (CVE-2020-8554).

use std::collections::BTreeSet;

use async_trait::async_trait;
use model::reference::GroupResource;
use registry::attributes::Attributes;
use registry::status::Status;

use super::{Operation, Plugin, Review};

/// Upstream's `DenyServiceExternalIPs`.
pub struct DenyServiceExternalIPs;

#[async_trait]
impl Plugin for DenyServiceExternalIPs {
    fn name(&self) -> &'static str {
        "DenyServiceExternalIPs"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        a.is(GroupResource::core("services")) && matches!(operation, Operation::Create | Operation::Update)
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let had: BTreeSet<&str> =
            review.old.map(|old| schema::read::texts(old, "spec.externalIPs")).into_iter().flatten().collect();
        match schema::read::texts(review.object, "spec.externalIPs").iter().all(|ip| had.contains(ip)) {
            true => Ok(()),
            false => Err(review.forbidden("Use of external IPs is denied by admission control.")),
        }
    }
}
