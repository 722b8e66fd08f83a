//! DaemonSets: one pod on each node that may run it, renewed node by node.

mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet, DaemonSetStatus};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::expectations::Expectations;
use crate::owners::{self, Claim};

const NAME: &str = "daemon-set-controller";
/// Old templates that are kept for a rollback when the spec does not say.
const HISTORY: i32 = 10;

struct Controller {
    client: kube::Client,
    recorder: Recorder,
    sets: Informer<DaemonSet>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    revisions: Informer<ControllerRevision>,
    expectations: Arc<Expectations>,
    clock: Clock,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let (sets, pods) = (context.informers.get::<DaemonSet>(), context.informers.get::<Pod>());
    let (nodes, revisions) = (context.informers.get::<Node>(), context.informers.get::<ControllerRevision>());
    let queue = Arc::new(Queue::default());
    let expectations = Arc::new(Expectations::default());
    context.feed_own(&sets, &queue);
    let seen = Arc::clone(&expectations);
    context.feed(&pods, &queue, move |change| {
        let keys: Vec<Key> = driver::objects_of(change).iter().filter_map(|pod| driver::owner_key(&**pod, "DaemonSet")).collect();
        if let Change::Deleted(pod) = change {
            keys.iter().for_each(|key| seen.gone(key, &pod.uid().unwrap_or_default()));
        }
        keys
    });
    let all_sets = sets.clone();
    context.feed(&nodes, &queue, move |change| match change {
        // Heartbeats change nothing for a DaemonSet.
        Change::Modified { old, new } if old.metadata.labels == new.metadata.labels && old.spec == new.spec => Vec::new(),
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
        clock: Clock::system(),
    };
    context.start(NAME, &queue, controller, async move {
        sets.synced().await;
        pods.synced().await;
        nodes.synced().await;
        revisions.synced().await;
    });
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
        let uids = |of: &dyn Fn(&Pod) -> bool| owned.iter().filter(|pod| of(pod)).filter_map(|pod| pod.uid()).collect::<BTreeSet<_>>();
        let met = self.expectations.met(key, &uids(&|_| true), &uids(&|pod| pod.metadata.deletion_timestamp.is_some()));
        let now = self.clock.now();
        let plan = plan::plan(&set, &self.nodes.list(), &owned, &hash, now);
        let outcome = if met { self.act(&set, key, &plan, &hash).await } else { Ok(()) };
        self.write_status(&set, plan.status).await?;
        outcome?;
        Ok(plan.look_again_secs.map_or(Next::Wait, |secs| Next::After(Duration::from_secs(secs))))
    }
}

impl Controller {
    /// The pods of the set, after adopting and releasing what its selector says.
    async fn claim(&self, set: &DaemonSet) -> Result<Vec<Arc<Pod>>, Error> {
        let Some(spec) = &set.spec else { return Ok(Vec::new()) };
        let namespace = set.namespace().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let mut owned = Vec::new();
        for pod in self.pods.list_in(&namespace) {
            let patch = match owners::claim(&set.metadata, &spec.selector, &pod.metadata) {
                Claim::Owned => {
                    owned.push(pod);
                    continue;
                }
                Claim::Foreign => continue,
                Claim::Adopt => json!({"metadata": {"uid": pod.uid(), "ownerReferences": [owners::reference_to(set)]}}),
                Claim::Release => json!({"metadata": {"uid": pod.uid(), "ownerReferences": [{"$patch": "delete", "uid": set.uid()}]}}),
            };
            driver::gone_is_fine(api.patch(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await)?;
        }
        Ok(owned)
    }

    /// The hash of the set's template; stores the template as a ControllerRevision and forgets the oldest ones.
    async fn current_revision(&self, set: &DaemonSet) -> Result<String, Error> {
        let namespace = set.namespace().unwrap_or_default();
        let uid = set.uid().unwrap_or_default();
        let all = self.revisions.list_in(&namespace);
        let mut owned: Vec<_> = all.into_iter().filter(|revision| owners::is_controlled_by(&revision.metadata, &uid)).collect();
        owned.sort_by_key(|revision| revision.revision);
        let hash = plan::template_hash(set);
        let api: Api<ControllerRevision> = Api::namespaced(self.client.clone(), &namespace);
        let next = owned.last().map_or(1, |revision| revision.revision + 1);
        match owned.iter().position(|revision| revision.labels().get(plan::HASH_LABEL) == Some(&hash)) {
            // A rollback: the old template is the newest again.
            Some(at) if at + 1 < owned.len() => {
                let patch = Patch::Merge(json!({ "revision": next }));
                api.patch(&owned[at].name_any(), &PatchParams::default(), &patch).await?;
            }
            Some(_) => {}
            None => match api.create(&PostParams::default(), &plan::revision(set, &hash, next)).await {
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
                other => drop(other?),
            },
        }
        let limit = set.spec.as_ref().and_then(|s| s.revision_history_limit).unwrap_or(HISTORY);
        let live: BTreeSet<String> = self.pods.list_in(&namespace).iter().filter_map(|pod| pod.labels().get(plan::HASH_LABEL).cloned()).collect();
        let old = owned.iter().filter(|r| r.labels().get(plan::HASH_LABEL).is_some_and(|h| *h != hash && !live.contains(h)));
        let old: Vec<_> = old.collect();
        let surplus = old.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        for revision in &old[..surplus] {
            driver::gone_is_fine(api.delete(&revision.name_any(), &DeleteParams::default()).await)?;
        }
        Ok(hash)
    }

    async fn act(&self, set: &DaemonSet, key: &Key, plan: &plan::Plan, hash: &str) -> Result<(), Error> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &key.namespace);
        for (pod, why) in &plan.delete {
            let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
            if let Some(text) = why {
                self.recorder.report(set, Severity::Warning, "FailedDaemonPod", text.clone());
            }
            let same = Preconditions { uid: Some(uid.clone()), resource_version: None };
            driver::gone_is_fine(api.delete(&name, &DeleteParams::default().preconditions(same)).await)?;
            self.expectations.deleted(key, uid);
            self.recorder.report(set, Severity::Normal, "SuccessfulDelete", format!("Deleted pod: {name}"));
        }
        for node in &plan.create {
            match api.create(&PostParams::default(), &plan::pod(set, node, hash)).await {
                Ok(pod) => {
                    self.expectations.created(key, pod.uid().unwrap_or_default());
                    self.recorder.report(set, Severity::Normal, "SuccessfulCreate", format!("Created pod: {}", pod.name_any()));
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
