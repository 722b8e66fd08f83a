//! CronJobs: a job at every time that a schedule meets.

mod plan;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use base::chain::Chain;
use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Informer, Key};
use client::queue::Queue;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use k8s_openapi::api::batch::v1::{CronJob, CronJobStatus, Job};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use model::owners;

use crate::driver::{self, Context, Error, Next, Reconcile};

const NAME: &str = "cronjob-controller";

struct Controller {
    client: kube::Client,
    recorder: Recorder,
    crons: Informer<CronJob>,
    jobs: Informer<Job>,
    clock: Clock,
    /// Of this machine.
    zone: TimeZone,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let (crons, jobs) = (context.informers.get::<CronJob>(), context.informers.get::<Job>());
    let queue = Arc::new(Queue::default());
    context.feed_own(&crons, &queue);
    context.feed(&jobs, &queue, |change| {
        driver::objects_of(change).iter().filter_map(|job| driver::owner_key(&**job, "CronJob")).collect()
    });
    let controller = Controller {
        client: context.client(NAME),
        recorder: context.recorder(NAME),
        crons: crons.clone(),
        jobs: jobs.clone(),
        clock: context.clock.clone(),
        zone: base::time::local_zone(),
    };
    context.start(NAME, &queue, controller, async move {
        crons.synced().await;
        jobs.synced().await;
    });
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        if self.crons.get(&key.namespace, &key.name).is_none() {
            return Ok(Next::Wait);
        }
        // The newest state from the server: a late cache would see a job that was just made as a stranger's.
        let api: Api<CronJob> = Api::namespaced(self.client.clone(), &key.namespace);
        let Some(cron) = api.get_opt(&key.name).await? else { return Ok(Next::Wait) };
        let jobs = self.jobs_of(&cron, key).await?;
        let mut plan = plan::plan(&cron, &jobs, &self.zone, self.clock.now());
        for (severity, reason, text) in std::mem::take(&mut plan.events) {
            self.recorder.report(&cron, severity, reason, text);
        }
        for job in plan.replace.iter().chain(&plan.forget) {
            self.delete(&cron, key, job).await?;
        }
        let mut outcome = Ok(());
        if let Some(at) = plan.start {
            match self.make(&cron, key, at).await {
                Ok(job) => plan::started(&mut plan.status, &job, at),
                Err(err) => outcome = Err(err),
            }
        }
        self.write_status(&cron, plan.status).await?;
        outcome?;
        Ok(plan.look_again.map_or(Next::Wait, Next::After))
    }
}

impl Controller {
    /// The CronJob's jobs: those in the cache, and those in its list that the cache does not show yet.
    async fn jobs_of(&self, cron: &CronJob, key: &Key) -> Result<Vec<Arc<Job>>, Error> {
        let uid = cron.uid().unwrap_or_default();
        let all = self.jobs.list_in(&key.namespace);
        let mut jobs: Vec<Arc<Job>> =
            all.into_iter().filter(|job| owners::is_controlled_by(&job.metadata, &uid)).collect();
        let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        for reference in cron.status.iter().flat_map(|s| s.active.iter().flatten()) {
            if jobs.iter().any(|job| job.uid() == reference.uid) {
                continue;
            }
            let found = api.get_opt(reference.name.as_deref().unwrap_or_default()).await?;
            jobs.extend(found.filter(|job| job.uid() == reference.uid).map(Arc::new));
        }
        Ok(jobs)
    }

    async fn make(&self, cron: &CronJob, key: &Key, at: Timestamp) -> Result<Job, Error> {
        let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        let job = plan::job(cron, &self.zone, at);
        match api.create(&PostParams::default(), &job).await {
            Ok(made) => {
                self.recorder.report(
                    cron,
                    Severity::Normal,
                    "SuccessfulCreate",
                    format!("Created job {}", made.name_any()),
                );
                Ok(made)
            }
            // Made before, and the status was not written.
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                let there = api.get(&job.name_any()).await?;
                if owners::is_controlled_by(&there.metadata, &cron.uid().unwrap_or_default()) {
                    return Ok(there);
                }
                Err(Error::Object(format!(
                    "job {}/{} is not controlled by cronjob {key}",
                    key.namespace,
                    job.name_any()
                )))
            }
            Err(err) => {
                if !client::events::is_namespace_ending(&err) {
                    self.recorder.report(
                        cron,
                        Severity::Warning,
                        "FailedCreate",
                        format!("Error creating job: {}", Chain(&err)),
                    );
                }
                Err(err.into())
            }
        }
    }

    async fn delete(&self, cron: &CronJob, key: &Key, job: &Job) -> Result<(), Error> {
        let api: Api<Job> = Api::namespaced(self.client.clone(), &key.namespace);
        let same = Preconditions { uid: job.uid(), resource_version: None };
        let done =
            driver::gone_is_fine(api.delete(&job.name_any(), &DeleteParams::background().preconditions(same)).await);
        match done {
            Ok(()) => {
                self.recorder.report(
                    cron,
                    Severity::Normal,
                    "SuccessfulDelete",
                    format!("Deleted job {}", job.name_any()),
                );
                Ok(())
            }
            Err(err) => {
                self.recorder.report(cron, Severity::Warning, "FailedDelete", format!("Deleted job: {}", Chain(&err)));
                Err(err.into())
            }
        }
    }

    async fn write_status(&self, cron: &CronJob, status: CronJobStatus) -> Result<(), Error> {
        if cron.status.clone().unwrap_or_default() == status {
            return Ok(());
        }
        let api: Api<CronJob> = Api::namespaced(self.client.clone(), &cron.namespace().unwrap_or_default());
        let mut updated = cron.clone();
        updated.status = Some(status);
        Ok(driver::gone_is_fine(api.replace_status(&cron.name_any(), &PostParams::default(), &updated).await)?)
    }
}
