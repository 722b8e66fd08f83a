//! `log`, `exec`, `attach`, `portforward` and `proxy`: finds out whom the request means and lets the connector reach
//! them.

use std::net::IpAddr;
use std::sync::Arc;

use base::unicast;
use base::url;
use http::{Request, Response};
use model::meta;
use serde_json::{Value, json};
use wire::Body;

use super::Call;
use crate::admission::{Operation, Review};
use crate::attributes::Attributes;
use crate::connect::Target;
use crate::info;
use crate::lookup::Lookup as _;
use crate::status::Status;
use crate::stream::rewrite::{self, Way};

/// Of a kubelet's text that says why there are no logs.
const REFUSAL_MAX: usize = 10_000;
/// Of the path up to `/proxy`, which goes before each link of a proxied page. Names, a scheme and a port have half of
/// it at most.
const PREFIX_BYTES_MAX: usize = 1024;

/// Passes the request on.
pub async fn run(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let a = call.x.attributes.clone();
    // A browser's WebSocket opens with GET, which is a read; what runs in a pod is none (upstream:
    // AuthorizePodWebsocketUpgradeCreatePermission).
    if matches!(a.subresource.as_str(), "exec" | "attach" | "portforward") && a.verb != "create" {
        call.x.server.access.require(&Attributes { verb: "create".to_owned(), ..a.clone() }).await?;
    }
    let target = match (a.resource.as_str(), a.subresource.as_str()) {
        ("pods", "log") => log_target(call).await?,
        ("pods", "exec" | "attach" | "portforward") => stream_target(call, &a.subresource).await?,
        ("pods", "proxy") => pod_proxy(call).await?,
        ("services", "proxy") => service_proxy(call).await?,
        ("nodes", "proxy") => node_proxy(call).await?,
        _ => return Err(Status::method_not_allowed()),
    };
    if a.subresource != "log" {
        admit(call).await?;
    }
    let body = call.x.take_body().unwrap_or_else(wire::body::empty);
    let mut way = None;
    if let Target::Proxy { prefix, host, port, path_and_query, .. } = &target {
        // No path at all behind `/proxy`.
        let uri = &call.x.parts.uri;
        if uri.path() == prefix
            && let Some(answer) = rewrite::to_root(&call.x.parts.method, uri.path(), uri.query())
        {
            return Ok(answer);
        }
        way = Some(Way::mark(prefix, host, *port, path_and_query, &mut call.x.parts.headers));
    }
    let is_head = call.x.parts.method == http::Method::HEAD;
    let parts = std::mem::replace(&mut call.x.parts, Request::new(()).into_parts().0);
    let headers = parts.headers.clone();
    let request = Request::from_parts(parts, body);
    let connector = Arc::clone(&call.x.server.connector);
    let answer = connector.connect(target, request).await;
    call.x.parts.headers = headers;
    match way {
        Some(way) => Ok(way.lead_back(answer?, is_head)),
        None if a.subresource == "log" => refusal_of_logs(answer?).await,
        None => answer,
    }
}

/// A kubelet that gives no logs says why in plain text; clients are told in a Status, as upstream's
/// `GenericHttpResponseChecker` does.
async fn refusal_of_logs(answer: Response<Body>) -> Result<Response<Body>, Status> {
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

async fn admit(call: &mut Call<'_, '_>) -> Result<(), Status> {
    let mut attributes = call.x.attributes.clone();
    "connect".clone_into(&mut attributes.verb);
    let server = call.x.server;
    let kind = call.sub.as_ref().map(|s| s.kind.kind.to_string()).unwrap_or_default();
    let (mut object, mut warnings) = (options(call), Vec::new());
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
        again: Default::default(),
        charge: Default::default(),
    };
    server.admission.both(&mut review).await
}

/// Options of the query, as the object that admission judges: `PodAttachOptions` and its kin.
fn options(call: &Call<'_, '_>) -> Value {
    let Some(sub) = &call.sub else { return Value::Null };
    let mut object = json!({ "apiVersion": sub.kind.api_version(), "kind": sub.kind.kind });
    let query = &call.x.query;
    match call.x.attributes.subresource.as_str() {
        "exec" | "attach" => {
            for flag in ["stdin", "stdout", "stderr", "tty"].into_iter().filter(|flag| query.flag(flag)) {
                object[flag] = true.into();
            }
            let (container, command) = (query.text("container"), query.all("command").collect::<Vec<_>>());
            if !container.is_empty() {
                object["container"] = container.into();
            }
            if !command.is_empty() {
                object["command"] = json!(command);
            }
        }
        "portforward" => {
            let ports =
                query.all("ports").flat_map(|ports| ports.split(',')).filter_map(|port| port.parse::<u16>().ok());
            object["ports"] = ports.collect::<Vec<_>>().into();
        }
        _ => {
            let tail = info::tail(&call.x.attributes.path);
            object["path"] = format!("/{tail}").into();
        }
    }
    object
}

async fn pod(call: &Call<'_, '_>, name: &str) -> Result<Value, Status> {
    call.x
        .server
        .objects
        .read(&call.stored, call.namespace(), name)
        .await?
        .map(|e| e.value())
        .ok_or_else(|| call.not_found(name))
}

fn node_of(call: &Call<'_, '_>, name: &str) -> Result<Arc<Value>, Status> {
    call.x.server.objects.cache.get("", "nodes", "", name).ok_or_else(|| Status::not_found("", "nodes", name))
}

/// The container a request means: the one named, the annotated default, or the only one.
fn container(pod: &Value, asked: &str, fallback: bool) -> Result<String, Status> {
    let name = meta::name(pod);
    let names = |field: &str| -> Vec<String> {
        let list = pod["spec"][field].as_array().into_iter().flatten();
        list.filter_map(|c| c["name"].as_str().map(str::to_owned)).collect()
    };
    let (main, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    if !asked.is_empty() {
        let known = main.iter().chain(&init).chain(&ephemeral).any(|c| c == asked);
        return if known {
            Ok(asked.to_owned())
        } else {
            Err(Status::bad_request(format!("container {asked} is not valid for pod {name}")))
        };
    }
    if let Some(default) =
        meta::annotation(pod, "kubectl.kubernetes.io/default-container").filter(|d| main.iter().any(|c| c == d))
    {
        return Ok(default.to_owned());
    }
    match main.as_slice() {
        [only] => Ok(only.clone()),
        [first, ..] if fallback => Ok(first.clone()),
        [] => Err(Status::bad_request(format!("a container name must be specified for pod {name}"))),
        several => {
            let mut text =
                format!("a container name must be specified for pod {name}, choose one of: [{}]", several.join(" "));
            if !init.is_empty() {
                text.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
            }
            Err(Status::bad_request(text))
        }
    }
}

fn assigned_node(call: &Call<'_, '_>, pod: &Value) -> Result<Option<Arc<Value>>, Status> {
    match pod["spec"]["nodeName"].as_str().filter(|n| !n.is_empty()) {
        Some(node) => node_of(call, node).map(Some),
        None => Ok(None),
    }
}

async fn log_target(call: &Call<'_, '_>) -> Result<Target, Status> {
    let name = call.x.attributes.name.clone();
    let pod = pod(call, &name).await?;
    let query = &call.x.query;
    let container = container(&pod, query.text("container"), false)?;
    let Some(node) = assigned_node(call, &pod)? else {
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    };
    let passed = ["follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream"];
    let pairs: Vec<String> = query
        .pairs()
        .iter()
        .filter(|(k, _)| passed.contains(&k.as_str()))
        .map(|(k, v)| format!("{k}={}", url::encode(v, url::COMPONENT)))
        .collect();
    let path = format!("/containerLogs/{}/{name}/{container}?{}", call.namespace(), pairs.join("&"));
    Ok(Target::Kubelet { node, path_and_query: path })
}

async fn stream_target(call: &Call<'_, '_>, what: &str) -> Result<Target, Status> {
    let name = call.x.attributes.name.clone();
    let pod = pod(call, &name).await?;
    let Some(node) = assigned_node(call, &pod)? else {
        return Err(Status::bad_request(format!("pod {name} does not have a host assigned")));
    };
    if what == "portforward" {
        let ports: Vec<String> =
            call.x.query.all("ports").map(|p| format!("port={}", url::encode(p, url::COMPONENT))).collect();
        let path = format!("/portForward/{}/{name}?{}", call.namespace(), ports.join("&"));
        return Ok(Target::Kubelet { node, path_and_query: path });
    }
    let container = container(&pod, call.x.query.text("container"), false)?;
    let mut pairs = Vec::new();
    for (ours, kubelets) in [("stdin", "input"), ("stdout", "output"), ("stderr", "error"), ("tty", "tty")] {
        if call.x.query.flag(ours) {
            pairs.push(format!("{kubelets}=1"));
        }
    }
    pairs.extend(call.x.query.all("command").map(|c| format!("command={}", url::encode(c, url::COMPONENT))));
    let path = format!("/{what}/{}/{name}/{container}?{}", call.namespace(), pairs.join("&"));
    Ok(Target::Kubelet { node, path_and_query: path })
}

/// `scheme:name:port` in its short forms; `what` is meant.
///
/// Errors: 400 for a scheme that is not HTTP's, no name, or more parts (upstream: `SplitSchemeNamePort`).
fn scheme_name_port(what: &str, text: &str) -> Result<(String, String, String), Status> {
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

/// What is asked of the server behind, and the path up to `/proxy`.
///
/// Errors: 400 for a path that no names are as long as.
fn behind_proxy(call: &Call<'_, '_>) -> Result<(String, String), Status> {
    let a = &call.x.attributes;
    let tail = info::tail(&a.path);
    let query = call.x.parts.uri.query().map(|q| format!("?{q}")).unwrap_or_default();
    let prefix = a.path.strip_suffix(tail).unwrap_or(&a.path).trim_end_matches('/').to_owned();
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err(Status::bad_request(format!("the path to the proxy is longer than {PREFIX_BYTES_MAX} bytes")));
    }
    Ok((format!("/{tail}{query}"), prefix))
}

async fn pod_proxy(call: &Call<'_, '_>) -> Result<Target, Status> {
    let (scheme, name, port) = scheme_name_port("pod", &call.x.attributes.name)?;
    let pod = pod(call, &name).await?;
    let first = pod["spec"]["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .find_map(|c| c["ports"][0]["containerPort"].as_u64());
    let port = port.parse::<u16>().ok().or(first.and_then(|p| u16::try_from(p).ok())).filter(|p| *p > 0).unwrap_or(80);
    let host = pod["status"]["podIP"].as_str().filter(|ip| !ip.is_empty());
    let host = host.ok_or_else(|| Status::bad_request("address not allowed: the pod has no address yet"))?.to_owned();
    proxyable(&host)?;
    let (path_and_query, prefix) = behind_proxy(call)?;
    let scheme = if scheme.is_empty() { "http".to_owned() } else { scheme };
    Ok(Target::Proxy { scheme, host, port, path_and_query, node: assigned_node(call, &pod)?, prefix })
}

async fn service_proxy(call: &Call<'_, '_>) -> Result<Target, Status> {
    let (scheme, name, port) = scheme_name_port("service", &call.x.attributes.name)?;
    let service = pod(call, &name).await?;
    let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let number = port.parse::<u64>().ok();
    let named =
        |p: &Value| p["name"].as_str() == Some(port.as_str()) || number.is_some() && p["port"].as_u64() == number;
    let wanted = ports.iter().find(|p| port.is_empty() && ports.len() == 1 || named(p));
    let none = || Status::unavailable(format!("no endpoints available for service {name:?}"));
    let wanted =
        wanted.ok_or_else(|| Status::unavailable(format!("no service port {port:?} found for service {name:?}")))?;
    let slices = call.x.server.objects.cache.ready("discovery.k8s.io", "endpointslices").await?;
    let candidates: Vec<(String, u16, Option<String>)> = slices
        .snapshot(Some(call.namespace()))
        .items
        .iter()
        .filter(|e| e.label("kubernetes.io/service-name") == Some(name.as_str()))
        .flat_map(|e| endpoints(&e.value(), wanted))
        .collect();
    let count = u64::try_from(candidates.len()).unwrap_or(0);
    let pick = usize::try_from(call.x.server.objects.rng.below(count)).unwrap_or(0);
    let (host, number, node) = candidates.into_iter().nth(pick).ok_or_else(none)?;
    proxyable(&host)?;
    let (path_and_query, prefix) = behind_proxy(call)?;
    let scheme = if scheme.is_empty() { "http".to_owned() } else { scheme };
    let node = node.and_then(|n| node_of(call, &n).ok());
    Ok(Target::Proxy { scheme, host, port: number, path_and_query, node, prefix })
}

/// Addresses of ready endpoints with the number of the slice's port that belongs to the service's port.
fn endpoints(slice: &Value, service_port: &Value) -> Vec<(String, u16, Option<String>)> {
    let name = service_port["name"].as_str().unwrap_or_default();
    let port = slice["ports"].as_array().into_iter().flatten().find(|p| p["name"].as_str().unwrap_or_default() == name);
    let Some(number) = port.and_then(|p| p["port"].as_u64()).and_then(|n| u16::try_from(n).ok()) else {
        return Vec::new();
    };
    let ready =
        slice["endpoints"].as_array().into_iter().flatten().filter(|e| e["conditions"]["ready"] != json!(false));
    ready
        .filter_map(|e| {
            Some((e["addresses"][0].as_str()?.to_owned(), number, e["nodeName"].as_str().map(str::to_owned)))
        })
        .collect()
}

async fn node_proxy(call: &Call<'_, '_>) -> Result<Target, Status> {
    let (_, name, port) = scheme_name_port("node", &call.x.attributes.name)?;
    let node = node_of(call, &name)?;
    let (path_and_query, prefix) = behind_proxy(call)?;
    let kubelet = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"]
        .as_u64()
        .unwrap_or(u64::from(base::ports::KUBELET));
    match port.parse::<u16>() {
        Ok(number) if u64::from(number) != kubelet => {
            let host = node["status"]["addresses"][0]["address"].as_str().unwrap_or(&name).to_owned();
            proxyable(&host)?;
            Ok(Target::Proxy {
                scheme: "http".to_owned(),
                host,
                port: number,
                path_and_query,
                node: Some(node),
                prefix,
            })
        }
        _ => Ok(Target::Kubelet { node, path_and_query }),
    }
}

/// Refuses to pass requests on to addresses that mean another machine to each machine, or none: whoever writes the
/// status of a pod or node, or an EndpointSlice, would reach what listens on the server's loopback, or its cloud's
/// metadata.
///
/// Errors: 400, also for a host name, which could be resolved to any address.
fn proxyable(host: &str) -> Result<(), Status> {
    let refused = || Status::bad_request("address not allowed");
    if unicast::is_global(host.parse::<IpAddr>().map_err(|_| refused())?) { Ok(()) } else { Err(refused()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_of_several_containers_needs_a_name_or_an_annotation() {
        let mut pod =
            json!({ "metadata": { "name": "x" }, "spec": { "containers": [{ "name": "a" }, { "name": "b" }] } });
        let text = container(&pod, "", false).unwrap_err().message.clone();
        assert_eq!(text, "a container name must be specified for pod x, choose one of: [a b]");
        meta::set_annotation(&mut pod, "kubectl.kubernetes.io/default-container", "b");
        assert_eq!(container(&pod, "", false).unwrap(), "b");
        assert_eq!(container(&pod, "c", false).unwrap_err().message, "container c is not valid for pod x");
    }

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
