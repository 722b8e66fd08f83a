//! From method, path and query to [`Attributes`], as upstream's `RequestInfoFactory` reads them.

use std::sync::Arc;

use base::url::{self, Query};
use http::Method;
use registry::attributes::Attributes;
use registry::status::Status;
use serde_json::{Value, json};

/// The part of a path behind the subresource, e.g. of `pods/x/proxy/a/b`: `a/b`, as it was sent.
pub fn tail(path: &str) -> &str {
    let Some(at) = tail_at(path) else { return "" };
    let mut rest = path.trim_start_matches('/');
    for _ in 0..at {
        rest = rest.split_once('/').map_or("", |(_, rest)| rest);
    }
    rest
}

/// Where the parts of a resource's path stand among its decoded segments: the one reading of a path, for what is
/// authorized and for what is executed.
struct Layout {
    /// Of the old prefixes `watch` and `proxy`, which stand before the namespace.
    prefix: Option<usize>,
    /// Of the namespace's name, also where the namespace is what is asked for.
    namespace: Option<usize>,
    /// Of the resource; name and subresource follow.
    resource: usize,
}

/// `None`: the path is no resource's.
fn layout(parts: &[&str]) -> Option<Layout> {
    let mut at = match parts {
        ["api", _, _, ..] => 2,
        ["apis", _, _, _, ..] => 3,
        _ => return None,
    };
    let prefix = (matches!(parts[at], "watch" | "proxy") && parts.len() > at + 1).then_some(at);
    at += usize::from(prefix.is_some());
    let namespace = (parts[at] == "namespaces" && parts.len() > at + 1).then_some(at + 1);
    if namespace.is_some() && parts.len() > at + 2 && !matches!(parts[at + 2], "status" | "finalize") {
        at += 2;
    }
    Some(Layout { prefix, namespace, resource: at })
}

fn decoded(path: &str) -> Vec<String> {
    path.trim_matches('/').split('/').map(url::decode).collect()
}

/// How many segments of a resource's path stand before what follows its subresource. `None`: the path is no resource's.
fn tail_at(path: &str) -> Option<usize> {
    let parts = decoded(path);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    layout(&parts).map(|layout| layout.resource + 3)
}

/// Refuses the path of a resource that can be read in two ways: what is authorized must be what is executed, here and
/// by whomever the path is passed on to. Behind a `proxy` subresource everything is the other side's.
///
/// Errors: 400 for a segment that is empty, `.` or `..`, that hides a slash or is no text when it is decoded.
pub fn unambiguous(path: &str) -> Result<(), Status> {
    let Some(tail) = tail_at(path) else { return Ok(()) };
    let whole = path.strip_prefix('/').unwrap_or(path);
    let segments: Vec<&str> = whole.strip_suffix('/').unwrap_or(whole).split('/').collect();
    let end = if segments.get(tail - 1) == Some(&"proxy") { tail } else { segments.len() };
    for segment in segments.iter().take(end) {
        let decoded = url::decode_strictly(segment).filter(|text| !text.contains(['/', '\0']));
        if decoded.is_none_or(|text| matches!(text.as_str(), "" | "." | "..")) {
            return Err(Status::bad_request(format!("the path of the request is ambiguous: segment {segment:?}")));
        }
    }
    Ok(())
}

/// Reads the request. The user is filled in later.
pub fn parse(method: &Method, path: &str, query: &Query) -> Attributes {
    let mut a =
        Attributes { path: path.to_owned(), verb: method.as_str().to_ascii_lowercase(), ..Attributes::default() };
    let parts = decoded(path);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let Some(layout) = layout(&parts) else { return a };
    let part = |at: usize| parts.get(at).copied().unwrap_or_default().to_owned();
    if parts[0] == "apis" {
        a.group = part(1);
    }
    a.version = part(if parts[0] == "apis" { 2 } else { 1 });
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
    if let Some(at) = layout.prefix {
        a.verb = part(at);
    }
    a.namespace = layout.namespace.map(part).unwrap_or_default();
    (a.resource, a.name, a.subresource) = (part(layout.resource), part(layout.resource + 1), part(layout.resource + 2));
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
        let got =
            format!("{} {}/{} {} ns={} name={}", a.verb, a.group, a.version, a.resource_path(), a.namespace, a.name);
        assert_eq!(got, expect, "{url}");
    }

    #[test]
    fn a_path_that_reads_in_two_ways_is_refused() {
        for path in [
            "/apis/g/v1/things/a%2Fstatus",
            "/apis/g/v1/things/a%2fstatus/",
            "/apis/g/v1/things/../secrets",
            "/apis/g/v1/things/%2e%2E/secrets",
            "/apis/g/v1/./things",
            "/apis/g/v1/namespaces//things/x",
            "//apis/g/v1/things",
            "/api/v1/namespaces/a/pods/x%00",
            "/api/v1/namespaces/a/pods/%FF",
            "/api/v1/namespaces/a/pods/%zz",
            "/api/v1/namespaces/a/pods/x/log/%2F",
            "/api/v1/namespaces/a%2Fb/services/x/proxy/",
        ] {
            assert!(unambiguous(path).is_err(), "{path}");
        }
        for path in [
            "/api/v1/namespaces/a/pods/x%3Ay/",
            "/api/v1/namespaces/a/services/https:x:1/proxy/b//c/../%2F%FF",
            "/api/v1/nodes/n/proxy/..",
            "/healthz//x",
            "/apis//x",
            "/",
        ] {
            assert!(unambiguous(path).is_ok(), "{path}");
        }
    }

    #[test]
    fn a_tail_is_what_stands_behind_the_subresource_and_not_what_looks_like_it() {
        assert_eq!(tail("/api/v1/namespaces/n/services/https%3Ax%3A1/proxy/a%2Fb/c"), "a%2Fb/c");
        assert_eq!(tail("/api/v1/namespaces/x/services/x/proxy/x/proxy/a"), "x/proxy/a");
        assert_eq!(tail("/api/v1/nodes/proxy/proxy/proxy/proxy"), "proxy/proxy");
        assert_eq!(tail("/api/v1/nodes/n/proxy"), "");
        assert_eq!(tail("/api/v1/nodes/n/proxy/"), "");
    }

    #[test]
    fn paths_become_verbs_and_names() {
        check(Method::GET, "/api/v1/namespaces/a/pods/b/log", "get /v1 pods/log ns=a name=b");
        check(Method::GET, "/api/v1/namespaces/a", "get /v1 namespaces ns=a name=a");
        check(Method::PUT, "/api/v1/namespaces/a/finalize", "update /v1 namespaces/finalize ns=a name=a");
        check(Method::GET, "/api/v1/pods?watch=1", "watch /v1 pods ns= name=");
        check(Method::GET, "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dx", "list /v1 pods ns=a name=x");
        check(
            Method::DELETE,
            "/apis/apps/v1/namespaces/a/deployments",
            "deletecollection apps/v1 deployments ns=a name=",
        );
        check(Method::GET, "/apis/apps/v1", "get /  ns= name=");
    }

    #[test]
    fn every_method_and_place_of_a_name_is_read_as_upstream_reads_it() {
        for (method, url, expected) in [
            (Method::GET, "/api/v1/namespaces", "list /v1 namespaces ns= name="),
            (Method::GET, "/api/v1/namespaces/other", "get /v1 namespaces ns=other name=other"),
            (Method::GET, "/api/v1/namespaces/other/pods", "list /v1 pods ns=other name="),
            (Method::GET, "/api/v1/namespaces/other/pods/foo", "get /v1 pods ns=other name=foo"),
            (Method::HEAD, "/api/v1/namespaces/other/pods/foo", "get /v1 pods ns=other name=foo"),
            (Method::GET, "/api/v1/pods", "list /v1 pods ns= name="),
            (Method::HEAD, "/api/v1/pods", "list /v1 pods ns= name="),
            (Method::GET, "/api/v1/watch/pods", "watch /v1 pods ns= name="),
            (Method::GET, "/api/v1/watch/namespaces/other/pods", "watch /v1 pods ns=other name="),
            (Method::GET, "/api/v1/pods?watch=true", "watch /v1 pods ns= name="),
            (Method::GET, "/api/v1/pods?watch=false", "list /v1 pods ns= name="),
            (Method::GET, "/api/v1/namespaces/other/pods/foo/status", "get /v1 pods/status ns=other name=foo"),
            (Method::PUT, "/api/v1/namespaces/other/status", "update /v1 namespaces/status ns=other name=other"),
            (Method::GET, "/api/v1/proxy/namespaces/other/pods/foo", "proxy /v1 pods ns=other name=foo"),
            (Method::PATCH, "/api/v1/namespaces/other/pods/foo", "patch /v1 pods ns=other name=foo"),
            (Method::DELETE, "/api/v1/namespaces/other/pods/foo", "delete /v1 pods ns=other name=foo"),
            (Method::DELETE, "/api/v1/nodes", "deletecollection /v1 nodes ns= name="),
            (Method::POST, "/api/v1/namespaces/other/pods", "create /v1 pods ns=other name="),
            (Method::PUT, "/api/v1/nodes/n/", "update /v1 nodes ns= name=n"),
            (Method::POST, "/apis/batch/v1/namespaces/a/jobs", "create batch/v1 jobs ns=a name="),
            (Method::POST, "/api/v1/namespaces/a/pods/p/proxy/x/y", "create /v1 pods/proxy ns=a name=p"),
            (Method::OPTIONS, "/api/v1/pods/x", " /v1 pods ns= name=x"),
            // No resource: the verb is the method's.
            (Method::POST, "/api/v1", "post /  ns= name="),
            (Method::GET, "/apis/batch", "get /  ns= name="),
            (Method::GET, "/", "get /  ns= name="),
            (Method::PATCH, "/version", "patch /  ns= name="),
        ] {
            check(method, url, expected);
        }
    }

    #[test]
    fn only_an_exact_name_in_a_selector_names_the_object() {
        for (selector, name) in [
            ("metadata.name%3Dfoo", "foo"),
            ("metadata.name%3D%3Dfoo,metadata.namespace%3Da", "foo"),
            ("metadata.name!%3Dfoo", ""),
            ("spec.nodeName%3Dfoo", ""),
            ("metadata.name%3D", ""),
            ("broken", ""),
        ] {
            let url = format!("/api/v1/namespaces/a/pods?fieldSelector={selector}");
            check(Method::GET, &url, &format!("list /v1 pods ns=a name={name}"));
        }
    }

    #[test]
    fn a_write_says_its_options_and_a_read_has_none() {
        let told = |method: Method, query: &str| {
            parse(&method, "/api/v1/namespaces/a/pods/p", &Query::parse(query)).options.as_ref().clone()
        };
        let of = |kind: &str| json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1" });
        assert_eq!(told(Method::POST, ""), of("CreateOptions"));
        assert_eq!(told(Method::GET, "dryRun=All"), Value::Null);
        assert_eq!(told(Method::DELETE, "dryRun=All"), Value::Null, "those of a delete stand in its body, too");
        let mut update = of("UpdateOptions");
        update["dryRun"] = json!(["All"]);
        update["fieldManager"] = json!("m");
        update["fieldValidation"] = json!("Strict");
        assert_eq!(told(Method::PUT, "dryRun=All&fieldManager=m&fieldValidation=Strict&force=true"), update);
        let mut patch = of("PatchOptions");
        patch["force"] = json!(true);
        assert_eq!(told(Method::PATCH, "force=true&fieldManager="), patch);
    }
}
