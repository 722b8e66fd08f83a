//! NetworkPolicy on this node: follows policies, pods and namespaces, renders the table, applies the difference; and
//! answers the CNI plugin, which waits until a new pod's policies are in force.
//!
//! A cluster without policies costs one idle watch: pods and namespaces are followed from the first policy on.

pub(crate) mod claims;
mod gate;
mod heavy;
mod interest;
mod model;
pub(crate) mod pod_ref;
mod rules;
mod walls;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use ::model::pod::Pod;
use base::chain::Chain;
use base::task::Group;
use client::informer::{Change, Changes, Informer, Informers, Key, Kind};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tracing::{debug, error, info, warn};

use crate::config::{Config, Gate};
use crate::error::NetworkError;
use crate::family::Family;
use crate::host::{self, Unenforced};
use crate::monitor::{News, Watched};
use crate::policy::claims::{Claim, Claims};
use crate::policy::heavy::{Extent, Heavy};
use crate::policy::interest::Interest;
use crate::policy::model::{Facts, World};
use crate::policy::pod_ref::PodRef;
use crate::policy::walls::Walls;
use crate::table::{Ruleset, Table};
use crate::{nft, table};

/// A burst of changes is gathered this long; a pod that waits to start is served at once.
const GATHER: Duration = Duration::from_millis(20);
/// Plugin calls that wait for the loop below; more wait in their sockets.
const REQUESTS_BACKLOG: usize = 64;

/// Answer to a waiting plugin: the pod's policies are in force, or cannot be, in words.
type Done = oneshot::Sender<Result<(), Unenforced>>;

/// Request of the plugin.
pub(crate) enum Request {
    /// These addresses are a new sandbox's: answer when its policies are in force.
    Add { sandbox: String, claim: Claim, done: Done },
    /// Whether the sandbox is known with these addresses.
    Check { sandbox: String, ips: Vec<IpAddr>, done: oneshot::Sender<bool> },
    /// The sandbox is gone.
    Remove { sandbox: String, done: oneshot::Sender<()> },
}

/// Starts the enforcement of policies; it lives as long as the group. Rules stay in force afterwards.
pub(crate) async fn run(
    config: &Config,
    gate: &Gate,
    foreign: Watched,
    informers: &Informers,
    group: &Group,
) -> Result<(), NetworkError> {
    let unreadable = |err: base::files::FileError| NetworkError::Io {
        doing: "cannot read the addresses of sandboxes",
        source: std::io::Error::other(err),
    };
    let mut claims = Claims::load(&gate.claims).map_err(unreadable)?;
    // Sandboxes that went while we were not there.
    remember(claims.keep(|claim| claim.netns.as_ref().is_none_or(|netns| netns.exists())));
    let (requests, inbox) = mpsc::channel(REQUESTS_BACKLOG);
    gate::listen(&gate.socket, requests, group)?;
    let enforcer = Enforcer {
        node: config.node_name.clone(),
        families: config.families(),
        policies: informers.get::<NetworkPolicy>(),
        cluster: None,
        informers: informers.clone(),
        claims,
        walls: Walls::load(&gate.walls),
        applied: Applied::Unknown,
        interest: None,
        heavy: Heavy::default(),
        waiting: Vec::new(),
        foreign,
    };
    group.spawn("network-policy", enforcer.run(inbox));
    Ok(())
}

/// The table of the policies.
pub(crate) fn table() -> Table {
    rules::TABLE
}

/// The script that removes the table.
pub(crate) fn removal() -> String {
    table::remove(rules::TABLE)
}

/// Pods and namespaces, followed once there is a policy.
struct Cluster {
    pods: Informer<Pod>,
    namespaces: Informer<Namespace>,
    pod_changes: Changes<Pod>,
    namespace_changes: Changes<Namespace>,
    /// Facts of each version of an object, found out once. A version between two looks is not kept for them.
    known: BTreeMap<Key, (Weak<Pod>, Option<Arc<Facts>>)>,
}

impl Cluster {
    /// Reads the pods that changed since the last look.
    fn look(&mut self) {
        let mut before = std::mem::take(&mut self.known);
        for pod in self.pods.list() {
            let key = Key::of(&*pod);
            let known = match before.remove(&key) {
                Some(known) if known.0.as_ptr() == Arc::as_ptr(&pod) => known,
                _ => (Arc::downgrade(&pod), Facts::of(&pod).map(Arc::new)),
            };
            self.known.insert(key, known);
        }
    }

    fn facts(&self, pod: &PodRef) -> Option<Arc<Facts>> {
        self.known.get(&Key::new(&pod.ns, &pod.name))?.1.clone()
    }
}

/// Rules that are in the kernel.
enum Applied {
    /// To be written whole.
    Unknown,
    /// No table, as there is no policy.
    Nothing,
    Table(Ruleset),
}

struct Enforcer {
    node: String,
    families: BTreeSet<Family>,
    policies: Informer<NetworkPolicy>,
    cluster: Option<Cluster>,
    informers: Informers,
    claims: Claims,
    walls: Walls,
    applied: Applied,
    /// Which pods the rules in force depend on; `None`: on all of them.
    interest: Option<Interest>,
    /// Namespaces that are too much for nft.
    heavy: Heavy,
    /// New pods that may be under a policy.
    waiting: Vec<(PodRef, Done)>,
    /// Changes of our table by others.
    foreign: Watched,
}

impl Enforcer {
    async fn run(mut self, mut inbox: mpsc::Receiver<Request>) {
        let (policies, mut changes) = (self.policies.clone(), self.policies.changes());
        self.answer_until(policies.synced(), &mut inbox).await;
        self.follow_cluster(&mut inbox).await;
        if let Some(cluster) = &self.cluster {
            let live: BTreeSet<String> =
                cluster.pods.list().iter().filter_map(|pod| pod.metadata.uid.clone()).collect();
            // An earlier kedge did not write down where a sandbox is.
            remember(self.claims.keep(|claim| claim.netns.is_some() || live.contains(&claim.pod.uid)));
        }
        let mut retry = self.enforce().await;
        loop {
            let urgent = tokio::select! {
                _ = changes.next() => false,
                // What nft failed on is not given to it again for each pod that comes.
                relevant = next_relevant(self.cluster.as_mut(), self.interest.as_ref()), if retry.is_none() => {
                    match relevant {
                        // The pod that just appeared may be the one that waits.
                        true => !self.waiting.is_empty(),
                        false => continue,
                    }
                }
                Some(request) = inbox.recv() => match self.take(request) {
                    true if retry.is_none() => true,
                    _ => continue,
                },
                () = sleep_until(retry) => false,
                () = sleep_until(self.heavy.due()), if retry.is_none() => false,
                news = self.foreign.next() => match self.distrust(&news) {
                    true => true,
                    false => continue,
                },
            };
            if !urgent {
                tokio::time::sleep(GATHER).await;
            }
            changes.drain();
            self.follow_cluster(&mut inbox).await;
            retry = self.enforce().await;
        }
    }

    /// Answers the plugin as well as it can be done until the API server has told what is waited for. Pods that no
    /// policy isolates, as far as the server has ever told, start meanwhile: it may be away for long, or be one of
    /// them.
    async fn answer_until(&mut self, told: impl Future<Output = ()>, inbox: &mut mpsc::Receiver<Request>) {
        let mut told = std::pin::pin!(told);
        loop {
            tokio::select! {
                () = &mut told => return,
                Some(request) = inbox.recv() => {
                    let _rules_are_looked_at_afterwards = self.take(request);
                }
            }
        }
    }

    /// Whether a policy may isolate pods of the namespace.
    fn may_isolate(&self, ns: &str) -> bool {
        if self.policies.is_synced() { !self.policies.list_in(ns).is_empty() } else { self.walls.may_isolate(ns) }
    }

    /// Somebody else changed our table; says whether that concerns us.
    fn distrust(&mut self, news: &News) -> bool {
        if matches!(self.applied, Applied::Nothing) && news.changed == news.deleted {
            return false;
        }
        warn!("somebody else changed the rules of network policies: they are written anew");
        self.applied = Applied::Unknown;
        true
    }

    /// Takes the plugin's call; says whether rules must be looked at now.
    fn take(&mut self, request: Request) -> bool {
        match request {
            Request::Check { sandbox, ips, done } => {
                let _left = done.send(self.claims.holds(&sandbox, &ips));
                false
            }
            Request::Add { sandbox, claim, done } => {
                let pod = claim.pod.clone();
                remember(self.claims.add(&sandbox, claim));
                if !self.may_isolate(&pod.ns) {
                    // Nobody isolates it. (A caller that left is no matter.)
                    let _left = done.send(Ok(()));
                    return false;
                }
                if let Err(err) = host::ensure_bridge_filter() {
                    // A pod that nobody can guard does not start.
                    error!("{err}");
                    let _left = done.send(Err(err));
                    return false;
                }
                // Those whose caller has left: without a server nobody else looks at them.
                self.waiting.retain(|(_, done)| !done.is_closed());
                self.waiting.push((pod, done));
                true
            }
            Request::Remove { sandbox, done } => {
                let known = self.claims.remove(&sandbox);
                let look = matches!(known, Ok(true)) && !self.policies.is_empty();
                remember(known);
                let _left = done.send(());
                look
            }
        }
    }

    async fn follow_cluster(&mut self, inbox: &mut mpsc::Receiver<Request>) {
        match (&mut self.cluster, self.policies.is_empty()) {
            (None, false) => {
                let (pods, namespaces) = (self.informers.get::<Pod>(), self.informers.get::<Namespace>());
                let (pod_changes, namespace_changes) = (pods.changes(), namespaces.changes());
                let told = async {
                    pods.synced().await;
                    namespaces.synced().await;
                };
                self.answer_until(told, inbox).await;
                info!("network policies are followed");
                if let Err(err) = host::ensure_bridge_filter() {
                    error!("{err}");
                }
                self.cluster =
                    Some(Cluster { pods, namespaces, pod_changes, namespace_changes, known: BTreeMap::new() });
            }
            (Some(cluster), _) => {
                cluster.pod_changes.drain();
                cluster.namespace_changes.drain();
            }
            (None, true) => {}
        }
    }

    /// Brings the kernel to what the objects say; `Some` is when to try again. Until then what was in force stays.
    async fn enforce(&mut self) -> Option<Instant> {
        self.waiting.retain(|(_, done)| !done.is_closed());
        let mut world = self.look();
        let extent = if matches!(self.applied, Applied::Table(_)) { Extent::Change } else { Extent::Whole };
        let applied = match &mut world {
            Some(world) => {
                self.heavy.lighten(world, &self.families, Instant::now());
                self.apply(world).await
            }
            None => {
                self.heavy.lighten(&mut World::default(), &self.families, Instant::now());
                self.apply_nothing().await
            }
        };
        if let Err(err) = applied {
            let wait = self.heavy.failed(&err, extent, &mut world.unwrap_or_default(), &self.families, Instant::now());
            warn!(
                err = %Chain(&err), ?wait,
                "cannot apply network policies: those of before stay, and the whole table is tried again"
            );
            self.applied = Applied::Unknown;
            return Some(Instant::now() + wait);
        }
        self.heavy.succeeded();
        let waiting = std::mem::take(&mut self.waiting);
        let is_known = |pod: &PodRef| {
            let facts = self.cluster.as_ref().and_then(|cluster| cluster.facts(pod));
            facts.is_some_and(|facts| facts.is(pod, &self.node)) || !self.may_isolate(&pod.ns)
        };
        let (known, unknown) = waiting.into_iter().partition(|(pod, _)| is_known(pod));
        self.waiting = unknown;
        let known: Vec<(PodRef, Done)> = known;
        for (_, done) in known {
            let _left = done.send(Ok(()));
        }
        None
    }

    /// The world as the objects say; `None` where there are no policies.
    fn look(&mut self) -> Option<World> {
        let policies = self.policies.list();
        remember(self.walls.note(policies.iter().filter_map(|policy| policy.metadata.namespace.clone()).collect()));
        let cluster = self.cluster.as_mut()?;
        cluster.look();
        if policies.is_empty() {
            return None;
        }
        self.claims.note(|pod| cluster.facts(pod).filter(|facts| facts.is(pod, &self.node)));
        let facts: Vec<Arc<Facts>> = cluster.known.values().filter_map(|(_, facts)| facts.clone()).collect();
        Some(model::world(&policies, &facts, &cluster.namespaces.list(), &self.claims, &self.node))
    }

    async fn apply(&mut self, world: &World) -> Result<(), NetworkError> {
        let after = rules::render(world, &self.families);
        self.interest = Some(Interest::of(world, &after, &self.node));
        match std::mem::replace(&mut self.applied, Applied::Unknown) {
            Applied::Table(before) => {
                let script = table::update(rules::TABLE, &before, &after);
                nft::apply(&script.change).await?;
                nft::apply(&script.sweep).await?;
            }
            Applied::Nothing | Applied::Unknown => nft::apply(&table::full(rules::TABLE, &after)).await?,
        }
        debug!(n = world.policies.len(), "network policies are in force");
        self.applied = Applied::Table(after);
        Ok(())
    }

    async fn apply_nothing(&mut self) -> Result<(), NetworkError> {
        self.interest = Some(Interest::default());
        if !matches!(self.applied, Applied::Nothing) {
            nft::apply(&table::remove(rules::TABLE)).await?;
            self.applied = Applied::Nothing;
        }
        Ok(())
    }
}

/// Waits for a change of pods or namespaces; says whether rules can depend on it.
async fn next_relevant(cluster: Option<&mut Cluster>, interest: Option<&Interest>) -> bool {
    let Some(cluster) = cluster else { return std::future::pending().await };
    tokio::select! {
        change = next(&mut cluster.pod_changes) => {
            let (old, new) = match &change {
                Change::Added(pod) => (None, Facts::of(pod)),
                Change::Modified { old, new } => (Facts::of(old), Facts::of(new)),
                Change::Deleted(pod) => (Facts::of(pod), None),
            };
            interest::matters(interest, old.as_ref(), new.as_ref())
        }
        change = next(&mut cluster.namespace_changes) => match change {
            Change::Modified { old, new } => old.metadata.labels != new.metadata.labels,
            _ => true,
        },
    }
}

async fn next<K: Kind>(changes: &mut Changes<K>) -> Change<K> {
    changes.next().await
}

async fn sleep_until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

fn remember<T>(saved: Result<T, base::files::FileError>) {
    if let Err(err) = saved {
        warn!(err = %Chain(&err), "cannot write down what a start without the server must know");
    }
}

#[cfg(test)]
mod tests;
