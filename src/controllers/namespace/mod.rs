//! Empties namespaces that are being deleted, says what is left, and lets them go.

use std::sync::Arc;
use std::time::Duration;

use base::time::Clock;
use client::informer::{Informer, Key};
use client::queue::Queue;
use k8s_openapi::api::core::v1::{Namespace, NamespaceCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, PostParams};
use kube::core::PartialObjectMeta;

use crate::discovery::{self, Kind};
use crate::driver::{self, Context, Error, Next, Reconcile};

mod plan;
#[cfg(test)]
mod tests;

const NAME: &str = "namespace-controller";
const FINALIZER: &str = "kubernetes";
/// Between two looks at a namespace whose content is still going; nothing tells when the last object of any kind is
/// gone.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

struct Controller {
    client: kube::Client,
    namespaces: Informer<Namespace>,
    clock: Clock,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let namespaces = context.informers.get::<Namespace>();
    let queue = Arc::new(Queue::default());
    context.feed(&namespaces, &queue, |change| {
        let going = driver::objects_of(change).into_iter().filter(|ns| ns.metadata.deletion_timestamp.is_some());
        going.map(|ns| Key::of(&*ns)).collect()
    });
    let controller =
        Controller { client: context.client(NAME), namespaces: namespaces.clone(), clock: context.clock.clone() };
    context.start(NAME, &queue, controller, async move { namespaces.synced().await });
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(ns) = self.namespaces.get("", &key.name) else { return Ok(Next::Wait) };
        let finalizers = ns.spec.as_ref().and_then(|s| s.finalizers.clone()).unwrap_or_default();
        if ns.metadata.deletion_timestamp.is_none() || !finalizers.iter().any(|f| f == FINALIZER) {
            return Ok(Next::Wait);
        }
        let mut found = plan::Findings::default();
        match discovery::kinds(&self.client).await {
            Ok(kinds) => self.empty(&key.name, &kinds, &mut found).await,
            Err(err) => found.discovery = Some(err.to_string()),
        }
        self.write_conditions(&ns, &found).await?;
        if !found.is_empty() {
            return Ok(Next::After(LOOK_AGAIN));
        }
        let api: Api<Namespace> = Api::all(self.client.clone());
        let mut done = api.get(&key.name).await?;
        done.spec.get_or_insert_default().finalizers =
            Some(finalizers.into_iter().filter(|f| f != FINALIZER).collect());
        driver::gone_is_fine(api.replace_subresource("finalize", &key.name, &PostParams::default(), &done).await)?;
        Ok(Next::Wait)
    }
}

impl Controller {
    /// Asks for the deletion of everything in the namespace and notes what is left.
    async fn empty(&self, ns: &str, kinds: &[Kind], found: &mut plan::Findings) {
        // Pods first, and alone: what they stand on (policies, configuration) stays until the last one has ended.
        let is_pods = |kind: &&Kind| kind.resource.group.is_empty() && kind.resource.plural == "pods";
        let (pods, others): (Vec<&Kind>, Vec<_>) =
            kinds.iter().filter(|kind| kind.namespaced && kind.can(&["list", "delete"])).partition(is_pods);
        for kind in pods.into_iter().chain(others) {
            if !is_pods(&kind) && found.pods_remain() {
                return;
            }
            let name = plan::resource_name(&kind.resource);
            if let Err(err) = self.empty_kind(ns, kind, &name, found).await {
                found.failures.push(format!("{name}: {err}"));
            }
        }
    }

    async fn empty_kind(
        &self,
        ns: &str,
        kind: &Kind,
        name: &str,
        found: &mut plan::Findings,
    ) -> Result<(), kube::Error> {
        let everything = ListParams::default();
        let meta: Api<PartialObjectMeta<DynamicObject>> = Api::namespaced_with(self.client.clone(), ns, &kind.resource);
        let before = meta.list(&everything).await?.items;
        if before.is_empty() {
            return Ok(());
        }
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), ns, &kind.resource);
        if kind.can(&["deletecollection"]) {
            api.delete_collection(&DeleteParams::background(), &everything).await?;
        } else {
            for object in &before {
                driver::gone_is_fine(api.delete(&object.name_any(), &DeleteParams::background()).await)?;
            }
        }
        let left = meta.list(&everything).await?.items;
        for finalizer in left.iter().flat_map(|object| object.finalizers()) {
            *found.finalizers.entry(finalizer.clone()).or_default() += 1;
        }
        if !left.is_empty() {
            found.remaining.insert(name.to_owned(), left.len());
        }
        Ok(())
    }

    async fn write_conditions(&self, ns: &Namespace, found: &plan::Findings) -> Result<(), Error> {
        let old = ns.status.as_ref().and_then(|s| s.conditions.clone()).unwrap_or_default();
        let now = Time(self.clock.now());
        let new: Vec<NamespaceCondition> = plan::conditions(found, &old, &now);
        // An empty namespace that was never reported on goes without a report.
        if new == old || old.is_empty() && found.is_empty() {
            return Ok(());
        }
        let mut updated = ns.clone();
        updated.status.get_or_insert_default().conditions = Some(new);
        updated.metadata.resource_version = None;
        let api: Api<Namespace> = Api::all(self.client.clone());
        Ok(driver::gone_is_fine(api.replace_status(&ns.name_any(), &PostParams::default(), &updated).await)?)
    }
}
