//! May this pod be evicted? Its PodDisruptionBudgets say, and count what they let go.

use schema::labels::Selector;
use schema::meta;
use serde_json::{Value, json};

use crate::kinds;
use crate::status::{Cause, Status};
use crate::verbs::{Call, get, write};

/// How many evictions a budget remembers before it says no.
const DISRUPTED_PODS_MAX: usize = 2000;
const TRIES: usize = 8;

/// Takes one disruption from the pod's budget.
///
/// Errors: 429 when the budget has none left, 500 when several budgets cover the pod, 404 without such a pod.
pub async fn allow(call: &mut Call<'_, '_>, namespace: &str, name: &str, dry_run: bool) -> Result<(), Status> {
    let server = call.x.server;
    let pod = get::read(server, &call.stored, namespace, name).await?.ok_or_else(|| call.not_found(name))?.value();
    let phase = pod["status"]["phase"].as_str().unwrap_or_default();
    if matches!(phase, "Succeeded" | "Failed" | "Pending") || meta::deletion_timestamp(&pod).is_some() {
        return Ok(());
    }
    let Some(budgets) = kinds::stored("policy", "poddisruptionbudgets") else { return Ok(()) };
    let kind = server.cache.ready(&budgets.group, &budgets.plural).await?;
    for _ in 0..TRIES {
        server.cache.wait_for_now().await?;
        let covering: Vec<_> = kind.snapshot(Some(namespace)).items.into_iter().filter(|b| covers(&b.value(), &pod)).collect();
        let budget = match covering.as_slice() {
            [] => return Ok(()),
            [one] => one,
            _ => {
                return Err(Status::new(
                    500,
                    "InternalError",
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
        };
        let mut value = budget.value();
        if unhealthy_may_go(&value, &pod) {
            return Ok(());
        }
        charge(&mut value, name, &base::time::rfc3339_secs(server.config.clock.now()))?;
        if dry_run || write::put(server, &budgets, namespace, budget.name(), &mut value, budget.rv).await?.is_some() {
            return Ok(());
        }
    }
    Err(Status::timeout("couldn't update PodDisruptionBudget due to conflicts"))
}

/// Writes on the pod why it goes, for those who look after its end (a Job's failure policy, say).
pub async fn announce(call: &mut Call<'_, '_>, namespace: &str, name: &str) -> Result<(), Status> {
    let server = call.x.server;
    for _ in 0..TRIES {
        let Some(pod) = get::read(server, &call.stored, namespace, name).await? else { return Err(call.not_found(name)) };
        let mut value = pod.value();
        if meta::deletion_timestamp(&value).is_some() {
            return Ok(());
        }
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
            "lastTransitionTime": base::time::rfc3339_secs(server.config.clock.now()), "lastProbeTime": null,
        });
        if !value["status"]["conditions"].is_array() {
            value["status"]["conditions"] = json!([]);
        }
        if let Some(list) = value["status"]["conditions"].as_array_mut() {
            list.retain(|c| c["type"] != "DisruptionTarget");
            list.push(condition);
        }
        if write::put(server, &call.stored, namespace, name, &mut value, pod.rv).await?.is_some() {
            return Ok(());
        }
    }
    Err(Status::timeout("couldn't update the pod's conditions due to conflicts"))
}

fn covers(budget: &Value, pod: &Value) -> bool {
    Selector::from_label_selector(budget["spec"].get("selector")).is_ok_and(|s| s.matches_object(pod))
}

fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.into_iter().any(|c| c["type"] == "Ready" && c["status"] == "True")
}

/// A pod that serves nobody is no disruption: always, or when the healthy ones suffice.
fn unhealthy_may_go(budget: &Value, pod: &Value) -> bool {
    if is_ready(pod) {
        return false;
    }
    let status = |field: &str| budget["status"][field].as_i64().unwrap_or(0);
    budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        || (status("currentHealthy") >= status("desiredHealthy") && status("desiredHealthy") > 0)
}

fn charge(budget: &mut Value, pod: &str, now: &str) -> Result<(), Status> {
    let name = meta::name(budget).to_owned();
    if budget["status"]["observedGeneration"].as_i64().unwrap_or(0) < meta::generation(budget) {
        return Err(refused(format!("The disruption budget {name} is still being processed by the server."), 10));
    }
    let status = &mut budget["status"];
    let allowed = status["disruptionsAllowed"].as_i64().unwrap_or(0);
    if status["disruptedPods"].as_object().is_some_and(|m| m.len() > DISRUPTED_PODS_MAX) {
        return Err(Status::forbidden(
            "policy",
            "poddisruptionbudgets",
            &name,
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed <= 0 {
        let count = |field: &str| status[field].as_i64().unwrap_or(0);
        let text = format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            count("desiredHealthy"),
            count("currentHealthy")
        );
        return Err(refused(text, 0));
    }
    status["disruptionsAllowed"] = json!(allowed - 1);
    if !status["disruptedPods"].is_object() {
        status["disruptedPods"] = json!({});
    }
    status["disruptedPods"][pod] = json!(now);
    Ok(())
}

fn refused(why: String, retry_after: u32) -> Status {
    let mut status = Status::too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", retry_after);
    status.causes = vec![Cause { reason: "DisruptionBudget".into(), message: why, field: String::new() }];
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_without_disruptions_left_says_no_and_why() {
        let mut budget =
            json!({ "metadata": { "name": "b" }, "status": { "disruptionsAllowed": 1, "desiredHealthy": 2, "currentHealthy": 3 } });
        charge(&mut budget, "p", "t").unwrap();
        let status = charge(&mut budget, "q", "t").unwrap_err();
        assert_eq!(status.code, 429);
        assert_eq!(status.causes[0].message, "The disruption budget b needs 2 healthy pods and has 3 currently");
    }
}
