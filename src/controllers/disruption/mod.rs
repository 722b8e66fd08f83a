//! PodDisruptionBudgets: how many of their pods may be evicted now.

mod error;
mod plan;
mod scale;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Informer, Key};
use client::queue::Queue;
use error::CountError;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetStatus};
use kube::ResourceExt as _;
use kube::api::{Api, Patch, PatchParams, PostParams};
use model::budget::{self, Asker};
use model::pod::Pod;
use scale::Scales;
use serde_json::json;

use crate::driver::{self, Context, Error, EventSource, Next, Reconcile};

const NAME: &str = "disruption-controller";
/// Upstream's name for it as a source of events.
const SOURCE: &str = "controllermanager";

struct Controller {
    client: kube::Client,
    recorder: Recorder,
    budgets: Informer<PodDisruptionBudget>,
    pods: Informer<Pod>,
    scales: Scales,
    clock: Clock,
}

/// Starts the controller, and the one that takes back announcements of disruptions that never came.
pub(crate) fn start(context: &Context) {
    let (budgets, pods) = (context.informers.get::<PodDisruptionBudget>(), context.informers.get::<Pod>());
    let queue = Arc::new(Queue::default());
    context.feed_own(&budgets, &queue);
    let all = budgets.clone();
    context.feed(&pods, &queue, move |change| {
        driver::objects_of(change).iter().flat_map(|pod| covering(pod, &all)).collect()
    });
    let scales = Scales::new(context.client(NAME), &context.informers);
    let waits = scales.clone();
    let controller = Controller {
        client: context.client(NAME),
        recorder: context.recorder_as(EventSource { account: NAME, component: SOURCE }),
        budgets: budgets.clone(),
        pods: pods.clone(),
        scales,
        clock: context.clock.clone(),
    };
    let all_pods = pods.clone();
    context.start(NAME, &queue, controller, async move {
        budgets.synced().await;
        pods.synced().await;
        waits.synced().await;
    });
    start_stale(context, all_pods);
}

fn covers(budget: &PodDisruptionBudget, pod: &Pod) -> bool {
    budget::covers(budget, &pod.metadata, Asker::Controller)
}

fn covering(pod: &Pod, budgets: &Informer<PodDisruptionBudget>) -> Vec<Key> {
    let all = budgets.list_in(&pod.namespace().unwrap_or_default());
    all.iter().filter(|budget| covers(budget, pod)).map(|budget| Key::of(&**budget)).collect()
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(budget) = self.budgets.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let covered: Vec<Arc<Pod>> =
            self.pods.list_in(&key.namespace).into_iter().filter(|pod| covers(&budget, pod)).collect();
        if covered.is_empty() {
            self.recorder.report(&*budget, Severity::Normal, "NoPods", "No matching pods found");
        }
        let now = self.clock.now();
        match self.expected(&budget, &covered).await {
            Ok(expected) => {
                let plan = plan::plan(&budget, &covered, expected, now);
                for pod in &plan.not_deleted {
                    let text = format!("Pod was expected by PDB {key} to be deleted but it wasn't");
                    self.recorder.report(&**pod, Severity::Warning, "NotDeleted", text);
                }
                self.write_status(&budget, plan.status).await?;
                Ok(plan.look_again.map_or(Next::Wait, Next::After))
            }
            Err(err) => {
                let why = Chain(&err).to_string();
                let text = format!("Failed to calculate the number of expected pods: {why}");
                self.recorder.report(&*budget, Severity::Warning, "CalculateExpectedPodCountFailed", text);
                self.write_status(&budget, plan::failed(&budget, why, now)).await?;
                // A controller may come, or learn to scale, without a pod's telling.
                Ok(Next::After(Duration::from_secs(60)))
            }
        }
    }
}

impl Controller {
    async fn expected(&self, budget: &PodDisruptionBudget, covered: &[Arc<Pod>]) -> Result<plan::Expected, CountError> {
        let mut scale = 0;
        if plan::needs_scale(budget) {
            let sum = self.scales.sum(covered).await?;
            scale = sum.wanted;
            if sum.unmanaged > 0 {
                let text = "Pods selected by this PodDisruptionBudget were found to be unmanaged. As a result, the \
                    status of the PDB cannot be calculated correctly, which may result in undefined behavior. To \
                    account for these pods please set \".spec.minAvailable\" field of the PDB to an integer value.";
                self.recorder.report(budget, Severity::Warning, "UnmanagedPods", text);
            }
        }
        Ok(plan::expected(budget, i32::try_from(covered.len()).unwrap_or(i32::MAX), scale)?)
    }

    async fn write_status(&self, budget: &PodDisruptionBudget, status: PodDisruptionBudgetStatus) -> Result<(), Error> {
        if budget.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let api: Api<PodDisruptionBudget> =
            Api::namespaced(self.client.clone(), &budget.namespace().unwrap_or_default());
        let mut updated = budget.clone();
        updated.status = Some(status);
        // Evictions write here too: a conflict must be an error, or their count would be lost.
        Ok(driver::gone_is_fine(api.replace_status(&budget.name_any(), &PostParams::default(), &updated).await)?)
    }
}

struct Stale {
    client: kube::Client,
    pods: Informer<Pod>,
    clock: Clock,
}

fn start_stale(context: &Context, pods: Informer<Pod>) {
    let queue = Arc::new(Queue::default());
    context.feed(&pods, &queue, |change| {
        let announced = |pod: &Pod| plan::stale_after(pod, jiff::Timestamp::UNIX_EPOCH).is_some();
        let current = driver::objects_of(change).into_iter().next();
        current.filter(|pod| announced(pod)).map(|pod| Key::of(&*pod)).into_iter().collect()
    });
    let stale = Stale { client: context.client(NAME), pods: pods.clone(), clock: context.clock.clone() };
    context.start("stale-disruptions", &queue, stale, async move { pods.synced().await });
}

#[async_trait::async_trait]
impl Reconcile for Stale {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(pod) = self.pods.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let now = self.clock.now();
        let Some(left) = plan::stale_after(&pod, now) else { return Ok(Next::Wait) };
        if left.is_positive() {
            return Ok(Next::After(left.unsigned_abs()));
        }
        let condition =
            json!({"type": "DisruptionTarget", "status": "False", "lastTransitionTime": base::time::rfc3339_secs(now)});
        let patch = json!({"metadata": {"uid": pod.uid()}, "status": {"conditions": [condition]}});
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        driver::gone_is_fine(api.patch_status(&key.name, &PatchParams::default(), &Patch::Strategic(patch)).await)?;
        Ok(Next::Wait)
    }
}
