//! Credentials that are taken, and those that are not.

use std::collections::BTreeMap;

use base64::Engine as _;
use jiff::{SignedDuration, Timestamp};
use model::reference::GroupResource;
use pki::leaf::{Ca, Leaf};
use pki::server::{Options, Pki};
use registry::memory::Objects;
use serde_json::{Value, json};

use super::*;
use crate::TokenIssuer as _;
use crate::issue::{Issuer, WARN_ONLY_LIFE_SECS};

const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

struct World {
    clock: Clock,
    pki: Pki,
    _dir: tempfile::TempDir,
}

fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::fixed("2026-11-21T04:00:00Z".parse().unwrap());
    let options = Options {
        clock: clock.clone(),
        node_name: "n1".to_owned(),
        node_ips: Vec::new(),
        service_ips: Vec::new(),
        cluster_domain: "cluster.local".to_owned(),
        tls_sans: Vec::new(),
        leaf_life: pki::authority::LEAF_LIFE,
    };
    World { pki: Pki::load_or_create(dir.path(), options).unwrap(), clock, _dir: dir }
}

impl World {
    fn chain(&self, objects: Objects) -> Chain {
        let bundle = |ca| Bundle::from_pem(self.pki.authority(ca).bundle()).unwrap();
        let config = Config {
            clock: self.clock.clone(),
            client_ca: bundle(Ca::Client),
            request_header_ca: bundle(Ca::RequestHeader),
            front_proxy_names: vec!["system:auth-proxy".to_owned()],
            verifier: self.pki.verifier().unwrap(),
            issuers: vec![ISSUER.to_owned()],
            audiences: vec![ISSUER.to_owned()],
            basic: vec![BasicUser {
                name: "node".into(),
                password: base::secret::Secret::new("pw".into()),
                groups: vec!["kedge:agent".into()],
            }],
            legacy_uses: Arc::default(),
        };
        Chain::new(config, Arc::new(objects))
    }

    fn issuer(&self) -> Issuer {
        Issuer {
            signer: self.pki.signer().unwrap(),
            verifier: self.pki.verifier().unwrap(),
            issuer: ISSUER.to_owned(),
            jwks_uri: String::new(),
            life_secs_max: None,
            stretches: true,
            audiences: vec![ISSUER.to_owned()],
            clock: self.clock.clone(),
            rng: base::rng::Rng::from_seed(1),
        }
    }

    fn conn(&self, leaf: Leaf) -> wire::ConnInfo {
        let mut conn = nobody();
        conn.client_certs = self.pki.leaf(leaf).current().chain().to_vec();
        conn
    }
}

fn nobody() -> wire::ConnInfo {
    let at = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    wire::ConnInfo::tcp(at, at, Vec::new())
}

fn parts(headers: &[(&str, &str)]) -> Parts {
    let mut request = http::Request::builder().uri("/api");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).unwrap().into_parts().0
}

fn objects() -> Objects {
    Objects::of([
        ("", "serviceaccounts", json!({"metadata": {"name": "web", "namespace": "default", "uid": "sa-uid"}})),
        (
            "",
            "pods",
            json!({"metadata": {"name": "p", "namespace": "default", "uid": "pod-uid"},
                "spec": {"serviceAccountName": "web", "nodeName": "n1"}}),
        ),
        ("", "nodes", json!({"metadata": {"name": "n1", "uid": "node-uid"}})),
    ])
}

async fn issue(world: &World, spec: Value) -> Result<Value, registry::status::Status> {
    let account = json!({"metadata": {"name": "web", "namespace": "default", "uid": "sa-uid"}});
    world.issuer().issue(&account, json!({"spec": spec}), &objects()).await
}

async fn bearer(chain: &Chain, token: &str) -> Result<Option<UserInfo>, AuthnError> {
    chain.authenticate(&parts(&[("authorization", &format!("Bearer {token}"))]), &nobody()).await
}

#[tokio::test]
async fn a_certificate_is_its_subject() {
    let world = world();
    let chain = world.chain(objects());
    let user = chain.authenticate(&parts(&[]), &world.conn(Leaf::ClientKubelet)).await.unwrap().unwrap();
    assert_eq!(
        (user.name.as_str(), user.groups),
        ("system:node:n1", vec!["system:nodes".to_owned(), "system:authenticated".to_owned()])
    );
    assert!(chain.authenticate(&parts(&[]), &nobody()).await.unwrap().is_none());
}

#[tokio::test]
async fn only_a_front_proxy_may_speak_for_others() {
    let world = world();
    let chain = world.chain(objects());
    let headers =
        parts(&[("x-remote-user", "eve"), ("x-remote-group", "system:masters"), ("x-remote-extra-a%2fb", "c")]);
    let user = chain.authenticate(&headers, &world.conn(Leaf::ClientAuthProxy)).await.unwrap().unwrap();
    assert_eq!((user.name.as_str(), user.extra), ("eve", BTreeMap::from([("a/b".to_owned(), vec!["c".to_owned()])])));
    let user = chain.authenticate(&headers, &world.conn(Leaf::ClientKubelet)).await.unwrap().unwrap();
    assert_eq!(user.name, "system:node:n1");
    assert!(chain.authenticate(&headers, &nobody()).await.unwrap().is_none());
    assert!(chain.authenticate(&parts(&[]), &world.conn(Leaf::ClientAuthProxy)).await.is_err());
}

#[tokio::test]
async fn a_pods_token_tells_pod_and_node_and_lasts_a_year() {
    let world = world();
    let bound = json!({"expirationSeconds": WARN_ONLY_LIFE_SECS,
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "pod-uid"}});
    let answer = issue(&world, bound).await.unwrap();
    assert_eq!(answer["status"]["expirationTimestamp"], "2026-11-21T05:00:07Z");
    let token = answer["status"]["token"].as_str().unwrap();
    let chain = world.chain(objects());
    world.clock.advance(SignedDuration::from_hours(24 * 364));
    let user = bearer(&chain, token).await.unwrap().unwrap();
    assert_eq!(user.name, "system:serviceaccount:default:web");
    assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]);
    assert_eq!(user.extra["authentication.kubernetes.io/pod-name"], ["p"]);
    assert_eq!(user.extra["authentication.kubernetes.io/node-uid"], ["node-uid"]);
    let encoded = base64::Engine::encode(&base64::engine::general_purpose::URL_SAFE_NO_PAD, token);
    let protocols = format!("v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.{encoded}");
    let by_websocket =
        chain.authenticate(&parts(&[("sec-websocket-protocol", &protocols)]), &nobody()).await.unwrap().unwrap();
    assert_eq!(by_websocket, user);
    world.clock.advance(SignedDuration::from_hours(24 * 2));
    assert_eq!(bearer(&chain, token).await.unwrap_err().0, "[invalid bearer token, service account token has expired]");
}

#[tokio::test]
async fn a_token_dies_with_what_it_is_bound_to() {
    let world = world();
    let bound = json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p"}});
    let token = issue(&world, bound).await.unwrap()["status"]["token"].as_str().unwrap().to_owned();
    assert!(bearer(&world.chain(objects()), &token).await.is_ok());
    let mut replaced = objects();
    replaced
        .put(GroupResource::core("pods"), json!({"metadata": {"name": "p", "namespace": "default", "uid": "another"}}));
    assert!(bearer(&world.chain(replaced), &token).await.unwrap_err().0.contains("has been invalidated"));
    let mut renamed = objects();
    renamed.put(
        GroupResource::core("serviceaccounts"),
        json!({"metadata": {"name": "web", "namespace": "default", "uid": "another"}}),
    );
    assert!(bearer(&world.chain(renamed), &token).await.unwrap_err().0.contains("does not match claim"));
}

#[tokio::test]
async fn an_old_token_that_was_marked_invalid_counts_no_more() {
    let world = world();
    let claim = |field: &str| format!("kubernetes.io/serviceaccount/{field}");
    let token = world.pki.signer().unwrap().sign(&json!({
        "iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:default:web", claim("namespace"): "default",
        claim("secret.name"): "t",
        claim("service-account.name"): "web", claim("service-account.uid"): "sa-uid",
    }));
    let token = token.unwrap();
    let secret = |labels: Value| {
        let data = base64::engine::general_purpose::STANDARD.encode(&token);
        let mut objects = objects();
        objects.put(
            GroupResource::core("secrets"),
            json!({"metadata": {"name": "t", "namespace": "default", "labels": labels}, "data": {"token": data}}),
        );
        world.chain(objects)
    };
    let user = bearer(&secret(json!({})), &token).await.unwrap().unwrap();
    assert_eq!(user.name, "system:serviceaccount:default:web");
    let marked = secret(json!({"kubernetes.io/legacy-token-invalid-since": "2026-11-20"}));
    assert!(bearer(&marked, &token).await.unwrap_err().to_string().contains("marked invalid"));
}

#[tokio::test]
async fn a_token_for_others_is_none_for_us() {
    let world = world();
    let token =
        issue(&world, json!({"audiences": ["vault"]})).await.unwrap()["status"]["token"].as_str().unwrap().to_owned();
    let chain = world.chain(objects());
    let text =
        format!("[invalid bearer token, token audiences [\"vault\"] is invalid for the target audiences [{ISSUER:?}]]");
    assert_eq!(bearer(&chain, &token).await.unwrap_err().0, text);
    let found = chain.token(&token, &["vault".to_owned()]).await.unwrap().unwrap();
    assert_eq!(found.audiences, ["vault"]);
    assert!(bearer(&chain, "nonsense").await.is_err());
}

#[tokio::test]
async fn token_requests_are_refused_with_upstreams_texts() {
    let world = world();
    let short = issue(&world, json!({"expirationSeconds": 599})).await.unwrap_err();
    let text = "TokenRequest.authentication.k8s.io \"web\" is invalid: spec.expirationSeconds: Invalid value: 599: may \
                not specify a duration less than 10 minutes";
    assert_eq!(short.message, text);
    let gone =
        issue(&world, json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "q"}})).await.unwrap_err();
    assert_eq!(gone.message, "pods \"q\" not found");
    let other = issue(&world, json!({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "x"}}))
        .await
        .unwrap_err();
    assert_eq!(other.code, 409);
}

#[tokio::test]
async fn bootstrap_tokens_and_passwords_let_machines_join() {
    let world = world();
    let enc = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
    let secret = |expires: &str| {
        json!({"metadata": {"name": "bootstrap-token-abc123", "namespace": "kube-system"},
            "type": "bootstrap.kubernetes.io/token",
        "data": {"token-id": enc("abc123"), "token-secret": enc("0123456789abcdef"),
        "usage-bootstrap-authentication": enc("true"),
                 "expiration": enc(expires),
                 "auth-extra-groups": enc("system:bootstrappers:kedge:default-node-token")}})
    };
    let live = world.chain(Objects::of([("", "secrets", secret("2026-12-01T00:00:00Z"))]));
    let user = bearer(&live, "abc123.0123456789abcdef").await.unwrap().unwrap();
    assert_eq!(user.name, "system:bootstrap:abc123");
    assert_eq!(
        user.groups,
        ["system:bootstrappers", "system:bootstrappers:kedge:default-node-token", "system:authenticated"]
    );
    assert!(bearer(&live, "abc123.0123456789abcdeX").await.is_err());
    let dead = world.chain(Objects::of([("", "secrets", secret("2026-11-01T00:00:00Z"))]));
    assert!(bearer(&dead, "abc123.0123456789abcdef").await.is_err());
    let basic = |text: &str| format!("Basic {}", enc(text));
    let user = live.authenticate(&parts(&[("authorization", &basic("node:pw"))]), &nobody()).await.unwrap().unwrap();
    assert_eq!(user.groups[0], "kedge:agent");
    assert!(live.authenticate(&parts(&[("authorization", &basic("node:no"))]), &nobody()).await.is_err());
    let _used: Timestamp = world.clock.now();
}
