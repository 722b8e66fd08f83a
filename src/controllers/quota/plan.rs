//! Status of a ResourceQuota. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use model::pod::{ContainerStatus, Pod, PodStatus};
use model::quantity::{Notation, Quantity};
use schema::quota::Usage;

/// The status, or `None` if the present one says the same.
pub(super) fn status(quota: &ResourceQuota, used: &Usage) -> Option<ResourceQuotaStatus> {
    let hard = quota.spec.as_ref().and_then(|s| s.hard.clone()).unwrap_or_default();
    let zero = Quantity::from_units(0, Notation::DecimalSi);
    let amount = |name: &str| used.get(name).copied().unwrap_or(zero);
    let used: BTreeMap<String, Text> = hard.keys().map(|name| (name.clone(), Text(amount(name).to_string()))).collect();
    let old = quota.status.clone().unwrap_or_default();
    let same = equal(old.hard.as_ref(), &hard) && equal(old.used.as_ref(), &used);
    (!same).then_some(ResourceQuotaStatus { hard: Some(hard), used: Some(used) })
}

/// Whether a pod that changed uses of its quotas what it used before: its spec, its phase and what its containers hold
/// beside their spec.
pub(super) fn uses_the_same(old: &Pod, new: &Pod) -> bool {
    model::phase::phase(old) == model::phase::phase(new)
        && old.spec == new.spec
        && held(old).eq(held(new))
        && pending_reason(old) == pending_reason(new)
}

/// Resources that containers hold beside those of their spec.
fn held(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    fn all(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    }
    pod.status.iter().flat_map(all).filter(|told| told.resources.is_some() || told.allocated_resources.is_some())
}

/// Why a resize is not granted.
fn pending_reason(pod: &Pod) -> Option<&str> {
    let mut conditions = pod.status.as_ref()?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == "PodResizePending")?.reason.as_deref()
}

/// Whether two lists name the same amounts, however they are written.
fn equal(a: Option<&BTreeMap<String, Text>>, b: &BTreeMap<String, Text>) -> bool {
    let number = |text: &Text| text.0.parse::<Quantity>().ok();
    let n = a.map_or(0, BTreeMap::len);
    n == b.len()
        && b.iter()
            .all(|(name, amount)| a.and_then(|a| a.get(name)).is_some_and(|other| number(other) == number(amount)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_that_was_resized_is_counted_anew() {
        let pod = |phase: &str, has: &str, ready: bool, reason: &str| -> Pod {
            serde_json::from_value(json!({"spec": {"containers": [{"name": "c",
                "resources": {"requests": {"cpu": "1"}}}]}, "status": {
                "phase": phase, "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
                "containerStatuses": [{"name": "c", "ready": ready, "restartCount": 0,
                    "resources": {"requests": {"cpu": has}}}]}}))
            .unwrap()
        };
        let before = pod("Running", "1", false, "Deferred");
        assert!(uses_the_same(&before, &pod("Running", "1", true, "Deferred")));
        for after in [
            pod("Failed", "1", false, "Deferred"),
            pod("Running", "2", false, "Deferred"),
            pod("Running", "1", false, "Infeasible"),
        ] {
            assert!(!uses_the_same(&before, &after));
        }
    }

    #[test]
    fn every_limit_has_its_usage_and_the_same_amount_is_written_once() {
        let quota = |status| -> ResourceQuota {
            serde_json::from_value(
                json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2", "requests.cpu": "1"}},
                    "status": status}),
            )
            .unwrap()
        };
        let used = Usage::from([
            ("requests.cpu".to_owned(), "500m".parse().unwrap()),
            ("memory".to_owned(), "1".parse().unwrap()),
        ]);
        let fresh = status(&quota(json!({})), &used).unwrap();
        assert_eq!(json!(fresh.used), json!({"pods": "0", "requests.cpu": "500m"}));
        let told =
            json!({"hard": {"pods": "2", "requests.cpu": "1000m"}, "used": {"pods": "0", "requests.cpu": "0.5"}});
        assert_eq!(status(&quota(told), &used), None);
    }
}
