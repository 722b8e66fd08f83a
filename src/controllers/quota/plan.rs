//! What a ResourceQuota's status should say. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use schema::quantity::{Notation, Quantity};
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

/// Whether two lists name the same amounts, however they are written.
fn equal(a: Option<&BTreeMap<String, Text>>, b: &BTreeMap<String, Text>) -> bool {
    let number = |text: &Text| text.0.parse::<Quantity>().ok();
    let n = a.map_or(0, BTreeMap::len);
    n == b.len() && b.iter().all(|(name, amount)| a.and_then(|a| a.get(name)).is_some_and(|other| number(other) == number(amount)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_limit_has_its_usage_and_the_same_amount_is_written_once() {
        let quota = |status| -> ResourceQuota {
            serde_json::from_value(
                json!({"metadata": {"name": "q"}, "spec": {"hard": {"pods": "2", "requests.cpu": "1"}}, "status": status}),
            )
            .unwrap()
        };
        let used = Usage::from([("requests.cpu".to_owned(), "500m".parse().unwrap()), ("memory".to_owned(), "1".parse().unwrap())]);
        let fresh = status(&quota(json!({})), &used).unwrap();
        assert_eq!(json!(fresh.used), json!({"pods": "0", "requests.cpu": "500m"}));
        let told = json!({"hard": {"pods": "2", "requests.cpu": "1000m"}, "used": {"pods": "0", "requests.cpu": "0.5"}});
        assert_eq!(status(&quota(told), &used), None);
    }
}
