//! Usage of a namespace's quotas by its objects, kept from one request to the next.
//!
//! A request reads only what has changed since the one before: what was, is taken off, and what is, comes on top. All
//! objects are read when a tally begins, and again when the cache does not remember all changes since.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use base::sync::Mutex;
use jiff::Timestamp;
use model::reference::GroupResource;
use registry::cache::entry::Entry;
use registry::lookup::{Lookup, Mark, News};
use registry::status::Status;
use schema::quota::{self, Sums, Usage};
use serde_json::Value;

/// Tallies that are kept: one for each namespace, resource and set of scopes that somebody writes under. Of more, the
/// one that was not asked for longest goes.
const TALLIES_MAX: usize = 1_024;

/// Which objects are counted.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// Whose scopes they are in.
    pub quota: &'a Value,
    /// API group.
    pub group: &'a str,
    /// Plural name.
    pub resource: &'a str,
    /// Where they are.
    pub namespace: &'a str,
}

impl Counted<'_> {
    /// Usage of an object, if the quota looks at it.
    pub fn usage_of(&self, object: &Value, now: Timestamp) -> Usage {
        let counts = quota::in_scope(self.quota, self.resource, object);
        if counts { quota::usage_of(self.kind(), object, now) } else { Usage::new() }
    }

    fn kind(&self) -> GroupResource<'_> {
        GroupResource { group: self.group, resource: self.resource }
    }

    fn key(&self) -> String {
        let spec = &self.quota["spec"];
        format!("{}/{}/{}/{}{}", self.namespace, self.group, self.resource, spec["scopes"], spec["scopeSelector"])
    }
}

/// A pod that nobody pays for after a moment.
struct Leaving {
    last: Timestamp,
    before: Usage,
    after: Usage,
}

#[derive(Default)]
struct Tally {
    /// Up to where changes are counted; `None`: nothing is yet.
    mark: Option<Mark>,
    sums: Sums,
    leaving: BTreeMap<Box<str>, Leaving>,
    /// How many objects were read for it.
    n_read: usize,
}

impl Tally {
    fn begin(&mut self) {
        *self = Tally { n_read: self.n_read, ..Tally::default() };
    }

    fn put(&mut self, counted: &Counted<'_>, entry: &Entry) {
        let object = self.read(entry);
        match quota::paid_until(counted.kind(), &object) {
            None => self.sums.add(&counted.usage_of(&object, Timestamp::MIN)),
            Some(last) => {
                let [before, after] = [Timestamp::MIN, Timestamp::MAX].map(|at| counted.usage_of(&object, at));
                self.leaving.insert(entry.key.clone(), Leaving { last, before, after });
            }
        }
    }

    fn take(&mut self, counted: &Counted<'_>, entry: &Entry) {
        if self.leaving.remove(&entry.key).is_none() {
            let object = self.read(entry);
            self.sums.take(&counted.usage_of(&object, Timestamp::MIN));
        }
    }

    fn read(&mut self, entry: &Entry) -> Value {
        self.n_read += 1;
        entry.value()
    }

    fn at(&self, now: Timestamp) -> Sums {
        let mut sums = self.sums.clone();
        for pod in self.leaving.values() {
            sums.add(if now > pod.last { &pod.after } else { &pod.before });
        }
        sums
    }
}

/// A tally, and when it was asked for last.
type Held = (u64, Arc<Mutex<Tally>>);

/// All tallies of one server.
#[derive(Default)]
pub struct Tallies {
    held: Mutex<(u64, HashMap<String, Held>)>,
}

impl Tallies {
    fn tally(&self, key: String) -> Arc<Mutex<Tally>> {
        let mut held = self.held.lock();
        let (n_asked, tallies) = &mut *held;
        *n_asked += 1;
        if tallies.len() >= TALLIES_MAX && !tallies.contains_key(&key) {
            let oldest = tallies.iter().min_by_key(|(_, (asked, _))| *asked).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                tallies.remove(&oldest);
            }
        }
        let (asked, tally) = tallies.entry(key).or_default();
        *asked = *n_asked;
        Arc::clone(tally)
    }

    /// Usage of the stored objects at `now`, and those of them that have one of these names.
    ///
    /// Errors: `TimedOut` if the cache does not hold all objects now.
    pub fn used(
        &self,
        lookup: &dyn Lookup,
        counted: &Counted<'_>,
        names: &[&str],
        now: Timestamp,
    ) -> Result<(Sums, Vec<Option<Value>>), Status> {
        let tally = self.tally(counted.key());
        let mut tally = tally.lock();
        let since = lookup.since(
            GroupResource { group: counted.group, resource: counted.resource },
            counted.namespace,
            tally.mark.as_ref(),
            names,
        )?;
        match since.news {
            News::All(entries) => {
                tally.begin();
                entries.iter().for_each(|entry| tally.put(counted, entry));
            }
            News::Changes(changes) => {
                for change in &changes {
                    if let Some(before) = &change.before {
                        tally.take(counted, before);
                    }
                    if let Some(after) = &change.after {
                        tally.put(counted, after);
                    }
                }
            }
        }
        tally.mark = since.mark;
        let named = since.named.iter().map(|entry| entry.as_ref().map(|entry| tally.read(entry))).collect();
        Ok((tally.at(now), named))
    }

    /// How many objects were read for all tallies so far.
    #[cfg(test)]
    fn n_read(&self) -> usize {
        let held = self.held.lock();
        held.1.values().map(|(_, tally)| tally.lock().n_read).sum()
    }
}

#[cfg(test)]
mod tests {
    use base::rng::Rng;
    use base::task::Group;
    use bytes::Bytes;
    use serde_json::json;
    use store::bounds::Bounds;
    use store::store::Store;
    use store::{Op, Storage, Txn};

    use super::*;
    use model::reference::NamespacedName;
    use registry::cache::Cache;
    use registry::catalogs::Catalogs;
    use registry::keys;

    struct Fixture {
        _dir: tempfile::TempDir,
        store: Arc<Store>,
        cache: Arc<Cache>,
        group: Group,
        tallies: Tallies,
        quota: Value,
    }

    impl Fixture {
        async fn start(quota: Value) -> Fixture {
            let dir = tempfile::tempdir().unwrap();
            let (group, _reports) = Group::root("tally");
            let (rng, bootstrap) = (Rng::from_seed(5), store::member::Bootstrap::First);
            let config =
                store::Config { dir: dir.path().join("db"), bootstrap, network: None, rng, bounds: Bounds::SHIPPED };
            let store = Store::open(config, &group).await.unwrap();
            let cache = Cache::start(Arc::clone(&store) as Arc<dyn Storage>, Arc::new(Catalogs::default()), &group);
            cache.load(GroupResource::core("pods")).await;
            Fixture { _dir: dir, store, cache, group, tallies: Tallies::default(), quota }
        }

        /// Writes pods, or deletes those that have no body, in one transaction.
        async fn write(&self, namespace: &str, pods: impl IntoIterator<Item = (String, Option<Value>)>) {
            let ops = pods.into_iter().map(|(name, pod)| {
                let key =
                    Bytes::from(keys::object(GroupResource::core("pods"), NamespacedName { namespace, name: &name }));
                match pod {
                    Some(mut pod) => {
                        pod["metadata"]["name"] = name.into();
                        pod["metadata"]["namespace"] = namespace.into();
                        Op::Put { key, value: pod.to_string().into(), lease: 0, prev_kv: false }
                    }
                    None => Op::Delete { key, range_end: Bytes::new(), prev_kv: false },
                }
            });
            let reply = self.store.txn(Txn { success: ops.collect(), ..Txn::default() }).await.unwrap();
            assert!(self.cache.wait_for(reply.revision.0).await);
        }

        fn used(&self, name: &str, now: Timestamp) -> String {
            let counted = Counted { quota: &self.quota, group: "", resource: "pods", namespace: "n" };
            let (sums, _) = self.tallies.used(&*self.cache, &counted, &[], now).unwrap();
            // What is kept is what counting all of them gives.
            let mut counted_anew = Usage::new();
            for pod in self.cache.list(GroupResource::core("pods"), Some("n")) {
                quota::add(&mut counted_anew, counted.usage_of(&pod, now));
            }
            let used = sums.total();
            assert!(
                used.iter().all(|(name, amount)| counted_anew.get(name).is_some_and(|anew| anew == amount)),
                "{used:?} {counted_anew:?}"
            );
            assert_eq!(used.len(), counted_anew.len());
            used.get(name).map_or("-".to_owned(), ToString::to_string)
        }
    }

    fn pod(cpu: &str) -> Option<Value> {
        Some(json!({"metadata": {}, "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}))
    }

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    /// Semantics S10.
    #[tokio::test]
    async fn a_create_beside_three_thousand_objects_reads_no_more_than_one_beside_none() {
        let f = Fixture::start(json!({"spec": {"hard": {"pods": "5000"}}})).await;
        let create = async |name: &str| {
            let before = f.tallies.n_read();
            f.write("n", [(name.to_owned(), pod("1m"))]).await;
            f.write("other", [(name.to_owned(), pod("1m"))]).await;
            f.used("pods", NOW);
            f.tallies.n_read() - before
        };
        f.used("pods", NOW);
        let beside_none = create("first").await;
        for chunk in 0..30 {
            f.write("n", (0..100).map(|n| (format!("p{chunk}-{n}"), pod("1m")))).await;
            f.used("pods", NOW);
        }
        assert_eq!(f.used("pods", NOW), "3001");
        let beside_many = create("last").await;
        assert_eq!((beside_none, beside_many), (1, 1));
        assert_eq!(f.used("requests.cpu", NOW), "3002m");
        f.group.shutdown().await;
    }

    #[tokio::test]
    async fn a_tally_follows_changes_ends_and_what_leaves_the_scope() {
        let f = Fixture::start(json!({"spec": {"hard": {"pods": "5"}, "scopes": ["NotTerminating"]}})).await;
        f.write("n", [("a".to_owned(), pod("1")), ("b".to_owned(), pod("500m"))]).await;
        assert_eq!((f.used("cpu", NOW), f.used("pods", NOW)), ("1500m".into(), "2".into()));
        let mut ended = pod("1").unwrap();
        ended["status"] = json!({"phase": "Succeeded"});
        f.write("n", [("a".to_owned(), Some(ended))]).await;
        assert_eq!(
            (f.used("cpu", NOW), f.used("pods", NOW), f.used("count/pods", NOW)),
            ("500m".into(), "1".into(), "2".into())
        );
        let mut bounded = pod("500m").unwrap();
        bounded["spec"]["activeDeadlineSeconds"] = json!(5);
        f.write("n", [("b".to_owned(), Some(bounded))]).await;
        assert_eq!((f.used("cpu", NOW), f.used("count/pods", NOW)), ("-".into(), "1".into()));
        f.write("n", [("a".to_owned(), None), ("b".to_owned(), None)]).await;
        assert_eq!(f.used("count/pods", NOW), "-");
        f.group.shutdown().await;
    }

    /// The same pod counts before a moment and not after it, though nothing changes.
    #[tokio::test]
    async fn a_pod_that_should_be_gone_leaves_the_tally_by_itself() {
        let f = Fixture::start(json!({"spec": {"hard": {"pods": "5"}}})).await;
        let mut leaving = pod("1").unwrap();
        leaving["metadata"] = json!({"deletionTimestamp": "1970-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30});
        f.write("n", [("a".to_owned(), Some(leaving)), ("b".to_owned(), pod("1"))]).await;
        let at = |second: i64| Timestamp::from_second(second).unwrap();
        assert_eq!(
            (f.used("pods", at(60)), f.used("pods", at(61)), f.used("pods", at(0))),
            ("2".into(), "1".into(), "2".into())
        );
        f.write("n", [("a".to_owned(), None)]).await;
        assert_eq!(f.used("pods", at(0)), "1");
        f.group.shutdown().await;
    }

    #[tokio::test]
    async fn a_tally_begins_anew_when_changes_were_forgotten() {
        let f = Fixture::start(json!({"spec": {"hard": {"pods": "5"}}})).await;
        f.write("n", [("a".to_owned(), pod("1"))]).await;
        assert_eq!(f.used("pods", NOW), "1");
        f.write("n", [("b".to_owned(), pod("1"))]).await;
        f.cache.forget_until(u64::MAX);
        assert_eq!(f.used("pods", NOW), "2");
        f.cache.kind(GroupResource::core("pods")).reset();
        let counted = Counted { quota: &f.quota, group: "", resource: "pods", namespace: "n" };
        assert!(f.tallies.used(&*f.cache, &counted, &[], NOW).is_err(), "what was known last is no count");
        f.group.shutdown().await;
    }

    /// Sums are exact: one that had been held at a bound would let in too much when its parts go.
    #[tokio::test]
    async fn amounts_beyond_all_bounds_are_taken_off_as_they_came() {
        let f = Fixture::start(json!({"spec": {"hard": {"pods": "5"}}})).await;
        f.write("n", ["a", "b", "c"].map(|name| (name.to_owned(), pod("9E")))).await;
        f.used("cpu", NOW);
        f.write("n", ["a", "b"].map(|name| (name.to_owned(), None))).await;
        assert_eq!(f.used("cpu", NOW), "9E");
        f.group.shutdown().await;
    }

    #[test]
    fn tallies_have_a_bound() {
        let tallies = Tallies::default();
        for n in 0..TALLIES_MAX + 10 {
            tallies.tally(n.to_string());
        }
        let held = tallies.held.lock();
        assert!(held.1.len() == TALLIES_MAX && !held.1.contains_key("0"));
    }
}
