//! From method, path and query to [`Attributes`], as upstream's `RequestInfoFactory` reads them.

use std::sync::Arc;

use http::Method;
use serde_json::{Value, json};

use crate::attributes::Attributes;
use crate::query::{self, Query};

/// What follows the subresource in the path, e.g. of `pods/x/proxy/a/b`: `a/b`.
pub fn tail(path: &str, attributes: &Attributes) -> String {
    let marker = format!("/{}/{}", attributes.name, attributes.subresource);
    path.find(&marker).map(|at| path[at + marker.len()..].trim_start_matches('/').to_owned()).unwrap_or_default()
}

/// Reads the request. The user is filled in later.
pub fn parse(method: &Method, path: &str, query: &Query) -> Attributes {
    let mut a = Attributes { path: path.to_owned(), verb: method.as_str().to_ascii_lowercase(), ..Attributes::default() };
    let decoded: Vec<String> = path.trim_matches('/').split('/').map(|p| query::decode(p, false)).collect();
    let mut parts: Vec<&str> = decoded.iter().map(String::as_str).filter(|p| !p.is_empty()).collect();
    match parts.as_slice() {
        ["api", _, _, ..] => {
            a.version = parts[1].to_owned();
            parts.drain(..2);
        }
        ["apis", _, _, _, ..] => {
            a.group = parts[1].to_owned();
            a.version = parts[2].to_owned();
            parts.drain(..3);
        }
        _ => return a,
    }
    a.is_resource = true;
    a.verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::GET | Method::HEAD => "get",
        _ => "",
    }
    .to_owned();
    if matches!(parts[0], "watch" | "proxy") && parts.len() > 1 {
        a.verb = parts[0].to_owned();
        parts.remove(0);
    }
    if parts[0] == "namespaces"
        && let Some(namespace) = parts.get(1)
    {
        a.namespace = (*namespace).to_owned();
        if parts.len() > 2 && !matches!(parts[2], "status" | "finalize") {
            parts.drain(..2);
        }
    }
    a.resource = parts[0].to_owned();
    a.name = parts.get(1).copied().unwrap_or_default().to_owned();
    a.subresource = parts.get(2).copied().unwrap_or_default().to_owned();
    a.label_selector = query.text("labelSelector").to_owned();
    a.field_selector = query.text("fieldSelector").to_owned();
    collection_verb(&mut a, query);
    if let Some(kind) = match a.verb.as_str() {
        "create" => Some("CreateOptions"),
        "update" => Some("UpdateOptions"),
        "patch" => Some("PatchOptions"),
        _ => None,
    } {
        a.options = Arc::new(options(kind, query));
    }
    a
}

/// The options of a write, from the query.
fn options(kind: &str, query: &Query) -> Value {
    let mut out = json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1" });
    let dry: Vec<&str> = query.all("dryRun").filter(|v| !v.is_empty()).collect();
    if !dry.is_empty() {
        out["dryRun"] = json!(dry);
    }
    for field in ["fieldManager", "fieldValidation"] {
        if let Some(text) = query.get(field).filter(|t| !t.is_empty()) {
            out[field] = json!(text);
        }
    }
    if kind == "PatchOptions" && query.get("force").is_some() {
        out["force"] = json!(query.flag("force"));
    }
    out
}

/// Without a name a get is a list or a watch, and a delete empties the collection.
fn collection_verb(a: &mut Attributes, query: &Query) {
    if a.verb == "watch" && !a.name.is_empty() {
        a.field_selector = format!("metadata.name={}", a.name);
    }
    if a.verb == "get" && a.name.is_empty() {
        a.verb = if query.flag("watch") { "watch" } else { "list" }.to_owned();
        // Authorizers see the one name that the selector lets through.
        if let Ok(selector) = schema::fields::FieldSelector::parse(&a.field_selector)
            && let Some(name) = selector.exact("metadata.name")
        {
            a.name = name.to_owned();
        }
    } else if a.verb == "delete" && a.name.is_empty() {
        a.verb = "deletecollection".to_owned();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: Method, url: &str, expect: &str) {
        let (path, query) = url.split_once('?').unwrap_or((url, ""));
        let a = parse(&method, path, &Query::parse(query));
        let got = format!("{} {}/{} {} ns={} name={}", a.verb, a.group, a.version, a.resource_path(), a.namespace, a.name);
        assert_eq!(got, expect, "{url}");
    }

    #[test]
    fn paths_become_verbs_and_names() {
        check(Method::GET, "/api/v1/namespaces/a/pods/b/log", "get /v1 pods/log ns=a name=b");
        check(Method::GET, "/api/v1/namespaces/a", "get /v1 namespaces ns=a name=a");
        check(Method::PUT, "/api/v1/namespaces/a/finalize", "update /v1 namespaces/finalize ns=a name=a");
        check(Method::GET, "/api/v1/pods?watch=1", "watch /v1 pods ns= name=");
        check(Method::GET, "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx", "list /v1 pods ns=a name=x");
        check(Method::DELETE, "/apis/apps/v1/namespaces/a/deployments", "deletecollection apps/v1 deployments ns=a name=");
        check(Method::GET, "/apis/apps/v1", "get /  ns= name=");
    }
}
