//! Discovery and OpenAPI of those behind this server, put beside its own.

use base::sync::{Mutex, MutexGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use model::meta;
use schema::{discovery, read};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::registry::{ApiService, Known};
use crate::lookup::Lookup as _;
use crate::serve::ApiServer;
use crate::user::UserInfo;
use crate::webhook::call::Endpoint;

/// Others' documents are asked for again after this.
const FRESH: Duration = Duration::from_secs(30);
/// The same of those that gave nothing the last time: one that hangs costs the full wait each time.
const AGAIN: Duration = Duration::from_secs(10);
/// They must answer within this; a client waits for it.
const ANSWER: Duration = Duration::from_secs(5);
/// Backends that are asked side by side.
const ASKED_AT_ONCE: usize = 16;

/// What others said, by APIService and path.
#[derive(Default)]
pub struct Documents(Mutex<HashMap<String, Kept>>);

/// What a backend said when it was asked.
struct Kept {
    at: Instant,
    /// The one before, if it gave nothing.
    document: Option<Arc<Value>>,
    /// The APIService as it was then.
    asked: ApiService,
}

impl Kept {
    /// Whether the backend is not to be asked now. A failure of before it became available, or of other trust, says
    /// nothing of it now.
    fn is_good_for(&self, service: &ApiService) -> bool {
        let age = self.at.elapsed();
        match &self.document {
            _ if !service.available => true,
            Some(_) => age < FRESH,
            None => age < AGAIN && self.asked == *service,
        }
    }
}

impl Documents {
    /// A JSON document of a backend, as it was at most half a minute ago; the last one if it does not answer now.
    async fn get(&self, server: &ApiServer, service: &ApiService, path: &str) -> Option<Arc<Value>> {
        if service.computed {
            return crate::usage::document::at(path).map(Arc::new);
        }
        let endpoint = service.service.as_ref()?;
        let key = format!("{} {} {path}", service.name, endpoint.url());
        if let Some(kept) = self.lock().get(&key)
            && kept.is_good_for(service)
        {
            return kept.document.clone();
        }
        if !service.available {
            return None;
        }
        let said = ask(server, service, endpoint, path).await;
        self.keep(key, service, said)
    }

    /// The document of this path of each backend.
    async fn of_all<'k>(
        &self,
        server: &ApiServer,
        known: &'k Known,
        path: &str,
    ) -> Vec<(&'k Arc<ApiService>, Option<Arc<Value>>)> {
        let get =
            |service: &'k Arc<ApiService>| async move { (service, self.get(server, service, path).await) }.boxed();
        ask_all(known.remote.values().map(get).collect()).await
    }

    /// Remembers what a backend said; gives the document that counts now. One that somebody else got meanwhile outlives
    /// a failure.
    fn keep(&self, key: String, asked: &ApiService, said: Option<Arc<Value>>) -> Option<Arc<Value>> {
        let mut kept = self.lock();
        kept.retain(|_, kept| kept.at.elapsed() < FRESH * 20);
        let document = said.or_else(|| kept.get(&key)?.document.clone());
        kept.insert(key, Kept { at: Instant::now(), document: document.clone(), asked: asked.clone() });
        document
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Kept>> {
        self.0.lock()
    }
}

/// What a backend says now; nothing if it does not answer, or no JSON.
async fn ask(server: &ApiServer, service: &ApiService, endpoint: &Endpoint, path: &str) -> Option<Arc<Value>> {
    let to = Endpoint { path: path.to_owned(), ..endpoint.clone() };
    let mut identity = server.guards.front_proxy.clone();
    identity.insecure = service.insecure;
    let user = UserInfo::new("system:kube-aggregator", &["system:masters"]);
    let says_who = super::proxy::says_who(&user).unwrap_or_default();
    let answer = server.guards.webhooks.send_with(http::Method::GET, &to, &identity, says_who, ANSWER).await.ok()?;
    let is_good = answer.status().is_success();
    is_good.then(|| serde_json::from_slice(answer.body()).ok()).flatten().map(Arc::new)
}

/// Asks all backends, several at once, so that one that hangs holds up no other; the answers stand in the order of the
/// questions.
async fn ask_all<T>(questions: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    futures_util::stream::iter(questions).buffered(ASKED_AT_ONCE).collect().await
}

/// `/apis`: others' groups behind our own.
pub fn groups(own: &mut Value, known: &Known) {
    let Some(list) = own["groups"].as_array_mut() else { return };
    for group in known.groups() {
        let versions: Vec<String> = known.versions(&group).iter().map(|s| s.version.clone()).collect();
        match list.iter_mut().find(|g| g["name"] == group) {
            None => list.push(discovery::group_entry(&group, &versions)),
            Some(entry) => {
                let Some(have) = entry["versions"].as_array_mut() else { continue };
                for version in versions {
                    if !have.iter().any(|v| v["version"] == version) {
                        have.push(json!({ "groupVersion": format!("{group}/{version}"), "version": version }));
                    }
                }
            }
        }
    }
}

/// `/apis/GROUP` of a group that others answer.
pub fn group(own: Option<Value>, known: &Known, name: &str) -> Option<Value> {
    let mut list = json!({ "groups": own.into_iter().collect::<Vec<_>>() });
    groups(&mut list, known);
    let mut entry = list["groups"].as_array_mut()?.iter_mut().find(|g| g["name"] == name)?.take();
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Some(entry)
}

/// The aggregated form: others' versions, with their resources.
pub async fn aggregated(server: &ApiServer, own: &mut Value, known: &Known) {
    let services: Vec<Arc<ApiService>> = known.groups().iter().flat_map(|group| known.versions(group)).collect();
    let said = ask_all(services.iter().map(|service| version(server, service).boxed()).collect()).await;
    let mut made = services.iter().zip(said).peekable();
    for group in known.groups() {
        let mut versions = Vec::new();
        while let Some((_, version)) = made.next_if(|(service, _)| service.group == group) {
            versions.push(version);
        }
        let Some(items) = own["items"].as_array_mut() else { return };
        match items.iter_mut().find(|g| g["metadata"]["name"] == group) {
            Some(entry) => {
                if let Some(have) = entry["versions"].as_array_mut() {
                    have.extend(versions);
                }
            }
            None => {
                items.push(json!({ "metadata": { "name": group, "creationTimestamp": null }, "versions": versions }))
            }
        }
    }
}

/// One version of the aggregated document, made from the backend's APIResourceList.
async fn version(server: &ApiServer, service: &ApiService) -> Value {
    let list = server.documents.get(server, service, &format!("/apis/{}/{}", service.group, service.version)).await;
    let freshness = if service.available && list.is_some() { "Current" } else { "Stale" };
    let resources = list.map(|list| resources(&list, service)).unwrap_or_default();
    json!({ "version": service.version, "resources": resources, "freshness": freshness })
}

fn resources(list: &Value, service: &ApiService) -> Vec<Value> {
    let all = list["resources"].as_array().cloned().unwrap_or_default();
    let kind = |r: &Value| {
        let or = |field: &str, other: &str| r[field].as_str().filter(|t| !t.is_empty()).unwrap_or(other).to_owned();
        json!({ "group": or("group", &service.group), "version": or("version", &service.version), "kind": r["kind"] })
    };
    let mut out: Vec<Value> = Vec::new();
    for r in &all {
        let name = r["name"].as_str().unwrap_or_default();
        if name.contains('/') {
            continue;
        }
        let scope = if r["namespaced"] == true { "Namespaced" } else { "Cluster" };
        let mut entry = json!({
            "resource": name, "responseKind": kind(r), "scope": scope, "singularResource": r["singularName"].as_str().unwrap_or_default(), "verbs": r["verbs"],
        });
        for field in ["shortNames", "categories"] {
            if r[field].is_array() {
                entry[field] = r[field].clone();
            }
        }
        let prefix = format!("{name}/");
        let subs: Vec<Value> = all
            .iter()
            .filter_map(|s| Some((s, s["name"].as_str()?.strip_prefix(&prefix)?)))
            .map(|(s, sub)| json!({ "subresource": sub, "responseKind": kind(s), "verbs": s["verbs"] }))
            .collect();
        if !subs.is_empty() {
            entry["subresources"] = Value::Array(subs);
        }
        out.push(entry);
    }
    out
}

/// `/openapi/v3`: others' group versions, with the hashes they gave.
pub async fn openapi_v3_index(server: &ApiServer, own: &mut Value, known: &Known) {
    for (service, index) in server.documents.of_all(server, known, "/openapi/v3").await {
        let path = format!("apis/{}/{}", service.group, service.version);
        let Some(index) = index else { continue };
        if index["paths"][&path].is_object() {
            own["paths"][&path] = index["paths"][&path].clone();
        }
    }
}

/// The backend that answers `/openapi/v3/apis/GROUP/VERSION`.
pub fn openapi_v3_backend(known: &Known, path: &str) -> Option<Arc<ApiService>> {
    let (group, version) = path.strip_prefix("/openapi/v3/apis/")?.split_once('/')?;
    known.remote.get(&(group.to_owned(), version.trim_end_matches('/').to_owned())).cloned()
}

/// `/openapi/v2`: others' paths below their group version, and the definitions that ours lacks.
pub async fn openapi_v2(server: &ApiServer, own: &mut Value, known: &Known) {
    for (service, theirs) in server.documents.of_all(server, known, "/openapi/v2").await {
        let Some(theirs) = theirs else { continue };
        let below = format!("/apis/{}/{}/", service.group, service.version);
        add(own, &theirs, "paths", |path| path.starts_with(&below) || path == below);
        add(own, &theirs, "definitions", |_| true);
    }
}

fn add(own: &mut Value, theirs: &Value, field: &str, wanted: impl Fn(&str) -> bool) {
    let empty = Map::new();
    let from = theirs[field].as_object().unwrap_or(&empty);
    let Some(to) = own[field].as_object_mut() else { return };
    for (key, value) in from.iter().filter(|(key, _)| wanted(key)) {
        to.entry(key.clone()).or_insert_with(|| value.clone());
    }
}

/// The backends that do not answer, for `/metrics`.
pub fn unavailable(server: &ApiServer) -> String {
    let name = "aggregator_unavailable_apiservice";
    let mut text = format!(
        "# HELP {name} [ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.\n# TYPE {name} gauge\n"
    );
    for object in
        server.cache.list(super::GROUP, super::RESOURCE, None).iter().filter(|o| o["spec"]["service"].is_object())
    {
        let gone = u8::from(!read::condition_is_true(object, "Available"));
        text.push_str(&format!("{name}{{name=\"{}\"}} {gone}\n", meta::name(object)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that has been available since then; an empty time: it is not.
    fn service(since: &str) -> ApiService {
        ApiService {
            name: "v1.g".into(),
            group: "g".into(),
            version: "v1".into(),
            service: None,
            computed: false,
            insecure: false,
            priority: (1, 1),
            available: !since.is_empty(),
            since: since.into(),
        }
    }

    #[test]
    fn a_list_of_resources_becomes_the_aggregated_form() {
        let service = service("2026-01-01T00:00:00Z");
        let list = json!({ "resources": [
            { "name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get"] },
            { "name": "flunders/status", "singularName": "", "namespaced": true, "kind": "Flunder", "verbs": ["update"] },
        ] });
        let out = resources(&list, &service);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0]["responseKind"], json!({ "group": "g", "version": "v1", "kind": "Flunder" }));
        assert_eq!(out[0]["subresources"][0]["subresource"], "status");
    }

    /// Each answers when all are asked.
    #[tokio::test]
    async fn backends_are_asked_side_by_side_and_keep_their_order() {
        let all = tokio::sync::Barrier::new(ASKED_AT_ONCE);
        let question = |n: usize| {
            let all = &all;
            let answer = async move {
                all.wait().await;
                n
            };
            answer.boxed()
        };
        let said = ask_all((0..ASKED_AT_ONCE).map(question).collect()).await;
        assert_eq!(said, (0..ASKED_AT_ONCE).collect::<Vec<_>>());
    }

    const MORNING: &str = "2026-01-01T08:00:00Z";
    const NOON: &str = "2026-01-01T12:00:00Z";

    /// Whether one that was asked so long ago, when its APIService was `asked`, and gave nothing is not asked yet.
    fn is_held_back(asked: &ApiService, now: &ApiService, ago: Duration) -> bool {
        let kept = Kept { at: Instant::now().checked_sub(ago).unwrap(), document: None, asked: asked.clone() };
        kept.is_good_for(now)
    }

    #[test]
    fn one_that_gave_nothing_is_not_asked_at_once_again() {
        let it = service(MORNING);
        assert!(is_held_back(&it, &it, ANSWER) && !is_held_back(&it, &it, AGAIN));
        assert!(is_held_back(&it, &service(""), FRESH));
    }

    #[test]
    fn one_that_has_become_available_is_asked_at_once_whatever_it_gave_before() {
        let now = service(NOON);
        let mut trusted = now.clone();
        trusted.insecure = true;
        for before in [service(""), service(MORNING), trusted] {
            assert!(!is_held_back(&before, &now, Duration::ZERO), "{before:?}");
        }
    }

    #[test]
    fn a_failure_that_ends_late_takes_no_document_away() {
        let (documents, it) = (Documents::default(), service(MORNING));
        let keep = |said| documents.keep("v1.g".into(), &it, said);
        assert_eq!(keep(None), None);
        let said = Some(Arc::new(json!({ "kind": "APIResourceList" })));
        assert_eq!((keep(said.clone()), keep(None)), (said.clone(), said));
    }
}
