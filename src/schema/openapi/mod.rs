//! OpenAPI documents, made from the table when asked for and not kept: v3 per group version with its index, and v2.

use base64::Engine as _;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::catalog::Catalog;
use crate::table::{GroupVersion, Resource};

mod custom;
mod descriptions;
mod paths;
mod schemas;
mod sentences;
#[cfg(test)]
mod tests;
pub mod v2_protobuf;

/// Which of the two dialects is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    V2,
    V3,
}

impl Dialect {
    fn reference(self, name: &str) -> Value {
        let place = match self {
            Dialect::V2 => "#/definitions/",
            Dialect::V3 => "#/components/schemas/",
        };
        json!({"$ref": format!("{place}{name}")})
    }
}

/// `api/v1` or `apis/apps/v1`: the part of the path behind `/openapi/v3/`.
pub fn path_of(of: GroupVersion<'_>) -> String {
    let root = if of.group.is_empty() { "api" } else { "apis" };
    format!("{root}/{of}")
}

/// `/openapi/v3`: where each group version's document is, with a hash that changes when it changes.
///
/// `build` is a text that changes with the program (its version): documents of one build never differ.
pub fn v3_index(catalog: &Catalog, build: &str) -> Value {
    let mut paths = Map::new();
    for group in catalog.groups() {
        for version in &group.versions {
            let of = GroupVersion { group: &group.name, version };
            let path = path_of(of);
            let url = format!("/openapi/v3/{path}?hash={}", v3_hash(catalog, of, build));
            paths.insert(path, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

/// The hash of one group version's document.
pub fn v3_hash(catalog: &Catalog, of: GroupVersion<'_>, build: &str) -> String {
    let path = path_of(of);
    let custom = catalog.of_version(of).filter(served).filter_map(|r| Some(r.definition.as_ref()?.stamp.as_str()));
    let parts: Vec<&str> = [build, path.as_str()].into_iter().chain(custom).collect();
    hash(&parts)
}

/// The hash of a document that is made already.
pub fn hash_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02X}")).collect()
}

/// A short hash for index entries, also for CRDs (`[resourceVersion, path]`).
pub fn hash(parts: &[&str]) -> String {
    let mut sum = Sha256::new();
    for part in parts {
        sum.update(part.as_bytes());
        sum.update([0]);
    }
    sum.finalize().iter().map(|b| format!("{b:02X}")).collect()
}

/// A custom version that is only stored has a row, but nobody sees it.
fn served(r: &&Resource) -> bool {
    !r.custom || !r.verbs.is_empty()
}

/// The hash that discovery gives for the version in which a resource is stored.
pub fn storage_version_hash(of: GroupVersion<'_>, kind: &str) -> String {
    let sum = Sha256::digest(format!("{}/{}/{kind}", of.group, of.version).as_bytes());
    base64::engine::general_purpose::STANDARD.encode(&sum[..8])
}

/// The v3 document of one group version, or nothing if it is not served.
pub fn v3(catalog: &Catalog, of: GroupVersion<'_>) -> Option<Value> {
    let rows: Vec<_> = catalog.of_version(of).filter(served).collect();
    if rows.is_empty() {
        return None;
    }
    let scheme = json!({"BearerToken": {"type": "apiKey", "in": "header", "name": "authorization",
        "description": "Bearer Token authentication"}});
    Some(json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "unversioned"},
        "paths": paths::of_version(Dialect::V3, of, &rows),
        "components": {"schemas": schemas::closure(catalog, Dialect::V3, &rows), "securitySchemes": scheme},
    }))
}

/// The v2 document of everything; `version` is the server's, such as `v1.36.2`.
pub fn v2(catalog: &Catalog, version: &str) -> Value {
    let mut all = Map::new();
    for group in catalog.groups() {
        for v in &group.versions {
            let of = GroupVersion { group: &group.name, version: v };
            let rows: Vec<_> = catalog.of_version(of).filter(served).collect();
            all.extend(paths::of_version(Dialect::V2, of, &rows));
        }
    }
    let rows: Vec<_> = catalog.resources().iter().map(AsRef::as_ref).filter(served).collect();
    let scheme = json!({"BearerToken": {"type": "apiKey", "in": "header", "name": "authorization",
        "description": "Bearer Token authentication"}});
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": version},
        "paths": all,
        "definitions": schemas::closure(catalog, Dialect::V2, &rows),
        "securityDefinitions": scheme,
        "security": [{"BearerToken": []}],
    })
}
