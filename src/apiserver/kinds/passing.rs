//! Requests that are passed on: admission of a connection, the way to whom it means, and what is asked of addresses.

use std::net::IpAddr;
use std::sync::Arc;

use admission::{Operation, Review};
use base::unicast;
use http::{Request, Response};
use model::reference::{GroupResource, NamespacedName};
use registry::connect::Target;
use registry::lookup::Lookup as _;
use registry::status::Status;
use serde_json::{Value, json};
use wire::Body;

use crate::info;
use crate::stream::rewrite::{self, Destination, Way};
use crate::verbs::Call;

/// Of a kubelet's text that says why there are no logs.
const REFUSAL_MAX: usize = 10_000;
/// Of the path up to `/proxy`, which goes before each link of a proxied page. Names, a scheme and a port have half of
/// it at most.
const PREFIX_BYTES_MAX: usize = 1024;

/// The options of a proxied request, as the object that admission judges.
fn proxy_options(call: &Call<'_, '_>) -> Value {
    let mut object = options(call);
    object["path"] = format!("/{}", info::tail(&call.x.attributes.path)).into();
    object
}

/// The empty options of the subresource, such as `PodAttachOptions`.
pub(super) fn options(call: &Call<'_, '_>) -> Value {
    let Some(sub) = &call.sub else { return Value::Null };
    json!({ "apiVersion": sub.kind.api_version(), "kind": sub.kind.kind })
}

/// Asks admission about a connection with these options.
///
/// Errors: what admission answers.
pub(super) async fn admit(call: &mut Call<'_, '_>, mut object: Value) -> Result<(), Status> {
    let mut attributes = call.x.attributes.clone();
    "connect".clone_into(&mut attributes.verb);
    let server = call.x.server;
    let kind = call.sub.as_ref().map(|s| s.kind.kind.to_string()).unwrap_or_default();
    let mut warnings = Vec::new();
    let mut review = Review {
        operation: Operation::Connect,
        attributes: &attributes,
        kind: &kind,
        object: &mut object,
        old: None,
        dry_run: false,
        catalog: &call.x.catalog,
        lookup: server.objects.cache.as_ref(),
        versions: server.objects.as_ref(),
        warnings: &mut warnings,
        reinvocation: Default::default(),
        charge: Default::default(),
    };
    server.admission.both(&mut review).await
}

/// Passes the request on to what it means.
///
/// Errors: nobody answers there.
pub(super) async fn pass(call: &mut Call<'_, '_>, target: Target) -> Result<Response<Body>, Status> {
    let body = call.x.take_body().unwrap_or_else(wire::body::empty);
    let parts = std::mem::replace(&mut call.x.parts, Request::new(()).into_parts().0);
    let headers = parts.headers.clone();
    let connector = Arc::clone(&call.x.server.connector);
    let answer = connector.connect(target, Request::from_parts(parts, body)).await;
    call.x.parts.headers = headers;
    answer
}

/// Passes a request below `/proxy` on, and leads the answer's links back through the proxy.
///
/// Errors: what admission answers; nobody answers there.
pub(super) async fn proxy(call: &mut Call<'_, '_>, target: Target) -> Result<Response<Body>, Status> {
    admit(call, proxy_options(call)).await?;
    let Target::Proxy { prefix, host, port, path_and_query, .. } = &target else { return pass(call, target).await };
    // No path at all behind `/proxy`.
    let uri = &call.x.parts.uri;
    if uri.path() == prefix
        && let Some(answer) = rewrite::to_root(&call.x.parts.method, uri.path(), uri.query())
    {
        return Ok(answer);
    }
    let to = Destination { prefix, host, port: *port, path_and_query };
    let way = Way::mark(to, &mut call.x.parts.headers);
    let is_head = call.x.parts.method == http::Method::HEAD;
    Ok(way.lead_back(pass(call, target).await?, is_head))
}

/// A kubelet that gives no logs says why in plain text; clients are told in a Status, as upstream's
/// `GenericHttpResponseChecker` does.
pub(super) async fn refusal_of_logs(answer: Response<Body>) -> Result<Response<Body>, Status> {
    let code = answer.status().as_u16();
    // 101: lines that go on over a WebSocket.
    if code == 101 || (200..=206).contains(&code) {
        return Ok(answer);
    }
    let text = wire::body::collect(answer.into_body(), REFUSAL_MAX).await.unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    Err(match code {
        400 => Status::bad_request(text),
        404 => Status::new(404, "NotFound", "the server could not find the requested resource"),
        _ => Status::internal(text),
    })
}

/// The object that the request names.
///
/// Errors: 404.
pub(super) async fn named(call: &Call<'_, '_>, name: &str) -> Result<Value, Status> {
    call.x
        .server
        .objects
        .read(&call.stored, NamespacedName { namespace: call.namespace(), name })
        .await?
        .map(|e| e.value())
        .ok_or_else(|| call.not_found(name))
}

/// A node.
///
/// Errors: 404.
pub(super) fn node_of(call: &Call<'_, '_>, name: &str) -> Result<Arc<Value>, Status> {
    call.x
        .server
        .objects
        .cache
        .get(GroupResource::core("nodes"), NamespacedName::cluster(name))
        .ok_or_else(|| Status::not_found(GroupResource::core("nodes"), name))
}

/// The node of a pod that has one.
///
/// Errors: 404.
pub(super) fn assigned_node(call: &Call<'_, '_>, pod: &Value) -> Result<Option<Arc<Value>>, Status> {
    match pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
        Some(node) => node_of(call, node).map(Some),
        None => Ok(None),
    }
}

/// `scheme:name:port` in its short forms; `what` is meant.
///
/// Errors: 400 for a scheme that is not HTTP's, no name, or more parts (upstream: `SplitSchemeNamePort`).
pub(super) fn scheme_name_port(what: &str, text: &str) -> Result<(String, String, String), Status> {
    let parts: Vec<&str> = text.split(':').collect();
    let (scheme, name, port) = match *parts.as_slice() {
        [scheme, name, port] => (scheme, name, port),
        [name, port] => ("", name, port),
        [name] => ("", name, ""),
        _ => ("", "", ""),
    };
    if name.is_empty() || !matches!(scheme, "" | "http" | "https") {
        return Err(Status::bad_request(format!("invalid {what} request {text:?}")));
    }
    Ok((scheme.to_owned(), name.to_owned(), port.to_owned()))
}

/// The path and query for the server behind, and the path up to `/proxy`.
///
/// Errors: 400 for a path that no names are as long as.
pub(super) fn behind_proxy(call: &Call<'_, '_>) -> Result<(String, String), Status> {
    let a = &call.x.attributes;
    let tail = info::tail(&a.path);
    let query = call.x.parts.uri.query().map(|q| format!("?{q}")).unwrap_or_default();
    let prefix = a.path.strip_suffix(tail).unwrap_or(&a.path).trim_end_matches('/').to_owned();
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err(Status::bad_request(format!("the path to the proxy is longer than {PREFIX_BYTES_MAX} bytes")));
    }
    Ok((format!("/{tail}{query}"), prefix))
}

/// Refuses to pass requests on to addresses that mean another machine to each machine, or none: whoever writes the
/// status of a pod or node, or an EndpointSlice, would reach what listens on the server's loopback, or its cloud's
/// metadata.
///
/// Errors: 400, also for a host name, which could be resolved to any address.
pub(super) fn proxyable(host: &str) -> Result<(), Status> {
    let refused = || Status::bad_request("address not allowed");
    if unicast::is_global(host.parse::<IpAddr>().map_err(|_| refused())?) { Ok(()) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_request_is_passed_on_to_what_only_this_machine_reaches() {
        for host in [
            "127.0.0.1",
            "127.8.8.8",
            "::1",
            "::ffff:127.0.0.1",
            "169.254.169.254",
            "fe80::1",
            "0.0.0.0",
            "::",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
            "localhost",
            "",
        ] {
            assert_eq!(proxyable(host).unwrap_err().code, 400, "{host}");
        }
        for host in ["10.42.0.7", "192.168.1.1", "fd00::1", "2001:db8::1"] {
            assert!(proxyable(host).is_ok(), "{host}");
        }
    }

    // security-3 F1: a "scheme" of 60 kB stood before each link of a page.
    #[test]
    fn what_stands_around_a_name_is_a_scheme_and_a_port() {
        let split =
            |text: &str| scheme_name_port("pod", text).map(|(scheme, name, port)| format!("{scheme},{name},{port}"));
        for (text, parts) in [("p", ",p,"), ("p:80", ",p,80"), ("https:p:", "https,p,"), (":p:web", ",p,web")] {
            assert_eq!(split(text).unwrap(), parts);
        }
        for refused in ["ftp:p:80", "HTTP:p:80", "::", "http::80", "a:b:c:d", ":80"] {
            assert_eq!(split(refused).unwrap_err().message, format!("invalid pod request {refused:?}"));
        }
    }

    #[tokio::test]
    async fn only_a_refusal_of_logs_becomes_a_status() {
        let answer = |code: u16, text: &'static str| {
            let mut answer = Response::new(wire::body::full(text));
            *answer.status_mut() = http::StatusCode::from_u16(code).unwrap();
            refusal_of_logs(answer)
        };
        for through in [200, 206, 101] {
            assert_eq!(answer(through, "line").await.unwrap().status(), through);
        }
        let refused =
            answer(400, "container \"a\" in pod \"b\" is waiting to start: ContainerCreating").await.unwrap_err();
        assert_eq!((refused.code, refused.reason), (400, "BadRequest"));
        assert!(refused.message.contains("is waiting to start"));
    }
}
