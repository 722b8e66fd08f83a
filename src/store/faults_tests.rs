//! Three members, of whose disks one fails at a time, and a member whose disk is full.

use std::sync::Arc;

use base::fuzz::setting;
use base::rng::Rng;
use base::task::Group;

use crate::bounds::Bounds;
use crate::disk::SystemDisk;
use crate::error::Error;
use crate::faults::{Fault, FaultyDisk};
use crate::member::Bootstrap;
use crate::net::{Net, hashes, peer, until, until_all_vote};
use crate::storage::Storage as _;
use crate::store::Store;
use crate::txn::{Op, RangeRequest, Txn};

/// Disks that fail in one run, one after the other.
const ROUNDS: u64 = 6;
/// Writes while one of them may fail.
const WRITES: u64 = 40;

fn put(key: String, n_bytes: usize) -> Txn {
    Txn {
        success: vec![Op::Put { key: key.into(), value: vec![7; n_bytes].into(), lease: 0, prev_kv: false }],
        ..Txn::default()
    }
}

type Members = Vec<(Arc<Store>, Group)>;

async fn three(net: &Net, dir: &std::path::Path) -> Members {
    let mut stores = vec![net.open(dir, "m0", Bootstrap::First).await];
    for name in ["m1", "m2"] {
        let joining = net.open(dir, name, Bootstrap::Joining).await;
        stores[0].0.add_learner(joining.0.member_id(), peer(name)).await.unwrap();
        stores.push(joining);
    }
    until_all_vote(&stores).await;
    stores
}

async fn until_same(stores: &Members) {
    until("all have the same", async || {
        let hashes = hashes(stores).await;
        hashes.iter().all(|hash| *hash == hashes[0])
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_members_bear_one_disk_that_fails_and_lose_no_acknowledged_write() {
    let seed = setting("KEDGE_SEED").unwrap_or_else(|| Rng::from_os().below(u64::MAX / 2));
    println!("seed {seed}");
    let (rng, net, dir) = (Rng::from_seed(seed), Net::default(), tempfile::tempdir().unwrap());
    let mut stores = three(&net, dir.path()).await;
    let (mut acknowledged, mut n_hit) = (Vec::new(), 0);
    for round in 0..ROUNDS {
        let idx = usize::try_from(rng.below(3)).unwrap();
        let (name, fault) = (
            format!("m{idx}"),
            [Fault::PowerCut, Fault::SyncFails, Fault::WriteFails, Fault::ReadFails, Fault::Full(3)]
                [usize::try_from(rng.below(5)).unwrap()],
        );
        println!("round {round}: {name}, {fault:?}");
        net.unplug(&name);
        stores[idx].1.shutdown().await;
        let home = dir.path().join(&name);
        let disk = FaultyDisk::new(&home, rng.below(u64::MAX), fault, rng.below(60));
        // It may fail while it opens, too.
        let opened = net.open_on(disk.clone(), dir.path(), &name, Bootstrap::Joining).await;
        for n in 0..WRITES {
            let through = &stores[(idx + 1 + usize::try_from(rng.below(2)).unwrap()) % 3].0;
            let key = format!("/w/{round}/{n}");
            match through.txn(put(key.clone(), usize::try_from(rng.below(2000)).unwrap())).await {
                Ok(_) => acknowledged.push(key),
                Err(err) => panic!("seed {seed}: two members of three take no write: {err}"),
            }
        }
        net.unplug(&name);
        disk.cut();
        if let Ok((_, group)) = opened {
            group.shutdown().await;
        }
        n_hit += u64::from(disk.was_hit());
        disk.lose_power(&home);
        stores[idx] = net.open(dir.path(), &name, Bootstrap::Joining).await;
    }
    until_same(&stores).await;
    assert!(n_hit > 0, "seed {seed}: no disk failed");
    let everything = RangeRequest { range_end: bytes::Bytes::from_static(&[0]), ..RangeRequest::default() };
    let first = stores[0].0.range(everything.clone()).await.unwrap().kvs;
    for (store, _) in &stores {
        assert!(
            store.range(everything.clone()).await.unwrap().kvs == first,
            "seed {seed}: two members hold different values"
        );
        for key in &acknowledged {
            let found = store
                .range(RangeRequest { key: key.clone().into(), keys_only: true, ..RangeRequest::default() })
                .await
                .unwrap();
            assert_eq!(found.count, 1, "seed {seed}: {key} is lost");
        }
    }
    for (_, group) in stores {
        group.shutdown().await;
    }
}

/// security.md L10.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_is_full_lets_the_others_go_on_and_catches_up_when_it_has_room() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let mut stores = three(&net, dir.path()).await;
    net.unplug("m0");
    stores[0].1.shutdown().await;
    let disk = FaultyDisk::new(&dir.path().join("m0"), 1, Fault::None, 0);
    stores[0] = net.open_on(disk.clone(), dir.path(), "m0", Bootstrap::Joining).await.unwrap();
    let full = stores[0].0.clone();
    until("it leads", async || {
        let leader = stores.iter().find(|(store, _)| store.leadership().borrow().is_me);
        if let Some((leader, _)) = leader.filter(|(leader, _)| leader.member_id() != full.member_id()) {
            let _late = leader.node().hand_over_to(full.member_id()).await;
        }
        full.leadership().borrow().is_me
    })
    .await;
    disk.fill(true);
    for n in 0..20 {
        stores[1 + n % 2].0.txn(put(format!("/during/{n}"), 900)).await.unwrap();
    }
    assert!(!full.leadership().borrow().is_me);
    assert!(full.space().is_low(), "the alarm is raised");
    disk.fill(false);
    until_same(&stores).await;
    until("the alarm is over", async || !full.space().is_low()).await;
    full.txn(put("/after".to_owned(), 10)).await.unwrap();
    for (_, group) in stores {
        group.shutdown().await;
    }
}

/// security.md S2: what was refused must not stand between the log and the database.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_full_disk_refused_leaves_no_gap_in_the_log_whatever_happens_then() {
    for seed in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let config = || crate::config::Config {
            dir: dir.path().join("db"),
            bootstrap: Bootstrap::First,
            network: None,
            rng: Rng::from_seed(seed),
            bounds: Bounds::TESTS,
        };
        let disk = FaultyDisk::new(&config().dir, seed, Fault::None, 0);
        let (group, _reports) = Group::root("full");
        let store = Store::open_on(disk.clone(), config(), &group).await.unwrap();
        for n in 0..6 {
            store.txn(put(format!("/before/{n}"), 900)).await.unwrap();
        }
        disk.fill(true);
        let mut n_refused = 0;
        for n in 0..3 {
            n_refused +=
                u64::from(matches!(store.txn(put(format!("/refused/{n}"), 900)).await, Err(Error::NoSpace { .. })));
        }
        assert!(n_refused > 0);
        disk.fill(false);
        store.look_for_space().await.unwrap();
        store.txn(put("/after".to_owned(), 900)).await.unwrap();
        disk.cut();
        group.shutdown().await;
        disk.lose_power(&config().dir);
        let (group, _reports) = Group::root("full");
        let store = Store::open_on(Arc::new(SystemDisk), config(), &group)
            .await
            .unwrap_or_else(|err| panic!("seed {seed}: {err}"));
        for key in ["/before/0", "/before/5", "/after"] {
            assert_eq!(
                store.range(RangeRequest { key: key.into(), ..RangeRequest::default() }).await.unwrap().count,
                1,
                "seed {seed}: {key}"
            );
        }
        assert_eq!(
            store.range(RangeRequest { key: "/refused/0".into(), ..RangeRequest::default() }).await.unwrap().count,
            0
        );
        group.shutdown().await;
    }
}
