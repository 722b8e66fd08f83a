//! Pods that were a job's and are nobody's any more: nobody will count them, so they must not wait for it.
//!
//! Orphaning is what batch/v1 does when a job is deleted without a word about its pods: the garbage collector takes
//! their references off and the job is gone. A pod that kept the tracking finalizer then could never be deleted, nor
//! could its namespace. Spec: upstream's `syncOrphanPod` (1.36.2, pkg/controller/job/job_controller.go).

use std::sync::Arc;

use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::api::Api;
use model::owners;
use model::pod::Pod;

use super::plan::TRACKING;
use super::{NAME, let_go};
use crate::driver::{Context, Error, Next, Reconcile};

struct Orphans {
    client: kube::Client,
    jobs: Informer<Job>,
    pods: Informer<Pod>,
}

/// Starts the loop; its queue holds pods.
pub(super) fn start(context: &Context, jobs: &Informer<Job>, pods: &Informer<Pod>) {
    let queue = Arc::new(Queue::default());
    let (all_jobs, all_pods) = (jobs.clone(), pods.clone());
    context.feed(pods, &queue, move |change| match change {
        Change::Added(pod) | Change::Modified { new: pod, .. } | Change::Deleted(pod)
            if may_be_orphan(pod, &all_jobs) =>
        {
            vec![Key::of(&**pod)]
        }
        _ => Vec::new(),
    });
    context.feed(jobs, &queue, move |change| {
        let Change::Deleted(job) = change else { return Vec::new() };
        let uid = job.uid().unwrap_or_default();
        let owned = all_pods.list_in(&job.namespace().unwrap_or_default()).into_iter();
        owned
            .filter(|pod| is_tracked(pod) && owners::is_controlled_by(&pod.metadata, &uid))
            .map(|pod| Key::of(&*pod))
            .collect()
    });
    let orphans = Orphans { client: context.client(NAME), jobs: jobs.clone(), pods: pods.clone() };
    let (jobs, pods) = (jobs.clone(), pods.clone());
    context.start("job-orphan-pods", &queue, orphans, async move {
        jobs.synced().await;
        pods.synced().await;
    });
}

fn is_tracked(pod: &Pod) -> bool {
    pod.finalizers().iter().any(|f| f == TRACKING)
}

/// The job of the pod by its reference; `None` for a pod that somebody else controls, or nobody.
fn job_of(pod: &Pod) -> Option<(Key, String)> {
    let owner = owners::controller_of(&pod.metadata).filter(|owner| owner.kind == "Job")?;
    Some((Key::new(&pod.namespace().unwrap_or_default(), &owner.name), owner.uid.clone()))
}

/// Whether the pod waits to be counted and has no job, as far as the cache shows: it may lag, and is asked about before
/// anything is done.
fn may_be_orphan(pod: &Pod, jobs: &Informer<Job>) -> bool {
    is_tracked(pod)
        && match job_of(pod) {
            Some((key, uid)) => jobs.get(&key.namespace, &key.name).is_none_or(|job| job.uid().as_ref() != Some(&uid)),
            None => owners::controller_of(&pod.metadata).is_none(),
        }
}

#[async_trait::async_trait]
impl Reconcile for Orphans {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(pod) = self.pods.get(&key.namespace, &key.name).filter(|pod| may_be_orphan(pod, &self.jobs)) else {
            return Ok(Next::Wait);
        };
        if let Some((job, uid)) = job_of(&pod) {
            let api: Api<Job> = Api::namespaced(self.client.clone(), &job.namespace);
            if api.get_opt(&job.name).await?.is_some_and(|job| job.uid().as_ref() == Some(&uid)) {
                // Our cache is behind.
                return Ok(Next::Wait);
            }
        }
        let_go(&self.client, &[pod]).await?;
        Ok(Next::Wait)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_without_a_controller_names_no_job() {
        let pod = |owners: serde_json::Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "d", "finalizers": [TRACKING],
                    "ownerReferences": owners}}))
            .unwrap()
        };
        let owner =
            |kind: &str| json!([{"apiVersion": "batch/v1", "kind": kind, "name": "j", "uid": "u", "controller": true}]);
        assert_eq!(job_of(&pod(json!([]))), None);
        assert_eq!(job_of(&pod(owner("ReplicaSet"))), None);
        assert_eq!(job_of(&pod(owner("Job"))), Some((Key::new("d", "j"), "u".to_owned())));
        assert!(is_tracked(&pod(json!([]))));
    }
}
