//! Snapshots are taken beside a running store, listed, pruned, restored; wrong names and files are refused.

use std::os::unix::fs::PermissionsExt as _;

use base::task::Group;
use store::bounds::Bounds;
use store::member::Bootstrap;
use store::store::Store;
use store::{Config, Op, RangeRequest, Storage as _, Txn};

use super::*;

async fn open_store(data_dir: &Path) -> (std::sync::Arc<Store>, Group) {
    let (group, _reports) = Group::root("test");
    let config = Config {
        dir: data_dir.join("server/db"),
        bootstrap: Bootstrap::First,
        network: None,
        rng: Rng::from_os(),
        bounds: Bounds::SHIPPED,
    };
    (Store::open(config, &group).await.unwrap(), group)
}

fn put(value: &str) -> Txn {
    let op = Op::Put { key: "/registry/a".into(), value: value.to_owned().into(), lease: 0, prev_kv: false };
    Txn { success: vec![op], ..Txn::default() }
}

fn series(prefix: &str, node: &str) -> Series {
    Series { prefix: prefix.to_owned(), node: node.to_owned() }
}

fn places(root: &Path) -> Places {
    let layout = Layout::new(root.join("data"));
    Places { dir: layout.server().snapshots(), config: root.join("etc/config.yaml"), layout }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_a_running_server_is_whole_and_restores_on_another_machine() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (from, to, clock) = (places(here.path()), places(there.path()), Clock::system());
    let (running, group) = open_store(from.layout.data_dir()).await;
    create_private_dir(&from.layout.data_dir().join("server/tls/etcd")).unwrap();
    fs::write(from.layout.data_dir().join("server/tls/etcd/peer-ca.key"), "the peers' key").unwrap();
    fs::write(from.layout.data_dir().join("server/token"), "hunter2\n").unwrap();
    create_private_dir(from.config.parent().unwrap()).unwrap();
    fs::write(&from.config, "tls-san: [x]\n").unwrap();
    running.txn(put("saved")).await.unwrap();
    let saved = save(&from, &series("on-demand", "node-1"), "test", &clock, &Rng::from_os()).unwrap();
    running.txn(put("later")).await.unwrap();
    assert_eq!(fs::metadata(&saved.location).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(list(&from.dir).unwrap(), std::slice::from_ref(&saved));
    let Err(SnapshotError::Store(store::error::Error::InUse { .. })) =
        restore(&from, &saved.location, None, &clock, &Rng::from_os())
    else {
        panic!("restored under a running server")
    };
    group.shutdown().await;
    // Nobody gets at the keys who has the archive alone: not by its bytes, and not by restoring it elsewhere.
    let bytes = zstd::decode_all(File::open(&saved.location).unwrap()).unwrap();
    let holds = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(saved.manifest.sealed && !holds("the peers' key") && !holds("hunter2") && !holds("tls-san"));
    let token = |text: &str| Secret::new(text.to_owned());
    for wrong in [None, Some(token("hunter3"))] {
        let refused = restore(&to, &saved.location, wrong.as_ref(), &clock, &Rng::from_os());
        assert!(matches!(refused, Err(SnapshotError::Sealed { .. })), "{refused:?}");
        assert!(!to.layout.data_dir().join("server").exists());
    }
    let restored = restore(&to, &saved.location, Some(&token("hunter2")), &clock, &Rng::from_os()).unwrap();
    assert_eq!((restored.kept, restored.config, restored.manifest.revision), (None, true, 2));
    assert_eq!(fs::read_to_string(to.layout.data_dir().join("server/tls/etcd/peer-ca.key")).unwrap(), "the peers' key");
    let (store, group) = open_store(to.layout.data_dir()).await;
    let reply = store.range(RangeRequest { key: "/registry/a".into(), ..RangeRequest::default() }).await.unwrap();
    assert_eq!(reply.kvs[0].value, "saved");
    assert_ne!(store.cluster_id(), restored.manifest.cluster_id, "old members would be let in");
    store.txn(put("goes on")).await.unwrap();
    group.shutdown().await;
    let again = restore(&from, &saved.location, None, &clock, &Rng::from_os()).unwrap();
    let kept = again.kept.unwrap();
    assert!(kept.join("db/state.db").is_file());
    // What was there holds keys, too, and so does what came: both are closed to others.
    let closed = |path: &Path| fs::metadata(path).unwrap().permissions().mode().trailing_zeros() >= 6;
    for dir in [
        &kept,
        &from.layout.data_dir().join("server"),
        &to.layout.data_dir().join("server"),
        &to.layout.data_dir().join("server/tls"),
    ] {
        assert!(closed(dir), "{}", dir.display());
    }
    assert_eq!(list(&from.dir).unwrap().len(), 1, "snapshots are lost");
}

#[tokio::test]
async fn pruning_keeps_the_newest_of_one_schedule_and_leaves_others_alone() {
    let root = tempfile::tempdir().unwrap();
    let (places, clock) = (places(root.path()), Clock::fixed("2026-01-01T00:00:00Z".parse().unwrap()));
    let (_store, group) = open_store(places.layout.data_dir()).await;
    for prefix in ["auto", "auto", "auto", "mine"] {
        save(&places, &series(prefix, "n"), "test", &clock, &Rng::from_os()).unwrap();
        clock.advance(jiff::SignedDuration::from_secs(60));
    }
    group.shutdown().await;
    assert_eq!(prune(&places.dir, &series("auto", "n"), 1).unwrap().len(), 2);
    let left: Vec<_> = list(&places.dir).unwrap().into_iter().map(|s| s.name).collect();
    assert_eq!(left, ["auto-n-1767225720.tar.zst", "mine-n-1767225780.tar.zst"]);
    delete(&places.dir, "mine-n-1767225780").unwrap();
    assert!(matches!(delete(&places.dir, "mine-n-1767225780"), Err(SnapshotError::NotFound { .. })));
    assert!(matches!(
        save(&places, &series("../x", "n"), "test", &clock, &Rng::from_os()),
        Err(SnapshotError::Name(_))
    ));
}

#[tokio::test]
async fn keys_that_no_token_can_seal_are_not_put_into_a_snapshot() {
    let root = tempfile::tempdir().unwrap();
    let (places, clock) = (places(root.path()), Clock::system());
    let (_store, group) = open_store(places.layout.data_dir()).await;
    let save = || save(&places, &series("on-demand", "n"), "test", &clock, &Rng::from_os());
    assert!(!save().unwrap().manifest.sealed, "there is nothing to seal");
    create_private_dir(&places.layout.data_dir().join("server/cred")).unwrap();
    fs::write(places.layout.data_dir().join("server/cred/passwd"), "a password").unwrap();
    let token = places.layout.data_dir().join("server/token");
    // Nothing, and a bootstrap token, which every node has.
    for text in [None, Some("abcdef.0123456789abcdef")] {
        if let Some(text) = text {
            fs::write(&token, text).unwrap();
        }
        let refused = save().unwrap_err();
        assert!(matches!(&refused, SnapshotError::NoToken { path } if *path == token), "{refused:?}");
    }
    fs::write(&token, "hunter2").unwrap();
    assert!(save().unwrap().manifest.sealed);
    group.shutdown().await;
}

#[test]
fn what_is_no_snapshot_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.tar.zst");
    fs::write(&file, "nonsense").unwrap();
    assert!(read_manifest(&file).unwrap_err().to_string().contains("x.tar.zst"));
    assert!(list(dir.path()).unwrap().is_empty());
    let damaged = damaged(dir.path()).unwrap();
    assert!(
        damaged.len() == 1 && damaged[0].0 == file && damaged[0].1.to_string().contains("is damaged"),
        "{damaged:?}"
    );
}

#[test]
fn a_place_that_is_replaced_is_never_empty() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["new", "old"] {
        create_private_dir(&at(name)).unwrap();
        fs::write(at(name).join("which"), name).unwrap();
    }
    exchange(&at("new"), &at("old"), &at("kept")).unwrap();
    let which = |name: &str| fs::read_to_string(at(name).join("which")).unwrap();
    assert_eq!((which("old"), which("kept"), at("new").exists()), ("new".to_owned(), "old".to_owned(), false));
}

#[test]
fn the_newest_of_a_name_and_node_stay_wherever_the_files_are() {
    let names = [
        "a-n-9.tar.zst",
        "a-n-10.tar.zst",
        "a-n-2.tar.zst",
        "a-n-x-1.tar.zst",
        "a-m-1.tar.zst",
        "b-n-1.tar.zst",
        "a-n-1.zip",
    ];
    let ours = series("a", "n");
    assert_eq!(ours.surplus(names, 1), ["a-n-2.tar.zst", "a-n-9.tar.zst"]);
    assert_eq!(ours.surplus(names, 5), [""; 0]);
    assert_eq!(ours.surplus(names, 0).len(), 3);
    // "a" on "n-x" is another series than "a-n" on "x", and signs are no digits.
    assert_eq!(series("a", "n-x").surplus(names, 0), ["a-n-x-1.tar.zst"]);
    assert_eq!(ours.surplus(["a-n-+1.tar.zst", "a-n-.tar.zst", "a-n-99999999999999999999.tar.zst"], 0), [""; 0]);
    assert_eq!((made_at("a-n-9.tar.zst"), made_at("a-n-9"), made_at("notes.tar.zst")), (Some(9), None, None));
    assert_eq!(file_of("a-n-9").unwrap(), file_of("a-n-9.tar.zst").unwrap());
    assert!(file_of("../a").is_err() && file_of(".tar.zst").is_err());
}

#[test]
fn a_snapshots_name_stays_in_its_folder() {
    let clock = Clock::system();
    for (prefix, node) in
        [("", "n"), ("p", ""), (".p", "n"), ("p", "../n"), ("p/q", "n"), ("p", "n\n"), ("p", "n\u{e4}")]
    {
        let name = series(prefix, node).file_name(&clock);
        assert!(matches!(name, Err(SnapshotError::Name(_))), "{prefix:?} {node:?}");
    }
    let name = series("etcd-snapshot", "edge-1.lan").file_name(&clock).unwrap();
    assert!(name.starts_with("etcd-snapshot-edge-1.lan-") && made_at(&name).is_some(), "{name}");
    for (name, want) in [("a", Some("a.tar.zst")), ("a.tar.zst", Some("a.tar.zst")), ("a.zip", Some("a.zip.tar.zst"))] {
        assert_eq!(file_of(name).ok().as_deref(), want, "{name}");
    }
    for name in ["", ".", "..", ".hidden", "a/b", "/etc/passwd", "a b", ".tar.zst"] {
        assert!(matches!(file_of(name), Err(SnapshotError::Name(said)) if said == name), "{name}");
    }
}
