//! Machines that join, or pretend to, with tokens and certificates that give less than they ask for.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base::task::Group;
use base::time::Clock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cluster::join::{Joiner, Purpose};
use cluster::protocol::{MEMBERS, Role};
use cluster::refusal::Refusal;
use http::{Method, Request};
use pki::authority::Authority;
use pki::certstore::{CertStore, Pair};
use pki::leaf::{LeafSpec, Usage};
use pki::node_key::NodeKey;
use pki::token::JoinToken;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::connections::{Caller, runtime};
use crate::harness::{SETTLE_LIMIT, Said, Server, run_with, wait_for};

/// Tries of an enemy on the node itself.
pub(crate) const CHAPTERS: &[crate::Chapter] =
    &[("a front proxy's certificate is nobody's at the kubelet", a_front_proxys_certificate_is_nobody_at_the_kubelet)];

/// Asks a server to be let in as `role`, with this token; nothing is made.
fn ask(server: &Server, role: Role, token: &str) -> Result<(), Refusal> {
    join(server, role, token, "edge", tempfile::tempdir().unwrap().path(), Outcome::Checked)
}

/// Whether a machine that is let in becomes a node.
#[derive(PartialEq)]
enum Outcome {
    Checked,
    Joined,
}

/// Asks a server to be let in under this name, with the key in `dir`.
fn join(
    server: &Server,
    role: Role,
    token: &str,
    name: &str,
    dir: &std::path::Path,
    outcome: Outcome,
) -> Result<(), Refusal> {
    let said = runtime().block_on(async {
        let (group, _fatal) = Group::root("joiner");
        let joiner = Joiner {
            role,
            token: Some(JoinToken::parse(token).unwrap()),
            key: NodeKey::load_or_create(&dir.join("key"), "m").unwrap(),
            node_name: name.to_owned(),
            node_ips: vec![[192, 0, 2, 9].into()],
            machine_id: "m".to_owned(),
            version: "v1.36.2+kedge".to_owned(),
            flags: BTreeMap::new(),
            dir: dir.to_owned(),
            clock: Clock::system(),
            group: group.clone(),
        };
        let purpose = if outcome == Outcome::Checked { Purpose::Check } else { Purpose::Join };
        let said = joiner.join(&[format!("127.0.0.1:{}", server.place.port)], purpose).await;
        group.shutdown().await;
        said
    });
    match said {
        // The flags of a server are compared after its token was taken.
        Ok(_) | Err(Refusal::FlagsDiffer { .. }) => Ok(()),
        Err(refusal) => Err(refusal),
    }
}

fn token_of(server: &Server, name: &str) -> String {
    fs::read_to_string(server.place.data_dir().join("server").join(name)).unwrap().trim().to_owned()
}

#[test]
fn the_token_that_is_handed_to_nodes_makes_no_server() {
    let server = Server::start();
    let (node, own) = (token_of(&server, "node-token"), token_of(&server, "token"));
    assert_ne!(node, own);
    assert_eq!(token_of(&server, "agent-token"), node);
    assert_eq!(ask(&server, Role::Agent, &node), Ok(()));
    assert_eq!(ask(&server, Role::Server, &node), Err(Refusal::AgentToken));
    // The client chooses the user's name: it makes no difference.
    let as_server = node.replace("::node:", "::server:");
    assert_eq!(ask(&server, Role::Server, &as_server), Err(Refusal::AgentToken));
    assert_eq!(ask(&server, Role::Server, &own), Ok(()));
    assert_eq!(ask(&server, Role::Agent, &own), Ok(()));
    // A start later the tokens are the same.
    let server = Server::start_in(server.stop());
    assert_eq!((token_of(&server, "node-token"), token_of(&server, "token")), (node, own));
    server.check_log();
}

// The records of nodes' keys were Secrets: whoever wrote Secrets of kube-system became any node.
#[test]
fn who_writes_secrets_does_not_become_a_node() {
    let server = Server::start();
    let (owner, thief) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let token = token_of(&server, "node-token");
    assert_eq!(join(&server, Role::Agent, &token, "edge", owner.path(), Outcome::Joined), Ok(()));
    // Takes the record away, puts the thief's key into its place, and makes a token.
    server.ok(&["-n", "kube-system", "delete", "secret", "edge.node-identity.kedge", "--ignore-not-found"]);
    let key = NodeKey::load_or_create(&thief.path().join("key"), "m").unwrap().public();
    let record = json!({ "apiVersion": "v1", "kind": "Secret", "type": "kedge.dev/node-identity",
        "metadata": { "name": "edge.node-identity.kedge", "namespace": "kube-system" },
        "stringData": { "public-key": key, "machine-id": "m", "address": "192.0.2.66" } });
    server.ok_with(&["create", "-f", "-"], &record.to_string());
    let bootstrap = json!({ "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": { "name": "bootstrap-token-abcdef", "namespace": "kube-system" },
        "stringData": { "token-id": "abcdef", "token-secret": "0123456789abcdef",
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": "system:bootstrappers:kedge:default-node-token" } });
    server.ok_with(&["create", "-f", "-"], &bootstrap.to_string());
    for token in [token.as_str(), "abcdef.0123456789abcdef"] {
        let said = join(&server, Role::Agent, token, "edge", thief.path(), Outcome::Joined);
        assert!(matches!(said, Err(Refusal::NameTaken { .. })), "{said:?}");
    }
    assert_eq!(ask(&server, Role::Server, "abcdef.0123456789abcdef"), Err(Refusal::AgentToken));
    // The token is good, and so is the owner, also after a start.
    let free = join(&server, Role::Agent, "abcdef.0123456789abcdef", "free", thief.path(), Outcome::Checked);
    assert_eq!(free, Ok(()));
    let server = Server::start_in(server.stop());
    assert_eq!(join(&server, Role::Agent, &token, "edge", owner.path(), Outcome::Joined), Ok(()));
    let said = join(&server, Role::Agent, &token, "edge", thief.path(), Outcome::Checked);
    assert!(matches!(said, Err(Refusal::NameTaken { .. })), "{said:?}");
    // Whoever deletes the Node frees its name.
    server.ok_with(&["create", "-f", "-"], r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"edge"}}"#);
    let socket = server.place.data_dir().join("server/db/etcd.sock");
    wait_for("the record to be tied to the Node", SETTLE_LIMIT, || {
        let mut etcdctl = Command::new("etcdctl");
        etcdctl.env("ETCDCTL_API", "3").arg(format!("--endpoints=unix://{}", socket.display()));
        let said = run_with(etcdctl.args(["get", "/kedge/node-identities/edge"]), "");
        if said.out.contains("nodeUid") { Ok(()) } else { Err(format!("{said:?}")) }
    });
    server.ok(&["delete", "node", "edge"]);
    wait_for("the name to be free", SETTLE_LIMIT, || {
        join(&server, Role::Agent, &token, "edge", thief.path(), Outcome::Checked).map_err(|why| format!("{why:?}"))
    });
    server.check_log();
}

/// Lets nobody be reached.
struct Shut;

#[async_trait::async_trait]
impl wire::dial::Dial for Shut {
    async fn dial(&self, _: &str, _: u16) -> std::io::Result<Box<dyn wire::dial::Stream>> {
        Err(std::io::ErrorKind::PermissionDenied.into())
    }
}

/// Opens the tunnel of a node from an address; it lasts as long as the group.
async fn open_tunnel(server: &Server, node: &str, from: [u8; 4]) -> Group {
    let shown = signed(server, "client-ca", &format!("system:node:{node}"), Some("system:nodes"));
    let mut stream = Caller::to(server, server.place.port, from).showing(shown).connect().await.unwrap();
    let asked = "POST /v1-kedge/tunnel HTTP/1.1\r\nHost: s\r\nConnection: Upgrade\r\nUpgrade: kedge-tunnel\r\n\
        Content-Length: 0\r\n\r\n";
    stream.write_all(asked.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
    let (group, _fatal) = Group::root("tunnel");
    let streams = group.clone();
    group.spawn_short("tunnel", async move {
        let _ended = wire::tunnel::serve(stream, Arc::new(Shut), &streams).await;
    });
    group
}

// security.md S5: two machines of one image, node key and all.
#[test]
fn a_copy_of_a_machine_is_refused_while_the_machine_is_there() {
    let server = Server::start();
    let token = token_of(&server, "node-token");
    let disk = tempfile::tempdir().unwrap();
    // Calls from 127.0.0.1.
    let again = |outcome| join(&server, Role::Agent, &token, "edge", disk.path(), outcome);
    assert_eq!(again(Outcome::Joined), Ok(()));
    let life = runtime();
    // A machine that renews its certificates is no copy of itself.
    let own = life.block_on(open_tunnel(&server, "edge", [127, 0, 0, 1]));
    let other = life.block_on(open_tunnel(&server, "another", [127, 0, 0, 8]));
    assert_eq!(again(Outcome::Joined), Ok(()));
    life.block_on(own.shutdown());
    let elsewhere = life.block_on(open_tunnel(&server, "edge", [127, 0, 0, 9]));
    let twin = Err(Refusal::Twin { name: "edge".to_owned(), address: "127.0.0.9".to_owned() });
    wait_for("the copy to be refused", SETTLE_LIMIT, || match again(Outcome::Joined) {
        said if said == twin => Ok(()),
        said => Err(format!("{said:?}")),
    });
    assert_eq!(again(Outcome::Checked), twin);
    // The servers' token makes no difference, for the key is known.
    let by_servers = join(&server, Role::Agent, &token_of(&server, "token"), "edge", disk.path(), Outcome::Joined);
    assert_eq!(by_servers, twin);
    // Once the machine is gone, whoever has its disk is it.
    life.block_on(elsewhere.shutdown());
    wait_for("the machine to be gone", SETTLE_LIMIT, || again(Outcome::Joined).map_err(|why| format!("{why:?}")));
    life.block_on(other.shutdown());
    server.check_log();
}

// security.md M9.
#[test]
fn a_node_does_not_call_itself_like_a_server() {
    let mut place = crate::harness::Place::new(&["--disable=coredns"]);
    place.flags.push("--tls-san=vip.example.com".to_owned());
    let server = Server::start_in(place);
    let token = token_of(&server, "node-token");
    for name in [
        "vip.example.com",
        "kubernetes",
        "localhost",
        "vault.prod.svc.cluster.local",
        "kubernetes.default.svc",
        "cluster.local",
    ] {
        let said = join(&server, Role::Agent, &token, name, tempfile::tempdir().unwrap().path(), Outcome::Joined);
        assert!(matches!(said, Err(Refusal::Invalid { .. })), "{name}: {said:?}");
    }
    assert_eq!(ask(&server, Role::Agent, &token), Ok(()));
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(join(&server, Role::Agent, &token, "host.example.com", dir.path(), Outcome::Checked), Ok(()));
    server.check_log();
}

fn rotate(server: &Server) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kedge"));
    command
        .args(["token", "rotate", "--kubeconfig"])
        .arg(server.place.kubeconfig())
        .arg("--data-dir")
        .arg(server.place.data_dir());
    let said: Said = run_with(&mut command, "");
    assert_eq!(said.code, 0, "{said:?}");
    said.out.trim().to_owned()
}

#[test]
fn who_writes_secrets_does_not_choose_the_servers_token() {
    let mut server = Server::start();
    server.announce("join tokens");
    let told = |server: &Server, words: &str| {
        wait_for(words, SETTLE_LIMIT, || {
            let log = fs::read_to_string(server.place.path("log")).unwrap();
            if log.contains(words) { Ok(()) } else { Err("not in the log".to_owned()) }
        });
    };
    let own = token_of(&server, "token");
    let (pin, _) = own.split_once("::").unwrap();
    // What an earlier kedge wrote, by somebody who knows no token.
    let open = json!({ "apiVersion": "v1", "kind": "Secret", "type": "kedge.io/join-tokens",
        "stringData": { "server": "mine" },
        "metadata": { "name": "kedge-join-tokens", "namespace": "kube-system" } });
    server.ok_with(&["create", "-f", "-"], &open.to_string());
    told(&server, "that no server sealed");
    assert_eq!(ask(&server, Role::Server, &format!("{pin}::server:mine")), Err(Refusal::WrongToken));
    assert_eq!(ask(&server, Role::Server, &own), Ok(()));
    // A server's own rotation is taken, is not to be read, and is not taken again once another came.
    let first = rotate(&server);
    wait_for("the first rotation", SETTLE_LIMIT, || ask(&server, Role::Server, &first).map_err(|why| why.to_string()));
    let text = server.ok(&["-n", "kube-system", "get", "secret", "kedge-join-tokens", "-o", "json"]);
    let mut kept: serde_json::Value = serde_json::from_str(&text).unwrap();
    let (_, password) = first.rsplit_once(':').unwrap();
    assert!(!kept["data"].to_string().contains(&STANDARD.encode(password)[..16]), "the password can be read");
    let second = rotate(&server);
    wait_for("the second rotation", SETTLE_LIMIT, || {
        ask(&server, Role::Server, &second).map_err(|why| why.to_string())
    });
    kept["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    server.ok_with(&["replace", "-f", "-"], &kept.to_string());
    told(&server, "from before the last rotation");
    assert_eq!(ask(&server, Role::Server, &first), Err(Refusal::WrongToken));
    assert_eq!(ask(&server, Role::Server, &second), Ok(()));
    assert_ne!(token_of(&server, "node-token"), token_of(&server, "token"));
    server.check_log();
}

/// A certificate that an authority of the server signs for these words.
fn signed(server: &Server, authority: &str, common_name: &str, organization: Option<&str>) -> Arc<CertStore> {
    let tls = server.place.data_dir().join("server/tls");
    let ca = Authority::load(&tls.join(format!("{authority}.crt")), &tls.join(format!("{authority}.key"))).unwrap();
    let spec = LeafSpec {
        common_name: common_name.to_owned(),
        organizations: organization.map(str::to_owned).into_iter().collect(),
        sans: BTreeSet::new(),
        usage: Usage::Client,
    };
    let issued = ca.issue(&spec, Clock::system().now()).unwrap();
    CertStore::new(Pair::from_pem(&issued.cert_pem, &issued.key_pem).unwrap())
}

#[test]
fn a_common_name_makes_nobody_a_server() {
    let server = Server::start();
    let (_, der) = pki::csr::create(&LeafSpec {
        common_name: "system:kedge-supervisor".to_owned(),
        organizations: vec!["devs".to_owned()],
        sans: BTreeSet::new(),
        usage: Usage::Client,
    })
    .unwrap();
    let pem =
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", STANDARD.encode(der));
    let request = json!({ "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest",
        "metadata": { "name": "s" },
        "spec": { "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"],
            "request": STANDARD.encode(pem) } });
    let refused = server.refused_with(&["create", "-f", "-"], &request.to_string());
    assert!(refused.contains("a common name of the system's own parts"), "{refused}");
    // And one that somebody has all the same, from before, is nobody's.
    let new = json!({ "id": 7, "name": "test", "address": "192.0.2.66:1" }).to_string();
    for (organization, words) in [(None, "only servers"), (Some("devs"), "only servers")] {
        let shown = signed(&server, "client-ca", "system:kedge-supervisor", organization);
        let answer = runtime().block_on(async {
            let caller = Caller::to(&server, server.place.port, [127, 0, 0, 1]).showing(shown);
            let req = Request::builder()
                .method(Method::POST)
                .uri(MEMBERS)
                .header("host", "s")
                .body(wire::body::full(new.clone()))
                .unwrap();
            caller.ask(req).await
        });
        assert!(answer.contains(words), "{answer}");
    }
    server.check_log();
}

fn a_front_proxys_certificate_is_nobody_at_the_kubelet(server: &Server) {
    let shown = signed(server, "request-header-ca", "eve", Some("system:masters"));
    let user = signed(server, "client-ca", "eve", Some("system:masters"));
    let ask = |shown: Arc<CertStore>| {
        runtime().block_on(async {
            let caller = Caller::to(server, 10250, [127, 0, 0, 1]).showing(shown);
            let req = Request::builder().uri("/pods").header("host", "n1").body(wire::body::empty()).unwrap();
            caller.try_ask(req).await
        })
    };
    let told = ask(user).unwrap();
    assert!(told.contains("PodList"), "{told}");
    // At the handshake, or by a status: it is not let in.
    if let Ok(told) = ask(shown) {
        assert!(!told.contains("PodList"), "{told}");
    }
}

#[test]
fn slow_clients_stop_nobody_from_joining() {
    let server = Server::start();
    let port = server.place.port;
    runtime().block_on(async {
        let slow = Caller::to(&server, port, [127, 0, 0, 2]);
        let mut held = Vec::new();
        for _ in 0..60 {
            let mut stream = slow.connect().await.unwrap();
            stream.write_all(b"POST /v1-kedge/join HTTP/1.1\r\nHost: s\r\nContent-Length: 9\r\n\r\n{").await.unwrap();
            stream.flush().await.unwrap();
            held.push(stream);
        }
        // Others are judged as if nobody were there.
        let began = Instant::now();
        for _ in 0..3 {
            let req = Request::builder()
                .method(Method::POST)
                .uri("/v1-kedge/join")
                .header("host", "s")
                .body(wire::body::full("{}"))
                .unwrap();
            let answer = Caller::to(&server, port, [127, 0, 0, 3]).ask(req).await;
            assert!(answer.contains("join request cannot be read"), "{answer}");
        }
        assert!(began.elapsed() < Duration::from_secs(8), "an honest machine waited {:?}", began.elapsed());
        // Whoever is slow is told so, and let go.
        let mut told = vec![0; 4096];
        let n = tokio::time::timeout(Duration::from_secs(30), held[0].read(&mut told))
            .await
            .expect("a slow client was kept")
            .unwrap();
        assert!(String::from_utf8_lossy(&told[..n]).contains("503"), "{}", String::from_utf8_lossy(&told[..n]));
    });
    assert_eq!(ask(&server, Role::Agent, &token_of(&server, "node-token")), Ok(()));
    server.check_log();
}
