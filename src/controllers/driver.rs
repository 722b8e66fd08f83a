//! Runs reconcilers: takes keys off a queue, calls the reconciler, and asks again later when it failed.

use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::clock_set::ClockSet;
use base::task::Group;
use base::time::Clock;
use client::informer::{Change, Informer, Informers, Key, Kind};
use client::queue::Queue;
use client::transport::Clients;
use kube::ResourceExt as _;
use tracing::{debug, warn};

use crate::names::Chosen;
use crate::signer::SignError;

/// Errors of a reconciler.
#[allow(clippy::error_impl_error, reason = "one Error per room")]
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The API refused or was not reached.
    #[error("request failed")]
    Api(#[from] kube::Error),
    /// Some of several requests failed; the first one's error.
    #[error("{failed} of {all} requests failed")]
    Partial {
        /// How many failed.
        failed: usize,
        /// How many were sent.
        all: usize,
        /// Why the first one did.
        #[source]
        first: kube::Error,
    },
    /// The cluster's keys did not sign.
    #[error(transparent)]
    Sign(SignError),
    /// An object cannot be worked with as it stands.
    #[error("{0}")]
    Object(String),
}

impl Error {
    /// A lost race, a vanished object, a namespace on its way out, a server that is ending or has no leader for a
    /// moment (which the store says itself): normal life, tried again without a warning.
    fn is_routine(&self) -> bool {
        let (Error::Api(err) | Error::Partial { first: err, .. }) = self else { return false };
        matches!(err, kube::Error::Api(status) if matches!(status.code, 404 | 409 | 503))
            || client::events::is_namespace_ending(err)
    }
}

/// The step after a reconciler went well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing until something changes.
    Wait,
    /// Look again after this time, e.g. when a pod becomes available.
    After(Duration),
}

/// Brings one object to where it should be. No input but the key: a lost signal, a restart and an event run the same
/// way.
#[async_trait::async_trait]
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// Looks at the caches and acts. `NotFound` of its own object is no error.
    async fn reconcile(&self, key: &Key) -> Result<Next, Error>;
}

/// A controller that reports under another name than its own.
#[derive(Clone, Copy)]
pub(crate) struct EventSource<'a> {
    /// The controller, whose service account writes the events.
    pub(crate) account: &'a str,
    /// The name in the events' source, upstream's.
    pub(crate) component: &'a str,
}

/// Dependencies of every controller.
#[derive(Clone)]
pub(crate) struct Context {
    clients: Clients,
    /// The process's shared informers.
    pub(crate) informers: Informers,
    /// The process's clock.
    pub(crate) clock: Clock,
    chosen: Arc<Chosen>,
    group: Group,
}

impl Context {
    /// Tasks will live in `group`; all controllers run.
    pub(crate) fn new(clients: Clients, informers: Informers, clock: Clock, group: Group) -> Context {
        Context { clients, informers, clock, chosen: Arc::default(), group }
    }

    /// The same with some controllers only.
    pub(crate) fn choosing(self, chosen: Chosen) -> Context {
        Context { chosen: Arc::new(chosen), ..self }
    }

    /// Whether the controller of upstream's name runs, e.g. `job-controller`.
    pub(crate) fn runs(&self, name: &str) -> bool {
        self.chosen.runs(name)
    }

    /// A client that acts as the service account of controller `name`, e.g. `replicaset-controller`.
    pub(crate) fn client(&self, name: &str) -> kube::Client {
        self.clients.for_user(&format!("system:serviceaccount:kube-system:{name}"))
    }

    /// A client that acts as `user`.
    pub(crate) fn client_as(&self, user: &str) -> kube::Client {
        self.clients.for_user(user)
    }

    /// A group for tasks that end before the controllers do.
    pub(crate) fn child(&self, name: &str) -> Group {
        self.group.child(name)
    }

    /// A recorder of events of controller `name`.
    pub(crate) fn recorder(&self, name: &str) -> client::events::Recorder {
        client::events::Recorder::new(self.client(name), name, "", &self.group)
    }

    /// A recorder of events of a controller under another name.
    pub(crate) fn recorder_as(&self, source: EventSource<'_>) -> client::events::Recorder {
        client::events::Recorder::new(self.client(source.account), source.component, "", &self.group)
    }

    /// Starts the workers of a controller once `ready` has resolved. Its queue is fed by [`Context::feed`]. When the
    /// machine's clock is set, all that waits is looked at: a schedule, a deadline or a token's end comes by that
    /// clock. Keys of a controller that is switched off are dropped.
    pub(crate) fn start(
        &self,
        name: &'static str,
        queue: &Arc<Queue<Key>>,
        reconciler: impl Reconcile,
        ready: impl Future<Output = ()> + Send + 'static,
    ) {
        queue.named(name);
        let (queue, group) = (Arc::clone(queue), self.group.child(name));
        if !self.chosen.runs_workers(name) {
            return self.group.spawn(name, work(name, queue, Arc::new(Idle)));
        }
        let reconciler = Arc::new(reconciler);
        let n_workers = self.chosen.n_workers(name);
        self.group.spawn(name, async move {
            ready.await;
            for _ in 0..n_workers {
                group.spawn("worker", work(name, Arc::clone(&queue), Arc::clone(&reconciler)));
            }
            let clock = ClockSet::listen();
            loop {
                ClockSet::next_if(&clock).await;
                queue.add_delayed();
            }
        });
    }

    /// Turns every change of a kind into keys. None is lost: what owned only what is gone is asked, too.
    pub(crate) fn feed<K: Kind>(
        &self,
        informer: &Informer<K>,
        queue: &Arc<Queue<Key>>,
        keys: impl Fn(&Change<K>) -> Vec<Key> + Send + Sync + 'static,
    ) {
        let (informer, queue, mut changes) = (informer.clone(), Arc::clone(queue), informer.changes());
        self.group.spawn("feed", async move {
            informer.synced().await;
            for object in informer.list() {
                keys(&Change::Added(object)).into_iter().for_each(|key| queue.add(key));
            }
            loop {
                keys(&changes.next().await).into_iter().for_each(|key| queue.add(key));
            }
        });
    }

    /// The simplest feed: a change of an object concerns the object itself.
    pub(crate) fn feed_own<K: Kind>(&self, informer: &Informer<K>, queue: &Arc<Queue<Key>>) {
        self.feed(informer, queue, |change| objects_of(change).into_iter().map(|object| Key::of(&*object)).collect());
    }

    /// Runs a task of a controller that is no queue worker.
    pub(crate) fn spawn(&self, name: &str, task: impl Future<Output = ()> + Send + 'static) {
        self.group.spawn(name, task);
    }
}

/// The objects that a change speaks of: the old and the new one, as either may point to an owner.
pub(crate) fn objects_of<K>(change: &Change<K>) -> Vec<Arc<K>> {
    match change {
        Change::Added(object) | Change::Deleted(object) => vec![Arc::clone(object)],
        Change::Modified { old, new } => vec![Arc::clone(new), Arc::clone(old)],
    }
}

/// The key of the controller of kind `kind` that an object names.
pub(crate) fn owner_key<K: Kind>(object: &K, kind: &str) -> Option<Key> {
    let owner = model::owners::controller_of(object.meta()).filter(|owner| owner.kind == kind)?;
    Some(Key::new(&object.namespace().unwrap_or_default(), &owner.name))
}

/// Does nothing about an object: its controller is switched off.
struct Idle;

#[async_trait::async_trait]
impl Reconcile for Idle {
    async fn reconcile(&self, _: &Key) -> Result<Next, Error> {
        Ok(Next::Wait)
    }
}

async fn work<R: Reconcile>(name: &'static str, queue: Arc<Queue<Key>>, reconciler: Arc<R>) {
    loop {
        let key = queue.next().await;
        match reconciler.reconcile(&key).await {
            Ok(next) => {
                queue.forget(&key);
                if let Next::After(delay) = next {
                    queue.add_after(key.clone(), delay);
                }
            }
            Err(err) => {
                if err.is_routine() {
                    debug!(controller = name, key = %key, err = %Chain(&err), "will try again");
                } else {
                    warn!(controller = name, key = %key, err = %Chain(&err), "will try again");
                }
                queue.retry(key.clone());
            }
        }
        queue.done(&key);
        // Ten thousand keys that need nothing never wait for anything, and this thread serves requests, too.
        tokio::task::yield_now().await;
    }
}

/// `Ok` when a deleted or vanished object answers 404: what was wanted is so.
pub(crate) fn gone_is_fine<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}

/// Sums the results of several requests up: fine if all went well.
pub(crate) fn all_of<T>(results: Vec<Result<T, kube::Error>>) -> Result<Vec<T>, Error> {
    let all = results.len();
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => good.push(value),
            Err(err) => bad.push(err),
        }
    }
    let failed = bad.len();
    match bad.into_iter().next() {
        Some(first) => Err(Error::Partial { failed, all, first }),
        None => Ok(good),
    }
}
