//! Discovery and OpenAPI of those behind this server, put beside its own.

use std::sync::Arc;

use base::exposition::{Kind, Metric, Page};
use futures_util::FutureExt as _;
use model::meta;
use model::reference::GroupResource;
use registry::lookup::Lookup as _;
use registry::objects::Objects;
use schema::{discovery, read};
use serde_json::{Map, Value, json};

use super::fetched::{Documents, ask_all};
use super::registry::{ApiService, Known};

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
pub async fn aggregated(documents: &Documents, own: &mut Value, known: &Known) {
    let services: Vec<Arc<ApiService>> = known.groups().iter().flat_map(|group| known.versions(group)).collect();
    let said = ask_all(services.iter().map(|service| version(documents, service).boxed()).collect()).await;
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
async fn version(documents: &Documents, service: &ApiService) -> Value {
    let list = documents.get(service, &format!("/apis/{}/{}", service.group, service.version)).await;
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
            "resource": name, "responseKind": kind(r), "scope": scope,
            "singularResource": r["singularName"].as_str().unwrap_or_default(), "verbs": r["verbs"],
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
pub async fn openapi_v3_index(documents: &Documents, own: &mut Value, known: &Known) {
    for (service, index) in documents.of_all(known, "/openapi/v3").await {
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
pub async fn openapi_v2(documents: &Documents, own: &mut Value, known: &Known) {
    for (service, theirs) in documents.of_all(known, "/openapi/v2").await {
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

const UNAVAILABLE: Metric = Metric {
    name: "aggregator_unavailable_apiservice",
    help: "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.",
};

/// The backends that do not answer, for `/metrics`.
pub fn unavailable(objects: &Objects) -> String {
    let mut page = Page::default();
    let mut family = page.family(Kind::Gauge, UNAVAILABLE);
    for object in objects
        .cache
        .list(GroupResource { group: super::GROUP, resource: super::RESOURCE }, None)
        .iter()
        .filter(|o| o["spec"]["service"].is_object())
    {
        let gone = u8::from(!read::condition_is_true(object, "Available"));
        family.sample(&[("name", meta::name(object))], gone);
    }
    page.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_resources_becomes_the_aggregated_form() {
        let service = ApiService::since("2026-01-01T00:00:00Z");
        let list = json!({ "resources": [
            { "name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get"] },
            { "name": "flunders/status", "singularName": "", "namespaced": true, "kind": "Flunder",
                "verbs": ["update"] },
        ] });
        let out = resources(&list, &service);
        assert_eq!(out.len(), 1);
        assert_eq!(out[0]["responseKind"], json!({ "group": "g", "version": "v1", "kind": "Flunder" }));
        assert_eq!(out[0]["subresources"][0]["subresource"], "status");
    }
}
