//! The etcd face against Debian's etcdctl, and the external store against Debian's etcd. Passed over where those are not installed.

use std::path::Path;
use std::sync::Arc;

use base::rng::Rng;
use base::task::Group;
use tokio::process::Command;

use crate::etcd::Face;
use crate::etcd::client::Endpoint;
use crate::external::External;
use crate::member::Birth;
use crate::net::until;
use crate::store::Store;
use crate::{Config, EventKind, Op, RangeRequest, Revision, Storage as _, Txn, WatchRequest};

/// From the folder of the socket.
const SOCKET: &str = "unix://etcd.sock";

async fn face(dir: &Path) -> (Arc<Store>, Group, String) {
    let (group, _reports) = Group::root("test");
    let config = Config { dir: dir.join("db"), birth: Birth::First, network: None, rng: Rng::from_os() };
    let store = Store::open(config, &group).await.unwrap();
    let face = Face::new(store.clone(), Rng::from_os(), "https://127.0.0.1:2379", &group);
    let socket = dir.join("etcd.sock");
    wire::serve::UnixServer::bind(&socket, Arc::new(face)).unwrap().start(&group);
    // etcd's client puts the socket's path into :authority, where HTTP/2 allows no slash: it is named from its own folder.
    (store, group, dir.display().to_string())
}

/// Runs etcdctl; `None` if this machine has none.
async fn etcdctl(dir: &str, args: &[&str]) -> Option<(bool, String)> {
    let mut command = Command::new("etcdctl");
    command.env("ETCDCTL_API", "3").current_dir(dir).args(["--endpoints", SOCKET, "--command-timeout=100s"]).args(args).kill_on_drop(true);
    match command.output().await {
        Ok(out) => Some((out.status.success(), String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).trim().to_owned())),
        Err(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_works_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, group, dir_name) = face(dir.path()).await;
    let file = dir.path().join("saved.db");
    let file = file.to_str().unwrap();
    let steps: [(&[&str], bool, &str); 16] = [
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
        (&["user", "list"], false, "authentication is not enabled"),
        (&["del", "/", "--prefix"], true, "2"),
    ];
    for (args, succeeds, says) in steps {
        let Some((ok, text)) = etcdctl(&dir_name, args).await else { return group.shutdown().await };
        assert!(ok == succeeds && text.contains(says), "etcdctl {args:?}: {text}");
    }
    let copy = rusqlite::Connection::open(file);
    assert!(copy.is_ok(), "the snapshot is a database");
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
            &format!("printf 'create(\"/t\") = \"0\"\\n\\nput /t done\\n\\nget /t\\n\\n' | ETCDCTL_API=3 etcdctl --endpoints {SOCKET} txn"),
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
    until("elected", async || store.range(held.clone()).await.unwrap().kvs.first().is_some_and(|kv| kv.value == "me" && kv.lease != 0))
        .await;
    elect.kill().await.unwrap();
    group.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_etcd_serves_as_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let ports: Vec<u16> = (0..2).map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()).collect();
    let (client, peer) = (format!("http://127.0.0.1:{}", ports[0]), format!("http://127.0.0.1:{}", ports[1]));
    let spawned = Command::new("etcd")
        .args(["--data-dir", dir.path().to_str().unwrap(), "--listen-client-urls", &client, "--advertise-client-urls", &client])
        // How long it lets a request wait follows from these: this disk may be busy.
        .args(["--heartbeat-interval", "500", "--election-timeout", "20000"])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer, "--initial-cluster", &format!("default={peer}")])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .kill_on_drop(true)
        .spawn();
    let Ok(mut server) = spawned else { return };
    let (group, _reports) = Group::root("test");
    let mut store = None;
    until("etcd answers", async || {
        store = External::open(vec![Endpoint::parse(&client).unwrap()], None, &group).await.ok();
        store.is_some()
    })
    .await;
    let store = store.unwrap();
    let all = WatchRequest { key: "\0".into(), range_end: "\0".into(), start: Revision(store.current_revision().0 + 1), prev_kv: false };
    let mut watch = store.watch(all).await.unwrap();
    let put = |key: &str| Op::Put { key: key.to_owned().into(), value: "v".into(), lease: 0, prev_kv: false };
    let reply = store.txn(Txn { success: vec![put("/registry/a"), put("/registry/b")], ..Txn::default() }).await.unwrap();
    let batch = watch.next().await.unwrap();
    assert_eq!((batch.revision, batch.events.len(), batch.events[0].kind), (reply.revision, 2, EventKind::Put));
    let range = RangeRequest { key: "/registry/".into(), range_end: "/registry0".into(), limit: 1, ..RangeRequest::default() };
    let page = store.range(range).await.unwrap();
    assert_eq!((page.kvs.len(), page.more, page.count), (1, true, 2));
    assert_eq!(store.read_index().await.unwrap(), reply.revision);
    store.compact(reply.revision).await.unwrap();
    let old = RangeRequest { key: "/registry/a".into(), revision: Some(Revision(1)), ..RangeRequest::default() };
    assert!(matches!(store.range(old).await, Err(crate::error::Error::Compacted { .. })));
    group.shutdown().await;
    server.kill().await.unwrap();
}
