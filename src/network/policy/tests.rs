//! Answers of the gate while no API server does.

use super::*;
use crate::monitor::Monitor;

/// An enforcer on a node whose server is away; `walls` is what an earlier run wrote.
fn without_a_server(dir: &std::path::Path, walls: Option<&str>, group: &Group) -> mpsc::Sender<Request> {
    let silent =
        tower::service_fn(|_| std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>());
    let informers = Informers::new(kube::Client::new(silent, "default"), group);
    let path = dir.join("walls.json");
    if let Some(text) = walls {
        std::fs::write(&path, text).unwrap();
    }
    let (requests, inbox) = mpsc::channel(REQUESTS_BACKLOG);
    let enforcer = Enforcer {
        node: "n".to_owned(),
        // Nothing of the machine is set for no family.
        families: BTreeSet::new(),
        policies: informers.get::<NetworkPolicy>(),
        cluster: None,
        informers,
        claims: Claims::load(&dir.join("claims.json")).unwrap(),
        walls: Walls::load(&path),
        applied: Applied::Unknown,
        interest: None,
        heavy: Heavy::default(),
        waiting: Vec::new(),
        foreign: Monitor::default().watch([table()]),
    };
    group.spawn("enforcer", enforcer.run(inbox));
    requests
}

async fn add(requests: &mpsc::Sender<Request>, ns: &str) -> oneshot::Receiver<Result<(), Unenforced>> {
    let pod = PodRef { ns: ns.to_owned(), name: "p".to_owned(), uid: format!("u-{ns}") };
    let (done, heard) = oneshot::channel();
    let claim = Claim { pod, ips: vec!["10.42.0.5".parse().unwrap()], ..Claim::default() };
    assert!(requests.send(Request::Add { sandbox: format!("s-{ns}"), claim, done }).await.is_ok());
    heard
}

// review node.md M17
#[tokio::test]
async fn without_a_server_pods_start_where_no_policy_was_and_nowhere_else() {
    let (root, _fatal) = Group::root("t");
    for (walls, starts) in [(Some(r#"["walled"]"#), true), (None, false), (Some("["), false)] {
        let (dir, group) = (tempfile::tempdir().unwrap(), root.child("node"));
        let requests = without_a_server(dir.path(), walls, &group);
        let (mut walled, mut free) = (add(&requests, "walled").await, add(&requests, "free").await);
        // The loop takes calls in order: when it answers this one it has seen the others.
        let (done, heard) = oneshot::channel();
        assert!(requests.send(Request::Check { sandbox: "s-free".to_owned(), ips: Vec::new(), done }).await.is_ok());
        assert!(heard.await.unwrap(), "the sandbox is known");
        assert!(walled.try_recv().is_err(), "a pod that a policy may isolate waits");
        assert_eq!(free.try_recv().ok().map(|answer| answer.is_ok()), starts.then_some(true), "{walls:?}");
        group.shutdown().await;
    }
}
