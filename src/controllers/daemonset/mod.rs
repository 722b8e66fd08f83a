//! DaemonSets: one pod on each node that may run it, renewed node by node.

mod backoff;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::sync::Mutex;
use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod as WholePod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use model::owners;
use model::pod::Pod;
use model::selectors;
use plan::{Ended, Fresh};
use serde_json::json;
use tokio::time::Instant;

use crate::adoption::{Adoption, Claimed};
use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::expectations::Expectations;
use crate::history::{self, History, State};

const NAME: &str = "daemon-set-controller";

struct Controller {
    client: kube::Client,
    recorder: Recorder,
    sets: Informer<DaemonSet>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    revisions: Informer<ControllerRevision>,
    expectations: Arc<Expectations>,
    failures: Mutex<backoff::Failures>,
    clock: Clock,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let (sets, pods) = (context.informers.get::<DaemonSet>(), context.informers.get::<Pod>());
    let (nodes, revisions) = (context.informers.get::<Node>(), context.informers.get::<ControllerRevision>());
    let queue = Arc::new(Queue::default());
    let expectations = Arc::new(Expectations::default());
    context.feed_own(&sets, &queue);
    let (seen, selecting) = (Arc::clone(&expectations), sets.clone());
    context.feed(&pods, &queue, move |change| {
        let keys: Vec<Key> = driver::objects_of(change).iter().flat_map(|pod| concerned(pod, &selecting)).collect();
        if let Change::Deleted(pod) = change {
            keys.iter().for_each(|key| seen.gone(key, &pod.uid().unwrap_or_default()));
        }
        keys
    });
    let all_sets = sets.clone();
    context.feed(&nodes, &queue, move |change| match change {
        // Heartbeats change nothing for a DaemonSet.
        Change::Modified { old, new } if old.metadata.labels == new.metadata.labels && old.spec == new.spec => {
            Vec::new()
        }
        _ => all_sets.list().iter().map(|set| Key::of(&**set)).collect(),
    });
    let controller = Controller {
        client: context.client(NAME),
        recorder: context.recorder(NAME),
        sets: sets.clone(),
        pods: pods.clone(),
        nodes: nodes.clone(),
        revisions: revisions.clone(),
        expectations,
        failures: Mutex::default(),
        clock: context.clock.clone(),
    };
    context.start(NAME, &queue, controller, async move {
        sets.synced().await;
        pods.synced().await;
        nodes.synced().await;
        revisions.synced().await;
    });
}

/// The set that owns a pod; for a pod without owner, every set that may adopt it.
fn concerned(pod: &Pod, sets: &Informer<DaemonSet>) -> Vec<Key> {
    if owners::controller_of(&pod.metadata).is_some() {
        return driver::owner_key(pod, "DaemonSet").into_iter().collect();
    }
    let all = sets.list_in(&pod.namespace().unwrap_or_default()).into_iter();
    let selects = |set: &Arc<DaemonSet>| {
        set.spec.as_ref().is_some_and(|s| selectors::selects(&s.selector, pod.metadata.labels.as_ref()))
    };
    all.filter(selects).map(|set| Key::of(&*set)).collect()
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(set) = self.sets.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Next::Wait);
        }
        let hash = self.current_revision(&set).await?;
        let owned = self.claim(&set).await?;
        let uids = |of: &dyn Fn(&Pod) -> bool| {
            owned.iter().filter(|pod| of(pod)).filter_map(|pod| pod.uid()).collect::<BTreeSet<_>>()
        };
        let met = self.expectations.met(key, &uids(&|_| true), &uids(&|pod| pod.metadata.deletion_timestamp.is_some()));
        let now = self.clock.now();
        let waits = |node: &str| self.failures().left(&slot(&set, node), Instant::now());
        let plan = plan::plan(&set, &self.nodes.list(), &owned, &hash, (now, &waits));
        let outcome = if met { self.act(&set, key, &plan, &hash).await } else { Ok(()) };
        self.write_status(&set, plan.status).await?;
        outcome?;
        Ok(plan.look_again_secs.map_or(Next::Wait, |secs| Next::After(Duration::from_secs(secs))))
    }
}

/// By which the failures of a set on a node are remembered: another spec is another chance.
fn slot(set: &DaemonSet, node: &str) -> backoff::Slot {
    let generation = set.status.as_ref().and_then(|s| s.observed_generation);
    (set.uid().unwrap_or_default(), generation, node.to_owned())
}

impl Controller {
    fn failures(&self) -> std::sync::MutexGuard<'_, backoff::Failures> {
        self.failures.lock()
    }

    /// The pods of the set, after adopting and releasing what its selector says.
    async fn claim(&self, set: &DaemonSet) -> Result<Vec<Arc<Pod>>, Error> {
        let Some(spec) = &set.spec else { return Ok(Vec::new()) };
        let namespace = set.namespace().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let adoption = Adoption { owner: set, selector: &spec.selector, finalizer: None };
        let claimed = adoption.adopt_and_release(&api, self.pods.list_in(&namespace), |_, claim| claim).await?;
        Ok(claimed.into_iter().filter_map(Claimed::owned).collect())
    }

    /// The hash of the set's template; stores the template as a ControllerRevision and forgets the oldest ones.
    async fn current_revision(&self, set: &DaemonSet) -> Result<String, Error> {
        let Some(spec) = &set.spec else { return Ok(String::new()) };
        let history =
            History { client: self.client.clone(), revisions: &self.revisions, owner: set, selector: &spec.selector };
        let owned = history.claim().await?;
        let collisions = set.status.as_ref().and_then(|s| s.collision_count).unwrap_or(0);
        let state = State { template: &spec.template, hash_label: plan::HASH_LABEL, collisions };
        let (present, _) = history.present(&owned, &state).await?;
        let hash = present.labels().get(plan::HASH_LABEL).cloned().unwrap_or_default();
        let pods = self.pods.list_in(&set.namespace().unwrap_or_default());
        // Somebody's copy of the present template is not another one: its pods are the present one's.
        for copy in owned.iter().filter(|r| r.data == present.data && r.uid() != present.uid()) {
            self.merge_revision(copy, &hash, &pods).await?;
        }
        let carried = history::carried(pods.iter().map(|pod| &**pod), plan::HASH_LABEL);
        let live = |r: &ControllerRevision| {
            r.labels().get(plan::HASH_LABEL).is_some_and(|h| *h == hash || carried.contains(h))
        };
        history.truncate(&owned, spec.revision_history_limit, live).await?;
        Ok(hash)
    }

    async fn merge_revision(&self, copy: &ControllerRevision, hash: &str, pods: &[Arc<Pod>]) -> Result<(), Error> {
        let namespace = copy.namespace().unwrap_or_default();
        let (pods_api, api): (Api<Pod>, Api<ControllerRevision>) =
            (Api::namespaced(self.client.clone(), &namespace), Api::namespaced(self.client.clone(), &namespace));
        let old = copy.labels().get(plan::HASH_LABEL);
        for pod in
            pods.iter().filter(|pod| old.is_some_and(|old| old != hash) && pod.labels().get(plan::HASH_LABEL) == old)
        {
            let patch = Patch::Merge(json!({"metadata": {"uid": pod.uid(), "labels": {plan::HASH_LABEL: hash}}}));
            driver::gone_is_fine(pods_api.patch(&pod.name_any(), &PatchParams::default(), &patch).await)?;
        }
        Ok(driver::gone_is_fine(api.delete(&copy.name_any(), &DeleteParams::default()).await)?)
    }

    async fn act(&self, set: &DaemonSet, key: &Key, plan: &plan::Plan, hash: &str) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        for (pod, why) in &plan.delete {
            let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
            match why {
                Some(Ended::Failed { node, text }) => {
                    self.failures().gone(slot(set, node), Instant::now());
                    self.recorder.report(set, Severity::Warning, "FailedDaemonPod", text.clone());
                }
                Some(Ended::Succeeded { text }) => {
                    self.recorder.report(set, Severity::Normal, "SucceededDaemonPod", text.clone())
                }
                None => {}
            }
            let same = Preconditions { uid: Some(uid.clone()), resource_version: None };
            driver::gone_is_fine(api.delete(&name, &DeleteParams::default().preconditions(same)).await)?;
            self.expectations.deleted(key, uid);
            self.recorder.report(set, Severity::Normal, "SuccessfulDelete", format!("Deleted pod: {name}"));
        }
        let api: Api<WholePod> = Api::namespaced(self.client.clone(), &key.namespace);
        for node in &plan.create {
            match api.create(&PostParams::default(), &plan::pod(set, Fresh { node, hash })).await {
                Ok(pod) => {
                    self.expectations.created(key, pod.uid().unwrap_or_default());
                    self.recorder.report(
                        set,
                        Severity::Normal,
                        "SuccessfulCreate",
                        format!("Created pod: {}", pod.name_any()),
                    );
                }
                Err(err) => {
                    let why = base::chain::Chain(&err).to_string();
                    self.recorder.report(set, Severity::Warning, "FailedCreate", format!("Error creating: {why}"));
                    return Err(err.into());
                }
            }
        }
        Ok(())
    }

    async fn write_status(&self, set: &DaemonSet, status: DaemonSetStatus) -> Result<(), Error> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let api: Api<DaemonSet> = Api::namespaced(self.client.clone(), &set.namespace().unwrap_or_default());
        let mut updated = set.clone();
        updated.status = Some(status);
        Ok(driver::gone_is_fine(api.replace_status(&set.name_any(), &PostParams::default(), &updated).await)?)
    }
}
