//! Clients on three members while leaders are cut off: what they saw must be one order of events.

use std::sync::Arc;
use std::time::Duration;

use base::rng::Rng;
use base::sync::Mutex;
use base::task::Group;
use base::time::Stopwatch;
use bytes::Bytes;

use crate::member::Bootstrap;
use crate::net::{Net, hashes, peer, until_all_vote, until_or};
use crate::storage::Storage as _;
use crate::store::Store;
use crate::txn::{Op, RangeRequest, Txn};

const CLIENTS: u64 = 4;
const CUTS: usize = 3;
/// Operations that must end while a leader is cut off.
const WORK_EACH: usize = 20;

/// One operation on the one key, with when it began and ended. `revision`: of the write, or of what was read.
#[derive(Clone, Debug)]
struct Done {
    begun: Duration,
    ended: Duration,
    write: bool,
    value: String,
    revision: u64,
}

/// A history of one register whose writes carry revisions is linearizable if the revisions are a legal order: every
/// read shows the write of its revision, and nobody who began after another had ended saw less than that one.
fn check(history: &[Done]) -> Result<(), String> {
    for write in history.iter().filter(|done| done.write) {
        for other in history.iter().filter(|other| other.revision == write.revision) {
            if other.value != write.value {
                return Err(format!("two values at one revision: {write:?} {other:?}"));
            }
        }
    }
    for before in history {
        for after in history.iter().filter(|after| after.begun > before.ended) {
            if after.revision < before.revision || (after.write && after.revision == before.revision) {
                return Err(format!("goes back in time: {before:?} then {after:?}"));
            }
        }
    }
    Ok(())
}

async fn client(
    store: Arc<Store>,
    id: u64,
    clock: Stopwatch,
    stop: tokio_util::sync::CancellationToken,
    history: Arc<Mutex<Vec<Done>>>,
) {
    let (rng, mut n) = (Rng::from_seed(id), 0);
    while !stop.is_cancelled() {
        let begun = clock.elapsed();
        n += 1;
        let done = if rng.below(2) == 0 {
            let value = format!("{id}-{n}");
            let op = Op::Put { key: "/register".into(), value: Bytes::from(value.clone()), lease: 0, prev_kv: false };
            let reply = store.txn(Txn { success: vec![op], ..Txn::default() }).await;
            reply.ok().map(|reply| (true, value, reply.revision.0))
        } else {
            let reply = store.range(RangeRequest { key: "/register".into(), ..RangeRequest::default() }).await;
            let seen = reply.ok().and_then(|reply| reply.kvs.into_iter().next());
            seen.map(|kv| (false, String::from_utf8_lossy(&kv.value).into_owned(), kv.mod_revision.0))
        };
        // Without an answer nobody knows whether it happened: then nothing is claimed of it.
        if let Some((write, value, revision)) = done {
            let done = Done { begun, ended: clock.elapsed(), write, value, revision };
            history.lock().push(done);
        }
    }
}

/// Each member's view, for the reader of a failure.
fn how_it_stands(stores: &[(Arc<Store>, Group)]) -> String {
    let lines = stores.iter().map(|(store, _)| {
        let node = store.node();
        let data = node.raft.data_metrics();
        let data = data.borrow();
        let (log, applied, silence) = (data.last_log, data.last_applied, node.last_contact.silence());
        let vote = node.raft.server_metrics().borrow().vote;
        format!(
            "member {}: {:?}, vote {vote}, log {log:?}, applied {applied:?}, no leader for {silence:?}",
            node.id,
            node.leadership()
        )
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn histories_are_linearizable_while_leaders_are_cut_off() {
    let (net, dir) = (Net::default(), tempfile::tempdir().unwrap());
    let mut stores: Vec<(Arc<Store>, Group)> = vec![net.open(dir.path(), "m0", Bootstrap::First).await];
    for name in ["m1", "m2"] {
        let joining = net.open(dir.path(), name, Bootstrap::Joining).await;
        stores[0].0.add_learner(joining.0.member_id(), peer(name)).await.unwrap();
        stores.push(joining);
    }
    until_all_vote(&stores).await;
    let (clock, history) = (Stopwatch::start(), Arc::<Mutex<Vec<Done>>>::default());
    let (clients, _reports) = Group::root("clients");
    let stop = tokio_util::sync::CancellationToken::new();
    let (alive, mut all_ended) = tokio::sync::mpsc::channel::<()>(1);
    for id in 0..CLIENTS {
        let store = stores[usize::try_from(id % 3).unwrap()].0.clone();
        let (work, alive) = (client(store, id, clock, stop.clone(), history.clone()), alive.clone());
        clients.spawn_short("client", async move {
            work.await;
            drop(alive);
        });
    }
    drop(alive);
    for _ in 0..CUTS {
        let mut leader = None;
        let leads = async || {
            leader = stores.iter().position(|(store, _)| store.leadership().borrow().is_me);
            leader.is_some()
        };
        until_or("a leader", leads, || how_it_stands(&stores)).await;
        let name = format!("m{}", leader.unwrap());
        let n_before = history.lock().len();
        net.cut(&name);
        let others: Vec<_> = stores
            .iter()
            .enumerate()
            .filter(|(idx, _)| Some(*idx) != leader)
            .map(|(_, (store, _))| store.clone())
            .collect();
        let another = async || others.iter().any(|store| store.leadership().borrow().is_me);
        until_or("another leads", another, || how_it_stands(&stores)).await;
        let goes_on = async || history.lock().len() > n_before + WORK_EACH;
        until_or("work goes on", goes_on, || how_it_stands(&stores)).await;
        net.heal(&name);
    }
    stop.cancel();
    let _all = all_ended.recv().await;
    let history = history.lock().clone();
    assert!(history.len() > CUTS * WORK_EACH, "only {} operations", history.len());
    check(&history).unwrap();
    let same = async || {
        let hashes = hashes(&stores).await;
        hashes.iter().all(|hash| *hash == hashes[0])
    };
    until_or("all have the same", same, || how_it_stands(&stores)).await;
    for (_, group) in stores {
        group.shutdown().await;
    }
}

#[test]
fn the_checker_finds_a_stale_read_and_a_lost_write() {
    let secs = Duration::from_secs;
    let done = |begun, ended, write, value: &str, revision| Done {
        begun: secs(begun),
        ended: secs(ended),
        write,
        value: value.to_owned(),
        revision,
    };
    let (one, two) = (done(0, 1, true, "a", 2), done(2, 3, true, "b", 3));
    assert!(check(&[one.clone(), two.clone(), done(2, 4, false, "a", 2)]).is_ok());
    assert!(check(&[one.clone(), two.clone(), done(4, 5, false, "a", 2)]).is_err());
    assert!(check(&[one, two, done(4, 5, true, "c", 3)]).is_err());
}
