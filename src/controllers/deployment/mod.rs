//! Deployments: rollouts from one ReplicaSet to the next.

mod numbers;
mod plan;
mod status;
mod template;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use base::time::Clock;
use client::events::{Recorder, Severity};
use client::informer::{Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus, ReplicaSet};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use model::owners;
use model::selectors;
use plan::{Action, Sets};
use serde_json::json;

use crate::adoption::{Adoption, Claimed};
use crate::driver::{self, Context, Error, Next, Reconcile};

const NAME: &str = "deployment-controller";

struct Controller {
    client: kube::Client,
    recorder: Recorder,
    deployments: Informer<Deployment>,
    sets: Informer<ReplicaSet>,
    clock: Clock,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let (deployments, sets) = (context.informers.get::<Deployment>(), context.informers.get::<ReplicaSet>());
    let queue = Arc::new(Queue::default());
    context.feed_own(&deployments, &queue);
    let all = deployments.clone();
    context.feed(&sets, &queue, move |change| {
        driver::objects_of(change).iter().flat_map(|set| concerned(set, &all)).collect()
    });
    let controller = Controller {
        client: context.client(NAME),
        recorder: context.recorder(NAME),
        deployments: deployments.clone(),
        sets: sets.clone(),
        clock: context.clock.clone(),
    };
    context.start(NAME, &queue, controller, async move {
        deployments.synced().await;
        sets.synced().await;
    });
}

fn concerned(set: &ReplicaSet, deployments: &Informer<Deployment>) -> Vec<Key> {
    if owners::controller_of(&set.metadata).is_some() {
        return driver::owner_key(set, "Deployment").into_iter().collect();
    }
    let selecting = deployments.list_in(&set.namespace().unwrap_or_default()).into_iter().filter(|deployment| {
        deployment.spec.as_ref().is_some_and(|spec| selectors::selects(&spec.selector, set.metadata.labels.as_ref()))
    });
    selecting.map(|deployment| Key::of(&*deployment)).collect()
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(deployment) = self.deployments.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let owned = self.claim(&deployment).await?;
        let sets = Sets::of(&deployment, &owned);
        if deployment.metadata.deletion_timestamp.is_none() {
            for action in plan::plan(&deployment, &sets) {
                self.act(&deployment, action).await?;
            }
        }
        let now = self.clock.now();
        let status = status::status(&deployment, &sets, now);
        let next = check_again(&deployment, &status, now);
        self.write_status(&deployment, status).await?;
        Ok(next)
    }
}

/// When the progress deadline has to be looked at.
fn check_again(deployment: &Deployment, status: &DeploymentStatus, now: jiff::Timestamp) -> Next {
    let progressing = status.conditions.iter().flatten().find(|c| c.type_ == "Progressing");
    let waiting = progressing.filter(|c| {
        !matches!(c.reason.as_deref(), Some("NewReplicaSetAvailable" | "ProgressDeadlineExceeded" | "DeploymentPaused"))
    });
    let since = waiting.and_then(|c| c.last_update_time.as_ref()).map(|t| t.0);
    let left = since
        .and_then(|since| plan::deadline(deployment, since))
        .map(|deadline| deadline.duration_since(now).as_secs());
    left.map_or(Next::Wait, |left| Next::After(Duration::from_secs(u64::try_from(left).unwrap_or(0) + 1)))
}

impl Controller {
    fn api<K>(&self, deployment: &Deployment) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &deployment.namespace().unwrap_or_default())
    }

    async fn claim(&self, deployment: &Deployment) -> Result<Vec<Arc<ReplicaSet>>, Error> {
        let Some(spec) = &deployment.spec else { return Ok(Vec::new()) };
        let api: Api<ReplicaSet> = self.api(deployment);
        let sets = self.sets.list_in(&deployment.namespace().unwrap_or_default());
        let adoption = Adoption { owner: deployment, selector: &spec.selector, finalizer: None };
        let claimed = adoption.adopt_and_release(&api, sets, |_, claim| claim).await?;
        Ok(claimed.into_iter().map(Claimed::any).collect())
    }

    async fn act(&self, deployment: &Deployment, action: Action) -> Result<(), Error> {
        let api: Api<ReplicaSet> = self.api(deployment);
        match action {
            Action::Create(set) => self.create(deployment, &api, &set).await,
            Action::Scale { set, to, annotations } => {
                let from = numbers::wanted(&set);
                let patch = json!({"metadata": {"resourceVersion": set.resource_version(),
                    "annotations": annotations}, "spec": {"replicas": to}});
                api.patch(&set.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
                if from != to {
                    let how = if to > from { "up" } else { "down" };
                    let text = format!("Scaled {how} replica set {} from {from} to {to}", set.name_any());
                    self.recorder.report(deployment, Severity::Normal, "ScalingReplicaSet", text);
                }
                Ok(())
            }
            Action::Renew { set, annotations, min_ready_secs } => {
                let meta = json!({"resourceVersion": set.resource_version(), "annotations": annotations});
                let patch = json!({"metadata": meta, "spec": {"minReadySeconds": min_ready_secs}});
                Ok(api.patch(&set.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)?)
            }
            Action::SetRevision(revision) => {
                let api: Api<Deployment> = self.api(deployment);
                // The controller's role may update Deployments, not patch them. A lost race is tried again with the
                // newest version.
                let mut updated = deployment.clone();
                updated.annotations_mut().insert(plan::REVISION.to_owned(), revision);
                api.replace(&deployment.name_any(), &PostParams::default(), &updated).await?;
                Ok(())
            }
            Action::Delete(set) => {
                let same = Preconditions { uid: set.uid(), resource_version: set.resource_version() };
                let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
                Ok(driver::gone_is_fine(api.delete(&set.name_any(), &params).await)?)
            }
        }
    }

    /// Makes the new set. A set of that name with another template is a hash collision: the count in the status changes
    /// the next name.
    async fn create(&self, deployment: &Deployment, api: &Api<ReplicaSet>, set: &ReplicaSet) -> Result<(), Error> {
        match api.create(&PostParams::default(), set).await {
            Ok(created) => {
                let (name, size) = (created.name_any(), numbers::wanted(&created));
                if size > 0 {
                    let text = format!("Scaled up replica set {name} from 0 to {size}");
                    self.recorder.report(deployment, Severity::Normal, "ScalingReplicaSet", text);
                }
                Ok(())
            }
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {
                let existing = api.get(&set.name_any()).await?;
                let template =
                    |set: &ReplicaSet| set.spec.as_ref().and_then(|s| s.template.clone()).unwrap_or_default();
                let ours = owners::is_controlled_by(&existing.metadata, &deployment.uid().unwrap_or_default());
                if ours && template::same(&template(&existing), &template(set)) {
                    // Our own earlier request: the cache will show it.
                    return Ok(());
                }
                let mut status = deployment.status.clone().unwrap_or_default();
                status.collision_count = Some(status.collision_count.unwrap_or(0) + 1);
                self.write_status(deployment, status).await
            }
            Err(err) => {
                let why = base::chain::Chain(&err).to_string();
                let text = format!("Failed to create new replica set {:?}: {why}", set.name_any());
                self.recorder.report(deployment, Severity::Warning, "ReplicaSetCreateError", text.clone());
                if !client::events::is_namespace_ending(&err) {
                    self.write_status(deployment, status::create_failed(deployment, text, self.clock.now())).await?;
                }
                Err(err.into())
            }
        }
    }

    async fn write_status(&self, deployment: &Deployment, status: DeploymentStatus) -> Result<(), Error> {
        if deployment.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let mut updated = deployment.clone();
        updated.status = Some(status);
        Ok(driver::gone_is_fine(
            self.api::<Deployment>(deployment)
                .replace_status(&deployment.name_any(), &PostParams::default(), &updated)
                .await,
        )?)
    }
}
