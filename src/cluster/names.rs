//! The servers' own names: each server writes down, in the store, the names and addresses that clients reach it by. No
//! node's certificate may hold one of them, whichever server signs it, for a node with such a name could pose as an API
//! server.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use store::error::Error;
use store::{Op, RangeRequest, Storage, Txn, prefix_end};
use tracing::warn;

/// One key a server, its node's name behind it: no object's key, so nobody writes it over the API.
const PREFIX: &str = "/kedge/server-names/";
/// Between two tries of writing them.
const RETRY: Duration = Duration::from_secs(2);

/// The names of all servers.
#[derive(Clone)]
pub struct ServerNames {
    storage: Arc<dyn Storage>,
}

impl ServerNames {
    /// As they lie in `storage`.
    pub fn new(storage: Arc<dyn Storage>) -> ServerNames {
        ServerNames { storage }
    }

    /// Writes this server's names down, in the place of those of its last start. `node` is its node's name.
    pub fn publish(&self, node: &str, names: BTreeSet<String>, group: &Group) {
        let (own, node) = (self.clone(), node.to_owned());
        group.spawn_short("server-names", async move {
            while let Err(err) = own.put(&node, &names).await {
                warn!(err = %Chain(&err), "cannot write this server's names down yet");
                tokio::time::sleep(RETRY).await;
            }
        });
    }

    async fn put(&self, node: &str, names: &BTreeSet<String>) -> Result<(), Error> {
        let key = format!("{PREFIX}{node}");
        let value = names.iter().map(String::as_str).collect::<Vec<_>>().join("\n");
        let put = Op::Put { key: key.into(), value: value.into(), lease: 0, prev_kv: false };
        self.storage.txn(Txn { success: vec![put], ..Txn::default() }).await.map(drop)
    }

    /// The names of the servers that `counts` names by their nodes; one that was let go leaves its names to others.
    ///
    /// Errors: the store cannot be read; then nobody may be given any name.
    pub async fn all(&self, counts: impl Fn(&str) -> bool) -> Result<BTreeSet<String>, Error> {
        let range =
            RangeRequest { key: PREFIX.into(), range_end: prefix_end(PREFIX.as_bytes()), ..RangeRequest::default() };
        let found = self.storage.range(range).await?;
        let node =
            |key: &[u8]| String::from_utf8_lossy(key.strip_prefix(PREFIX.as_bytes()).unwrap_or_default()).into_owned();
        let counted = found.kvs.iter().filter(|kv| counts(&node(&kv.key)));
        Ok(counted
            .flat_map(|kv| String::from_utf8_lossy(&kv.value).lines().map(str::to_owned).collect::<Vec<_>>())
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rng::Rng;
    use store::bounds::Bounds;

    #[tokio::test]
    async fn a_server_that_was_let_go_leaves_its_names_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let (group, _fatal) = Group::root("test");
        let (rng, bootstrap) = (Rng::from_seed(7), store::member::Bootstrap::First);
        let config =
            store::Config { dir: dir.path().join("db"), bootstrap, network: None, rng, bounds: Bounds::SHIPPED };
        let storage: Arc<dyn Storage> = store::store::Store::open(config, &group).await.unwrap();
        let names = ServerNames::new(storage);
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        names.put("s1", &set(&["old.example"])).await.unwrap();
        names.put("s1", &set(&["kube.example", "192.0.2.100"])).await.unwrap();
        names.put("s2", &set(&["s2.example"])).await.unwrap();
        assert_eq!(names.all(|_| true).await.unwrap(), set(&["kube.example", "192.0.2.100", "s2.example"]));
        assert_eq!(names.all(|node| node == "s2").await.unwrap(), set(&["s2.example"]));
        group.shutdown().await;
    }
}
