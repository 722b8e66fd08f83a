//! Several stores as one: growing, shrinking, leaders that go, members that come back.

use std::sync::Arc;

use base::task::Group;
use bytes::Bytes;

use crate::kv::Revision;
use crate::member::Bootstrap;
use crate::net::{Net, hashes, peer, until, until_all_vote};
use crate::storage::{Storage as _, WatchRequest};
use crate::store::Store;
use crate::txn::{Op, RangeRequest, Txn};

fn put(key: &str, value: &str) -> Txn {
    let (key, value) = (Bytes::copy_from_slice(key.as_bytes()), Bytes::copy_from_slice(value.as_bytes()));
    Txn { success: vec![Op::Put { key, value, lease: 0, prev_kv: false }], ..Txn::default() }
}

fn get(key: &str) -> RangeRequest {
    RangeRequest { key: Bytes::copy_from_slice(key.as_bytes()), ..RangeRequest::default() }
}

async fn read(store: &Store, key: &str) -> String {
    let reply = store.range(get(key)).await.unwrap();
    reply.kvs.first().map(|kv| String::from_utf8_lossy(&kv.value).into_owned()).unwrap_or_default()
}

async fn voters(store: &Store) -> usize {
    store.members().await.unwrap().iter().filter(|m| m.voter).count()
}

struct Cluster {
    net: Net,
    dir: tempfile::TempDir,
    stores: Vec<(Arc<Store>, Group)>,
}

impl Cluster {
    async fn of(n: usize) -> Cluster {
        let mut cluster = Cluster { net: Net::default(), dir: tempfile::tempdir().unwrap(), stores: Vec::new() };
        cluster.stores.push(cluster.net.open(cluster.dir.path(), "m0", Bootstrap::First).await);
        cluster.stores[0].0.txn(put("before", "growth")).await.unwrap();
        while cluster.stores.len() < n {
            cluster.grow().await;
        }
        cluster
    }

    async fn grow(&mut self) {
        let name = format!("m{}", self.stores.len());
        let joining = self.net.open(self.dir.path(), &name, Bootstrap::Joining).await;
        self.stores[0].0.add_learner(joining.0.member_id(), peer(&name)).await.unwrap();
        joining.0.ready().await.unwrap();
        self.stores.push(joining);
        until_all_vote(&self.stores).await;
    }

    async fn leader(&self) -> usize {
        let mut leader = 0;
        until("a leader", async || {
            let leads = |(store, _): &(Arc<Store>, Group)| store.leadership().borrow().is_me;
            self.stores.iter().position(leads).inspect(|idx| leader = *idx).is_some()
        })
        .await;
        leader
    }

    async fn end(self) {
        for (_, group) in self.stores {
            group.shutdown().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_grows_to_three_and_shrinks_to_one_without_losing_a_write() {
    let mut cluster = Cluster::of(1).await;
    let first = cluster.stores[0].0.clone();
    for i in 0..50 {
        first.txn(put(&format!("/early/{i}"), "x")).await.unwrap();
    }
    let mut watch = first
        .watch(WatchRequest { start: Revision(2), key: "/".into(), range_end: "0".into(), prev_kv: false })
        .await
        .unwrap();
    cluster.grow().await;
    cluster.grow().await;
    for (n, (store, _)) in cluster.stores.iter().enumerate() {
        store.txn(put(&format!("/from/{n}"), "here")).await.unwrap();
        assert_eq!(store.cluster_id(), first.cluster_id());
    }
    for (store, _) in &cluster.stores {
        for n in 0..3 {
            assert_eq!(read(store, &format!("/from/{n}")).await, "here");
        }
        assert_eq!(read(store, "/early/49").await, "x");
    }
    let hashes = hashes(&cluster.stores).await;
    assert_eq!(hashes[0], hashes[1]);
    assert_eq!(hashes[0], hashes[2]);
    while cluster.stores.len() > 1 {
        let (store, group) = cluster.stores.pop().unwrap();
        first.remove(store.member_id()).await.unwrap();
        group.shutdown().await;
    }
    first.txn(put("/alone", "again")).await.unwrap();
    assert_eq!(voters(&first).await, 1);
    let mut seen = 0;
    while seen < 54 {
        seen += watch.next().await.unwrap().events.len();
    }
    let id = first.cluster_id();
    drop(first);
    let (_, group) = cluster.stores.pop().unwrap();
    group.shutdown().await;
    let (again, group) = cluster.net.open(cluster.dir.path(), "m0", Bootstrap::First).await;
    assert_eq!((read(&again, "/alone").await.as_str(), again.cluster_id()), ("again", id));
    cluster.grow_from(again, group).await;
}

impl Cluster {
    /// A store that was alone for a while takes in members again.
    async fn grow_from(mut self, again: Arc<Store>, group: Group) {
        for i in 0..20 {
            again.txn(put("/while/alone", &i.to_string())).await.unwrap();
        }
        self.stores.push((again, group));
        std::fs::remove_dir_all(self.dir.path().join("m1")).unwrap();
        self.grow().await;
        assert_eq!(read(&self.stores[1].0, "/while/alone").await, "19");
        self.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_closes_hands_over_and_catches_up_when_it_is_back() {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let (old, group) = cluster.stores.remove(leader);
    let name = format!("m{leader}");
    group.shutdown().await;
    cluster.net.unplug(&name);
    drop(old);
    cluster.stores[0].0.txn(put("/after", "handing over")).await.unwrap();
    for i in 0..300 {
        cluster.stores[i % 2].0.txn(put("/more", &i.to_string())).await.unwrap();
    }
    let (back, group) = cluster.net.open(cluster.dir.path(), &name, Bootstrap::Joining).await;
    assert_eq!(read(&back, "/more").await, "299");
    cluster.stores.push((back, group));
    let hashes = hashes(&cluster.stores).await;
    assert!(hashes.iter().all(|hash| *hash == hashes[0]), "{hashes:?}");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_asked_to_hands_over() {
    let cluster = Cluster::of(3).await;
    let old = cluster.stores[cluster.leader().await].0.clone();
    // On a slow machine the candidate may be late: then the old one goes on, and is asked again.
    until("another leads", async || {
        let _late = old.transfer_leadership().await;
        old.node().leader().0.is_some_and(|leader| leader != old.member_id())
    })
    .await;
    old.txn(put("/through", "the old leader")).await.unwrap();
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_was_cut_off_does_not_raise_its_term() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let (leads, away) = (cluster.stores[leader].0.clone(), (leader + 1) % 3);
    let cut_off = cluster.stores[away].0.clone();
    cluster.net.cut(&format!("m{away}"));
    let term = cut_off.node().leader().1;
    // It misses its leader, and may not be elected.
    until("it would stand", async || cut_off.node().last_contact.silence() > crate::raft::last_contact::LEASE * 2)
        .await;
    leads.txn(put("/during", "the cut")).await.unwrap();
    assert_eq!(cut_off.node().leader().1, term, "it raised its term while nobody could vote for it");
    cluster.net.heal(&format!("m{away}"));
    assert_eq!(read(&cut_off, "/during").await, "the cut");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_was_removed_while_it_was_cut_off_is_told_so() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    let away = (leader + 1) % 3;
    let (leads, cut_off) = (cluster.stores[leader].0.clone(), cluster.stores[away].0.clone());
    cluster.net.cut(&format!("m{away}"));
    leads.remove(cut_off.member_id()).await.unwrap();
    cluster.net.heal(&format!("m{away}"));
    tokio::time::timeout(std::time::Duration::from_secs(120), cut_off.removed())
        .await
        .expect("it goes on as if nothing had happened");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_is_cut_off_stops_leading_and_its_callers_writes_go_through_once_it_is_back() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    cluster.net.cut(&format!("m{leader}"));
    let cut_off = cluster.stores[leader].0.clone();
    let other = cluster.stores[(leader + 1) % 3].0.clone();
    let (writing, late) = (cut_off.clone(), cluster.stores[0].1.child("late"));
    let (tx, rx) = tokio::sync::oneshot::channel();
    late.spawn_short("write", async move {
        let _sent = tx.send(writing.txn(put("/late", "once")).await);
    });
    other.txn(put("/during", "the cut")).await.unwrap();
    assert!(!cut_off.node().leadership().is_me, "it still takes itself for the leader");
    cluster.net.heal(&format!("m{leader}"));
    let late = rx.await.unwrap().unwrap();
    assert_eq!(read(&other, "/late").await, "once");
    let kv = &other.range(get("/late")).await.unwrap().kvs[0];
    assert_eq!((kv.version, kv.mod_revision), (1, late.revision));
    assert_eq!(read(&cut_off, "/during").await, "the cut");
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_are_kept_alive_through_any_member_and_end_on_all() {
    let cluster = Cluster::of(3).await;
    let follower = &cluster.stores[(cluster.leader().await + 1) % 3].0;
    let mut id = 6;
    until("a lease is kept alive for longer than its life", async || {
        id += 1;
        follower.lessor().grant(id, 2).await.unwrap();
        let op = Op::Put { key: "/leased".into(), value: "v".into(), lease: id, prev_kv: false };
        follower.txn(Txn { success: vec![op], ..Txn::default() }).await.unwrap();
        for _ in 0..4 {
            tokio::time::sleep(std::time::Duration::from_millis(800)).await;
            match follower.lessor().keep_alive(id).await {
                Ok(secs) => assert_eq!(secs, 2),
                // This machine was asleep for longer than a lease lives.
                Err(_) => return false,
            }
        }
        true
    })
    .await;
    let id = id;
    until("the lease ends", async || read(follower, "/leased").await.is_empty()).await;
    assert!(follower.lessor().keep_alive(id).await.is_err());
    cluster.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_gets_another_address_is_found_there_whether_it_leads_or_not() {
    let cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    for (n, idx) in [leader, (leader + 1) % 3].into_iter().enumerate() {
        let (from, to) = (format!("m{idx}"), format!("moved{idx}"));
        cluster.net.rename(&from, &to);
        let store = &cluster.stores[idx].0;
        store.moved(&to);
        // A write that met the change of addresses may have to be made again.
        let key = format!("moved{n}");
        until("a write through it", async || store.txn(put(&key, "x")).await.is_ok()).await;
        let told = async || {
            let Ok(members) = cluster.stores[(idx + 1) % 3].0.members().await else { return false };
            members.iter().any(|member| member.id == store.member_id() && member.address == to)
        };
        until("the others to know its address", told).await;
    }
    cluster.end().await;
}
