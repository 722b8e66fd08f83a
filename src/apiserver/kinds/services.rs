//! `services/proxy`: the way to an endpoint of a Service.

use http::Response;
use model::reference::GroupResource;
use registry::connect::Target;
use registry::status::Status;
use serde_json::{Value, json};
use wire::Body;

use super::passing::{self, behind_proxy, named, node_of, proxyable, scheme_name_port};
use crate::verbs::Call;

/// `services/proxy`.
pub(super) async fn proxy(call: &mut Call<'_, '_>) -> Result<Response<Body>, Status> {
    let target = target(call).await?;
    passing::proxy(call, target).await
}

async fn target(call: &Call<'_, '_>) -> Result<Target, Status> {
    let (scheme, name, port) = scheme_name_port("service", &call.x.attributes.name)?;
    let service = named(call, &name).await?;
    let ports = service["spec"]["ports"].as_array().cloned().unwrap_or_default();
    let number = port.parse::<u64>().ok();
    let named =
        |p: &Value| p["name"].as_str() == Some(port.as_str()) || number.is_some() && p["port"].as_u64() == number;
    let wanted = ports.iter().find(|p| port.is_empty() && ports.len() == 1 || named(p));
    let none = || Status::unavailable(format!("no endpoints available for service {name:?}"));
    let wanted =
        wanted.ok_or_else(|| Status::unavailable(format!("no service port {port:?} found for service {name:?}")))?;
    let slices = call
        .x
        .server
        .objects
        .cache
        .ready(GroupResource { group: "discovery.k8s.io", resource: "endpointslices" })
        .await?;
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
