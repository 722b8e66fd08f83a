//! Clients that write and read through every server, what they saw, and whether it can have been one order of events.

use base::sync::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};

use crate::hosts::wait_for;

/// The last events come within this.
const LIMIT: Duration = Duration::from_secs(120);
/// One request; what takes longer has no answer, and nothing is claimed of it.
const REQUEST_LIMIT: Duration = Duration::from_secs(12);
/// Between two operations of one client, so that two cores are left for the servers.
const BREATH: Duration = Duration::from_millis(30);
const REGISTER: &str = "register";

/// One operation on the one object, with when it began and ended. `version`: of the write, or of what was read.
#[derive(Clone, Debug)]
pub(crate) struct Done {
    begun: Duration,
    ended: Duration,
    write: bool,
    value: String,
    version: u64,
}

/// A history of one object whose writes carry revisions is linearizable if the revisions are a legal order: every read
/// shows the write of its revision, and nobody who began after another had ended saw less than that one.
pub(crate) fn check(history: &[Done]) -> Result<(), String> {
    let mut values: BTreeMap<u64, &str> = BTreeMap::new();
    for done in history {
        let first = values.entry(done.version).or_insert(&done.value);
        if *first != done.value {
            return Err(format!("two values at one version: {first} and {done:?}"));
        }
    }
    // By their ends: the highest version that had been seen by then binds all that begin later.
    let (mut ended, mut begun): (Vec<&Done>, Vec<&Done>) = (history.iter().collect(), history.iter().collect());
    ended.sort_by_key(|done| done.ended);
    begun.sort_by_key(|done| done.begun);
    let (mut seen, mut highest): (usize, Option<&Done>) = (0, None);
    for after in begun {
        while seen < ended.len() && ended[seen].ended < after.begun {
            highest = highest.into_iter().chain([ended[seen]]).max_by_key(|done| done.version);
            seen += 1;
        }
        if let Some(before) = highest
            && (after.version < before.version || (after.write && after.version == before.version))
        {
            return Err(format!("goes back in time: {before:?} then {after:?}"));
        }
    }
    Ok(())
}

/// Versions that a watcher saw, in the order in which they came.
type Seen = Arc<Mutex<Vec<(u64, String)>>>;

/// The clients of one run. They end with it.
pub(crate) struct Clients {
    runtime: tokio::runtime::Runtime,
    stop: Arc<AtomicBool>,
    history: Arc<Mutex<Vec<Done>>>,
    /// Names of objects whose creation was acknowledged.
    created: Arc<Mutex<Vec<String>>>,
    /// Acknowledged operations by server.
    counts: Vec<Arc<Mutex<usize>>>,
    watched: Vec<Seen>,
}

fn maps(kubeconfig: &Path, server: &str, runtime: &tokio::runtime::Runtime) -> Api<ConfigMap> {
    let mut file = Kubeconfig::read_from(kubeconfig).unwrap();
    file.clusters[0].cluster.as_mut().unwrap().server = Some(server.to_owned());
    let _inside = runtime.enter();
    let mut config =
        runtime.block_on(kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())).unwrap();
    config.connect_timeout = Some(Duration::from_secs(2));
    Api::namespaced(kube::Client::try_from(config).unwrap(), "default")
}

fn version(map: &ConfigMap) -> u64 {
    map.resource_version().and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn value(map: &ConfigMap) -> String {
    map.data.as_ref().and_then(|data| data.get("value")).cloned().unwrap_or_default()
}

fn named(name: &str, value: &str) -> ConfigMap {
    let object = serde_json::json!({"metadata": {"name": name}, "data": {"value": value}});
    serde_json::from_value(object).unwrap()
}

impl Clients {
    /// One client and one watcher for each server (a URL).
    pub(crate) fn start(kubeconfig: &Path, servers: &[String]) -> Clients {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let first = maps(kubeconfig, &servers[0], &runtime);
        let made = runtime.block_on(first.create(&PostParams::default(), &named(REGISTER, "begin"))).unwrap();
        let (stop, history, created) =
            (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<Done>>>::default(), Arc::<Mutex<Vec<String>>>::default());
        let (mut counts, mut watched) = (Vec::new(), Vec::new());
        let clock = Instant::now();
        for (n, server) in servers.iter().enumerate() {
            let api = maps(kubeconfig, server, &runtime);
            let (count, seen) = (Arc::<Mutex<usize>>::default(), Seen::default());
            let worker = Client {
                n,
                api: api.clone(),
                clock,
                stop: stop.clone(),
                history: history.clone(),
                created: created.clone(),
                count: count.clone(),
            };
            runtime.spawn(worker.work());
            runtime.spawn(watch(api, made.resource_version().unwrap(), seen.clone(), stop.clone()));
            counts.push(count);
            watched.push(seen);
        }
        Clients { runtime, stop, history, created, counts, watched }
    }

    /// Acknowledged operations through each server.
    pub(crate) fn counts(&self) -> Vec<usize> {
        self.counts.iter().map(|count| *count.lock()).collect()
    }

    /// Stops and judges. `kubeconfig` and `server` lead to a server that lives. Answers how many operations were
    /// judged.
    pub(crate) fn judge(self, kubeconfig: &Path, server: &str) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let api = maps(kubeconfig, server, &self.runtime);
        let end = wait_for("the last write", LIMIT, || {
            self.runtime
                .block_on(api.replace(REGISTER, &PostParams::default(), &named(REGISTER, "end")))
                .map_err(|err| err.to_string())
        });
        let all = wait_for("the last list", LIMIT, || {
            self.runtime.block_on(api.list(&ListParams::default())).map_err(|err| err.to_string())
        });
        let there: Vec<String> = all.items.iter().map(kube::ResourceExt::name_any).collect();
        for name in self.created.lock().iter() {
            assert!(there.contains(name), "the creation of {name} was acknowledged, and it is not there");
        }
        let history = self.history.lock().clone();
        if let Err(why) = check(&history) {
            panic!("{why}");
        }
        for (n, seen) in self.watched.iter().enumerate() {
            wait_for("a watcher to see the end", LIMIT, || {
                let seen = seen.lock();
                seen.last()
                    .filter(|last| last.0 >= version(&end))
                    .map(drop)
                    .ok_or_else(|| format!("watcher {n}: {:?}", seen.last()))
            });
            let seen = seen.lock();
            assert!(seen.is_sorted_by(|a, b| a.0 < b.0), "watcher {n} saw events twice or out of order");
            let by_version: BTreeMap<u64, &str> =
                seen.iter().map(|(version, value)| (*version, value.as_str())).collect();
            for write in history.iter().filter(|done| done.write) {
                assert_eq!(by_version.get(&write.version), Some(&write.value.as_str()), "watcher {n} missed {write:?}");
            }
        }
        history.len()
    }
}

struct Client {
    n: usize,
    api: Api<ConfigMap>,
    clock: Instant,
    stop: Arc<AtomicBool>,
    history: Arc<Mutex<Vec<Done>>>,
    created: Arc<Mutex<Vec<String>>>,
    count: Arc<Mutex<usize>>,
}

impl Client {
    async fn work(self) {
        let mut turn = 0_u64;
        while !self.stop.load(Ordering::Relaxed) {
            turn += 1;
            let begun = self.clock.elapsed();
            let done = tokio::time::timeout(REQUEST_LIMIT, self.once(turn)).await.ok().flatten();
            if let Some(done) = done {
                *self.count.lock() += 1;
                if let Some((write, value, version)) = done {
                    let done = Done { begun, ended: self.clock.elapsed(), write, value, version };
                    self.history.lock().push(done);
                }
            }
            tokio::time::sleep(BREATH).await;
        }
    }

    /// A write, a read or a creation. `None`: without an answer nobody knows whether it happened.
    async fn once(&self, turn: u64) -> Option<Option<(bool, String, u64)>> {
        match turn % 4 {
            0 => {
                let name = format!("made-{}-{turn}", self.n);
                self.api.create(&PostParams::default(), &named(&name, "x")).await.ok()?;
                self.created.lock().push(name);
                Some(None)
            }
            1 | 3 => {
                let text = format!("{}-{turn}", self.n);
                let map = self.api.replace(REGISTER, &PostParams::default(), &named(REGISTER, &text)).await.ok()?;
                Some(Some((true, text, version(&map))))
            }
            _ => {
                let map = self.api.get(REGISTER).await.ok()?;
                Some(Some((false, value(&map), version(&map))))
            }
        }
    }
}

/// Follows the object from a version on, over any number of connections; each goes on where the last one ended.
async fn watch(api: Api<ConfigMap>, from: String, seen: Seen, stop: Arc<AtomicBool>) {
    let (mut from, mut late) = (from, Duration::ZERO);
    let params = WatchParams::default().fields(&format!("metadata.name={REGISTER}")).timeout(20);
    // Some time beyond the end of the writers, for the last events.
    while !stop.load(Ordering::Relaxed) || late < LIMIT {
        if let Ok(events) = api.watch(&params, &from).await {
            let mut events = events.boxed();
            while let Ok(Some(event)) = events.try_next().await {
                if let WatchEvent::Added(map) | WatchEvent::Modified(map) = event {
                    from = map.resource_version().unwrap_or(from);
                    seen.lock().push((version(&map), value(&map)));
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
        late += if stop.load(Ordering::Relaxed) { Duration::from_millis(200) } else { Duration::ZERO };
    }
}

#[test]
fn the_checker_finds_a_stale_read_and_a_lost_write() {
    let secs = Duration::from_secs;
    let done = |begun, ended, write, value: &str, version| Done {
        begun: secs(begun),
        ended: secs(ended),
        write,
        value: value.to_owned(),
        version,
    };
    let (one, two) = (done(0, 1, true, "a", 2), done(2, 3, true, "b", 3));
    assert!(check(&[one.clone(), two.clone(), done(2, 4, false, "a", 2)]).is_ok());
    assert!(check(&[one.clone(), two.clone(), done(4, 5, false, "a", 2)]).is_err());
    assert!(check(&[one, two, done(4, 5, true, "c", 3)]).is_err());
}
