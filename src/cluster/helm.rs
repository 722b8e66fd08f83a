//! HelmCharts: the leader installs each with this machine's `helm`, upgrades it when it or its values change,
//! uninstalls it when it goes.
//!
//! [`chart`] says purely how helm is to be called, [`program`] calls it, [`release`] does one chart, [`definition`]
//! defines the kinds. At rest there are two watches of metadata, and no process.

pub mod chart;
pub mod definition;
pub mod program;
pub mod release;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use base::backoff::Backoff;
use base::chain::Chain;
use base::rng::Rng;
use base::sync::Mutex;
use base::task::Group;
use base::time::Clock;
use client::events::Recorder;
use client::informer::{Change, Informer, Informers, Key, Metadata};
use client::queue::Queue;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use pki::error::PkiError;
use tracing::warn;

use self::program::Program;
use self::release::{Charts, Outcome};

/// Whom helm acts as.
pub const USER: &str = "system:kedge-helm";
/// The user in managedFields, and who reports events.
const MANAGER: &str = "helm-controller";
/// Charts that are worked on at once.
const WORKERS: usize = 2;
/// A failed chart is tried again after this, twice as long each time up to the second.
const RETRY: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(300));
/// The kinds are served by then after they were written, and between two looks.
const SERVED: (Duration, Duration) = (Duration::from_secs(10), Duration::from_millis(50));

/// Gives the kubeconfig of [`USER`], its credential short-lived.
pub type Kubeconfig = Arc<dyn Fn() -> Result<String, PkiError> + Send + Sync>;

/// Settings given at start.
#[derive(Clone)]
pub struct Config {
    /// Helm's folders are made here.
    pub dir: PathBuf,
    /// Where helm is.
    pub program: Program,
    /// With which it calls the API.
    pub kubeconfig: Kubeconfig,
    /// Time.
    pub clock: Clock,
    /// Chance.
    pub rng: Rng,
}

/// Looks after HelmCharts until the group stops; it must run once in a cluster. `client` may do everything.
pub fn run(config: Config, client: kube::Client, informers: &Informers, group: &Group) {
    let (informers, own) = (informers.clone(), group.clone());
    group.spawn("helm", async move {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
        while let Err(err) = define(&client).await {
            warn!(err = %Chain(&err), "cannot define the kind HelmChart, trying again");
            tokio::time::sleep(backoff.next(&config.rng)).await;
        }
        // What a server that was killed left behind may hold credentials.
        if let Err(err) = std::fs::remove_dir_all(&config.dir)
            && err.kind() != std::io::ErrorKind::NotFound
        {
            warn!(path = %config.dir.display(), err = %err, "cannot clear helm's folder");
        }
        let queue: Arc<Queue<Key>> = Arc::default();
        queue.named("helm");
        for resource in [definition::charts(), definition::configs()] {
            let informer = informers.metadata_within(&resource, &own);
            own.spawn("helm-changes", follow(informer, Arc::clone(&queue)));
        }
        let recorder = Recorder::new(client.clone(), MANAGER, "", &own);
        let charts = Arc::new(Charts { config, client: client.clone(), recorder });
        let worker = Arc::new(Worker {
            charts,
            queue,
            tries: Mutex::default(),
            secrets: Mutex::default(),
            client,
            group: own.clone(),
        });
        for _ in 0..WORKERS {
            own.spawn("helm-worker", Arc::clone(&worker).work());
        }
        std::future::pending::<()>().await;
    });
}

/// Makes the kinds and waits until they are served.
async fn define(client: &kube::Client) -> Result<(), kube::Error> {
    let params = PatchParams::apply(MANAGER).force();
    for (resource, name, object) in definition::all() {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        api.patch(name, &params, &Patch::Apply(object)).await?;
    }
    for resource in [definition::charts(), definition::configs()] {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let one = ListParams::default().limit(1);
        let served = async {
            while api.list(&one).await.is_err() {
                tokio::time::sleep(SERVED.1).await;
            }
        };
        if tokio::time::timeout(SERVED.0, served).await.is_err() {
            api.list(&one).await?;
        }
    }
    Ok(())
}

/// Asks for a chart whenever it or its configuration changes; both have one name. What this controller writes itself is
/// no change.
async fn follow(informer: Informer<Metadata>, queue: Arc<Queue<Key>>) {
    let mut changes = informer.changes();
    informer.synced().await;
    informer.list().iter().for_each(|object| queue.add(Key::of(&**object)));
    loop {
        match changes.next().await {
            Change::Added(object) | Change::Deleted(object) => queue.add(Key::of(&*object)),
            Change::Modified { old, new } => {
                let told =
                    |object: &Metadata| (object.metadata.generation, object.metadata.deletion_timestamp.is_some());
                if told(&old) != told(&new) || old.metadata.uid != new.metadata.uid {
                    queue.add(Key::of(&*new));
                }
            }
        }
    }
}

/// Failures of one content.
struct Tries {
    hash: String,
    backoff: Backoff,
    not_before: tokio::time::Instant,
}

struct Worker {
    charts: Arc<Charts>,
    queue: Arc<Queue<Key>>,
    tries: Mutex<BTreeMap<Key, Tries>>,
    /// Secrets with values that are watched, each by itself.
    secrets: Mutex<BTreeSet<Key>>,
    client: kube::Client,
    group: Group,
}

impl Worker {
    async fn work(self: Arc<Worker>) {
        loop {
            let key = self.queue.next().await;
            match self.charts.look(&key).await {
                Ok(Some(wanted)) => {
                    for secret in &wanted.watched {
                        self.watch(&Key::new(&key.namespace, secret), &key);
                    }
                    if let Some(left) = self.left(&key, &wanted.hash) {
                        // Asked for again in the meantime, with nothing new.
                        self.queue.add_after(key.clone(), left);
                    } else {
                        let failures = self.failures(&key);
                        self.settle(&key, &wanted.hash, self.charts.bring(&key, &wanted, failures).await);
                    }
                }
                Ok(None) => self.forget(&key),
                Err(err) => {
                    warn!(chart = %key, err = %Chain(&err), "cannot look after a HelmChart");
                    self.settle(&key, "", Outcome::Again);
                }
            }
            self.queue.done(&key);
        }
    }

    /// How long a failed content has to wait still.
    fn left(&self, key: &Key, hash: &str) -> Option<Duration> {
        let mut tries = self.tries.lock();
        if tries.get(key).is_some_and(|tries| tries.hash != hash) {
            tries.remove(key);
        }
        let left = tries.get(key)?.not_before.saturating_duration_since(tokio::time::Instant::now());
        Some(left).filter(|left| !left.is_zero())
    }

    fn failures(&self, key: &Key) -> u32 {
        let tries = self.tries.lock();
        tries.get(key).map_or(0, |tries| tries.backoff.failures())
    }

    fn forget(&self, key: &Key) {
        self.tries.lock().remove(key);
    }

    fn settle(&self, key: &Key, hash: &str, outcome: Outcome) {
        match outcome {
            Outcome::Settled => self.forget(key),
            Outcome::Again => {
                let mut tries = self.tries.lock();
                let fresh = || Tries {
                    hash: hash.to_owned(),
                    backoff: Backoff::new(RETRY.0, RETRY.1),
                    not_before: tokio::time::Instant::now(),
                };
                let tries = tries.entry(key.clone()).or_insert_with(fresh);
                let wait = tries.backoff.next(&self.charts.config.rng);
                tries.not_before = tokio::time::Instant::now() + wait;
                self.queue.add_after(key.clone(), wait);
            }
        }
    }

    /// Asks for the chart when a Secret that it takes values from changes.
    fn watch(&self, secret: &Key, chart: &Key) {
        let both = Key::new(&secret.to_string(), &chart.name);
        if !self.secrets.lock().insert(both) {
            return;
        }
        let path = format!("/api/v1/namespaces/{}/secrets", secret.namespace);
        let informer = Informers::one(&self.client, &path, &secret.name, &self.group);
        let (queue, chart) = (Arc::clone(&self.queue), chart.clone());
        self.group.spawn("helm-values", async move {
            let mut changes = informer.changes();
            loop {
                changes.next().await;
                queue.add(chart.clone());
            }
        });
    }
}
