//! PodDisruptionBudgets: which pods one covers.
//!
//! Upstream asks in three places, and each of them looks at less than the one before: the controller, which counts;
//! the eviction subresource, to which a pod without labels has no budget; preemption, to which an empty selector is no
//! budget either.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize as _;
use serde_json::Value;

use crate::pod::Pod;
use crate::{phase, selectors};

/// The one that asks whether a budget covers a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The disruption controller. Spec: `GetPodPodDisruptionBudgets` (client-go/listers/policy/v1).
    Controller,
    /// The eviction subresource. Spec: `getPodDisruptionBudgets` (registry/core/pod/storage/eviction.go).
    Eviction,
    /// The scheduler's preemption. Spec: `filterPodsWithPDBViolation` (plugins/defaultpreemption).
    Preemption,
}

/// Whether the budget covers the pod that has this metadata. A budget without a selector covers no pod, one with an
/// empty selector all of its namespace.
pub fn covers(budget: &PodDisruptionBudget, pod: &ObjectMeta, asker: Asker) -> bool {
    let Some(selector) = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()) else { return false };
    let is_labelled = || pod.labels.as_ref().is_some_and(|labels| !labels.is_empty());
    let is_asked_about = match asker {
        Asker::Controller => true,
        Asker::Eviction => is_labelled(),
        Asker::Preemption => is_labelled() && !selectors::is_empty(selector),
    };
    is_asked_about && budget.metadata.namespace == pod.namespace && selectors::selects(selector, pod.labels.as_ref())
}

/// A budget as the API server stores it.
pub fn read(budget: &Value) -> Result<PodDisruptionBudget, serde_json::Error> {
    PodDisruptionBudget::deserialize(budget)
}

/// Whether a pod may go without a charge to its budget, as it serves nobody: always, or when the healthy ones suffice.
///
/// Spec: `unhealthyPodEvictionPolicy` (KEP-3017).
pub fn lets_unhealthy_go(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    if phase::is_ready(pod) {
        return false;
    }
    let policy = budget.spec.as_ref().and_then(|spec| spec.unhealthy_pod_eviction_policy.as_deref());
    let status = budget.status.as_ref();
    let healthy = status.and_then(|status| status.current_healthy).unwrap_or(0);
    let desired = status.and_then(|status| status.desired_healthy).unwrap_or(0);
    policy == Some("AlwaysAllow") || (healthy >= desired && desired > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The cases of upstream's `TestEviction` (empty selector, unlabelled pod), `TestPDBSelector` and
    /// `filterPodsWithPDBViolation`.
    #[test]
    fn a_budget_covers_what_its_selector_picks_in_its_namespace() {
        let web = json!({"matchLabels": {"app": "web"}});
        let never = json!({"matchExpressions": [{"key": "app", "operator": "Like", "values": ["web"]}]});
        let labels = json!({"app": "web"});
        let all = [true, true, true];
        let none = [false, false, false];
        // Namespace of the pod, its labels, the budget's selector; controller, eviction, preemption.
        let cases: [(&str, &str, Value, Value, [bool; 3]); 8] = [
            ("its labels", "a", labels.clone(), web.clone(), all),
            ("other labels", "a", json!({"app": "db"}), web.clone(), none),
            ("another namespace", "b", labels.clone(), web.clone(), none),
            ("no labels", "a", json!({}), web, none),
            ("no selector", "a", labels.clone(), Value::Null, none),
            ("an empty selector", "a", labels.clone(), json!({}), [true, true, false]),
            ("an empty selector, no labels", "a", json!({}), json!({}), [true, false, false]),
            ("a selector that cannot be read", "a", labels, never, none),
        ];
        for (case, namespace, labels, selector, want) in cases {
            let budget = json!({"metadata": {"namespace": "a", "name": "b"}, "spec": {"selector": selector}});
            let budget: PodDisruptionBudget = serde_json::from_value(budget).unwrap();
            let pod: ObjectMeta = serde_json::from_value(json!({"namespace": namespace, "labels": labels})).unwrap();
            let askers = [Asker::Controller, Asker::Eviction, Asker::Preemption];
            assert_eq!(askers.map(|asker| covers(&budget, &pod, asker)), want, "{case}");
        }
    }

    #[test]
    fn an_unready_pod_goes_uncharged_where_the_policy_or_the_healthy_ones_allow_it() {
        let pod = |ready: &str| {
            serde_json::from_value(json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}})).unwrap()
        };
        for (ready, policy, healthy, desired, want) in [
            ("True", Some("AlwaysAllow"), 3, 1, false),
            ("False", Some("AlwaysAllow"), 0, 1, true),
            ("False", Some("IfHealthyBudget"), 0, 1, false),
            ("False", None, 0, 1, false),
            ("False", None, 1, 1, true),
            ("False", None, 0, 0, false),
        ] {
            let budget = json!({"spec": {"unhealthyPodEvictionPolicy": policy},
                "status": {"currentHealthy": healthy, "desiredHealthy": desired, "disruptionsAllowed": 0,
                "expectedPods": 3}});
            let case = format!("{ready} {policy:?} {healthy}/{desired}");
            assert_eq!(lets_unhealthy_go(&read(&budget).unwrap(), &pod(ready)), want, "{case}");
        }
    }
}
