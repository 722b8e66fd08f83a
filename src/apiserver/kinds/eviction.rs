//! May this pod be evicted? Its PodDisruptionBudgets say, and count what they let go.

use std::time::Duration;

use base::time::Stopwatch;
use jiff::Timestamp;
use model::budget::{self, Asker};
use model::pod::Pod;
use model::reference::{GroupResource, NamespacedName};
use model::{meta, phase};
use registry::forms;
use registry::status::{Cause, Status};
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::verbs::retry::Retry;
use crate::verbs::{Call, delete};

/// How many evictions a budget remembers before it says no.
const DISRUPTED_PODS_MAX: usize = 2000;
/// A drain evicts all pods of a node at once; upstream's `EvictionsRetry` gives each as long to find its budget at
/// rest.
const CHARGE_WITHIN: Duration = Duration::from_secs(10);

/// The reason that lets a pod go.
#[derive(Debug, PartialEq)]
pub(super) enum Leave {
    /// Its budget was charged, or it has none.
    Given,
    /// It has ended or is on its way out.
    Over,
    /// It serves nobody as it is at this version: once it changes it has to be judged again.
    Idle(String),
}

/// Evicts a pod if its budgets allow it.
///
/// Errors: 429 when the budget has no disruption left, 500 when several budgets cover the pod, 404 without such a pod.
pub(super) async fn evict(
    call: &Call<'_, '_>,
    named: NamespacedName<'_>,
    wish: &delete::Options,
) -> Result<Vec<String>, Status> {
    let mut retry = Retry::new(&call.x.server.objects.rng);
    loop {
        let mut options = wish.clone();
        let leave = allow(call, named, options.dry_run).await?;
        let is_ours = matches!(leave, Leave::Idle(_)) && options.rv.is_none();
        if let Leave::Idle(rv) = leave {
            options.rv.get_or_insert(rv);
        }
        let mut warnings = Vec::new();
        match leave_now(call, named, &mut options, &mut warnings).await {
            // It was idle, and is not what it was: perhaps it serves now.
            Err(status) if is_ours && status.reason == "Conflict" => retry.pause().await,
            done => return done.map(|()| warnings),
        }
    }
}

async fn leave_now(
    call: &Call<'_, '_>,
    named: NamespacedName<'_>,
    options: &mut delete::Options,
    warnings: &mut Vec<String>,
) -> Result<(), Status> {
    if !options.dry_run {
        announce(call, named, options).await?;
    }
    delete::delete(call, named, options, warnings).await.map(drop)
}

/// Takes one disruption from the pod's budget.
async fn allow(call: &Call<'_, '_>, named: NamespacedName<'_>, dry_run: bool) -> Result<Leave, Status> {
    let server = call.x.server;
    let pod = server.objects.read(&call.stored, named).await?.ok_or_else(|| call.not_found(named.name))?.value();
    let pod = Pod::deserialize(&pod).map_err(Status::internal)?;
    let idle = || Leave::Idle(pod.metadata.resource_version.clone().unwrap_or_default());
    if phase::is_terminal(phase::phase(&pod)) || pod.metadata.deletion_timestamp.is_some() {
        return Ok(Leave::Over);
    }
    if phase::phase(&pod) == "Pending" {
        return Ok(idle());
    }
    let Some(budgets) = forms::stored(GroupResource { group: "policy", resource: "poddisruptionbudgets" }) else {
        return Ok(Leave::Given);
    };
    let kind = server.objects.cache.ready(budgets.group_resource()).await?;
    let (began, mut retry) = (Stopwatch::start(), Retry::new(&server.objects.rng));
    while began.elapsed() < CHARGE_WITHIN {
        server.objects.cache.wait_for_now().await?;
        let mut covering = Vec::new();
        for stored in kind.snapshot(Some(named.namespace)).whole()?.items {
            let budget = budget::read(&stored.value()).map_err(Status::internal)?;
            if budget::covers(&budget, &pod.metadata, Asker::Eviction) {
                covering.push((stored, budget));
            }
        }
        let (stored, budget) = match covering.as_slice() {
            [] => return Ok(Leave::Given),
            [one] => one,
            _ => {
                return Err(Status::new(
                    500,
                    "InternalError",
                    "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                ));
            }
        };
        let mut value = stored.value();
        if budget::lets_unhealthy_go(budget, &pod) {
            return Ok(idle());
        }
        charge(&mut value, named.name, server.objects.clock.now())?;
        if dry_run
            || server
                .objects
                .put(&budgets, NamespacedName { name: stored.name(), ..named }, &mut value, stored.rv)
                .await?
                .is_some()
        {
            return Ok(Leave::Given);
        }
        retry.pause().await;
    }
    Err(Status::timeout("couldn't update PodDisruptionBudget due to conflicts"))
}

/// Writes on the pod why it goes, for those who look after its end (a Job's failure policy, say).
///
/// A version that the delete is bound to becomes the one of this write.
async fn announce(call: &Call<'_, '_>, named: NamespacedName<'_>, options: &mut delete::Options) -> Result<(), Status> {
    let server = call.x.server;
    let mut retry = Retry::new(&server.objects.rng);
    loop {
        let Some(pod) = server.objects.read(&call.stored, named).await? else {
            return Err(call.not_found(named.name));
        };
        let mut value = pod.value();
        delete::check(&call.resource, named.name, &value, options)?;
        if meta::deletion_timestamp(&value).is_some() {
            return Ok(());
        }
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
            "lastTransitionTime": base::time::rfc3339_secs(server.objects.clock.now()), "lastProbeTime": null,
        });
        if !value["status"]["conditions"].is_array() {
            value["status"]["conditions"] = json!([]);
        }
        if let Some(list) = value["status"]["conditions"].as_array_mut() {
            list.retain(|c| c["type"] != "DisruptionTarget");
            list.push(condition);
        }
        if let Some(at) = server.objects.put(&call.stored, named, &mut value, pod.rv).await? {
            options.rv = options.rv.as_ref().map(|_| at.to_string());
            return Ok(());
        }
        retry.pause().await;
    }
}

/// Counts the pod as gone in its budget, from now on.
fn charge(budget: &mut Value, pod: &str, now: Timestamp) -> Result<(), Status> {
    let name = meta::name(budget).to_owned();
    if budget["status"]["observedGeneration"].as_i64().unwrap_or(0) < meta::generation(budget) {
        return Err(refused(format!("The disruption budget {name} is still being processed by the server."), 10));
    }
    let status = &mut budget["status"];
    let allowed = status["disruptionsAllowed"].as_i64().unwrap_or(0);
    if status["disruptedPods"].as_object().is_some_and(|m| m.len() > DISRUPTED_PODS_MAX) {
        return Err(Status::forbidden(
            GroupResource { group: "policy", resource: "poddisruptionbudgets" },
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
    status["disruptedPods"][pod] = json!(base::time::rfc3339_secs(now));
    Ok(())
}

fn refused(why: String, retry_after: u32) -> Status {
    let mut status =
        Status::too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", retry_after);
    status.causes = vec![Cause { reason: "DisruptionBudget".into(), message: why, field: String::new() }];
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    fn charged(status: Value) -> Result<Value, Status> {
        let mut budget = json!({ "metadata": { "name": "b", "generation": 2 }, "status": status });
        charge(&mut budget, "p", Timestamp::UNIX_EPOCH).map(|()| budget["status"].clone())
    }

    #[test]
    fn an_eviction_takes_one_disruption_and_notes_the_pod() {
        let status = charged(json!({ "observedGeneration": 2, "disruptionsAllowed": 2 })).unwrap();
        assert_eq!(status["disruptionsAllowed"], 1);
        assert_eq!(status["disruptedPods"], json!({ "p": "1970-01-01T00:00:00Z" }));
        let others = json!({ "observedGeneration": 3, "disruptionsAllowed": 1, "disruptedPods": { "o": "t" } });
        let status = charged(others).unwrap();
        assert_eq!((&status["disruptionsAllowed"], &status["disruptedPods"]["o"]), (&json!(0), &json!("t")));
    }

    #[test]
    fn a_budget_that_lets_nobody_go_says_why() {
        let counts = json!({ "observedGeneration": 2, "desiredHealthy": 2, "currentHealthy": 3 });
        let many: serde_json::Map<String, Value> =
            (0..=DISRUPTED_PODS_MAX).map(|n| (format!("p{n}"), Value::Null)).collect();
        for (status, code, cause, retry_after) in [
            (counts, 429, "The disruption budget b needs 2 healthy pods and has 3 currently", 0),
            (
                json!({ "observedGeneration": 1, "disruptionsAllowed": 1 }),
                429,
                "The disruption budget b is still being processed by the server.",
                10,
            ),
            (json!({ "observedGeneration": 2, "disruptionsAllowed": 1, "disruptedPods": many }), 403, "", 0),
        ] {
            let refusal = charged(status).unwrap_err();
            let told = refusal.causes.first().map_or("", |cause| cause.message.as_str());
            assert_eq!((refusal.code, told, refusal.retry_after), (code, cause, retry_after));
        }
    }
}
