//! Whose name a node's name is: the public key that first joined under it, kept until its Node goes.
//!
//! The records lie in the store beside the objects, as the servers' names do, and not in Secrets: who may write Secrets
//! of kube-system could take a record away or put another key into it, and would be that node.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base::chain::Chain;
use base::task::Group;
use base::time::Clock;
use client::informer::Informers;
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use serde::{Deserialize, Serialize};
use store::{Compare, CompareOp, KeyValue, Op, RangeRequest, Revision, Storage, Txn, TxnReply, prefix_end};
use tokio::sync::OnceCell;
use tokio::time::Instant;
use tracing::{info, warn};

use crate::refusal::Refusal;

/// One key a node, its name behind it: no object's key, so nobody writes it over the API.
const PREFIX: &str = "/kedge/node-identities/";
/// There once the records of an earlier kedge were taken over: Secrets that come later are not believed.
const TAKEN_OVER: &str = "/kedge/node-identities-taken-over";
/// Of the Secrets in which an earlier kedge kept the records.
const NAMESPACE: &str = "kube-system";
const TYPE: &str = "kedge.dev/node-identity";
const NAME_END: &str = ".node-identity.kedge";
/// Records are compared with Nodes at least so often, while Nodes change at all.
const LOOK: Duration = Duration::from_secs(60);
/// Keys of one transaction, as etcd takes them.
const OPS_MAX: usize = 100;
/// Names in the book: Kubernetes is made for 5,000 nodes. Whoever holds a token can join under one name after another.
const NAMES_MAX: u64 = 20_000;
/// Names without a Node that are kept as long as they like; of more the oldest go, an hour after they were seen first.
const WAITING_MAX: usize = 1024;
const WAITING_SECS_MIN: i64 = 3600;

/// A machine that claims a name; its proof was checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The node's name.
    pub name: String,
    /// The machine's public key.
    pub public_key: String,
    /// `/etc/machine-id`, may be empty.
    pub machine_id: String,
    /// Where it called from.
    pub address: IpAddr,
}

/// State of the claimed name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameStatus {
    /// Nobody has it.
    Free,
    /// This very machine has it.
    Own,
    /// Another machine has it.
    Taken {
        /// Which seems to be the same machine with another key.
        same_machine: bool,
    },
}

/// The record of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    public_key: String,
    machine_id: String,
    /// Where the machine called from.
    address: String,
    /// Of the Node that registered under the name; empty until there is one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    node_uid: String,
    /// Since when it was seen without a Node, in seconds of Unix; 0: it was not.
    #[serde(default, skip_serializing_if = "is_zero")]
    waiting_since: i64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl Record {
    fn of(claim: &Claim) -> Record {
        let Claim { public_key, machine_id, address, .. } = claim.clone();
        Record { public_key, machine_id, address: address.to_string(), node_uid: String::new(), waiting_since: 0 }
    }

    /// Reads the record that an earlier kedge kept in a Secret; its name is the node's.
    fn of_secret(secret: &Secret) -> Option<(String, Record)> {
        let text = |field: &str| model::secret::text(secret, field);
        let node = secret.name_any().strip_suffix(NAME_END)?.to_owned();
        let owner = secret.owner_references().iter().find(|owner| owner.kind == "Node");
        let record = Record {
            public_key: text("public-key"),
            machine_id: text("machine-id"),
            address: text("address"),
            node_uid: owner.map(|owner| owner.uid.clone()).unwrap_or_default(),
            waiting_since: 0,
        };
        (secret.type_.as_deref() == Some(TYPE) && !record.public_key.is_empty()).then_some((node, record))
    }

    fn judge(&self, claim: &Claim) -> NameStatus {
        if self.public_key == claim.public_key {
            return NameStatus::Own;
        }
        NameStatus::Taken { same_machine: !claim.machine_id.is_empty() && self.machine_id == claim.machine_id }
    }
}

/// Why the book cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The store.
    #[error("the store does not answer")]
    Store(#[from] store::error::Error),
    /// The Secrets of an earlier kedge.
    #[error("the records of an earlier kedge cannot be read")]
    Earlier(#[from] kube::Error),
    /// A record.
    #[error("the record of node {node} cannot be read")]
    Record {
        /// The node's name.
        node: String,
        /// Why not.
        source: serde_json::Error,
    },
}

impl From<IdentityError> for Refusal {
    fn from(err: IdentityError) -> Refusal {
        Refusal::NotReady { why: format!("it cannot look up nodes: {}", Chain(&err)) }
    }
}

/// The book of names.
#[derive(Clone)]
pub struct Identities {
    storage: Arc<dyn Storage>,
    client: kube::Client,
    taken_over: Arc<OnceCell<()>>,
}

fn key(node: &str) -> String {
    format!("{PREFIX}{node}")
}

fn put(node: &str, record: &Record) -> Op {
    // A record is four texts: nothing in it can fail to be JSON.
    let value = serde_json::to_vec(record).unwrap_or_default();
    Op::Put { key: key(node).into(), value: value.into(), lease: 0, prev_kv: false }
}

/// That a key is as it was at `revision`; 0: not there.
fn unchanged(key: String, revision: Revision) -> Vec<Compare> {
    vec![Compare::ModRevision { key: key.into(), op: CompareOp::Equal, revision }]
}

impl Identities {
    /// The book in `storage`; `client` may read Secrets of kube-system and Nodes.
    pub fn new(storage: Arc<dyn Storage>, client: kube::Client) -> Identities {
        Identities { storage, client, taken_over: Arc::new(OnceCell::new()) }
    }

    /// Whose the name is.
    pub async fn status(&self, claim: &Claim) -> Result<NameStatus, Refusal> {
        Ok(self.find(&claim.name).await?.map_or(NameStatus::Free, |(record, _)| record.judge(claim)))
    }

    /// Writes the name down as this machine's. A race for one name is lost by the second.
    ///
    /// Errors: `NotReady` also while the book is full.
    pub async fn record(&self, claim: &Claim) -> Result<(), Refusal> {
        self.record_among(claim, NAMES_MAX).await
    }

    async fn record_among(&self, claim: &Claim, names_max: u64) -> Result<(), Refusal> {
        if self.find(&claim.name).await?.is_none() && self.n_names().await? >= names_max {
            let why = format!("{names_max} machines have joined already: names without a Node are free after an hour");
            return Err(Refusal::NotReady { why });
        }
        let free = unchanged(key(&claim.name), Revision(0));
        if self.write(free, vec![put(&claim.name, &Record::of(claim))]).await?.succeeded {
            info!(node = %claim.name, peer = %claim.address, "node name recorded");
            return Ok(());
        }
        match self.status(claim).await? {
            NameStatus::Taken { same_machine } => Err(self.taken(claim, same_machine).await),
            NameStatus::Own | NameStatus::Free => Ok(()),
        }
    }

    /// Frees a name.
    pub async fn forget(&self, node: &str) -> Result<(), Refusal> {
        self.take_over().await?;
        Ok(self.write(Vec::new(), vec![delete(node)]).await.map(drop)?)
    }

    /// The refusal that says where the owner of the name is.
    pub async fn taken(&self, claim: &Claim, same_machine: bool) -> Refusal {
        let node = Api::<Node>::all(self.client.clone()).get_opt(&claim.name).await.ok().flatten();
        let internal = node.as_ref().and_then(|node| model::node::addresses(node, "InternalIP").next());
        let address = match internal {
            Some(ip) => ip.to_string(),
            None => match self.find(&claim.name).await {
                Ok(Some((record, _))) => record.address,
                _ => "an unknown address".to_owned(),
            },
        };
        Refusal::NameTaken { name: claim.name.clone(), address, same_machine }
    }

    async fn find(&self, node: &str) -> Result<Option<(Record, Revision)>, IdentityError> {
        self.take_over().await?;
        let found = self.storage.range(RangeRequest { key: key(node).into(), ..RangeRequest::default() }).await?;
        found.kvs.first().map(read).transpose().map(|found| found.map(|(_, record, revision)| (record, revision)))
    }

    async fn all(&self) -> Result<Vec<(String, Record, Revision)>, IdentityError> {
        self.take_over().await?;
        let range =
            RangeRequest { key: PREFIX.into(), range_end: prefix_end(PREFIX.as_bytes()), ..RangeRequest::default() };
        self.storage.range(range).await?.kvs.iter().map(read).collect()
    }

    async fn n_names(&self) -> Result<u64, IdentityError> {
        let range = RangeRequest {
            key: PREFIX.into(),
            range_end: prefix_end(PREFIX.as_bytes()),
            count_only: true,
            ..RangeRequest::default()
        };
        Ok(self.storage.range(range).await?.count)
    }

    async fn write(&self, compare: Vec<Compare>, success: Vec<Op>) -> Result<TxnReply, IdentityError> {
        Ok(self.storage.txn(Txn { compare, success, ..Txn::default() }).await?)
    }

    /// Once in a cluster's life: what an earlier kedge wrote into Secrets counts, and none that comes later.
    async fn take_over(&self) -> Result<(), IdentityError> {
        self.taken_over.get_or_try_init(|| self.take_over_now()).await.map(|_| ())
    }

    async fn take_over_now(&self) -> Result<(), IdentityError> {
        let done = self.storage.range(RangeRequest { key: TAKEN_OVER.into(), ..RangeRequest::default() }).await?;
        if !done.kvs.is_empty() {
            return Ok(());
        }
        let secrets = Api::<Secret>::namespaced(self.client.clone(), NAMESPACE);
        let earlier = secrets.list(&ListParams::default().fields(&format!("type={TYPE}"))).await?;
        let earlier: Vec<(String, Record)> = earlier.iter().filter_map(Record::of_secret).collect();
        // The mark comes last: a server that ends between two parts begins anew, and what is there is not written
        // twice.
        for part in earlier.chunks(OPS_MAX) {
            let ops = part.iter().map(|(node, record)| put(node, record)).collect();
            self.write(unchanged(TAKEN_OVER.to_owned(), Revision(0)), ops).await?;
        }
        let mark = Op::Put { key: TAKEN_OVER.into(), value: "1".into(), lease: 0, prev_kv: false };
        self.write(unchanged(TAKEN_OVER.to_owned(), Revision(0)), vec![mark]).await?;
        if !earlier.is_empty() {
            info!(n = earlier.len(), "node names of an earlier kedge were taken over");
        }
        Ok(())
    }

    /// Writes into each record which Node it is of, and takes away those whose Node is gone, and those that are too
    /// many without one.
    ///
    /// Those go late and few: whoever joined under such a name holds its certificate for longer.
    async fn follow(&self, nodes: &BTreeMap<String, String>, now_secs: i64) -> Result<(), IdentityError> {
        let mut waiting = Vec::new();
        for (name, record, revision) in self.all().await? {
            let op = match nodes.get(&name) {
                Some(uid) if *uid != record.node_uid => {
                    put(&name, &Record { node_uid: uid.clone(), waiting_since: 0, ..record })
                }
                None if !record.node_uid.is_empty() => delete(&name),
                // A machine that has joined just now has no Node yet.
                None if record.waiting_since == 0 => put(&name, &Record { waiting_since: now_secs, ..record }),
                None => {
                    waiting.push((record.waiting_since, name, revision));
                    continue;
                }
                Some(_) => continue,
            };
            let freed = matches!(op, Op::Delete { .. });
            if self.write(unchanged(key(&name), revision), vec![op]).await?.succeeded && freed {
                info!(node = %name, "node name freed: its Node is gone");
            }
        }
        waiting.sort();
        let n_over = waiting.len().saturating_sub(WAITING_MAX);
        for (_, name, revision) in
            waiting.into_iter().take(n_over).filter(|(since, ..)| now_secs - since >= WAITING_SECS_MIN)
        {
            if self.write(unchanged(key(&name), revision), vec![delete(&name)]).await?.succeeded {
                info!(node = %name, "node name freed: it has no Node, and too many names have none");
            }
        }
        Ok(())
    }
}

fn delete(node: &str) -> Op {
    Op::Delete { key: key(node).into(), range_end: Default::default(), prev_kv: false }
}

fn read(kv: &KeyValue) -> Result<(String, Record, Revision), IdentityError> {
    let node = String::from_utf8_lossy(kv.key.strip_prefix(PREFIX.as_bytes()).unwrap_or_default()).into_owned();
    match serde_json::from_slice(&kv.value) {
        Ok(record) => Ok((node, record, kv.mod_revision)),
        Err(source) => Err(IdentityError::Record { node, source }),
    }
}

/// Ties each record to its Node, so that deleting the Node frees the name.
pub fn tie_to_nodes(identities: Identities, clock: Clock, informers: &Informers, group: &Group) {
    let nodes = informers.get::<Node>();
    group.spawn("node-identities", async move {
        let mut changes = nodes.changes();
        nodes.synced().await;
        let (mut tied, mut looked) = (BTreeMap::new(), Instant::now());
        loop {
            let now: BTreeMap<String, String> =
                nodes.list().iter().map(|node| (node.name_any(), node.uid().unwrap_or_default())).collect();
            // Most changes of Nodes are of their status; a record may come after its Node.
            if tied != now || looked.elapsed() > LOOK {
                match identities.follow(&now, clock.now().as_second()).await {
                    Ok(()) => (tied, looked) = (now, Instant::now()),
                    Err(err) => warn!(err = %Chain(&err), "cannot tie nodes' identities to them"),
                }
            }
            changes.next().await;
            changes.drain();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::rng::Rng;
    use serde_json::json;
    use store::bounds::Bounds;

    fn claim(key: &str, machine: &str) -> Claim {
        Claim {
            name: "n".to_owned(),
            public_key: key.to_owned(),
            machine_id: machine.to_owned(),
            address: IpAddr::from([192, 0, 2, 1]),
        }
    }

    /// An API that answers every question with these Secrets.
    fn api(secrets: serde_json::Value) -> kube::Client {
        let list = json!({ "kind": "SecretList", "apiVersion": "v1", "metadata": {}, "items": secrets }).to_string();
        let answer = move |_: http::Request<kube::client::Body>| {
            let list = list.clone();
            async move { Ok::<_, std::io::Error>(http::Response::new(kube::client::Body::from(list.into_bytes()))) }
        };
        kube::Client::new(tower::service_fn(answer), "default")
    }

    /// A new book beside such an API.
    async fn book(secrets: serde_json::Value, group: &Group) -> (Identities, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let bootstrap = store::member::Bootstrap::First;
        let config = store::Config {
            dir: dir.path().join("db"),
            bootstrap,
            network: None,
            rng: Rng::from_seed(7),
            bounds: Bounds::SHIPPED,
        };
        let storage: Arc<dyn Storage> = store::store::Store::open(config, group).await.unwrap();
        (Identities::new(storage, api(secrets)), dir)
    }

    #[tokio::test]
    async fn a_name_belongs_to_the_key_that_came_first_until_its_node_goes() {
        let (group, _fatal) = Group::root("test");
        let (book, _dir) = book(json!([]), &group).await;
        assert_eq!(book.status(&claim("k1", "")).await.unwrap(), NameStatus::Free);
        book.record(&claim("k1", "m1")).await.unwrap();
        assert_eq!(book.status(&claim("k1", "m2")).await.unwrap(), NameStatus::Own);
        assert_eq!(book.status(&claim("k2", "m1")).await.unwrap(), NameStatus::Taken { same_machine: true });
        assert_eq!(book.status(&claim("k2", "")).await.unwrap(), NameStatus::Taken { same_machine: false });
        let nodes = |uid: &str| BTreeMap::from([("n".to_owned(), uid.to_owned())]);
        book.follow(&BTreeMap::new(), 1).await.unwrap();
        assert_eq!(book.status(&claim("k1", "")).await.unwrap(), NameStatus::Own, "it has not registered yet");
        book.follow(&nodes("u1"), 1).await.unwrap();
        book.follow(&nodes("u2"), 1).await.unwrap();
        assert_eq!(book.status(&claim("k1", "")).await.unwrap(), NameStatus::Own, "its kubelet made the Node anew");
        book.follow(&BTreeMap::new(), 1).await.unwrap();
        assert_eq!(book.status(&claim("k2", "")).await.unwrap(), NameStatus::Free);
        group.shutdown().await;
    }

    // Whoever holds a token joins under one name after another.
    #[tokio::test]
    async fn names_without_a_node_are_bounded() {
        let (group, _fatal) = Group::root("test");
        let (book, _dir) = book(json!([]), &group).await;
        let named = |name: &str| Claim { name: name.to_owned(), ..claim("k1", "m1") };
        book.record(&named("first")).await.unwrap();
        book.record_among(&named("first"), 1).await.unwrap();
        assert!(matches!(book.record_among(&named("second"), 1).await, Err(Refusal::NotReady { .. })));
        book.follow(&BTreeMap::new(), 100).await.unwrap();
        for part in (0..WAITING_MAX + 4).collect::<Vec<_>>().chunks(OPS_MAX) {
            let record = Record { waiting_since: 200, ..Record::of(&claim("k2", "")) };
            book.write(Vec::new(), part.iter().map(|n| put(&format!("a{n:04}"), &record)).collect()).await.unwrap();
        }
        let n = u64::try_from(WAITING_MAX).unwrap();
        book.follow(&BTreeMap::new(), 100 + WAITING_SECS_MIN - 1).await.unwrap();
        assert_eq!(book.n_names().await.unwrap(), n + 5, "they are young");
        book.follow(&BTreeMap::new(), 100 + WAITING_SECS_MIN).await.unwrap();
        assert_eq!(book.n_names().await.unwrap(), n + 4);
        assert_eq!(book.status(&named("first")).await.unwrap(), NameStatus::Free, "it has waited longest");
        let one = BTreeMap::from([("a0000".to_owned(), "u".to_owned())]);
        book.follow(&one, 200 + WAITING_SECS_MIN).await.unwrap();
        book.follow(&one, 200 + WAITING_SECS_MIN).await.unwrap();
        assert_eq!(book.n_names().await.unwrap(), n + 1, "as many may wait, and one has its Node");
        group.shutdown().await;
    }

    #[tokio::test]
    async fn records_of_an_earlier_kedge_count_and_a_secret_that_comes_later_does_not() {
        let (group, _fatal) = Group::root("test");
        let secret = |node: &str, key: &str| {
            json!({
                "metadata": { "name": format!("{node}.node-identity.kedge"), "namespace": "kube-system" }, "type": TYPE,
                "data": { "public-key": base64::Engine::encode(&base64::engine::general_purpose::STANDARD, key) },
            })
        };
        let (first, _dir) = book(json!([secret("n", "k1")]), &group).await;
        assert_eq!(first.status(&claim("k1", "")).await.unwrap(), NameStatus::Own);
        // The same store at the next start, with a Secret that somebody wrote meanwhile.
        let later = Identities::new(Arc::clone(&first.storage), api(json!([secret("n", "k2")])));
        assert_eq!(later.status(&claim("k2", "")).await.unwrap(), NameStatus::Taken { same_machine: false });
        assert_eq!(later.status(&claim("k1", "")).await.unwrap(), NameStatus::Own);
        group.shutdown().await;
    }
}
