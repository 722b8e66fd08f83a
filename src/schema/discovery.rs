//! Discovery documents: the legacy ones and the aggregated form, from any catalogs (built-in and CRDs').

pub mod order;

use serde_json::{Map, Value, json};

use crate::catalog::Catalog;
use crate::table::{GroupVersion, Gvk, Name, Resource, Subresource};

/// Version of the aggregated discovery document.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Aggregated {
    /// apidiscovery.k8s.io/v2
    V2,
    /// apidiscovery.k8s.io/v2beta1
    V2Beta1,
}

/// `/api`: the versions of the core group; `server_address` is `host:port`.
pub fn api_versions(server_address: &str) -> Value {
    let server = json!({"clientCIDR": "0.0.0.0/0", "serverAddress": server_address});
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": [server]})
}

/// `/apis`: all groups but the core one, in order.
pub fn groups(catalog: &Catalog) -> Value {
    let groups: Vec<Value> =
        catalog.groups().iter().filter(|g| !g.name.is_empty()).map(|g| group_entry(&g.name, &g.versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// One entry of `/apis`, also for groups that a CRD or an APIService adds.
pub fn group_entry(name: &str, versions: &[String]) -> Value {
    let version = |v: &String| {
        json!({"groupVersion": GroupVersion { group: name, version: v }.to_string(),
        "version": v})
    };
    let all: Vec<Value> = versions.iter().map(version).collect();
    let preferred = all.first().cloned().unwrap_or(Value::Null);
    json!({"name": name, "versions": all, "preferredVersion": preferred})
}

/// `/apis/GROUP`, or nothing if the group is not served.
pub fn group(catalog: &Catalog, name: &str) -> Option<Value> {
    let g = catalog.groups().iter().find(|g| g.name == name && !name.is_empty())?;
    let mut entry = group_entry(&g.name, &g.versions);
    entry["kind"] = "APIGroup".into();
    entry["apiVersion"] = "v1".into();
    Some(entry)
}

/// `/api/v1` and `/apis/GROUP/VERSION`, or nothing if it is not served.
pub fn resources(catalog: &Catalog, of: GroupVersion<'_>) -> Option<Value> {
    let rows: Vec<&Resource> = catalog.of_version(of).filter(|r| !r.custom || !r.verbs.is_empty()).collect();
    if rows.is_empty() { None } else { Some(resource_list(of, &rows)) }
}

/// An APIResourceList of these rows.
fn resource_list(of: GroupVersion<'_>, rows: &[&Resource]) -> Value {
    let mut all: Vec<Value> = rows.iter().flat_map(|r| legacy_entries(r)).collect();
    all.sort_by(|a, b| a["name"].as_str().cmp(&b["name"].as_str()));
    let mut list = json!({"kind": "APIResourceList", "groupVersion": of.to_string(), "resources": all});
    // Upstream leaves apiVersion out for the core group only.
    if !of.group.is_empty() {
        list["apiVersion"] = "v1".into();
    }
    list
}

fn legacy_entries(r: &Resource) -> Vec<Value> {
    let mut main = Map::new();
    main.insert("name".into(), r.plural.as_ref().into());
    main.insert("singularName".into(), r.singular.as_ref().into());
    main.insert("namespaced".into(), r.namespaced.into());
    main.insert("kind".into(), r.kind.as_ref().into());
    main.insert("verbs".into(), texts(&r.verbs));
    put_texts(&mut main, "shortNames", &r.short_names);
    put_texts(&mut main, "categories", &r.categories);
    if r.has_verb("list") && !r.storage_version_hash.is_empty() {
        main.insert("storageVersionHash".into(), r.storage_version_hash.as_ref().into());
    }
    std::iter::once(Value::Object(main)).chain(r.subresources.iter().map(|s| legacy_subresource(r, s))).collect()
}

fn legacy_subresource(r: &Resource, s: &Subresource) -> Value {
    let name = format!("{}/{}", r.plural, s.name);
    let mut out = json!({"name": name, "singularName": "", "namespaced": r.namespaced, "kind": s.kind.kind,
        "verbs": texts(&s.verbs)});
    if foreign(r, &s.kind) {
        out["group"] = s.kind.group.as_ref().into();
        out["version"] = s.kind.version.as_ref().into();
    }
    out
}

fn foreign(r: &Resource, kind: &Gvk) -> bool {
    kind.group != r.group || kind.version != r.version
}

fn texts(names: &[Name]) -> Value {
    names.iter().map(|n| Value::from(n.as_ref())).collect()
}

fn put_texts(map: &mut Map<String, Value>, key: &str, names: &[Name]) {
    if !names.is_empty() {
        map.insert(key.into(), texts(names));
    }
}

/// The aggregated document of `/api` (the core group only) or `/apis` (all others).
pub fn aggregated(catalog: &Catalog, core: bool, form: Aggregated) -> Value {
    let groups = catalog.groups().iter().filter(|g| g.name.is_empty() == core);
    let items = groups.map(|g| aggregated_group(catalog, &g.name, &g.versions)).collect();
    aggregated_list(items, form)
}

/// Wraps groups (built-in and others) into the list.
pub fn aggregated_list(items: Vec<Value>, form: Aggregated) -> Value {
    let version = match form {
        Aggregated::V2 => "apidiscovery.k8s.io/v2",
        Aggregated::V2Beta1 => "apidiscovery.k8s.io/v2beta1",
    };
    json!({"kind": "APIGroupDiscoveryList", "apiVersion": version, "metadata": {}, "items": items})
}

/// One group of the aggregated document.
pub fn aggregated_group(catalog: &Catalog, name: &str, versions: &[String]) -> Value {
    let version = |v: &String| {
        let mut rows: Vec<&Resource> = catalog.of_version(GroupVersion { group: name, version: v }).collect();
        rows.sort_by(|a, b| a.plural.cmp(&b.plural));
        json!({"version": v, "freshness": "Current",
            "resources": rows.into_iter().map(aggregated_resource).collect::<Vec<_>>()})
    };
    let metadata = if name.is_empty() { json!({}) } else { json!({"name": name}) };
    json!({"metadata": metadata, "versions": versions.iter().map(version).collect::<Vec<_>>()})
}

fn aggregated_resource(r: &Resource) -> Value {
    let mut out = Map::new();
    out.insert("resource".into(), r.plural.as_ref().into());
    out.insert("responseKind".into(), response_kind(r, &r.gvk()));
    out.insert("scope".into(), if r.namespaced { "Namespaced" } else { "Cluster" }.into());
    out.insert("singularResource".into(), r.singular.as_ref().into());
    out.insert("verbs".into(), texts(&r.verbs));
    put_texts(&mut out, "shortNames", &r.short_names);
    put_texts(&mut out, "categories", &r.categories);
    let sub = |s: &Subresource| {
        json!({"subresource": s.name, "responseKind": response_kind(r, &s.kind),
        "verbs": texts(&s.verbs)})
    };
    if !r.subresources.is_empty() {
        out.insert("subresources".into(), r.subresources.iter().map(sub).collect());
    }
    Value::Object(out)
}

fn response_kind(r: &Resource, kind: &Gvk) -> Value {
    // Upstream leaves group and version empty where they are those of the resource.
    if r.custom || foreign(r, kind) {
        return json!({"group": kind.group, "version": kind.version, "kind": kind.kind});
    }
    json!({"group": "", "version": "", "kind": kind.kind})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream(file: &str) -> Option<Value> {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../../shared/upstream-v1.36/discovery")
            .join(file);
        let Ok(bytes) = std::fs::read(&path) else {
            base::skips::say(&format!("{} is absent", path.display()));
            return None;
        };
        serde_json::from_slice(&bytes).ok()
    }

    #[test]
    fn every_resource_list_equals_upstreams() {
        for g in Catalog::builtin().groups() {
            for v in &g.versions {
                let file =
                    if g.name.is_empty() { "api__v1.json".to_owned() } else { format!("apis__{}__{v}.json", g.name) };
                let Some(want) = upstream(&file) else { return };
                assert_eq!(
                    resources(Catalog::builtin(), GroupVersion { group: &g.name, version: v }),
                    Some(want),
                    "{file}"
                );
            }
        }
    }

    #[test]
    fn groups_and_the_aggregated_document_equal_upstreams() {
        if let Some(want) = upstream("apis.json") {
            assert_eq!(groups(Catalog::builtin()), want);
        }
        if let Some(want) = upstream("aggregated_v2.json") {
            assert_eq!(aggregated(Catalog::builtin(), false, Aggregated::V2), want);
        }
    }
}
