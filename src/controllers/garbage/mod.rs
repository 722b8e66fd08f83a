//! The garbage collector: what belongs to nobody any more is deleted; foreground and orphan deletions are brought to
//! their end.

mod feed;
mod graph;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::sync::{Mutex, MutexGuard};
use base::task::Group;
use client::informer::Key;
use client::queue::Queue;
use feed::Feed;
use graph::{Family, Fate, Finalizer, Graph, Node, ObjectKey, Type, Verdict};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions, PropagationPolicy};
use serde_json::json;
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

use crate::discovery::{self, Kind};
use crate::driver::{self, Context, Error, Next, Reconcile};

const NAME: &str = "generic-garbage-collector";
/// After a failed discovery.
const DISCOVER_AGAIN: Duration = Duration::from_secs(5);
/// How long the first lists of new kinds are waited for (upstream's sync period).
const FILL_MAX: Duration = Duration::from_secs(30);
/// Kinds whose objects have no owners and are many or short-lived (upstream's default ignored resources).
const IGNORED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

#[derive(Clone)]
struct Collector {
    client: kube::Client,
    graph: Arc<Mutex<Graph>>,
    kinds: Arc<Mutex<Vec<Kind>>>,
    queue: Arc<Queue<Key>>,
}

/// Starts the collector: it watches the metadata of every kind that can be listed, watched and deleted.
pub(crate) fn start(context: &Context) {
    let collector = Collector {
        client: context.client(NAME),
        graph: Arc::default(),
        kinds: Arc::default(),
        queue: Arc::new(Queue::default()),
    };
    let (synced_tx, mut synced) = watch::channel(false);
    let (own, watching) = (context.clone(), collector.clone());
    context.spawn("garbage-kinds", async move { watching.follow_kinds(&own, &synced_tx).await });
    let queue = Arc::clone(&collector.queue);
    context.start(NAME, &queue, collector, async move {
        // Before every cache is full, an owner that is only not seen yet would look dead.
        let _held_by_the_task_above = synced.wait_for(|synced| *synced).await;
    });
}

fn looked_at(uid: &str) -> Key {
    Key::new("", uid)
}

impl Collector {
    fn graph(&self) -> MutexGuard<'_, Graph> {
        self.graph.lock()
    }

    /// Learns the kinds, again after each change of a CRD, and watches the new ones.
    async fn follow_kinds(&self, context: &Context, synced: &watch::Sender<bool>) {
        let crds = context.informers.get::<CustomResourceDefinition>();
        let mut changes = crds.changes();
        crds.synced().await;
        let mut watched = BTreeMap::new();
        loop {
            match discovery::kinds(&self.client).await {
                Ok(kinds) => {
                    self.watch_new(context, &kinds, &mut watched).await;
                    *self.kinds.lock() = kinds;
                    synced.send_replace(true);
                }
                Err(err) => {
                    warn!(controller = NAME, err = %Chain(&err), "cannot learn the kinds of the API");
                    tokio::time::sleep(DISCOVER_AGAIN).await;
                    continue;
                }
            }
            changes.next().await;
            // CRDs come in swarms, and are served a moment after they are stored.
            tokio::time::sleep(Duration::from_secs(1)).await;
            changes.drain();
        }
    }

    async fn watch_new(&self, context: &Context, kinds: &[Kind], watched: &mut BTreeMap<(String, String), Group>) {
        let name = |kind: &Kind| (kind.resource.api_version.clone(), kind.resource.plural.clone());
        let (mut fresh, mut served) = (Vec::new(), BTreeSet::new());
        for kind in kinds.iter().filter(|kind| kind.can(&["list", "watch", "delete"])) {
            let name = name(kind);
            if IGNORED.contains(&(kind.resource.group.as_str(), kind.resource.plural.as_str())) {
                continue;
            }
            served.insert(name.clone());
            watched.entry(name).or_insert_with_key(|(_, plural)| {
                let group = context.child(&format!("garbage-{plural}"));
                fresh.push(self.watch(context, kind, &group));
                group
            });
        }
        // What is served no more would be asked for in vain, for ever.
        let gone: Vec<_> = watched.keys().filter(|name| !served.contains(*name)).cloned().collect();
        for name in gone {
            if let Some(group) = watched.remove(&name) {
                group.shutdown().await;
            }
        }
        // The graph must hold all that the caches hold before anything is judged; but a kind that goes again before it
        // was ever served must not hold up the others.
        let filled = futures_util::future::join_all(fresh);
        let _late_or_ended_with_the_group = tokio::time::timeout(FILL_MAX, filled).await;
    }

    fn watch(&self, context: &Context, kind: &Kind, group: &Group) -> oneshot::Receiver<()> {
        let (filled_tx, filled) = oneshot::channel();
        context.informers.follow_metadata(&kind.resource, group, Arc::new(Feed::new(self.clone(), kind, filled_tx)));
        filled
    }

    fn put(&self, uid: &str, node: Node) {
        let look = self.graph().put(uid, node);
        look.iter().for_each(|uid| self.queue.add(looked_at(uid)));
    }

    fn remove(&self, uid: &str) {
        let look = self.graph().remove(uid);
        look.iter().for_each(|uid| self.queue.add(looked_at(uid)));
    }

    /// The kind of this group and name, whatever its version.
    fn kind(&self, of: &Type) -> Option<Kind> {
        let group = of.api_version.rsplit_once('/').map_or("", |(group, _)| group);
        let kinds = self.kinds.lock();
        kinds.iter().find(|k| k.resource.group == group && k.resource.kind == of.kind).cloned()
    }

    fn api(&self, kind: &Kind, ns: &str) -> Api<DynamicObject> {
        if kind.namespaced {
            Api::namespaced_with(self.client.clone(), ns, &kind.resource)
        } else {
            Api::all_with(self.client.clone(), &kind.resource)
        }
    }

    fn api_of(&self, key: &ObjectKey) -> Result<Api<DynamicObject>, Error> {
        let kind = self.kind(&key.of);
        let kind = kind.ok_or_else(|| Error::Object(format!("{} is not served", key.of)))?;
        Ok(self.api(&kind, &key.ns))
    }

    /// Asks the server whether an owner exists that the graph does not know.
    async fn lives(&self, reference: &OwnerReference, dependent: &ObjectKey) -> Result<bool, Error> {
        let of = Type::of_owner(reference);
        let kind = self.kind(&of).ok_or_else(|| Error::Object(format!("owner {of} is not served")))?;
        if kind.namespaced && dependent.ns.is_empty() {
            // A cluster-scoped object cannot have an owner in a namespace; which one would it be? Leave it alone, as
            // upstream does.
            return Ok(true);
        }
        let owner = self.api(&kind, &dependent.ns).get_metadata_opt(&reference.name).await?;
        Ok(owner.is_some_and(|owner| owner.uid().as_deref() == Some(&reference.uid)))
    }
}

#[async_trait::async_trait]
impl Reconcile for Collector {
    async fn reconcile(&self, key: &Key) -> Result<Next, Error> {
        let uid = key.name.as_str();
        let (verdict, node, has_dependents, circle) = {
            let graph = self.graph();
            (graph.judge(uid), graph.node(uid).cloned(), graph.has_dependents(uid), graph.may_close_a_circle(uid))
        };
        let Some(node) = node else { return Ok(Next::Wait) };
        match verdict {
            Verdict::Keep => {}
            Verdict::AwaitDependents(dependents) => dependents.iter().for_each(|uid| self.queue.add(looked_at(uid))),
            Verdict::RemoveFinalizer(finalizer) => self.remove_finalizer(&node, uid, finalizer).await?,
            Verdict::OrphanDependents(dependents) => {
                for dependent in dependents {
                    let dependent_node = self.graph().node(&dependent).cloned();
                    if let Some(dependent_node) = dependent_node {
                        self.drop_owners(&dependent_node, &dependent, &[uid.to_owned()]).await?;
                    }
                }
                self.remove_finalizer(&node, uid, Finalizer::Orphan).await?;
            }
            Verdict::JudgeOwners { alive, waiting, unknown } => {
                let mut family = Family { alive, waiting, dangling: Vec::new(), has_dependents };
                for reference in unknown {
                    let lives = self.lives(&reference, &node.key).await?;
                    if lives { &mut family.alive } else { &mut family.dangling }.push(reference.uid);
                }
                match family.fate() {
                    Fate::Keep => {}
                    Fate::DropOwners(uids) => self.drop_owners(&node, uid, &uids).await?,
                    // The change makes it be looked at again.
                    Fate::DeleteForeground if circle => self.unblock_owners(&node, uid).await?,
                    Fate::DeleteForeground => self.delete(&node, uid, PropagationPolicy::Foreground).await?,
                    Fate::Delete => self.delete(&node, uid, policy_of(&node)).await?,
                }
            }
        }
        Ok(Next::Wait)
    }
}

/// An object that was told how to treat its dependents keeps to it.
fn policy_of(node: &Node) -> PropagationPolicy {
    match (node.has(Finalizer::Orphan), node.has(Finalizer::Foreground)) {
        (true, _) => PropagationPolicy::Orphan,
        (_, true) => PropagationPolicy::Foreground,
        _ => PropagationPolicy::Background,
    }
}

impl Collector {
    async fn delete(&self, node: &Node, uid: &str, policy: PropagationPolicy) -> Result<(), Error> {
        let ObjectKey { of, ns, name } = &node.key;
        info!(controller = NAME, kind = %of.kind, ns = %ns, name = %name, uid, "owners are gone, deleting");
        // The resource version too: somebody may have adopted it since we looked.
        let same = Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: node.resource_version.as_deref().map(str::to_owned),
        };
        let params =
            DeleteParams { propagation_policy: Some(policy), preconditions: Some(same), ..DeleteParams::default() };
        Ok(driver::gone_is_fine(self.api_of(&node.key)?.delete(&node.key.name, &params).await)?)
    }

    async fn drop_owners(&self, node: &Node, uid: &str, owners: &[String]) -> Result<(), Error> {
        let gone: HashSet<&String> = owners.iter().collect();
        let left: Vec<_> = node.owners.iter().filter(|owner| !gone.contains(&owner.uid)).collect();
        self.patch_meta(node, uid, json!({ "ownerReferences": left })).await
    }

    async fn unblock_owners(&self, node: &Node, uid: &str) -> Result<(), Error> {
        let free = |owner: &OwnerReference| OwnerReference { block_owner_deletion: Some(false), ..owner.clone() };
        let owners: Vec<_> = node.owners.iter().map(free).collect();
        self.patch_meta(node, uid, json!({ "ownerReferences": owners })).await
    }

    async fn remove_finalizer(&self, node: &Node, uid: &str, finalizer: Finalizer) -> Result<(), Error> {
        let left: Vec<_> = node.finalizers.iter().filter(|f| *f != finalizer.as_str()).collect();
        self.patch_meta(node, uid, json!({ "finalizers": left })).await
    }

    async fn patch_meta(&self, node: &Node, uid: &str, mut meta: serde_json::Value) -> Result<(), Error> {
        meta["uid"] = json!(uid);
        meta["resourceVersion"] = json!(node.resource_version);
        let patch = Patch::Merge(json!({ "metadata": meta }));
        let api = self.api_of(&node.key)?;
        Ok(driver::gone_is_fine(api.patch_metadata(&node.key.name, &PatchParams::default(), &patch).await)?)
    }
}
