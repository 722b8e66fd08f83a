//! Which node addresses each LoadBalancer Service gets. Pure.
//!
//! Two Services cannot have one port of one address: the older has it, and the younger gets the nodes that are left.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use client::informer::Key;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;

const ENABLE: &str = "svccontroller.k3s.cattle.io/enablelb";
const POOL: &str = "svccontroller.k3s.cattle.io/lbpool";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// What one Service gets.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) ips: Vec<String>,
    /// Why it got nothing, for its owner.
    pub(super) trouble: Option<String>,
}

/// Whether this controller has, or had, something to do with a Service.
pub(super) fn concerns(service: &Service) -> bool {
    let had = service.status.as_ref().and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref()).is_some_and(|i| !i.is_empty());
    wants(service) || had
}

fn wants(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    let balanced = spec.is_some_and(|s| s.type_.as_deref() == Some("LoadBalancer") && s.load_balancer_class.is_none());
    balanced && service.metadata.deletion_timestamp.is_none()
}

/// Whether only nodes with an endpoint count.
pub(super) fn is_local(service: &Service) -> bool {
    wants(service) && service.spec.as_ref().and_then(|s| s.external_traffic_policy.as_deref()) == Some("Local")
}

/// What of a node matters.
pub(super) fn node_facts(node: &Node) -> (bool, BTreeMap<String, String>, Vec<(String, String)>) {
    (is_ready(node), node.labels().clone(), addresses(node))
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && node.metadata.deletion_timestamp.is_none()
}

fn addresses(node: &Node) -> Vec<(String, String)> {
    let addresses = node.status.as_ref().and_then(|s| s.addresses.as_ref());
    addresses.into_iter().flatten().map(|address| (address.type_.clone(), address.address.clone())).collect()
}

/// What every LoadBalancer Service gets.
pub(super) fn assign(
    services: &[Arc<Service>],
    nodes: &[Arc<Node>],
    slices: &[Arc<EndpointSlice>],
    reserved: &[u16],
) -> BTreeMap<Key, Outcome> {
    let mut wanting: Vec<&Arc<Service>> = services.iter().filter(|service| wants(service)).collect();
    // One that is served already goes on; among the others the older comes first.
    let served =
        |service: &Service| service.status.as_ref().and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref()).is_some_and(|i| !i.is_empty());
    wanting.sort_by_key(|service| (!served(service), service.metadata.creation_timestamp.clone().map(|t| t.0), Key::of(&***service)));
    let mut taken: BTreeMap<(String, String, i32), Key> = BTreeMap::new();
    let mut outcomes = BTreeMap::new();
    for service in wanting {
        let outcome = one(service, nodes, slices, reserved, &mut taken);
        outcomes.insert(Key::of(&**service), outcome);
    }
    outcomes
}

fn one(
    service: &Service,
    nodes: &[Arc<Node>],
    slices: &[Arc<EndpointSlice>],
    reserved: &[u16],
    taken: &mut BTreeMap<(String, String, i32), Key>,
) -> Outcome {
    let spec = service.spec.clone().unwrap_or_default();
    let ports: Vec<(String, i32)> =
        spec.ports.iter().flatten().map(|port| (port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port.port)).collect();
    let trouble = |text: String| Outcome { ips: Vec::new(), trouble: Some(text) };
    if let Some((protocol, port)) =
        ports.iter().find(|(protocol, port)| protocol == "TCP" && reserved.iter().any(|r| i32::from(*r) == *port))
    {
        return trouble(format!("port {port}/{protocol} is the node's own: choose another one"));
    }
    let families = spec.ip_families.clone().unwrap_or_default();
    let (mut ips, mut rival) = (Vec::new(), None);
    for node in eligible(service, nodes, slices) {
        for ip in balancer_ips(node, &families)
            .into_iter()
            .filter(|ip| spec.load_balancer_ip.as_ref().is_none_or(|want| want.is_empty() || want == ip))
        {
            let key = |(protocol, port): &(String, i32)| (ip.clone(), protocol.clone(), *port);
            if let Some((port, other)) = ports.iter().find_map(|port| Some((port, taken.get(&key(port))?))) {
                rival = Some(format!("port {}/{} of {ip} is taken by Service {other}", port.1, port.0));
                continue;
            }
            taken.extend(ports.iter().map(|port| (key(port), Key::of(service))));
            ips.push(ip);
        }
    }
    ips.sort();
    ips.dedup();
    match rival {
        Some(rival) if ips.is_empty() => trouble(rival),
        _ => Outcome { ips, trouble: None },
    }
}

fn eligible<'a>(service: &Service, nodes: &'a [Arc<Node>], slices: &[Arc<EndpointSlice>]) -> Vec<&'a Arc<Node>> {
    // One label anywhere makes it a list of the nodes that may.
    let listed = nodes.iter().any(|node| node.labels().get(ENABLE).is_some_and(|v| v == "true"));
    let pool = service.labels().get(POOL);
    let local = is_local(service).then(|| local_nodes(service, slices));
    let may = |node: &Arc<Node>| {
        let labels = node.labels();
        let enabled = labels.get(ENABLE).is_some_and(|v| v == "true");
        is_ready(node)
            && !labels.contains_key(EXCLUDED)
            && (!listed || enabled)
            && pool.is_none_or(|pool| enabled && labels.get(POOL) == Some(pool))
            && local.as_ref().is_none_or(|names| names.contains(&node.name_any()))
    };
    nodes.iter().filter(|node| may(node)).collect()
}

/// Nodes with a ready endpoint of the Service.
fn local_nodes(service: &Service, slices: &[Arc<EndpointSlice>]) -> BTreeSet<String> {
    let (ns, name) = (service.namespace(), service.name_any());
    let own = slices.iter().filter(|slice| slice.namespace() == ns && slice.labels().get("kubernetes.io/service-name") == Some(&name));
    let endpoints = own.flat_map(|slice| slice.endpoints.iter().flatten());
    endpoints.filter(|e| e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true)).filter_map(|e| e.node_name.clone()).collect()
}

/// External addresses where the node has any, else internal ones, of the Service's families.
fn balancer_ips(node: &Node, families: &[String]) -> Vec<String> {
    let all = addresses(node);
    let of = |kind: &str, v6: bool| -> Vec<String> {
        all.iter().filter(|(k, ip)| k == kind && ip.contains(':') == v6).map(|(_, ip)| ip.clone()).collect()
    };
    let one = |v6: bool| {
        let external = of("ExternalIP", v6);
        if external.is_empty() { of("InternalIP", v6) } else { external }
    };
    let (v4, v6) = (families.is_empty() || families.iter().any(|f| f == "IPv4"), families.iter().any(|f| f == "IPv6"));
    let mut ips = if v4 { one(false) } else { Vec::new() };
    ips.extend(if v6 { one(true) } else { Vec::new() });
    ips
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn node(name: &str, ip: &str, labels: Value) -> Arc<Node> {
        let node = json!({ "metadata": { "name": name, "labels": labels },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }], "addresses": [{ "type": "InternalIP", "address": ip }] } });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn service(name: &str, port: i32, age: &str, more: Value) -> Arc<Service> {
        let mut spec = json!({ "type": "LoadBalancer", "ports": [{ "port": port }] });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let service = json!({ "metadata": { "name": name, "namespace": "a", "creationTimestamp": format!("2026-01-01T00:00:{age}Z") }, "spec": spec });
        Arc::new(serde_json::from_value(service).unwrap())
    }

    fn ips(services: &[Arc<Service>], nodes: &[Arc<Node>], slices: &[Arc<EndpointSlice>], name: &str) -> Vec<String> {
        assign(services, nodes, slices, &[6443]).remove(&Key::new("a", name)).unwrap_or_default().ips
    }

    #[test]
    fn every_ready_node_serves_unless_some_are_chosen() {
        let web = [service("web", 80, "01", json!({}))];
        let plain = [node("n1", "10.0.0.1", json!({})), node("n2", "10.0.0.2", json!({}))];
        assert_eq!(ips(&web, &plain, &[], "web"), ["10.0.0.1", "10.0.0.2"]);
        let chosen = [node("n1", "10.0.0.1", json!({})), node("n2", "10.0.0.2", json!({ ENABLE: "true" }))];
        assert_eq!(ips(&web, &chosen, &[], "web"), ["10.0.0.2"]);
    }

    #[test]
    fn the_older_service_keeps_a_port() {
        let nodes = [node("n1", "10.0.0.1", json!({}))];
        let both = [service("young", 80, "09", json!({})), service("old", 80, "01", json!({}))];
        assert_eq!(ips(&both, &nodes, &[], "old"), ["10.0.0.1"]);
        let young = assign(&both, &nodes, &[], &[]).remove(&Key::new("a", "young")).unwrap();
        assert_eq!(young.trouble.unwrap(), "port 80/TCP of 10.0.0.1 is taken by Service a/old");
    }

    #[test]
    fn the_api_servers_port_is_not_to_be_had() {
        let all = [service("web", 6443, "01", json!({}))];
        assert!(ips(&all, &[node("n1", "10.0.0.1", json!({}))], &[], "web").is_empty());
    }

    #[test]
    fn local_services_are_where_their_endpoints_are() {
        let slice = json!({ "metadata": { "name": "s", "namespace": "a", "labels": { "kubernetes.io/service-name": "web" } }, "addressType": "IPv4",
            "endpoints": [{ "addresses": ["10.42.1.2"], "nodeName": "n2" }] });
        let slices = [Arc::new(serde_json::from_value(slice).unwrap())];
        let nodes = [node("n1", "10.0.0.1", json!({})), node("n2", "10.0.0.2", json!({}))];
        assert_eq!(ips(&[service("web", 80, "01", json!({ "externalTrafficPolicy": "Local" }))], &nodes, &slices, "web"), ["10.0.0.2"]);
    }

    #[test]
    fn another_class_is_another_balancers() {
        let nodes = [node("n1", "10.0.0.1", json!({}))];
        assert!(ips(&[service("web", 80, "01", json!({ "loadBalancerClass": "x/y" }))], &nodes, &[], "web").is_empty());
    }
}
