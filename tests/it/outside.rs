//! Servers outside of this one: admission webhooks, and an aggregated API.

use std::net::SocketAddr;
use std::sync::Arc;

use base::task::Group;
use base::time::Clock;
use http::{Request, Response};
use pki::leaf::{Ca, Leaf};
use pki::server::{Options, Pki};
use serde_json::{Value, json};
use wire::{Body, ConnInfo};

use crate::harness::{Place, SETTLE_LIMIT, Server};

type Answer = fn(&str, &http::HeaderMap, &Value) -> Value;

struct Answers(Answer);

#[async_trait::async_trait]
impl wire::Handler for Answers {
    async fn handle(&self, req: Request<Body>, _conn: Arc<ConnInfo>) -> Response<Body> {
        let (parts, body) = req.into_parts();
        let bytes = wire::body::collect(body, 1 << 24).await.unwrap();
        let sent = serde_json::from_slice(&bytes).unwrap_or_default();
        let answer = (self.0)(parts.uri.path(), &parts.headers, &sent).to_string();
        let mut response = Response::new(wire::body::full(answer));
        response.headers_mut().insert("content-type", "application/json".parse().unwrap());
        response
    }
}

/// An HTTPS server on loopback that lives as long as this value.
struct Outside {
    port: u16,
    ca_bundle: String,
    _dir: tempfile::TempDir,
    _runtime: tokio::runtime::Runtime,
}

fn outside(answer: Answer) -> Outside {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        clock: Clock::system(),
        node_name: "outside".into(),
        node_ips: vec![[127, 0, 0, 1].into()],
        service_ips: Vec::new(),
        cluster_domain: "cluster.local".into(),
        tls_sans: vec!["api.default.svc".into()],
        leaf_life: pki::authority::LEAF_LIFE,
    };
    let pki = Pki::load_or_create(dir.path(), options).unwrap();
    let tls = pki::tls::server_config(Arc::clone(pki.leaf(Leaf::ServingApiserver)), None).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let port = runtime.block_on(async {
        let (group, fatal) = Group::root("outside");
        // Nobody listens for it here; it lives as long as the program.
        std::mem::forget(fatal);
        let server =
            wire::serve::Server::bind(SocketAddr::from(([127, 0, 0, 1], 0)), Some(tls), Arc::new(Answers(answer)))
                .await
                .unwrap();
        let port = server.local_addr().unwrap().port();
        server.start(&group);
        std::mem::forget(group);
        port
    });
    let ca_bundle = wire::websocket::to_base64(pki.authority(Ca::Server).bundle().as_bytes());
    Outside { port, ca_bundle, _dir: dir, _runtime: runtime }
}

/// Adds a label to what is created, and says no to what is named `bad`.
fn judge(path: &str, _headers: &http::HeaderMap, review: &Value) -> Value {
    let mut response = json!({ "uid": review["request"]["uid"], "allowed": true });
    match path {
        "/mutate" => {
            let patch =
                json!([{ "op": "add", "path": "/data/added", "value": review["request"]["userInfo"]["username"] }])
                    .to_string();
            response["patchType"] = "JSONPatch".into();
            response["patch"] = wire::websocket::to_base64(patch.as_bytes()).into();
            response["warnings"] = json!(["something was added"]);
        }
        _ if review["request"]["name"] == "bad" => {
            response["allowed"] = false.into();
            response["status"] = json!({ "message": "no bad ones", "code": 403, "reason": "Forbidden" });
        }
        _ => {}
    }
    json!({ "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "response": response })
}

fn configuration(kind: &str, path: &str, outside: &Outside, more: &str) -> String {
    format!(
        r#"{{"apiVersion":"admissionregistration.k8s.io/v1","kind":"{kind}","metadata":{{"name":"hooks"}},"webhooks":[{{"name":"w.example.com","admissionReviewVersions":["v1"],"sideEffects":"None",{more}
        "objectSelector":{{"matchLabels":{{"judged":"yes"}}}},"clientConfig":{{"url":"https://127.0.0.1:{}/{path}","caBundle":"{}"}},
        "rules":[{{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["configmaps"]}}]}}]}}"#,
        outside.port, outside.ca_bundle
    )
}

#[test]
fn webhooks_change_and_judge() {
    let outside = outside(judge);
    let server = Server::start();
    server.ok_with(&["create", "-f-"], &configuration("MutatingWebhookConfiguration", "mutate", &outside, ""));
    server.ok_with(&["create", "-f-"], &configuration("ValidatingWebhookConfiguration", "validate", &outside, ""));
    let map = |name: &str, judged: &str| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "labels": { "judged": judged } },
            "data": { "a": "b" } })
        .to_string()
    };
    let said = server.said_with(&["create", "-f-"], &map("good", "yes"));
    assert_eq!(said.code, 0, "{said:?}");
    assert!(said.err.contains("Warning: something was added"), "{said:?}");
    assert_eq!(server.ok(&["get", "configmap", "good", "-o", "jsonpath={.data.added}"]), "system:admin");
    let refused = server.refused_with(&["create", "-f-"], &map("bad", "yes"));
    assert!(refused.contains(r#"admission webhook "w.example.com" denied the request: no bad ones"#), "{refused}");
    let metrics = server.ok(&["get", "--raw", "/metrics"]);
    let line = |name: &str, has: &[&str]| {
        metrics.lines().any(|line| line.starts_with(name) && has.iter().all(|part| line.contains(part)))
    };
    let count = "apiserver_admission_webhook_admission_duration_seconds_count";
    assert!(line(count, &["name=\"w.example.com\"", "type=\"admit\"", "operation=\"CREATE\""]), "{metrics}");
    assert!(line(count, &["type=\"validating\"", "rejected=\"true\""]), "{metrics}");
    assert!(line("apiserver_admission_webhook_rejection_count", &["error_type=\"no_error\""]), "{metrics}");
    server.ok_with(&["create", "-f-"], &map("unlabelled", "no"));
    assert_eq!(server.ok(&["get", "configmap", "unlabelled", "-o", "jsonpath={.data.added}"]), "");
    server.ok(&["delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "hooks"]);
    server.ok_with(&["create", "-f-"], &map("bad", "yes"));
    server.stop();
}

#[test]
fn a_webhook_that_is_not_there_fails_as_its_policy_says() {
    let mut closed = outside(judge);
    closed.port = crate::harness::free_port();
    let mut server = Server::start();
    server.announce("failing open");
    let map = |name: &str| {
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "labels": { "judged": "yes" } } })
            .to_string()
    };
    server.ok_with(&["create", "-f-"], &configuration("ValidatingWebhookConfiguration", "x", &closed, ""));
    let refused = server.refused_with(&["create", "-f-"], &map("a"));
    assert!(
        refused.contains(r#"failed calling webhook "w.example.com": failed to call webhook: Post "https://127.0.0.1:"#),
        "{refused}"
    );
    server.ok(&["delete", "validatingwebhookconfiguration", "hooks"]);
    server.ok_with(
        &["create", "-f-"],
        &configuration("ValidatingWebhookConfiguration", "x", &closed, r#""failurePolicy":"Ignore","#),
    );
    server.ok_with(&["create", "-f-"], &map("a"));
    server.stop();
}

/// One resource, the question who asks, and who a token is.
fn aggregated(path: &str, headers: &http::HeaderMap, sent: &Value) -> Value {
    let text = |name: &str| headers.get(name).map(|v| v.to_str().unwrap().to_owned()).unwrap_or_default();
    match path {
        "/apis/outside.example.com/v1" => json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "outside.example.com/v1",
            "resources": [{ "name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing",
                "verbs": ["get", "list"], "shortNames": ["th"] }],
        }),
        "/apis/outside.example.com/v1/namespaces/default/things/who" => json!({
            "kind": "Thing", "apiVersion": "outside.example.com/v1",
            "metadata": { "name": "who", "namespace": "default" },
            "user": text("x-remote-user"), "token": text("authorization"),
            "groups": headers.get_all("x-remote-group").iter().map(|v| String::from_utf8_lossy(v.as_bytes()))
                .collect::<Vec<_>>(),
        }),
        "/tokens" => {
            let groups = if sent["spec"]["token"] == "broken" {
                json!(["watched", "two\nlines"])
            } else {
                json!(["g\u{e4}ste"])
            };
            let known = json!({ "authenticated": true, "user": { "username": "guest", "groups": groups } });
            json!({ "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "status": known })
        }
        _ => json!({ "kind": "ThingList", "apiVersion": "outside.example.com/v1", "metadata": {}, "items": [] }),
    }
}

/// security-2.md F21: groups that are no plain text were left out, and the server behind saw a user with fewer.
fn tells_all_of_a_user_or_nothing(server: &Server) {
    server.ok(&["create", "clusterrole", "reads", "--verb=get", "--resource=things.outside.example.com"]);
    server.ok(&["create", "clusterrolebinding", "reads", "--clusterrole=reads", "--user=guest"]);
    let url = format!("https://127.0.0.1:{}", server.place.port);
    let asks = |token: &str| {
        let path = "/apis/outside.example.com/v1/namespaces/default/things/who";
        let base = ["--kubeconfig=/dev/null", "--insecure-skip-tls-verify", "--server", &url, "--token", token];
        server.said(&[&base[..], &["get", "--raw", path]].concat())
    };
    server.until(&["auth", "can-i", "get", "things.outside.example.com", "--as=guest"], SETTLE_LIMIT, |out| {
        out == "yes\n"
    });
    let who: Value = serde_json::from_str(&asks("good").out).unwrap();
    assert_eq!(who["groups"], json!(["g\u{e4}ste", "system:authenticated"]));
    let refused = asks("broken");
    assert!(refused.code != 0 && refused.err.contains("cannot be told to the server behind this API"), "{refused:?}");
}

#[test]
fn an_aggregated_api_is_part_of_the_whole() {
    let outside = outside(aggregated);
    let mut place = Place::new(&["--disable=coredns"]);
    let webhook = json!({ "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "users": [{ "name": "u", "user": {} }],
        "clusters": [{ "name": "c", "cluster": { "server": format!("https://127.0.0.1:{}/tokens", outside.port),
            "certificate-authority-data": outside.ca_bundle } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }] });
    std::fs::write(place.path("webhook"), webhook.to_string()).unwrap();
    place.flags.push(format!(
        "--kube-apiserver-arg=authentication-token-webhook-config-file={}",
        place.path("webhook").display()
    ));
    let server = Server::start_in(place);
    let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "api" },
        "spec": { "type": "ExternalName", "externalName": "localhost" } });
    server.ok_with(&["create", "-f-"], &service.to_string());
    let registration = json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": "v1.outside.example.com" },
        "spec": { "group": "outside.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
            "caBundle": outside.ca_bundle,
                  "service": { "namespace": "default", "name": "api", "port": outside.port } },
    });
    server.ok_with(&["create", "-f-"], &registration.to_string());
    server.until(
        &["get", "apiservice", "v1.outside.example.com", "-o", "jsonpath={.status.conditions[0].reason}"],
        SETTLE_LIMIT,
        |out| out == "Passed",
    );
    assert!(server.ok(&["api-resources", "--api-group=outside.example.com"]).contains("things"));
    let who: Value = serde_json::from_str(&server.ok(&["get", "th", "who", "-o", "json"])).unwrap();
    assert_eq!((who["user"].as_str(), who["token"].as_str()), (Some("system:admin"), Some("")));
    tells_all_of_a_user_or_nothing(&server);
    assert!(
        server
            .ok(&["get", "--raw", "/metrics"])
            .contains("aggregator_unavailable_apiservice{name=\"v1.outside.example.com\"} 0")
    );
    let local = server.ok(&["get", "apiservice", "v1.apps", "-o", "jsonpath={.status.conditions[0].message}"]);
    assert_eq!(local, "Local APIServices are always available");
    server.ok(&["delete", "apiservice", "v1.outside.example.com"]);
    assert!(server.refused(&["get", "--raw", "/apis/outside.example.com/v1"]).contains("could not find"));
    server.stop();
}
