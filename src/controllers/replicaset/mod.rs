//! ReplicaSets and ReplicationControllers: as many pods as the spec says, made from its template.

mod plan;
#[cfg(test)]
mod tests;
mod workload;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{Pod as WholePod, ReplicationController};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, PostParams, Preconditions};
use model::owners::{self, Claim};
use model::phase;
use model::pod::Pod;
use model::selectors;
use plan::Action;
use workload::Workload;

use crate::adoption::{Adoption, Claimed};
use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::expectations::Expectations;

/// The first batch of creations; doubled while all go well, so that a refusal (a quota, say) is met by one request, not
/// by hundreds.
const FIRST_BATCH: usize = 1;

struct Controller<K: Workload> {
    client: kube::Client,
    recorder: Recorder,
    sets: Informer<K>,
    pods: Informer<Pod>,
    expectations: Arc<Expectations>,
    clock: Clock,
}

/// Starts both controllers.
pub(crate) fn start(context: &Context) {
    start_one::<ReplicaSet>(context);
    start_one::<ReplicationController>(context);
}

fn start_one<K: Workload>(context: &Context) {
    let (sets, pods) = (context.informers.get::<K>(), context.informers.get::<Pod>());
    let queue = Arc::new(Queue::default());
    let expectations = Arc::new(Expectations::default());
    context.feed_own(&sets, &queue);
    let (all_sets, seen) = (sets.clone(), Arc::clone(&expectations));
    context.feed(&pods, &queue, move |change| {
        let keys: Vec<Key> = driver::objects_of(change).iter().flat_map(|pod| concerned(pod, &all_sets)).collect();
        if let Change::Deleted(pod) = change {
            keys.iter().for_each(|key| seen.gone(key, &pod.uid().unwrap_or_default()));
        }
        keys
    });
    let controller = Controller {
        client: context.client(K::CONTROLLER),
        recorder: context.recorder(K::CONTROLLER),
        sets: sets.clone(),
        pods: pods.clone(),
        expectations,
        clock: context.clock.clone(),
    };
    context.start(K::CONTROLLER, &queue, controller, async move {
        sets.synced().await;
        pods.synced().await;
    });
}

/// The set that owns a pod; for a pod without owner, every set that selects it.
fn concerned<K: Workload>(pod: &Pod, sets: &Informer<K>) -> Vec<Key> {
    if owners::controller_of(&pod.metadata).is_some() {
        return driver::owner_key(pod, &K::kind(&())).into_iter().collect();
    }
    let namespace = pod.namespace().unwrap_or_default();
    let selecting = sets.list_in(&namespace).into_iter().filter(|set| {
        K::as_set(set)
            .spec
            .as_ref()
            .is_some_and(|spec| selectors::selects(&spec.selector, pod.metadata.labels.as_ref()))
    });
    selecting.map(|set| Key::of(&*set)).collect()
}

#[async_trait::async_trait]
impl<K: Workload> Reconcile for Controller<K> {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(object) = self.sets.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let set = K::as_set(&object);
        let owned = self.claim(&object, &set).await?;
        let uids = |of: &dyn Fn(&Pod) -> bool| {
            owned.iter().filter(|pod| of(pod)).filter_map(|pod| pod.uid()).collect::<BTreeSet<_>>()
        };
        let (present, leaving) = (uids(&|_| true), uids(&|pod| pod.metadata.deletion_timestamp.is_some()));
        let mut outcome = Ok(());
        if self.expectations.met(key, &present, &leaving) && set.metadata.deletion_timestamp.is_none() {
            let active: Vec<Arc<Pod>> = owned.iter().filter(|pod| phase::is_active(pod)).cloned().collect();
            outcome = match plan::plan(&set, &active, || self.related(&set, &owned), self.clock.now()) {
                Action::None => Ok(()),
                Action::Create(n) => self.create(&object, &set, key, n).await.map_err(|err| ("FailedCreate", err)),
                Action::Delete(surplus) => {
                    self.delete(&object, key, &surplus).await.map_err(|err| ("FailedDelete", err))
                }
            };
        }
        let now = self.clock.now();
        let text = outcome.as_ref().err().map(|(reason, err)| (*reason, base::chain::Chain(err).to_string()));
        let failure = text.as_ref().map(|(reason, text)| (*reason, text.as_str()));
        self.write_status(&object, &set, plan::status(&set, &owned, failure, now)).await?;
        outcome.map_err(|(_, err)| err)?;
        Ok(plan::next_available_secs(&set, &owned, now)
            .map_or(Next::Wait, |secs| Next::After(Duration::from_secs(secs))))
    }
}

impl<K: Workload> Controller<K> {
    /// The pods of all sets that have the controller of `set`; its own if it has none. Spec: upstream's
    /// `getIndirectlyRelatedPods`.
    fn related(&self, set: &ReplicaSet, own: &[Arc<Pod>]) -> Vec<Arc<Pod>> {
        let Some(controller) = owners::controller_of(&set.metadata) else { return own.to_vec() };
        let namespace = set.namespace().unwrap_or_default();
        let siblings = self
            .sets
            .list_in(&namespace)
            .into_iter()
            .filter(|set| owners::is_controlled_by(kube::Resource::meta(&**set), &controller.uid));
        let uids: BTreeSet<String> = siblings.filter_map(|set| set.uid()).collect();
        let of_one =
            |pod: &Arc<Pod>| owners::controller_of(&pod.metadata).is_some_and(|owner| uids.contains(&owner.uid));
        self.pods.list_in(&namespace).into_iter().filter(of_one).collect()
    }

    fn pods_of(&self, set: &K) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &set.namespace().unwrap_or_default())
    }

    /// The pods of the set, after adopting and releasing what its selector says.
    async fn claim(&self, object: &K, set: &ReplicaSet) -> Result<Vec<Arc<Pod>>, Error> {
        let Some(spec) = &set.spec else { return Ok(Vec::new()) };
        let api = self.pods_of(object);
        let refine = |pod: &Pod, claim| match claim {
            Claim::Adopt if !phase::is_active(pod) => Claim::Foreign,
            claim => claim,
        };
        let pods = self.pods.list_in(&set.namespace().unwrap_or_default());
        let adoption = Adoption { owner: object, selector: &spec.selector, finalizer: None };
        let claimed = adoption.adopt_and_release(&api, pods, refine).await?;
        Ok(claimed.into_iter().map(Claimed::any).collect())
    }

    /// Makes `n` pods in growing batches and stops at the first batch with a failure.
    async fn create(&self, object: &K, set: &ReplicaSet, key: &Key, n: usize) -> Result<(), Error> {
        let Some(template) = set.spec.as_ref().and_then(|s| s.template.as_ref()) else {
            return Err(Error::Object("spec.template is missing".to_owned()));
        };
        let pod = phase::from_template(template, &set.name_any(), &key.namespace, owners::reference_to(object));
        let api: Api<WholePod> = Api::namespaced(self.client.clone(), &key.namespace);
        let (mut made, mut batch) = (0, FIRST_BATCH);
        while made < n {
            let size = batch.min(n - made);
            let results =
                futures_util::future::join_all((0..size).map(|_| self.create_one(&api, object, key, &pod))).await;
            driver::all_of(results)?;
            made += size;
            batch *= 2;
        }
        Ok(())
    }

    async fn create_one(&self, api: &Api<WholePod>, set: &K, key: &Key, pod: &WholePod) -> Result<(), kube::Error> {
        match api.create(&PostParams::default(), pod).await {
            Ok(created) => {
                self.expectations.created(key, created.uid().unwrap_or_default());
                self.recorder.report(
                    set,
                    Severity::Normal,
                    "SuccessfulCreate",
                    format!("Created pod: {}", created.name_any()),
                );
                Ok(())
            }
            Err(err) => {
                let why = base::chain::Chain(&err).to_string();
                self.recorder.report(set, Severity::Warning, "FailedCreate", format!("Error creating: {why}"));
                Err(err)
            }
        }
    }

    async fn delete(&self, set: &K, key: &Key, surplus: &[Arc<Pod>]) -> Result<(), Error> {
        let api = self.pods_of(set);
        let results =
            futures_util::future::join_all(surplus.iter().map(|pod| self.delete_one(&api, set, key, pod))).await;
        driver::all_of(results).map(drop)
    }

    async fn delete_one(&self, api: &Api<Pod>, set: &K, key: &Key, pod: &Pod) -> Result<(), kube::Error> {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let same = Preconditions { uid: Some(uid.clone()), resource_version: None };
        let result = api.delete(&name, &DeleteParams { preconditions: Some(same), ..DeleteParams::default() }).await;
        match driver::gone_is_fine(result) {
            Ok(()) => {
                self.expectations.deleted(key, uid);
                self.recorder.report(set, Severity::Normal, "SuccessfulDelete", format!("Deleted pod: {name}"));
                Ok(())
            }
            Err(err) => {
                let why = base::chain::Chain(&err).to_string();
                self.recorder.report(set, Severity::Warning, "FailedDelete", format!("Error deleting: {why}"));
                Err(err)
            }
        }
    }

    async fn write_status(&self, object: &K, set: &ReplicaSet, status: ReplicaSetStatus) -> Result<(), Error> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), &object.namespace().unwrap_or_default());
        let updated = object.with_status(status);
        Ok(driver::gone_is_fine(api.replace_status(&object.name_any(), &PostParams::default(), &updated).await)?)
    }
}
