//! Charges: what quotas have let in and no cache shows yet, on this server and beside the other ones.
//!
//! Usage is counted from this server's cache and from its own open charges. Of other servers' charges one key per group
//! of namespaces tells: its value is the token of the server that charged last. The transaction that stores an object
//! compares the key and puts the own token. A server that charged last charges again without a question. One that finds
//! another's token reads the key, waits until its cache shows all that was stored before, and judges then; whoever
//! judged without that loses the transaction and judges anew. One of all that are on their way succeeds always, so
//! there is no standstill. A namespace without a quota costs nothing.
//!
//! A quota that is made or lowered holds on each server from when its cache shows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use base::rng::Rng;
use base::sync::{Mutex, MutexGuard};
use bytes::Bytes;
use registry::cache::Cache;
use registry::keys::unchanged_since;
use registry::status::Status;
use serde_json::Value;
use store::{Compare, Op, RangeRequest, Txn};

/// Namespaces of one hash share a key and a list: the keys are few, and none is left behind by a namespace that is
/// gone.
const GROUPS: usize = 64;
/// Outside of every resource: no cache holds it.
const KEY: &str = "/registry/ranges/quota-";
const TOKEN_BYTES: usize = 16;

/// One object that was let in.
#[derive(Clone, Debug)]
pub struct Coming {
    /// Its API group.
    pub group: String,
    /// Its plural name.
    pub resource: String,
    /// As it will be stored.
    pub object: Arc<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// Judged, perhaps on its way.
    Open,
    /// Stored at this revision; the cache may not show it yet.
    Stored(u64),
    /// It was sent, and nobody heard what became of it.
    Unknown,
}

#[derive(Debug)]
struct Entry {
    id: u64,
    coming: Coming,
    fate: Fate,
}

#[derive(Debug, Default)]
struct Ledger {
    /// The token that this server wrote last into the key, as far as it knows that nobody else did since.
    token: Option<Bytes>,
    entries: Vec<Entry>,
    n_made: u64,
}

impl Ledger {
    fn unknown(&self) -> Vec<u64> {
        self.entries.iter().filter(|entry| entry.fate == Fate::Unknown).map(|entry| entry.id).collect()
    }
}

/// All charges of one server.
#[derive(Debug)]
pub struct Charges {
    ledgers: Vec<Arc<Mutex<Ledger>>>,
}

impl Default for Charges {
    fn default() -> Charges {
        Charges { ledgers: (0..GROUPS).map(|_| Arc::default()).collect() }
    }
}

fn lock(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock()
}

fn group_of(namespace: &str) -> usize {
    namespace.bytes().fold(0usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(byte))) % GROUPS
}

/// Condition on the key when the object is stored.
#[derive(Clone, Debug)]
enum Condition {
    /// It still has this server's token.
    Ours(Bytes),
    /// It was last changed at this revision, which the cache shows.
    ChangedAt(u64),
}

/// A moment at which everything that other servers charged before is in the cache.
pub struct Moment<'c> {
    cache: &'c Cache,
    ledger: Arc<Mutex<Ledger>>,
    key: Bytes,
    condition: Condition,
    token: Bytes,
}

impl Charges {
    /// A moment to judge in. The store is asked only if another server charged last, or if it is not known what became
    /// of a charge.
    ///
    /// Errors: the store has no leader and majority in time. Cancel safety: nothing is charged by it.
    pub async fn moment<'c>(&self, cache: &'c Cache, rng: &Rng, namespace: &str) -> Result<Moment<'c>, Status> {
        let n = group_of(namespace);
        let (ledger, key) = (Arc::clone(&self.ledgers[n]), Bytes::from(format!("{KEY}{n}")));
        let fresh = || Bytes::from(rng.hex(TOKEN_BYTES));
        let (unknown, held) = {
            let state = lock(&ledger);
            (state.unknown(), state.token.clone())
        };
        if !unknown.is_empty() {
            // After this put the transactions that nobody heard of fail: what they stored, they stored before.
            let token = fresh();
            let put = Op::Put { key: key.clone(), value: token.clone(), lease: 0, prev_kv: false };
            let reply = cache.storage().txn(Txn { success: vec![put], ..Txn::default() }).await?;
            shows(cache, reply.revision.0).await?;
            let mut state = lock(&ledger);
            state.entries.retain(|entry| !unknown.contains(&entry.id));
            state.token = Some(token.clone());
            drop(state);
            return Ok(Moment { cache, ledger, key, condition: Condition::Ours(token.clone()), token });
        }
        if let Some(token) = held {
            return Ok(Moment { cache, ledger, key, condition: Condition::Ours(token.clone()), token });
        }
        let request = RangeRequest { key: key.clone(), keys_only: true, ..RangeRequest::default() };
        let reply = cache.storage().range(request).await?;
        shows(cache, reply.revision.0).await?;
        let condition = Condition::ChangedAt(reply.kvs.first().map_or(0, |kv| kv.mod_revision.0));
        Ok(Moment { cache, ledger, key, condition, token: fresh() })
    }
}

async fn shows(cache: &Cache, revision: u64) -> Result<(), Status> {
    if cache.wait_for(revision).await { Ok(()) } else { Err(store::error::Error::TimedOut.into()) }
}

impl Moment<'_> {
    /// Lets an object in if `judge` has nothing against it. It is shown what else is let in and not in the cache yet;
    /// nobody else in this group of namespaces is judged meanwhile.
    ///
    /// Errors: those of `judge`.
    pub fn charge(self, coming: Coming, judge: impl FnOnce(&[Coming]) -> Result<(), Status>) -> Result<Charge, Status> {
        let mut state = lock(&self.ledger);
        let seen = self.cache.seen();
        state.entries.retain(|entry| !matches!(entry.fate, Fate::Stored(at) if at <= seen));
        let others: Vec<Coming> = state.entries.iter().map(|entry| entry.coming.clone()).collect();
        judge(&others)?;
        state.n_made += 1;
        let id = state.n_made;
        state.entries.push(Entry { id, coming, fate: Fate::Open });
        drop(state);
        Ok(Charge {
            ledger: self.ledger,
            id,
            key: self.key,
            condition: self.condition,
            token: self.token,
            is_sent: AtomicBool::new(false),
        })
    }
}

/// An object that was let in, until it is stored or not. One that is dropped in between counts until the store has said
/// what became of it.
#[derive(Debug)]
pub struct Charge {
    ledger: Arc<Mutex<Ledger>>,
    id: u64,
    key: Bytes,
    condition: Condition,
    token: Bytes,
    is_sent: AtomicBool,
}

impl Charge {
    /// Adds to the transaction of the object that no other server has charged since this was judged. From here on it
    /// may be stored.
    pub fn join(&self, txn: &mut Txn) {
        txn.compare.push(match &self.condition {
            Condition::Ours(token) => {
                Compare::Value { key: self.key.clone(), op: store::CompareOp::Equal, value: token.clone() }
            }
            Condition::ChangedAt(revision) => unchanged_since(&self.key, *revision),
        });
        txn.success.push(Op::Put { key: self.key.clone(), value: self.token.clone(), lease: 0, prev_kv: false });
        self.is_sent.store(true, Ordering::Relaxed);
    }

    /// The transaction was done, at a revision, or its conditions did not hold.
    pub fn settle(&self, stored: Option<u64>) {
        let mut state = lock(&self.ledger);
        self.is_sent.store(false, Ordering::Relaxed);
        if let Some(at) = stored {
            state.token = Some(self.token.clone());
            if let Some(entry) = state.entries.iter_mut().find(|entry| entry.id == self.id) {
                entry.fate = Fate::Stored(at);
            }
        } else {
            state.entries.retain(|entry| entry.id != self.id);
            // Perhaps another server charged. If not, the next charge reads a key too many.
            state.token = None;
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        let mut state = lock(&self.ledger);
        if self.is_sent.load(Ordering::Relaxed) {
            if let Some(entry) = state.entries.iter_mut().find(|entry| entry.id == self.id && entry.fate == Fate::Open)
            {
                entry.fate = Fate::Unknown;
            }
        } else {
            state.entries.retain(|entry| entry.id != self.id || entry.fate != Fate::Open);
        }
    }
}

#[cfg(test)]
mod tests {
    use base::task::Group;
    use serde_json::json;
    use store::Storage;
    use store::bounds::Bounds;
    use store::store::Store;

    use super::*;
    use model::reference::{GroupResource, NamespacedName};
    use registry::catalogs::Catalogs;
    use registry::keys;
    use registry::lookup::Lookup as _;

    const NAMESPACE: &str = "team";
    const PLACES: usize = 10;

    /// A server, as far as quotas go: its cache follows the store in its own time.
    struct Server {
        cache: Arc<Cache>,
        charges: Charges,
        rng: Rng,
    }

    impl Server {
        async fn start(store: &Arc<Store>, seed: u64, group: &Group) -> Arc<Server> {
            let cache = Cache::start(Arc::clone(store) as Arc<dyn Storage>, Arc::new(Catalogs::default()), group);
            cache.load(GroupResource::core("configmaps")).await;
            Arc::new(Server { cache, charges: Charges::default(), rng: Rng::from_seed(seed) })
        }

        fn used(&self, coming: &[Coming]) -> usize {
            self.cache.list(GroupResource::core("configmaps"), Some(NAMESPACE)).len() + coming.len()
        }

        /// Judges and charges; `None`: the quota is used up.
        async fn charge(&self, name: &str) -> Option<(Charge, Txn)> {
            let object =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": NAMESPACE}});
            let key = Bytes::from(keys::object(
                GroupResource::core("configmaps"),
                NamespacedName { namespace: NAMESPACE, name },
            ));
            let put = Op::Put { key: key.clone(), value: object.to_string().into(), lease: 0, prev_kv: false };
            let mut txn = Txn { compare: vec![unchanged_since(&key, 0)], success: vec![put], ..Txn::default() };
            let coming = Coming { group: String::new(), resource: "configmaps".into(), object: Arc::new(object) };
            let moment = self.charges.moment(&self.cache, &self.rng, NAMESPACE).await.unwrap();
            let full = || Status::forbidden(GroupResource::core("configmaps"), name, "exceeded quota");
            let judged = moment.charge(coming, |others| if self.used(others) < PLACES { Ok(()) } else { Err(full()) });
            let charge = judged.ok()?;
            charge.join(&mut txn);
            Some((charge, txn))
        }

        /// Creates an object, and says how many times it was judged; `None`: the quota is used up.
        async fn create(&self, name: &str) -> Option<usize> {
            for n_judged in 1.. {
                let (charge, txn) = self.charge(name).await?;
                let reply = self.cache.storage().txn(txn).await.unwrap();
                charge.settle(reply.succeeded.then_some(reply.revision.0));
                if reply.succeeded {
                    return Some(n_judged);
                }
            }
            None
        }
    }

    async fn open(seed: u64) -> (tempfile::TempDir, Group, Arc<Store>) {
        let dir = tempfile::tempdir().unwrap();
        let (group, _reports) = Group::root("charges");
        let rng = Rng::from_seed(seed);
        let config = store::Config {
            dir: dir.path().join("db"),
            bootstrap: store::member::Bootstrap::First,
            network: None,
            rng,
            bounds: Bounds::SHIPPED,
        };
        let store = Store::open(config, &group).await.unwrap();
        (dir, group, store)
    }

    /// semantics M3.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn parallel_creates_through_three_servers_never_pass_a_quota() {
        let (_dir, group, store) = open(1).await;
        let mut servers = Vec::new();
        for seed in 0..3 {
            servers.push(Server::start(&store, seed, &group).await);
        }
        let creates = (0..60).map(|n| {
            let server = Arc::clone(&servers[n % 3]);
            async move { server.create(&format!("c{n}")).await.is_some() }
        });
        let stored = futures_util::future::join_all(creates).await.into_iter().filter(|stored| *stored).count();
        assert_eq!(stored, PLACES);
        servers[0].cache.wait_for_now().await.unwrap();
        assert_eq!(servers[0].used(&[]), PLACES);
        group.shutdown().await;
    }

    #[tokio::test]
    async fn a_server_that_charged_last_asks_nobody_and_one_that_did_not_is_judged_anew() {
        let (_dir, group, store) = open(2).await;
        let (one, two) = (Server::start(&store, 1, &group).await, Server::start(&store, 2, &group).await);
        assert_eq!(one.create("a").await, Some(1));
        let (early, txn) = one.charge("b").await.unwrap();
        assert!(matches!(early.condition, Condition::Ours(_)));
        assert_eq!(two.create("c").await, Some(1));
        assert!(!store.txn(txn).await.unwrap().succeeded, "the other server's charge was not seen");
        early.settle(None);
        assert_eq!(one.create("b").await, Some(1));
        assert_eq!(two.create("d").await, Some(2), "it did not know that another server charged since");
        group.shutdown().await;
    }

    #[tokio::test]
    async fn a_charge_that_nobody_heard_of_counts_until_it_is_known() {
        let (_dir, group, store) = open(3).await;
        let server = Server::start(&store, 1, &group).await;
        assert!(server.create("a").await.is_some());
        let mut lost = Vec::new();
        for n in 1..PLACES {
            let (charge, txn) = server.charge(&format!("lost{n}")).await.unwrap();
            drop(charge);
            lost.push(txn);
            assert_eq!(lock(&server.charges.ledgers[group_of(NAMESPACE)]).unknown().len(), 1);
        }
        // Whatever is stored of them after the next question was stored before it.
        assert!(server.create("b").await.is_some());
        for txn in lost {
            assert!(!store.txn(txn).await.unwrap().succeeded);
        }
        let (charge, _never_sent) = server.charge("c").await.unwrap();
        charge.settle(None);
        assert_eq!(server.used(&[]), 2);
        group.shutdown().await;
    }
}
