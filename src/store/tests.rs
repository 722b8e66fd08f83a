//! The store against a model, over restarts, crashes and compaction.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base::rng::Rng;
use base::task::Group;
use bytes::Bytes;

use crate::bounds::Bounds;
use crate::config::Config;
use crate::error::Error;
use crate::kv::{EventBatch, EventKind, KeyValue, Revision};
use crate::storage::{Storage as _, WatchRequest};
use crate::store::Store;
use crate::txn::{Compare, CompareOp, Op, OpReply, RangeRequest, Txn, TxnReply, prefix_end};

async fn open(dir: &Path) -> (Arc<Store>, Group) {
    let (group, _reports) = Group::root("test");
    (Store::open(config(dir), &group).await.unwrap(), group)
}

/// A store of its own below `dir`.
fn config(dir: &Path) -> Config {
    Config {
        dir: dir.to_owned(),
        bootstrap: crate::member::Bootstrap::First,
        network: None,
        rng: Rng::from_seed(1),
        bounds: Bounds::TESTS,
    }
}

fn put(key: &str, value: &str) -> Txn {
    Txn { success: vec![op_put(key, value)], ..Txn::default() }
}

fn op_put(key: &str, value: &str) -> Op {
    Op::Put {
        key: Bytes::copy_from_slice(key.as_bytes()),
        value: Bytes::copy_from_slice(value.as_bytes()),
        lease: 0,
        prev_kv: false,
    }
}

fn op_delete(key: &str, end: &str) -> Op {
    let bytes = |s: &str| Bytes::copy_from_slice(s.as_bytes());
    Op::Delete { key: bytes(key), range_end: bytes(end), prev_kv: true }
}

fn all_at(revision: Option<u64>) -> RangeRequest {
    RangeRequest {
        key: Bytes::new(),
        range_end: Bytes::from_static(&[0]),
        revision: revision.map(Revision),
        ..RangeRequest::default()
    }
}

fn watch_all(start: u64) -> WatchRequest {
    WatchRequest { key: Bytes::new(), range_end: Bytes::from_static(&[0]), start: Revision(start), prev_kv: false }
}

type State = BTreeMap<Bytes, KeyValue>;

/// The model: the whole state at every revision.
#[derive(Default)]
struct Model {
    at: BTreeMap<u64, State>,
    revision: u64,
}

impl Model {
    fn apply(&mut self, txn: &Txn) -> bool {
        let mut state = self.at.get(&self.revision).cloned().unwrap_or_default();
        let holds = txn.compare.iter().all(|c| match c {
            Compare::ModRevision { key, revision, .. } => {
                state.get(key).map_or(0, |kv| kv.mod_revision.0) == revision.0
            }
            _ => unreachable!("the test makes no other"),
        });
        let next = Revision(self.revision + 1);
        let mut changed = false;
        for op in if holds { &txn.success } else { &txn.failure } {
            match op {
                Op::Put { key, value, .. } => {
                    let kv = state
                        .entry(key.clone())
                        .or_insert_with(|| KeyValue { create_revision: next, ..KeyValue::default() });
                    (kv.key, kv.value, kv.mod_revision, kv.version) =
                        (key.clone(), value.clone(), next, kv.version + 1);
                    changed = true;
                }
                Op::Delete { key, range_end, .. } => {
                    let before = state.len();
                    state.retain(|k, _| !crate::mvcc::index::covers(key, range_end, k));
                    changed |= state.len() < before;
                }
                _ => unreachable!("the test makes no other"),
            }
        }
        if changed {
            self.revision += 1;
            self.at.insert(self.revision, state);
        }
        holds
    }
}

fn random_txn(rng: &Rng, model: &Model) -> Txn {
    let key = |n: u64| format!("/k/{n}");
    let n = rng.below(12);
    match rng.below(6) {
        0 => Txn { success: vec![op_delete(&key(n), "")], ..Txn::default() },
        1 => Txn { success: vec![op_delete("/k/3", "/k/7")], ..Txn::default() },
        2 => Txn { success: vec![op_put(&key(n), "two"), op_put(&key(n + 20), "at once")], ..Txn::default() },
        3 => {
            let bytes = Bytes::from(key(n));
            let now = model.at.get(&model.revision).and_then(|s| s.get(&bytes)).map_or(0, |kv| kv.mod_revision.0);
            let revision = Revision(now.saturating_sub(rng.below(2)));
            let compare = vec![Compare::ModRevision { key: bytes, op: CompareOp::Equal, revision }];
            Txn { compare, success: vec![op_put(&key(n), "swapped")], failure: vec![op_put("/k/failed", "x")] }
        }
        _ => put(&key(n), &rng.hex(usize::try_from(rng.below(300)).unwrap())),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_revision_reads_as_the_model_says_also_after_a_restart() {
    let seed = Rng::from_os().below(u64::MAX);
    println!("seed {seed}");
    let rng = Rng::from_seed(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut model = Model { revision: 1, ..Model::default() };
    for _ in 0..3 {
        let (store, group) = open(dir.path()).await;
        assert_eq!(store.current_revision().0, model.revision);
        for _ in 0..150 {
            let txn = random_txn(&rng, &model);
            let holds = model.apply(&txn);
            let reply = store.txn(txn).await.unwrap();
            assert_eq!((reply.succeeded, reply.revision.0), (holds, model.revision));
        }
        for revision in 2..=model.revision {
            let reply = store.range(all_at(Some(revision))).await.unwrap();
            let want: Vec<_> = model.at[&revision].values().cloned().collect();
            assert_eq!(reply.kvs, want, "at {revision}");
        }
        group.shutdown().await;
    }
}

async fn collect(stream: &mut crate::watch::WatchStream, until: u64) -> Vec<EventBatch> {
    let mut got = Vec::new();
    while got.last().is_none_or(|b: &EventBatch| b.revision.0 < until) {
        got.push(stream.next().await.unwrap());
    }
    got
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_from_the_past_sees_every_revision_once_while_writes_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let (store, group) = open(dir.path()).await;
    for i in 0..1500 {
        store.txn(put(&format!("/a/{}", i % 7), "x")).await.unwrap();
    }
    let (writer, more) = (store.clone(), group.child("writer"));
    more.spawn_short("writer", async move {
        for i in 0..500 {
            writer.txn(put(&format!("/a/{}", i % 7), "y")).await.unwrap();
        }
    });
    let mut stream = store.watch(watch_all(2)).await.unwrap();
    let revisions: Vec<u64> = collect(&mut stream, 2001).await.iter().map(|b| b.revision.0).collect();
    assert_eq!(revisions, (2..=2001).collect::<Vec<_>>());
    group.shutdown().await;
}

#[tokio::test]
async fn a_watch_tells_deletes_and_what_was_before() {
    let dir = tempfile::tempdir().unwrap();
    let (store, group) = open(dir.path()).await;
    let mut live = store.watch(WatchRequest { prev_kv: true, ..watch_all(0) }).await.unwrap();
    store.txn(put("a", "1")).await.unwrap();
    store.txn(Txn { success: vec![op_delete("a", "")], ..Txn::default() }).await.unwrap();
    let mut past = store.watch(WatchRequest { prev_kv: true, ..watch_all(2) }).await.unwrap();
    let (live, past) = (collect(&mut live, 3).await, collect(&mut past, 3).await);
    assert_eq!(live, past);
    assert_eq!(live[1].events[0].kind, EventKind::Delete);
    assert_eq!(live[1].events[0].prev.as_ref().unwrap().value, "1");
    assert_eq!(live[1].events[0].kv, KeyValue { key: "a".into(), mod_revision: Revision(3), ..KeyValue::default() });
    group.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compaction_keeps_what_can_be_read_at_the_floor_and_refuses_what_is_older() {
    let dir = tempfile::tempdir().unwrap();
    let (store, group) = open(dir.path()).await;
    store.txn(put("kept", "1")).await.unwrap();
    for i in 0..50 {
        store.txn(put("changed", &i.to_string())).await.unwrap();
    }
    store.txn(Txn { success: vec![op_delete("changed", "")], ..Txn::default() }).await.unwrap();
    store.txn(put("later", "x")).await.unwrap();
    store.compact(Revision(53)).await.unwrap();
    assert!(matches!(store.compact(Revision(53)).await, Err(Error::Compacted { .. })));
    assert!(matches!(store.compact(Revision(99)).await, Err(Error::Future { .. })));
    assert!(matches!(store.range(all_at(Some(52))).await, Err(Error::Compacted { .. })));
    assert!(matches!(store.range(all_at(Some(99))).await, Err(Error::Future { .. })));
    assert!(matches!(store.watch(watch_all(52)).await, Err(Error::Compacted { .. })));
    let keys = |kvs: &[KeyValue]| kvs.iter().map(|kv| kv.key.clone()).collect::<Vec<_>>();
    assert_eq!(keys(&store.range(all_at(Some(53))).await.unwrap().kvs), ["kept"]);
    // The delete at the floor itself can still be watched.
    let mut stream = store.watch(watch_all(53)).await.unwrap();
    assert_eq!(collect(&mut stream, 54).await.len(), 2);
    group.shutdown().await;
    let (store, group) = open(dir.path()).await;
    assert_eq!((store.floor().0, store.current_revision().0), (53, 54));
    assert_eq!(keys(&store.range(all_at(None)).await.unwrap().kvs), ["kept", "later"]);
    group.shutdown().await;
    let rows = rusqlite::Connection::open(dir.path().join("state.db")).unwrap();
    assert_eq!(rows.query_row("SELECT count(*) FROM history", [], |r| r.get::<_, u64>(0)).unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_at_any_moment_holds_every_acknowledged_write() {
    let dir = tempfile::tempdir().unwrap();
    let (store, group) = open(dir.path()).await;
    let clients = group.child("clients");
    for client in 0..8 {
        let store = store.clone();
        clients.spawn_short("client", async move {
            for i in 0..200 {
                store.txn(put(&format!("/{client}/{i}"), "value")).await.unwrap();
            }
        });
    }
    for n in 0..5 {
        let acknowledged = store.txn(put("marker", &n.to_string())).await.unwrap().revision;
        let copy = tempfile::tempdir().unwrap();
        let contents = crate::backup::copy_to(dir.path(), &copy.path().join("state.db"), &Rng::from_os()).unwrap();
        assert!(contents.revision >= acknowledged.0, "lost a write");
        let (crashed, crashed_group) = open(copy.path()).await;
        assert!(crashed.current_revision() >= acknowledged, "lost a write");
        let marker = crashed.range(RangeRequest { key: "marker".into(), ..RangeRequest::default() }).await.unwrap();
        assert_eq!(marker.kvs[0].value, n.to_string());
        let n_keys = crashed.range(RangeRequest { count_only: true, ..all_at(None) }).await.unwrap().count;
        crashed.txn(put("after", "the crash")).await.unwrap();
        assert_eq!(crashed.range(all_at(None)).await.unwrap().count, n_keys + 1);
        crashed_group.shutdown().await;
    }
    group.shutdown().await;
}

/// The files of a store that runs, as a kill leaves them. Nobody writes meanwhile.
fn copy_files(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.join("log")).unwrap();
    // The log first: what it lets go meanwhile the database has.
    for file in std::fs::read_dir(from.join("log")).unwrap() {
        let path = file.unwrap().path();
        std::fs::copy(&path, to.join("log").join(path.file_name().unwrap())).unwrap();
    }
    for name in ["state.db", "state.db-wal"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_behind_the_database_is_read_watched_and_found_after_a_kill() {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (store, group) = open(dir.path()).await;
    store.lessor().grant(9, 600).await.unwrap();
    for i in 0..30 {
        store.txn(put("k", &format!("{i}{}", "x".repeat(700)))).await.unwrap();
    }
    store.txn(put("gone", "soon")).await.unwrap();
    store.txn(Txn { success: vec![op_delete("gone", "")], ..Txn::default() }).await.unwrap();
    store.txn(put("last", "one")).await.unwrap();
    copy_files(dir.path(), copy.path());
    let (killed, killed_group) = open(copy.path()).await;
    for store in [&store, &killed] {
        assert_eq!(store.current_revision().0, 34);
        assert_eq!(store.lessor().all(), [(9, 600)]);
        let reply = store.range(all_at(Some(20))).await.unwrap();
        assert!(reply.kvs.len() == 1 && reply.kvs[0].value.starts_with(b"18x"), "{:?}", reply.kvs[0]);
        let mut past = store.watch(WatchRequest { prev_kv: true, ..watch_all(2) }).await.unwrap();
        let seen = collect(&mut past, 34).await;
        assert_eq!(seen.iter().map(|batch| batch.revision.0).collect::<Vec<_>>(), (2..=34).collect::<Vec<_>>());
        assert!(seen[29].events[0].prev.as_ref().unwrap().value.starts_with(b"28x"));
        assert_eq!(seen[31].events[0].prev.as_ref().unwrap().value, "soon");
    }
    killed_group.shutdown().await;
    group.shutdown().await;
    let alone = tempfile::tempdir().unwrap();
    std::fs::copy(dir.path().join("state.db"), alone.path().join("state.db")).unwrap();
    let rows = rusqlite::Connection::open(alone.path().join("state.db")).unwrap();
    assert_eq!(
        rows.query_row("SELECT count(*) FROM history", [], |r| r.get::<_, u64>(0)).unwrap(),
        33,
        "one file is the state"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_older_than_its_log_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, group) = open(dir.path()).await;
    group.shutdown().await;
    let old = std::fs::read(dir.path().join("state.db")).unwrap();
    let (store, group) = open(dir.path()).await;
    for _ in 0..100 {
        store.txn(put("k", &"x".repeat(1500))).await.unwrap();
    }
    group.shutdown().await;
    std::fs::write(dir.path().join("state.db"), old).unwrap();
    let config = config(dir.path());
    let (group, _reports) = Group::root("test");
    assert!(matches!(Store::open(config, &group).await, Err(Error::Corrupt { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_of_the_schema_before_goes_on_with_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let (store, group) = open(dir.path()).await;
    store.txn(put("early", "1")).await.unwrap();
    group.shutdown().await;
    // As that one left it: the log in the database, two entries not applied yet.
    let path = dir.path().join("state.db");
    let conn = rusqlite::Connection::open(&path).unwrap();
    let applied = crate::mvcc::database::applied(&conn, &path, 1).unwrap().log.unwrap();
    for n in 1..=2 {
        let origin = crate::command::Origin { term: applied.leader_id.term, ..Default::default() };
        let commands = std::sync::Arc::new(vec![crate::command::Command::Txn(put(&format!("late{n}"), "2"))]);
        let id = crate::journal::frame::EntryId { index: applied.index + n, ..applied };
        let payload = crate::mvcc::entry::Payload::Normal(crate::command::Batch { origin, commands });
        let entry = crate::mvcc::entry::Entry { log_id: id, payload };
        let row = crate::codec::encode(&entry).unwrap();
        conn.execute("INSERT INTO raft_log VALUES (?, ?)", rusqlite::params![applied.index + n, row]).unwrap();
    }
    crate::mvcc::database::set_meta(&conn, "purged", &Some(applied)).unwrap();
    conn.execute("DELETE FROM meta WHERE name = 'log_salt'", []).unwrap();
    conn.pragma_update(None, "user_version", 1).unwrap();
    drop(conn);
    for n in 0..2 {
        let (store, group) = open(dir.path()).await;
        assert_eq!(store.range(all_at(None)).await.unwrap().count, 3 + n);
        store.txn(put(&format!("new{n}"), "3")).await.unwrap();
        group.shutdown().await;
    }
    let rows = rusqlite::Connection::open(&path).unwrap();
    assert_eq!(rows.query_row("SELECT count(*) FROM raft_log", [], |r| r.get::<_, u64>(0)).unwrap(), 0);
}

#[tokio::test]
async fn limits_counts_and_inner_transactions_answer_as_etcd_does() {
    let dir = tempfile::tempdir().unwrap();
    let (store, group) = open(dir.path()).await;
    assert_eq!(store.current_revision(), Revision(1));
    for key in ["/p/a", "/p/b", "/p/c", "/q"] {
        store.txn(put(key, key)).await.unwrap();
    }
    let range = RangeRequest { key: "/p/".into(), range_end: prefix_end(b"/p/"), limit: 2, ..RangeRequest::default() };
    let reply = store.range(range.clone()).await.unwrap();
    assert_eq!((reply.kvs.len(), reply.more, reply.count, reply.revision.0), (2, true, 3, 5));
    let inner = Txn {
        compare: vec![Compare::Version { key: "/new".into(), op: CompareOp::Equal, version: 0 }],
        success: vec![Op::Range(RangeRequest { key: "/new".into(), ..RangeRequest::default() })],
        failure: vec![],
    };
    let reply = store
        .txn(Txn { success: vec![op_put("/new", "v"), Op::Txn(Box::new(inner))], ..Txn::default() })
        .await
        .unwrap();
    let OpReply::Txn(inner) = &reply.replies[1] else { panic!("{reply:?}") };
    let OpReply::Range(seen) = &inner.replies[0] else { panic!("{reply:?}") };
    assert!(inner.succeeded && seen.kvs[0].value == "v" && seen.kvs[0].mod_revision.0 == 6);
    let twice = Txn { success: vec![op_put("a", "1"), op_put("a", "2")], ..Txn::default() };
    assert!(matches!(store.txn(twice).await, Err(Error::Invalid { .. })));
    assert!(matches!(store.txn(put("big", &"x".repeat(2 << 20))).await, Err(Error::TooLarge { .. })));
    let nothing = store.txn(Txn { success: vec![op_delete("absent", "")], ..Txn::default() }).await.unwrap();
    assert_eq!(
        nothing,
        TxnReply {
            succeeded: true,
            revision: Revision(6),
            replies: vec![OpReply::Delete { deleted: 0, prev: vec![] }]
        }
    );
    group.shutdown().await;
}

#[tokio::test]
async fn revoking_a_lease_deletes_its_keys_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let (store, group) = open(dir.path()).await;
    store.lessor().grant(7, 60).await.unwrap();
    let leased = |lease| Txn {
        success: vec![Op::Put { key: "l".into(), value: "v".into(), lease, prev_kv: false }],
        ..Txn::default()
    };
    assert!(matches!(store.txn(leased(8)).await, Err(Error::LeaseNotFound { id: 8 })));
    store.txn(leased(7)).await.unwrap();
    group.shutdown().await;
    let (store, group) = open(dir.path()).await;
    assert_eq!(store.lessor().all(), [(7, 60)]);
    assert_eq!(store.lessor().revoke(7).await.unwrap().revision.0, 3);
    assert_eq!(store.range(all_at(None)).await.unwrap().count, 0);
    group.shutdown().await;
}

#[tokio::test]
async fn a_second_opening_and_a_newer_schema_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, group) = open(dir.path()).await;
    let config = config(dir.path());
    let Err(Error::InUse { pid, .. }) = Store::open(config.clone(), &group).await else { panic!("opened twice") };
    assert_eq!(pid, std::process::id().to_string());
    group.shutdown().await;
    let db = rusqlite::Connection::open(dir.path().join("state.db")).unwrap();
    db.pragma_update(None, "user_version", 99).unwrap();
    let (group, _reports) = Group::root("test");
    assert!(matches!(Store::open(config, &group).await, Err(Error::NewerSchema { found: 99, .. })));
}

#[tokio::test]
async fn a_reader_that_is_too_slow_is_let_go_and_told_so() {
    let dir = tempfile::tempdir().unwrap();
    let (store, group) = open(dir.path()).await;
    let mut slow = store.watch(watch_all(0)).await.unwrap();
    let n = base::limits::STORE_WATCH_BACKLOG_BATCHES;
    for _ in 0..=n {
        store.progress().await.unwrap();
    }
    for _ in 0..n {
        assert!(slow.next().await.unwrap().events.is_empty());
    }
    assert!(matches!(slow.next().await, Err(Error::SlowWatcher)));
    group.shutdown().await;
}

#[tokio::test]
async fn a_fingerprint_tells_two_values_of_one_key_at_one_revision_apart() {
    let mut fingerprints = Vec::new();
    for last in ["x", "x", "y"] {
        let dir = tempfile::tempdir().unwrap();
        let (store, group) = open(dir.path()).await;
        for n in 0..300 {
            store.txn(put(&format!("/k/{n}"), "same")).await.unwrap();
        }
        store.txn(put("/k/299", last)).await.unwrap();
        fingerprints.push(store.hash(None).await.unwrap());
        group.shutdown().await;
    }
    assert_eq!(fingerprints[0], fingerprints[1]);
    assert!(fingerprints[0].1 == fingerprints[2].1 && fingerprints[0].0 != fingerprints[2].0, "{fingerprints:?}");
}

// security.md L2: each question for a member's status read all keys.
#[tokio::test]
async fn a_members_status_looks_at_no_key() {
    let dir = tempfile::tempdir().unwrap();
    let (store, group) = open(dir.path()).await;
    store.txn(put("/k", "v")).await.unwrap();
    assert_ne!(store.hash(None).await.unwrap().0, 0);
    let status = store.status();
    assert_eq!(
        (status.hash, status.revision),
        (0, store.current_revision().0),
        "who wants the fingerprint asks for it"
    );
    group.shutdown().await;
}

#[test]
fn a_store_that_cannot_be_looked_at_is_not_taken_for_none() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(crate::inspect::inspect(dir.path()).unwrap(), crate::member::StoreState::Empty);
    // A name that leads to itself is no file that is missing: it says ELOOP.
    let path = crate::mvcc::database::path_in(dir.path());
    std::os::unix::fs::symlink(&path, &path).unwrap();
    assert!(matches!(crate::inspect::inspect(dir.path()), Err(Error::Io { .. })));
}
