//! The etcd face against Debian's etcdctl, and the external store against Debian's etcd. Passed over where those are
//! not installed.

use std::path::Path;
use std::sync::Arc;

use base::rng::Rng;
use base::task::Group;
use tokio::process::Command;

use crate::bounds::Bounds;
use crate::config::Config;
use crate::etcd::Service;
use crate::etcd::client::Endpoint;
use crate::external::External;
use crate::kv::{EventKind, Revision};
use crate::member::Bootstrap;
use crate::net::until;
use crate::storage::{Storage as _, WatchRequest};
use crate::store::Store;
use crate::txn::{Op, RangeRequest, Txn};

/// From the folder of the socket.
const SOCKET: &str = "unix://etcd.sock";

async fn face(dir: &Path) -> (Arc<Store>, Group, String) {
    let (group, _reports) = Group::root("test");
    let config = Config {
        dir: dir.join("db"),
        bootstrap: Bootstrap::First,
        network: None,
        rng: Rng::from_os(),
        bounds: Bounds::TESTS,
    };
    let store = Store::open(config, &group).await.unwrap();
    let face = Service::new(store.clone(), Rng::from_os(), "https://127.0.0.1:2379", &group);
    let socket = dir.join("etcd.sock");
    wire::serve::UnixServer::bind(&socket, Arc::new(face)).unwrap().start(&group);
    (store, group, dir.display().to_string())
}

/// Runs etcdctl; `None` if this machine has none.
async fn etcdctl(dir: &str, args: &[&str]) -> Option<(bool, String)> {
    etcdctl_at(SOCKET, dir, args).await
}

async fn etcdctl_at(endpoint: &str, dir: &str, args: &[&str]) -> Option<(bool, String)> {
    let mut command = Command::new("etcdctl");
    command
        .env("ETCDCTL_API", "3")
        .current_dir(dir)
        .args(["--endpoints", endpoint, "--command-timeout=100s"])
        .args(args)
        .kill_on_drop(true);
    match command.output().await {
        Ok(out) => {
            Some((out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).trim().to_owned()))
        }
        Err(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_works_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, group, dir_name) = face(dir.path()).await;
    let file = dir.path().join("saved.db");
    let file = file.to_str().unwrap();
    let steps: [(&[&str], bool, &str); 20] = [
        (&["put", "/a", "1"], true, "OK"),
        (&["put", "/b", "2"], true, "OK"),
        (&["get", "/a"], true, "/a\n1"),
        (&["get", "--prefix", "/", "--keys-only"], true, "/a\n\n/b"),
        (&["get", "", "--prefix", "--sort-by=MODIFY", "--order=DESCEND", "--limit=1"], true, "/b\n2"),
        (&["get", "/a", "--rev=99"], false, "required revision is a future revision"),
        (&["lease", "grant", "60"], true, "granted with TTL(60s)"),
        (&["put", "/x", "y", "--lease=1"], false, "requested lease not found"),
        (&["member", "list"], true, "started"),
        (&["endpoint", "health"], true, "is healthy"),
        (&["compaction", "3"], true, "compacted revision 3"),
        (&["get", "/a", "--rev=2"], false, "required revision has been compacted"),
        (&["snapshot", "save", file], true, "saved"),
        (&["lock", "mine", "echo", "held"], true, "held"),
        (&["alarm", "list"], true, ""),
        (&["defrag"], true, "Finished defragmenting"),
        (&["endpoint", "hashkv", "--rev=3"], true, ", "),
        (&["member", "add", "m", "--peer-urls=https://127.0.0.1:1"], false, "members join by starting"),
        (&["user", "list"], false, "authentication is not enabled"),
        (&["del", "/", "--prefix"], true, "2"),
    ];
    for (args, succeeds, says) in steps {
        let Some((ok, text)) = etcdctl(&dir_name, args).await else { return group.shutdown().await };
        assert!(ok == succeeds && text.contains(says), "etcdctl {args:?}: {text}");
    }
    // By its whole path, which etcd's client puts into :authority, where HTTP/2 allows no slash.
    let endpoint = format!("unix://{dir_name}/etcd.sock");
    let (ok, text) = etcdctl_at(&endpoint, "/", &["put", "/c", "3"]).await.unwrap();
    assert!(ok && text.contains("OK"), "{text}");
    group.shutdown().await;
}

/// gaps.md (b)5: each of these said something that was not so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upkeep_does_what_it_says() {
    use crate::etcd::maintenance;
    use proto::etcd as pb;
    let dir = tempfile::tempdir().unwrap();
    let (group, _reports) = Group::root("test");
    let disk = crate::faults::FaultyDisk::new(&dir.path().join("db"), 1, crate::faults::Fault::None, 0);
    let config = Config {
        dir: dir.path().join("db"),
        bootstrap: Bootstrap::First,
        network: None,
        rng: Rng::from_os(),
        bounds: Bounds::TESTS,
    };
    let store = Store::open_on(disk.clone(), config, &group).await.unwrap();
    let inner = Service::new(store.clone(), Rng::from_os(), "https://127.0.0.1:2379", &group).0;
    let put = |key: String| Txn {
        success: vec![Op::Put { key: key.into(), value: vec![7; 20_000].into(), lease: 0, prev_kv: false }],
        ..Txn::default()
    };
    for n in 0..60 {
        store.txn(put(format!("/k/{n}"))).await.unwrap();
    }
    let hash_at = |revision| maintenance::hash_kv(inner.clone(), pb::HashKvRequest { revision });
    let at_31 = hash_at(31).await.unwrap().hash;
    let all = Op::Delete { key: "/k/".into(), range_end: "/k0".into(), prev_kv: false };
    let deleted = store.txn(Txn { success: vec![all], ..Txn::default() }).await.unwrap().revision;
    assert_eq!(store.status().hash, 0, "who asks how a member is asks for no look at every key");
    assert_eq!(hash_at(31).await.unwrap().hash, at_31, "a revision keeps its fingerprint");
    assert_ne!(hash_at(0).await.unwrap().hash, at_31);
    store.compact(deleted).await.unwrap();
    assert_eq!(hash_at(31).await.unwrap_err().message(), "etcdserver: mvcc: required revision has been compacted");

    // Pages that compaction freed are in the file and not in use, until it is written anew.
    let status = || maintenance::status(inner.clone(), pb::Empty {});
    until("free pages", async || status().await.is_ok_and(|status| status.db_size_in_use * 4 < status.db_size)).await;
    let before = status().await.unwrap();
    maintenance::defragment(inner.clone(), pb::Empty {}).await.unwrap();
    let after = status().await.unwrap();
    assert!(after.db_size * 4 < before.db_size, "{} and then {}", before.db_size, after.db_size);

    // A disk with little room: values are refused, and what leads out of it is not.
    let alarms = async |action| {
        let request = pb::AlarmRequest { action, member_id: 0, alarm: 0 };
        maintenance::alarm(inner.clone(), request)
            .await
            .unwrap()
            .alarms
            .iter()
            .map(|raised| raised.alarm)
            .collect::<Vec<_>>()
    };
    assert_eq!(alarms(0).await, Vec::<i32>::new());
    store.txn(put("/one".to_owned())).await.unwrap();
    disk.leave_free(1024 * 1024);
    store.look_for_space().await.unwrap();
    assert_eq!(alarms(0).await, [1]);
    assert!(status().await.unwrap().errors.iter().any(|err| err.contains("alarm:NOSPACE")));
    assert!(matches!(store.txn(put("/two".to_owned())).await, Err(crate::error::Error::NoSpace { .. })));
    let one = Op::Delete { key: "/one".into(), range_end: Default::default(), prev_kv: false };
    store.txn(Txn { success: vec![one], ..Txn::default() }).await.unwrap();
    assert_eq!(alarms(2).await, Vec::<i32>::new(), "it is full still");
    disk.leave_free(u64::MAX);
    assert_eq!(alarms(2).await, [1], "it was, and is no more");
    store.txn(put("/two".to_owned())).await.unwrap();
    group.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_watches_elects_and_runs_transactions() {
    let dir = tempfile::tempdir().unwrap();
    let (store, group, dir_name) = face(dir.path()).await;
    if etcdctl(&dir_name, &["put", "/w", "0"]).await.is_none() {
        return group.shutdown().await;
    }
    let out = dir.path().join("watched");
    let file = std::fs::File::create(&out).unwrap();
    let mut watch = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .current_dir(&dir_name)
        .args(["--endpoints", SOCKET, "watch", "/w", "--rev=2", "--prev-kv"])
        .stdout(file)
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    etcdctl(&dir_name, &["put", "/w", "1"]).await.unwrap();
    etcdctl(&dir_name, &["del", "/w"]).await.unwrap();
    let text = || std::fs::read_to_string(&out).unwrap();
    until("the watch tells all", async || text().contains("DELETE")).await;
    assert_eq!(text().lines().filter(|line| *line == "PUT").count(), 2, "{}", text());
    watch.kill().await.unwrap();
    let mut txn = Command::new("sh")
        .args([
            "-c",
            &format!(
                "printf 'create(\"/t\") = \"0\"\\n\\nput /t done\\n\\nget /t\\n\\n' | ETCDCTL_API=3 etcdctl \
                 --endpoints {SOCKET} txn"
            ),
        ])
        .current_dir(&dir_name)
        .kill_on_drop(true)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    assert!(txn.wait().await.unwrap().success());
    let reply = store.range(RangeRequest { key: "/t".into(), ..RangeRequest::default() }).await.unwrap();
    assert_eq!(reply.kvs[0].value, "done");
    let mut elect = Command::new("etcdctl")
        .env("ETCDCTL_API", "3")
        .current_dir(&dir_name)
        .args(["--endpoints", SOCKET, "elect", "job", "me"])
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let held = RangeRequest { key: "job/".into(), range_end: "job0".into(), ..RangeRequest::default() };
    until("elected", async || {
        store.range(held.clone()).await.unwrap().kvs.first().is_some_and(|kv| kv.value == "me" && kv.lease != 0)
    })
    .await;
    elect.kill().await.unwrap();
    group.shutdown().await;
}

/// Debian's etcd in `dir`, for clients and for peers at these addresses; `None` if this machine has none.
fn etcd(dir: &Path, [client, peer]: &[String; 2]) -> Option<tokio::process::Child> {
    Command::new("etcd")
        .args(["--data-dir", dir.to_str().unwrap(), "--listen-client-urls", client, "--advertise-client-urls", client])
        // How long it lets a request wait follows from these: this disk may be busy.
        .args(["--heartbeat-interval", "500", "--election-timeout", "20000"])
        .args([
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--initial-cluster",
            &format!("default={peer}"),
        ])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .ok()
}

fn free_urls() -> [String; 2] {
    let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| format!("http://{}", listener.local_addr().unwrap()))
}

/// The store of the etcd at `url`, once it answers.
async fn external(url: &str, group: &Group) -> Arc<External> {
    let mut store = None;
    until("etcd answers", async || {
        store = External::open(vec![Endpoint::parse(url).unwrap()], None, Bounds::TESTS, group).await.ok();
        store.is_some()
    })
    .await;
    store.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_etcd_goes_on_with_what_etcdctl_saves() {
    let dir = tempfile::tempdir().unwrap();
    let (store, group, dir_name) = face(dir.path()).await;
    store.lessor().grant(7, 3600).await.unwrap();
    let put =
        |key: String, value: Vec<u8>, lease| Op::Put { key: key.into(), value: value.into(), lease, prev_kv: false };
    let write = |ops| store.txn(Txn { success: ops, ..Txn::default() });
    for i in 0..40_u8 {
        // Values that fill pages, that go over several, and many small ones at one revision.
        write((0..100_u8).map(|k| put(format!("/k/{k:03}/{}", i % 4), vec![i; usize::from(k)], 0)).collect())
            .await
            .unwrap();
        write(vec![put(format!("/large/{i}"), vec![i; 30_000], if i == 3 { 7 } else { 0 })]).await.unwrap();
    }
    let delete = |key: &str, end: &str| Op::Delete {
        key: key.to_owned().into(),
        range_end: end.to_owned().into(),
        prev_kv: false,
    };
    write(vec![delete("/k/050", "/k/051")]).await.unwrap();
    store.compact(Revision(40)).await.unwrap();
    write(vec![delete("/large/1", ""), put("/last".to_owned(), b"one".to_vec(), 0)]).await.unwrap();
    let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
    let expected = store.range(all.clone()).await.unwrap();

    let (saved, restored, urls) = (dir.path().join("saved.db"), dir.path().join("restored"), free_urls());
    let saved = saved.to_str().unwrap();
    let Some((ok, text)) = etcdctl(&dir_name, &["snapshot", "save", saved]).await else {
        return group.shutdown().await;
    };
    assert!(ok, "{text}");
    let (ok, text) = etcdctl(&dir_name, &["snapshot", "status", saved]).await.unwrap();
    assert!(ok && text.contains(&format!(", {}, ", expected.revision.0)), "{text}");
    let cluster = format!("default={}", urls[1]);
    let restore =
        ["snapshot", "restore", saved, "--data-dir", restored.to_str().unwrap(), "--initial-cluster", &cluster];
    let (ok, text) =
        etcdctl(&dir_name, &[&restore[..], &["--initial-advertise-peer-urls", &urls[1]]].concat()).await.unwrap();
    assert!(ok, "{text}");
    let Some(mut server) = etcd(&restored, &urls) else { return group.shutdown().await };
    let etcd = external(&urls[0], &group).await;
    let found = etcd.range(all).await.unwrap();
    assert!(found.kvs == expected.kvs, "etcd has other keys: {} instead of {}", found.kvs.len(), expected.kvs.len());
    assert_eq!(found.revision, expected.revision);
    let old = |revision| RangeRequest {
        key: "/large/1".into(),
        revision: Some(Revision(revision)),
        ..RangeRequest::default()
    };
    assert!(matches!(etcd.range(old(39)).await, Err(crate::error::Error::Compacted { .. })));
    assert_eq!(etcd.range(old(41)).await.unwrap().kvs, store.range(old(41)).await.unwrap().kvs, "history goes along");
    etcd.keep_lease(7).await.unwrap();
    let written = etcd
        .txn(Txn { success: vec![put("/new".to_owned(), b"by etcd".to_vec(), 0)], ..Txn::default() })
        .await
        .unwrap();
    assert_eq!(written.revision.0, expected.revision.0 + 1);
    etcd.compact(written.revision).await.unwrap();
    group.shutdown().await;
    server.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_etcd_serves_as_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let urls = free_urls();
    let Some(mut server) = etcd(dir.path(), &urls) else { return };
    let (group, _reports) = Group::root("test");
    let store = external(&urls[0], &group).await;
    let all = WatchRequest {
        key: "\0".into(),
        range_end: "\0".into(),
        start: Revision(store.current_revision().0 + 1),
        prev_kv: false,
    };
    let mut watch = store.watch(all).await.unwrap();
    let put = |key: &str| Op::Put { key: key.to_owned().into(), value: "v".into(), lease: 0, prev_kv: false };
    let reply =
        store.txn(Txn { success: vec![put("/registry/a"), put("/registry/b")], ..Txn::default() }).await.unwrap();
    let batch = watch.next().await.unwrap();
    assert_eq!((batch.revision, batch.events.len(), batch.events[0].kind), (reply.revision, 2, EventKind::Put));
    let range =
        RangeRequest { key: "/registry/".into(), range_end: "/registry0".into(), limit: 1, ..RangeRequest::default() };
    let page = store.range(range).await.unwrap();
    assert_eq!((page.kvs.len(), page.more, page.count), (1, true, 2));
    assert_eq!(store.read_index().await.unwrap(), reply.revision);
    store.compact(reply.revision).await.unwrap();
    let old = RangeRequest { key: "/registry/a".into(), revision: Some(Revision(1)), ..RangeRequest::default() };
    assert!(matches!(store.range(old).await, Err(crate::error::Error::Compacted { .. })));
    group.shutdown().await;
    server.kill().await.unwrap();
}
