//! Jobs: pods that run to their end, as many as the spec asks for, counted once each.

mod backoff;
mod indexes;
mod orphans;
mod plan;
mod policy;
mod tally;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::batch::v1::{Job, JobStatus};
use k8s_openapi::api::core::v1::Pod as WholePod;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use model::owners;
use model::pod::Pod;
use model::selectors;
use plan::{Fresh, Plan, TRACKING};
use serde_json::json;

use crate::adoption::{Adoption, Claimed};
use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::expectations::Expectations;

const NAME: &str = "job-controller";

/// The condition with which a job has ended: `Complete` or `Failed`.
pub(crate) fn finished_condition(job: &Job) -> Option<&'static str> {
    plan::end_of(job)
}

struct Controller {
    client: kube::Client,
    /// Deletes ended jobs: a role of its own, as upstream has it.
    /// Whether jobs are worked on, or only ended ones deleted.
    works: bool,
    /// `None` where ended jobs stay.
    expiring: Option<kube::Client>,
    recorder: Recorder,
    jobs: Informer<Job>,
    pods: Informer<Pod>,
    expectations: Arc<Expectations>,
    /// The back-off of each job that has not ended.
    records: Mutex<HashMap<Key, (String, backoff::Record)>>,
    clock: Clock,
}

/// Starts the controller, which also deletes ended jobs after their `ttlSecondsAfterFinished`.
pub(crate) fn start(context: &Context) {
    let (jobs, pods) = (context.informers.get::<Job>(), context.informers.get::<Pod>());
    let queue = Arc::new(Queue::default());
    let expectations = Arc::new(Expectations::default());
    context.feed_own(&jobs, &queue);
    let (all_jobs, seen) = (jobs.clone(), Arc::clone(&expectations));
    context.feed(&pods, &queue, move |change| {
        let keys: Vec<Key> = driver::objects_of(change).iter().flat_map(|pod| concerned(pod, &all_jobs)).collect();
        if let Change::Deleted(pod) = change {
            keys.iter().for_each(|key| seen.gone(key, &pod.uid().unwrap_or_default()));
        }
        keys
    });
    let controller = Controller {
        client: context.client(NAME),
        works: context.runs("job-controller"),
        expiring: context
            .runs("ttl-after-finished-controller")
            .then(|| context.client("ttl-after-finished-controller")),
        recorder: context.recorder(NAME),
        jobs: jobs.clone(),
        pods: pods.clone(),
        expectations,
        records: Mutex::default(),
        clock: context.clock.clone(),
    };
    orphans::start(context, &jobs, &pods);
    context.start(NAME, &queue, controller, async move {
        jobs.synced().await;
        pods.synced().await;
    });
}

/// The job that owns a pod; for a pod without owner, every job that selects it.
fn concerned(pod: &Pod, jobs: &Informer<Job>) -> Vec<Key> {
    if owners::controller_of(&pod.metadata).is_some() {
        return driver::owner_key(pod, "Job").into_iter().collect();
    }
    let all = jobs.list_in(&pod.namespace().unwrap_or_default());
    let selects = |job: &&Arc<Job>| {
        let selector = job.spec.as_ref().and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|selector| selectors::selects(selector, pod.metadata.labels.as_ref()))
    };
    all.iter().filter(selects).map(|job| Key::of(&**job)).collect()
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        // Its pods are let go by a loop of their own: see `orphans`.
        let Some(job) = self.jobs.get(&key.namespace, &key.name) else {
            self.records().remove(key);
            return Ok(Next::Wait);
        };
        // Somebody else's job (spec.managedBy, e.g. a queueing system) is not ours to touch.
        let managed_by = job.spec.as_ref().and_then(|s| s.managed_by.as_deref()).unwrap_or(plan::MANAGED_BY_US);
        if managed_by != plan::MANAGED_BY_US || !self.works {
            // Its end is ours all the same: whoever runs a job, `ttlSecondsAfterFinished` is kept.
            return if plan::is_finished(&job) { self.expire(&job, key).await } else { Ok(Next::Wait) };
        }
        let owned = self.claim(&job, key).await?;
        let now = self.clock.now();
        if plan::is_finished(&job) {
            self.records().remove(key);
            let_go(&self.client, &owned).await?;
            return self.expire(&job, key).await;
        }
        let uids = |of: &dyn Fn(&Pod) -> bool| {
            owned.iter().filter(|pod| of(pod)).filter_map(|pod| pod.uid()).collect::<BTreeSet<_>>()
        };
        if !self.expectations.met(key, &uids(&|_| true), &uids(&|pod| pod.metadata.deletion_timestamp.is_some())) {
            return Ok(Next::Wait);
        }
        let uid = job.uid().unwrap_or_default();
        let known = self.records().get(key).filter(|(of, _)| *of == uid).map(|(_, record)| record.clone());
        let plan = plan::plan(&job, &owned, known.as_ref(), now);
        let (made, outcome) = self.act(&job, key, &plan).await;
        // The counts are stored before the pods lose their finalizer: a pod is then never counted twice, and never
        // lost.
        let mut status = plan.status.clone();
        status.active = status.active.map(|n| n + i32::try_from(made).unwrap_or(0)).filter(|n| *n > 0);
        self.write_status(&job, status).await?;
        self.records().insert(key.clone(), (uid, plan.record));
        let_go(&self.client, &plan.release).await?;
        for (severity, reason, text) in &plan.events {
            self.recorder.report(&*job, *severity, reason, text.clone());
        }
        outcome?;
        Ok(plan.look_again.map_or(Next::Wait, Next::After))
    }
}

impl Controller {
    fn records(&self) -> std::sync::MutexGuard<'_, HashMap<Key, (String, backoff::Record)>> {
        self.records.lock()
    }

    /// The pods of the job, after adopting and releasing what its selector says.
    async fn claim(&self, job: &Job, key: &Key) -> Result<Vec<Arc<Pod>>, Error> {
        let Some(selector) = job.spec.as_ref().and_then(|s| s.selector.as_ref()) else { return Ok(Vec::new()) };
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        let adoption = Adoption { owner: job, selector, finalizer: Some(TRACKING) };
        let claimed = adoption.adopt_and_release(&api, self.pods.list_in(&key.namespace), |_, claim| claim).await?;
        Ok(claimed.into_iter().filter_map(Claimed::owned).collect())
    }

    /// Makes and deletes pods; says how many were made even when some failed.
    async fn act(&self, job: &Job, key: &Key, plan: &Plan) -> (usize, Result<(), Error>) {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        // Without its finalizer first: a pod that we end ourselves is not a failure of the job.
        if let Err(err) = let_go(&self.client, &plan.delete).await {
            return (0, Err(err));
        }
        for pod in &plan.delete {
            let same = Preconditions { uid: pod.uid(), resource_version: None };
            match driver::gone_is_fine(api.delete(&pod.name_any(), &DeleteParams::default().preconditions(same)).await)
            {
                Ok(()) => {
                    self.expectations.deleted(key, pod.uid().unwrap_or_default());
                    self.recorder.report(
                        job,
                        Severity::Normal,
                        "SuccessfulDelete",
                        format!("Deleted pod: {}", pod.name_any()),
                    );
                }
                Err(err) => return (0, Err(err.into())),
            }
        }
        let whole: Api<WholePod> = Api::namespaced(self.client.clone(), &key.namespace);
        let (mut made, mut batch) = (0, 1);
        while made < plan.create.len() {
            let slice = &plan.create[made..plan.create.len().min(made + batch)];
            let results =
                futures_util::future::join_all(slice.iter().map(|fresh| self.create(&whole, job, key, fresh))).await;
            let failed = results.iter().any(Result::is_err);
            made += results.iter().filter(|r| r.is_ok()).count();
            if failed {
                return (made, driver::all_of(results).map(drop));
            }
            batch *= 2;
        }
        (made, Ok(()))
    }

    async fn create(&self, api: &Api<WholePod>, job: &Job, key: &Key, fresh: &Fresh) -> Result<(), kube::Error> {
        match api.create(&PostParams::default(), &plan::pod(job, fresh)).await {
            Ok(pod) => {
                self.expectations.created(key, pod.uid().unwrap_or_default());
                self.recorder.report(
                    job,
                    Severity::Normal,
                    "SuccessfulCreate",
                    format!("Created pod: {}", pod.name_any()),
                );
                Ok(())
            }
            Err(err) => {
                let why = base::chain::Chain(&err).to_string();
                self.recorder.report(job, Severity::Warning, "FailedCreate", format!("Error creating: {why}"));
                Err(err)
            }
        }
    }

    async fn write_status(&self, job: &Job, status: JobStatus) -> Result<(), Error> {
        if job.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let api: Api<Job> = Api::namespaced(self.client.clone(), &job.namespace().unwrap_or_default());
        let mut updated = job.clone();
        updated.status = Some(status);
        // A conflict is an error here: counting goes on from the newest status only.
        api.replace_status(&job.name_any(), &PostParams::default(), &updated).await?;
        Ok(())
    }

    /// Deletes an ended job when its time is over.
    async fn expire(&self, job: &Job, key: &Key) -> Result<Next, Error> {
        let ttl = job.spec.as_ref().and_then(|s| s.ttl_seconds_after_finished);
        let (Some(ttl), Some(client)) = (ttl, &self.expiring) else { return Ok(Next::Wait) };
        let Some(ended) = plan::finished_at(job).filter(|_| job.metadata.deletion_timestamp.is_none()) else {
            return Ok(Next::Wait);
        };
        let left = i64::from(ttl) - self.clock.now().duration_since(ended).as_secs();
        if left > 0 {
            return Ok(Next::After(Duration::from_secs(left.unsigned_abs())));
        }
        let api: Api<Job> = Api::namespaced(client.clone(), &key.namespace);
        let same = Preconditions { uid: job.uid(), resource_version: job.resource_version() };
        driver::gone_is_fine(api.delete(&key.name, &DeleteParams::foreground().preconditions(same)).await)?;
        Ok(Next::Wait)
    }
}

/// Requests that are on their way at once.
const AT_ONCE: usize = 50;

/// Takes the tracking finalizer off pods that have been counted or that need no counting.
async fn let_go(client: &kube::Client, pods: &[Arc<Pod>]) -> Result<(), Error> {
    let tracked: Vec<&Arc<Pod>> = pods.iter().filter(|pod| pod.finalizers().iter().any(|f| f == TRACKING)).collect();
    let mut results = Vec::new();
    for some in tracked.chunks(AT_ONCE) {
        results.extend(futures_util::future::join_all(some.iter().map(|pod| release(client, pod))).await);
    }
    driver::all_of(results).map(drop)
}

async fn release(client: &kube::Client, pod: &Pod) -> Result<(), kube::Error> {
    let left: Vec<_> = pod.finalizers().iter().filter(|f| *f != TRACKING).collect();
    let patch = json!({"metadata": {"uid": pod.uid(), "resourceVersion": pod.resource_version(), "finalizers": left}});
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    driver::gone_is_fine(api.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await)
}
