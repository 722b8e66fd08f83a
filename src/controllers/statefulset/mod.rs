//! StatefulSets: pods with names and volumes of their own, made, renewed and given up in order.

mod identity;
mod plan;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Change, Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet, StatefulSetStatus};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod as WholePod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use model::owners::{self, Claim};
use model::pod::Pod;
use model::selectors;
use plan::{Action, Plan, View};
use serde_json::json;

use crate::adoption::{Adoption, Claimed};
use crate::driver::{self, Context, Error, Next, Reconcile};
use crate::expectations::Expectations;
use crate::history::{self, History, State};

const NAME: &str = "statefulset-controller";
/// The label of a revision that holds its hash.
const HASH_LABEL: &str = "controller.kubernetes.io/hash";

/// Deeds to pods that events tell of.
#[derive(Clone, Copy)]
enum Verb {
    Create,
    Update,
    Delete,
}

struct Controller {
    client: kube::Client,
    recorder: Recorder,
    sets: Informer<StatefulSet>,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    revisions: Informer<ControllerRevision>,
    expectations: Arc<Expectations>,
    clock: Clock,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let (sets, pods) = (context.informers.get::<StatefulSet>(), context.informers.get::<Pod>());
    let (claims, revisions) =
        (context.informers.get::<PersistentVolumeClaim>(), context.informers.get::<ControllerRevision>());
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
        client: context.client(NAME),
        recorder: context.recorder(NAME),
        sets: sets.clone(),
        pods: pods.clone(),
        claims: claims.clone(),
        revisions: revisions.clone(),
        expectations,
        clock: context.clock.clone(),
    };
    context.start(NAME, &queue, controller, async move {
        sets.synced().await;
        pods.synced().await;
        claims.synced().await;
        revisions.synced().await;
    });
}

/// The set that owns a pod; for a pod without owner, every set that selects it.
fn concerned(pod: &Pod, sets: &Informer<StatefulSet>) -> Vec<Key> {
    if owners::controller_of(&pod.metadata).is_some() {
        return driver::owner_key(pod, "StatefulSet").into_iter().collect();
    }
    let all = sets.list_in(&pod.namespace().unwrap_or_default());
    let selects = |set: &&Arc<StatefulSet>| {
        set.spec.as_ref().is_some_and(|spec| selectors::selects(&spec.selector, pod.metadata.labels.as_ref()))
    };
    all.iter().filter(selects).map(|set| Key::of(&**set)).collect()
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(set) = self.sets.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let Some(spec) = set.spec.as_ref().filter(|_| set.metadata.deletion_timestamp.is_none()) else {
            return Ok(Next::Wait);
        };
        let history =
            History { client: self.client.clone(), revisions: &self.revisions, owner: &*set, selector: &spec.selector };
        let owned_revisions = history.claim().await?;
        let pods = self.claim(&set).await?;
        let old = set.status.clone().unwrap_or_default();
        let state =
            State { template: &spec.template, hash_label: HASH_LABEL, collisions: old.collision_count.unwrap_or(0) };
        let (update, collisions) = history.present(&owned_revisions, &state).await?;
        let is_current = |r: &&Arc<ControllerRevision>| old.current_revision.as_ref() == Some(&r.name_any());
        let current = owned_revisions.iter().find(is_current).cloned().unwrap_or_else(|| Arc::clone(&update));
        let plan = self.plan(&set, (&current, &update), collisions, &pods);
        let uids = |of: &dyn Fn(&Pod) -> bool| {
            pods.iter().filter(|pod| of(pod)).filter_map(|pod| pod.uid()).collect::<BTreeSet<_>>()
        };
        let met = self.expectations.met(key, &uids(&|_| true), &uids(&|pod| pod.metadata.deletion_timestamp.is_some()));
        let mut outcome = Ok(());
        if met {
            for action in &plan.actions {
                outcome = self.act(&set, key, action).await;
                if outcome.is_err() {
                    break;
                }
            }
        }
        self.write_status(&set, plan.status).await?;
        outcome?;
        let carried = history::carried(pods.iter().map(|pod| &**pod), identity::REVISION_LABEL);
        let live = [current.name_any(), update.name_any()];
        history
            .truncate(&owned_revisions, spec.revision_history_limit, |r| {
                live.contains(&r.name_any()) || carried.contains(&r.name_any())
            })
            .await?;
        Ok(plan.look_again_secs.map_or(Next::Wait, |secs| Next::After(Duration::from_secs(secs))))
    }
}

impl Controller {
    fn plan(
        &self,
        set: &StatefulSet,
        (current, update): (&ControllerRevision, &ControllerRevision),
        collisions: i32,
        pods: &[Arc<Pod>],
    ) -> Plan {
        let namespace = set.namespace().unwrap_or_default();
        let claim = |name: &str| self.claims.get(&namespace, name);
        plan::plan(&View { set, current, update, collisions, pods, claim: &claim, now: self.clock.now() })
    }

    /// The pods of the set, after adopting and releasing what its selector and their names say.
    async fn claim(&self, set: &StatefulSet) -> Result<Vec<Arc<Pod>>, Error> {
        let Some(spec) = &set.spec else { return Ok(Vec::new()) };
        let namespace = set.namespace().unwrap_or_default();
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &namespace);
        let refine = |pod: &Pod, claim| {
            let is_member = identity::ordinal(set, pod).is_some();
            match claim {
                Claim::Owned if !is_member => Claim::Release,
                Claim::Adopt if !is_member => Claim::Foreign,
                claim => claim,
            }
        };
        let adoption = Adoption { owner: set, selector: &spec.selector, finalizer: None };
        let claimed = adoption.adopt_and_release(&api, self.pods.list_in(&namespace), refine).await?;
        Ok(claimed.into_iter().filter_map(Claimed::owned).collect())
    }

    fn pods_of(&self, key: &Key) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    async fn act(&self, set: &StatefulSet, key: &Key, action: &Action) -> Result<(), Error> {
        match action {
            Action::Create { pod, claims } => {
                self.make_claims(set, key, &pod.name_any(), claims).await?;
                let api: Api<WholePod> = Api::namespaced(self.client.clone(), &key.namespace);
                let made = api.create(&PostParams::default(), pod).await;
                if let Err(kube::Error::Api(status)) = &made
                    && status.reason == "AlreadyExists"
                {
                    return made.map(drop).map_err(Error::from);
                }
                self.tell(set, Verb::Create, &pod.name_any(), made.as_ref().err());
                self.expectations.created(key, made?.uid().unwrap_or_default());
            }
            Action::MakeClaims { pod, claims } => self.make_claims(set, key, &pod.name_any(), claims).await?,
            Action::Relabel { pod, labels } => {
                let patch = json!({"metadata": {"uid": pod.uid(), "labels": labels}});
                let done =
                    self.pods_of(key).patch(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(patch)).await;
                self.tell(set, Verb::Update, &pod.name_any(), done.as_ref().err());
                done?;
            }
            Action::OwnClaim { claim, owners } => {
                // An update, not a patch: the role of this controller, which is upstream's, allows no more.
                let mut owned = (**claim).clone();
                owned.metadata.owner_references = Some(owners.clone());
                let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
                driver::gone_is_fine(api.replace(&claim.name_any(), &PostParams::default(), &owned).await)?;
            }
            Action::Conflict { claim } => {
                let name = claim.name_any();
                let text = format!(
                    "PersistentVolumeClaim {name} has a conflicting OwnerReference that acts as a managing controller, \
                     the retention policy is ignored for this claim"
                );
                self.recorder.report(set, Severity::Warning, "ConflictingController", text);
            }
            Action::Recreate(pod) => {
                let (name, failed) = (pod.name_any(), model::phase::phase(pod) == "Failed");
                let (severity, reason, word) = match failed {
                    true => (Severity::Warning, "RecreatingFailedPod", "failed"),
                    false => (Severity::Normal, "RecreatingTerminatedPod", "terminated"),
                };
                self.recorder.report(
                    set,
                    severity,
                    reason,
                    format!("StatefulSet {key} is recreating {word} Pod {name}"),
                );
                self.delete(set, key, pod).await?;
            }
            Action::Delete(pod) => self.delete(set, key, pod).await?,
        }
        Ok(())
    }

    async fn make_claims(
        &self,
        set: &StatefulSet,
        key: &Key,
        pod: &str,
        claims: &[PersistentVolumeClaim],
    ) -> Result<(), Error> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &key.namespace);
        for claim in claims {
            let (name, set_name) = (claim.name_any(), set.name_any());
            match api.create(&PostParams::default(), claim).await {
                Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
                Ok(_) => {
                    let text = format!("create Claim {name} Pod {pod} in StatefulSet {set_name} success");
                    self.recorder.report(set, Severity::Normal, "SuccessfulCreate", text);
                }
                Err(err) => {
                    let text = format!(
                        "create Claim {name} for Pod {pod} in StatefulSet {set_name} failed error: {}",
                        Chain(&err)
                    );
                    self.recorder.report(set, Severity::Warning, "FailedCreate", text);
                    return Err(err.into());
                }
            }
        }
        Ok(())
    }

    async fn delete(&self, set: &StatefulSet, key: &Key, pod: &Pod) -> Result<(), Error> {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let same = Preconditions { uid: Some(uid.clone()), resource_version: None };
        let done =
            driver::gone_is_fine(self.pods_of(key).delete(&name, &DeleteParams::default().preconditions(same)).await);
        self.tell(set, Verb::Delete, &name, done.as_ref().err());
        done?;
        self.expectations.deleted(key, uid);
        Ok(())
    }

    /// Upstream's words about one pod.
    fn tell(&self, set: &StatefulSet, verb: Verb, pod: &str, err: Option<&kube::Error>) {
        let (verb, reason) = match verb {
            Verb::Create => ("create", "Create"),
            Verb::Update => ("update", "Update"),
            Verb::Delete => ("delete", "Delete"),
        };
        let set_name = set.name_any();
        match err {
            None => {
                let text = format!("{verb} Pod {pod} in StatefulSet {set_name} successful");
                self.recorder.report(set, Severity::Normal, &format!("Successful{reason}"), text);
            }
            Some(err) => {
                let text = format!("{verb} Pod {pod} in StatefulSet {set_name} failed error: {}", Chain(err));
                self.recorder.report(set, Severity::Warning, &format!("Failed{reason}"), text);
            }
        }
    }

    async fn write_status(&self, set: &StatefulSet, status: StatefulSetStatus) -> Result<(), Error> {
        if set.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let api: Api<StatefulSet> = Api::namespaced(self.client.clone(), &set.namespace().unwrap_or_default());
        let mut updated = set.clone();
        updated.status = Some(status);
        Ok(driver::gone_is_fine(api.replace_status(&set.name_any(), &PostParams::default(), &updated).await)?)
    }
}
