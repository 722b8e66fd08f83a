//! The cache as authorizers and admission plugins read it.

use std::sync::Arc;

use async_trait::async_trait;
use base::chain::Chain;
use model::reference::{GroupResource, NamespacedName};
use serde_json::Value;
use tokio::sync::watch;
use tracing::warn;

use super::Cache;
use crate::keys;
use crate::lookup::{Lookup, Mark, Since};
use crate::status::Status;

#[async_trait]
impl Lookup for Cache {
    async fn load(&self, of: GroupResource<'_>) {
        if let Err(err) = self.ready(of).await {
            let GroupResource { group, resource } = of;
            warn!(group, resource, err = %Chain(&err), "cannot fill the cache");
        }
    }

    fn get(&self, of: GroupResource<'_>, named: NamespacedName<'_>) -> Option<Arc<Value>> {
        self.kind(of).get(&keys::local(named)).map(|e| Arc::new(e.value()))
    }

    async fn sure(&self, of: GroupResource<'_>, named: NamespacedName<'_>) -> Option<Arc<Value>> {
        self.load(of).await;
        if let Some(found) = self.get(of, named) {
            return Some(found);
        }
        if let Err(err) = self.wait_for_now().await {
            let GroupResource { group, resource } = of;
            warn!(group, resource, err = %Chain(&err), "cannot bring the cache up to date");
        }
        self.get(of, named)
    }

    fn list(&self, of: GroupResource<'_>, namespace: Option<&str>) -> Vec<Arc<Value>> {
        self.kind(of).snapshot(namespace).items.iter().map(|e| Arc::new(e.value())).collect()
    }

    fn since(
        &self,
        of: GroupResource<'_>,
        namespace: &str,
        mark: Option<&Mark>,
        names: &[&str],
    ) -> Result<Since, Status> {
        let kind = self.kind(of);
        let revision = mark.filter(|mark| std::ptr::eq(mark.kind.as_ptr(), &*kind)).map(|mark| mark.revision);
        let (news, named, newest) = kind.since(namespace, revision, names).ok_or(store::error::Error::TimedOut)?;
        Ok(Since { mark: Some(Mark { kind: Arc::downgrade(&kind), revision: newest }), news, named })
    }

    fn count(&self, of: GroupResource<'_>) -> usize {
        self.known(of).map_or(0, |kind| kind.len())
    }

    fn changed(&self, of: GroupResource<'_>) -> watch::Receiver<u64> {
        self.kind(of).changed()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use store::bounds::Bounds;
    use store::{Op, Txn};

    use super::*;
    use crate::catalogs::Catalogs;

    #[tokio::test]
    async fn what_was_written_a_moment_ago_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (group, _reports) = base::task::Group::root("test");
        let rng = base::rng::Rng::from_seed(7);
        let config = store::Config {
            dir: dir.path().join("db"),
            bootstrap: store::member::Bootstrap::First,
            network: None,
            rng,
            bounds: Bounds::SHIPPED,
        };
        let storage: Arc<dyn store::Storage> = store::store::Store::open(config, &group).await.unwrap();
        let cache = Cache::start(Arc::clone(&storage), Arc::new(Catalogs::default()), &group);
        cache.load(GroupResource::core("serviceaccounts")).await;
        for n in 0..100 {
            let name = format!("sa{n}");
            assert!(
                cache
                    .sure(GroupResource::core("serviceaccounts"), NamespacedName { namespace: "a", name: &name })
                    .await
                    .is_none()
            );
            // As another server would write it: nothing tells this one's cache but the store.
            let metadata = serde_json::json!({"name": name, "namespace": "a"});
            let value = serde_json::json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata});
            let key = Bytes::from(keys::object(
                GroupResource::core("serviceaccounts"),
                NamespacedName { namespace: "a", name: &name },
            ));
            let put = Op::Put { key, value: value.to_string().into(), lease: 0, prev_kv: false };
            storage.txn(Txn { success: vec![put], ..Txn::default() }).await.unwrap();
            assert!(
                cache
                    .sure(GroupResource::core("serviceaccounts"), NamespacedName { namespace: "a", name: &name })
                    .await
                    .is_some(),
                "{name}"
            );
        }
        group.shutdown().await;
    }
}
