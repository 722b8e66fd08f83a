//! A cache whose watch of the store ends.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use model::reference::{GroupResource, NamespacedName};
use store::bounds::Bounds;
use store::error::Error;
use store::store::Store;
use store::watch::WatchStream;
use store::{Op, RangeReply, Txn, TxnReply};

use super::*;
use crate::lookup::Lookup as _;

/// A store that can be cut off: its watches end, and it cannot be read.
struct Breaking {
    store: Arc<Store>,
    group: Group,
    cut: watch::Sender<bool>,
}

#[async_trait]
impl Storage for Breaking {
    async fn range(&self, request: RangeRequest) -> Result<RangeReply, Error> {
        if *self.cut.borrow() { Err(Error::TimedOut) } else { self.store.range(request).await }
    }

    async fn txn(&self, txn: Txn) -> Result<TxnReply, Error> {
        self.store.txn(txn).await
    }

    async fn watch(&self, request: WatchRequest) -> Result<WatchStream, Error> {
        if *self.cut.borrow() {
            return Err(Error::TimedOut);
        }
        let mut inner = self.store.watch(request).await?;
        let (tx, rx) = tokio::sync::mpsc::channel(16);
        let mut cut = self.cut.subscribe();
        self.group.spawn_short("breaking", async move {
            loop {
                // Cancel safe: a batch is returned or still to come.
                let batch = tokio::select! {
                    batch = inner.next() => batch,
                    _cut = async { cut.wait_for(|is_cut| *is_cut).await.is_ok() } => return,
                };
                let Ok(batch) = batch else { return };
                if tx.send(batch).await.is_err() {
                    return;
                }
            }
        });
        Ok(WatchStream::live(rx, Arc::default()))
    }

    async fn progress(&self) -> Result<(), Error> {
        self.store.progress().await
    }

    async fn compact(&self, at: Revision) -> Result<(), Error> {
        self.store.compact(at).await
    }

    async fn read_index(&self) -> Result<Revision, Error> {
        self.store.read_index().await
    }

    fn current_revision(&self) -> Revision {
        self.store.current_revision()
    }

    async fn grant_lease(&self, id: u64, ttl_secs: u64) -> Result<(), Error> {
        self.store.grant_lease(id, ttl_secs).await
    }

    async fn keep_lease(&self, id: u64) -> Result<(), Error> {
        self.store.keep_lease(id).await
    }
}

fn put(name: &str) -> Txn {
    let value =
        serde_json::json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name, "namespace": "a"}});
    let key = Bytes::from(crate::keys::object(
        GroupResource::core("resourcequotas"),
        NamespacedName { namespace: "a", name },
    ));
    Txn { success: vec![Op::Put { key, value: value.to_string().into(), lease: 0, prev_kv: false }], ..Txn::default() }
}

#[tokio::test]
async fn what_admission_goes_by_does_not_vanish_with_the_watch_of_the_store_and_comes_back_unasked() {
    let dir = tempfile::tempdir().unwrap();
    let (group, _reports) = Group::root("test");
    let rng = base::rng::Rng::from_seed(7);
    let config = store::Config {
        dir: dir.path().join("db"),
        bootstrap: store::member::Bootstrap::First,
        network: None,
        rng,
        bounds: Bounds::SHIPPED,
    };
    let store = Store::open(config, &group).await.unwrap();
    let breaking =
        Arc::new(Breaking { store: Arc::clone(&store), group: group.clone(), cut: watch::Sender::new(false) });
    let cache = Cache::start(Arc::clone(&breaking) as Arc<dyn Storage>, Arc::default(), &group);
    store.txn(put("first")).await.unwrap();
    cache.load(GroupResource::core("resourcequotas")).await;
    let kind = cache.kind(GroupResource::core("resourcequotas"));
    breaking.cut.send_replace(true);
    let named = || -> Vec<String> {
        let list = cache.list(GroupResource::core("resourcequotas"), Some("a"));
        list.iter().map(|object| model::meta::name(object).to_owned()).collect()
    };
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, async {
        while kind.is_ready() {
            assert_eq!(named(), ["first"]);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(named(), ["first"], "a quota that nobody sees lets everything pass");
    store.txn(put("second")).await.unwrap();
    breaking.cut.send_replace(false);
    // Nobody asks for the resource: the cache fills it by itself.
    tokio::time::timeout(limit, async {
        while !kind.is_ready() {
            assert_eq!(named(), ["first"]);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(named(), ["first", "second"]);
    group.shutdown().await;
}
