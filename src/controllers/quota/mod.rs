//! ResourceQuotas: what a namespace uses of its limits, for people to read. Who refuses is the API server's admission.

mod plan;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use base::sync::{Mutex, MutexGuard};
use base::task::Group;
use base::time::Clock;
use client::informer::{Change, Informer, Key, Metadata};
use client::queue::Queue;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ResourceQuota, Service};
use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, PostParams};
use model::pod::Pod;
use model::quantity::{Notation, Quantity};
use model::reference::GroupResource;
use schema::quota::{self, Usage};
use serde_json::{Value, json};

use crate::discovery;
use crate::driver::{self, Context, Error, Next, Reconcile};

const NAME: &str = "resourcequota-controller";
/// Counted again after this time in any case, as upstream.
const AGAIN: Duration = Duration::from_secs(300);
/// A kind whose objects do not come within this time is looked for anew: its definition may be on its way out.
const FILL_MAX: Duration = Duration::from_secs(10);

struct Controller {
    context: Context,
    client: kube::Client,
    clock: Clock,
    queue: Arc<Queue<Key>>,
    quotas: Informer<ResourceQuota>,
    pods: Informer<Pod>,
    services: Informer<Service>,
    claims: Informer<PersistentVolumeClaim>,
    /// Kinds that are only counted, by version and plural: their objects, watched as long as the group lives.
    followed: Mutex<BTreeMap<String, (Group, Informer<Metadata>)>>,
}

/// Starts the controller.
pub(crate) fn start(context: &Context) {
    let queue = Arc::new(Queue::default());
    let controller = Controller {
        context: context.clone(),
        client: context.client(NAME),
        clock: context.clock.clone(),
        queue: Arc::clone(&queue),
        quotas: context.informers.get(),
        pods: context.informers.get(),
        services: context.informers.get(),
        claims: context.informers.get(),
        followed: Mutex::default(),
    };
    context.feed_own(&controller.quotas, &queue);
    let quotas = controller.quotas.clone();
    context.feed(&controller.pods, &queue, move |change| match change {
        Change::Modified { old, new } if plan::uses_the_same(old, new) => Vec::new(),
        change => of_namespace(change, &quotas),
    });
    let quotas = controller.quotas.clone();
    context.feed(&controller.services, &queue, move |change| of_namespace(change, &quotas));
    let quotas = controller.quotas.clone();
    context.feed(&controller.claims, &queue, move |change| of_namespace(change, &quotas));
    let waits =
        (controller.quotas.clone(), controller.pods.clone(), controller.services.clone(), controller.claims.clone());
    context.start(NAME, &queue, controller, async move {
        waits.0.synced().await;
        waits.1.synced().await;
        waits.2.synced().await;
        waits.3.synced().await;
    });
}

fn of_namespace<K: kube::Resource>(change: &Change<K>, quotas: &Informer<ResourceQuota>) -> Vec<Key> {
    let object = match change {
        Change::Added(object) | Change::Deleted(object) | Change::Modified { new: object, .. } => object,
    };
    quotas.list_in(&object.namespace().unwrap_or_default()).iter().map(|quota| Key::of(&**quota)).collect()
}

#[async_trait::async_trait]
impl Reconcile for Controller {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let Some(quota) = self.quotas.get(&key.namespace, &key.name) else { return Ok(Next::Wait) };
        let hard = quota.spec.as_ref().and_then(|s| s.hard.as_ref());
        let names: Vec<&String> = hard.into_iter().flat_map(|hard| hard.keys()).collect();
        let sources: BTreeSet<GroupResource<'_>> = names.iter().filter_map(|name| quota::source_of(name)).collect();
        let value = json!(*quota);
        let now = self.clock.now();
        let mut used = Usage::new();
        for GroupResource { group, resource } in sources {
            let usage = match (group, resource) {
                ("", "pods") => sum(&value, resource, &self.pods.list_in(&key.namespace), now),
                ("", "services") => sum(&value, resource, &self.services.list_in(&key.namespace), now),
                ("", "persistentvolumeclaims") => sum(&value, resource, &self.claims.list_in(&key.namespace), now),
                _ => self.count(&value, GroupResource { group, resource }, &key.namespace).await?,
            };
            quota::add(&mut used, usage);
        }
        if let Some(status) = plan::status(&quota, &used) {
            let api: Api<ResourceQuota> = Api::namespaced(self.client.clone(), &key.namespace);
            let updated = ResourceQuota { status: Some(status), ..(*quota).clone() };
            driver::gone_is_fine(api.replace_status(&key.name, &PostParams::default(), &updated).await)?;
        }
        Ok(Next::After(AGAIN))
    }
}

fn sum<K: serde::Serialize>(quota: &Value, resource: &str, objects: &[Arc<K>], now: Timestamp) -> Usage {
    let mut total = Usage::new();
    for object in objects {
        let object = json!(**object);
        if quota::in_scope(quota, resource, &object) {
            quota::add(&mut total, quota::usage_of(GroupResource::core(resource), &object, now));
        }
    }
    total
}

impl Controller {
    /// Objects of a kind that only their number counts of.
    async fn count(&self, quota: &Value, of: GroupResource<'_>, namespace: &str) -> Result<Usage, Error> {
        let GroupResource { group, resource } = of;
        if !quota::in_scope(quota, resource, &Value::Null) {
            return Ok(Usage::new());
        }
        let kinds = discovery::kinds(&self.client).await?;
        self.let_go(&kinds).await;
        let Some(kind) = countable(&kinds, of) else { return Ok(Usage::new()) };
        let objects = self.follow(kind);
        if tokio::time::timeout(FILL_MAX, objects.synced()).await.is_err() {
            return Err(Error::Object(format!("the {resource} to count have not come yet")));
        }
        let n = i64::try_from(objects.list_in(namespace).len()).unwrap_or(i64::MAX);
        let one_each = quota::usage_of(GroupResource { group, resource }, &Value::Null, self.clock.now());
        Ok(one_each.into_keys().map(|name| (name, Quantity::from_units(n, Notation::DecimalSi))).collect())
    }

    /// Ends the watches of kinds that are gone: their definition was deleted.
    async fn let_go(&self, kinds: &[discovery::Kind]) {
        let served: BTreeSet<String> = kinds.iter().map(|kind| slot(&kind.resource)).collect();
        let gone: Vec<Group> = {
            let mut followed = self.followed();
            let names: Vec<String> = followed.keys().filter(|name| !served.contains(*name)).cloned().collect();
            names.iter().filter_map(|name| followed.remove(name)).map(|(group, _)| group).collect()
        };
        for group in gone {
            group.shutdown().await;
        }
    }

    fn followed(&self) -> MutexGuard<'_, BTreeMap<String, (Group, Informer<Metadata>)>> {
        self.followed.lock()
    }

    fn follow(&self, kind: &ApiResource) -> Informer<Metadata> {
        let mut followed = self.followed();
        if let Some((_, objects)) = followed.get(&slot(kind)) {
            return objects.clone();
        }
        let group = self.context.child("quota-watch");
        let objects = self.context.informers.metadata_within(kind, &group);
        let (quotas, queue, mut changes) = (self.quotas.clone(), Arc::clone(&self.queue), objects.changes());
        group.spawn("quota-changes", async move {
            loop {
                match changes.next().await {
                    Change::Modified { .. } => {}
                    Change::Added(object) | Change::Deleted(object) => {
                        let all = quotas.list_in(&object.namespace().unwrap_or_default());
                        all.iter().for_each(|quota| queue.add(Key::of(&**quota)));
                    }
                }
            }
        });
        followed.insert(slot(kind), (group, objects.clone()));
        objects
    }
}

fn slot(kind: &ApiResource) -> String {
    format!("{}/{}", kind.api_version, kind.plural)
}

/// The kind whose objects a quota counts, if it is served and can be followed.
fn countable<'k>(kinds: &'k [discovery::Kind], of: GroupResource<'_>) -> Option<&'k ApiResource> {
    let is_meant = |kind: &&discovery::Kind| {
        kind.resource.group == of.group
            && kind.resource.plural == of.resource
            && kind.namespaced
            && kind.can(&["list", "watch"])
    };
    kinds.iter().find(is_meant).map(|kind| &kind.resource)
}
