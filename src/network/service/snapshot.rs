//! What the proxy needs of Services and EndpointSlices, taken out of the API objects and checked.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServicePort as ApiPort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint as ApiEndpoint, EndpointSlice};

/// Seconds a client stays with its endpoint when the Service does not say.
const AFFINITY_SECS_DEFAULT: u32 = 10_800;

/// Service proxies leave Services with this label to another one, and slices with the other to DNS: whoever sets them by hand means that.
/// Spec: the selectors of kube-proxy's informers (cmd/kube-proxy/app/server.go v1.36.2).
const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Transport protocols that a Service can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Protocol {
    Tcp,
    Udp,
    Sctp,
}

impl Protocol {
    pub(crate) fn parse(text: Option<&str>) -> Option<Protocol> {
        match text {
            None | Some("TCP") => Some(Protocol::Tcp),
            Some("UDP") => Some(Protocol::Udp),
            Some("SCTP") => Some(Protocol::Sctp),
            Some(_) => None,
        }
    }

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        }
    }
}

/// Which endpoints may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Cluster,
    Local,
}

impl Policy {
    fn parse(text: Option<&str>) -> Policy {
        if text == Some("Local") { Policy::Local } else { Policy::Cluster }
    }
}

/// One endpoint of one service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) addr: SocketAddr,
    pub(crate) ready: bool,
    pub(crate) serving: bool,
    pub(crate) terminating: bool,
    /// On this node.
    pub(crate) local: bool,
    /// Whether it is hinted for this node, and for this node's zone; `None` without such hints.
    pub(crate) node_hint: Option<bool>,
    pub(crate) zone_hint: Option<bool>,
}

/// Where this proxy is.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Place {
    pub(crate) node: String,
    /// `topology.kubernetes.io/zone` of the node.
    pub(crate) zone: Option<String>,
}

/// One port of one Service with everything that can answer it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ServicePort {
    pub(crate) ns: String,
    pub(crate) name: String,
    pub(crate) port_name: String,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
    pub(crate) node_port: Option<u16>,
    pub(crate) cluster_ips: Vec<IpAddr>,
    pub(crate) external_ips: Vec<IpAddr>,
    pub(crate) balancer_ips: Vec<IpAddr>,
    pub(crate) balancer_sources: Vec<IpNet>,
    pub(crate) affinity_secs: Option<u32>,
    pub(crate) external: Policy,
    pub(crate) internal: Policy,
    /// Where outside load balancers ask whether this node has endpoints.
    pub(crate) health_port: Option<u16>,
    pub(crate) endpoints: Vec<Endpoint>,
}

/// The ports of one Service that this proxy serves, in the order of their names.
pub(crate) fn service_ports(service: &Service, slices: &[Arc<EndpointSlice>], place: &Place) -> Vec<ServicePort> {
    let Some(spec) = service.spec.as_ref().filter(|spec| is_ours(service, spec)) else { return Vec::new() };
    let ports = spec.ports.iter().flatten();
    let mut ports: Vec<ServicePort> = ports.filter_map(|port| service_port(service, spec, port, slices, place)).collect();
    ports.sort_by(|a, b| (&a.port_name, a.protocol).cmp(&(&b.port_name, b.protocol)));
    ports
}

/// Not headless, not a name only, and not given to another proxy.
fn is_ours(service: &Service, spec: &ServiceSpec) -> bool {
    let other_proxy = service.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(OTHER_PROXY));
    let headless = matches!(spec.cluster_ip.as_deref(), None | Some("" | "None"));
    !other_proxy && !headless && spec.type_.as_deref() != Some("ExternalName")
}

fn service_port(
    service: &Service,
    spec: &ServiceSpec,
    port: &ApiPort,
    slices: &[Arc<EndpointSlice>],
    place: &Place,
) -> Option<ServicePort> {
    let protocol = Protocol::parse(port.protocol.as_deref())?;
    let port_name = port.name.clone().unwrap_or_default();
    let mut endpoints = Vec::new();
    for slice in slices.iter().filter(|slice| !slice.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(HEADLESS))) {
        let matching = slice.ports.iter().flatten().find(|candidate| {
            candidate.name.as_deref().unwrap_or_default() == port_name && Protocol::parse(candidate.protocol.as_deref()) == Some(protocol)
        });
        // A slice port without a number means every port, which no Service can use.
        let Some(number) = matching.and_then(|port| port.port).and_then(|port| u16::try_from(port).ok()) else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            // Only the first address counts: https://issue.k8s.io/106267
            let addr = endpoint.addresses.first().and_then(|addr| addr.parse::<IpAddr>().ok());
            endpoints.extend(addr.map(|addr| convert(endpoint, SocketAddr::new(addr, number), place)));
        }
    }
    endpoints.sort_by_key(|endpoint| endpoint.addr);
    merge_repeated(&mut endpoints);
    let cluster_ips = match &spec.cluster_ips {
        Some(ips) if !ips.is_empty() => parse_ips(ips),
        _ => parse_ips(spec.cluster_ip.as_slice()),
    };
    let external = Policy::parse(spec.external_traffic_policy.as_deref());
    let checked = spec.type_.as_deref() == Some("LoadBalancer") && external == Policy::Local;
    let health_port = spec.health_check_node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| checked && *port != 0);
    let affinity = spec.session_affinity.as_deref() == Some("ClientIP");
    let affinity_secs = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    Some(ServicePort {
        ns: service.metadata.namespace.clone().unwrap_or_default(),
        name: service.metadata.name.clone().unwrap_or_default(),
        port_name,
        protocol,
        port: u16::try_from(port.port).ok()?,
        node_port: port.node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| *port != 0),
        cluster_ips,
        external_ips: parse_ips(spec.external_ips.as_deref().unwrap_or_default()),
        balancer_ips: balancer_ips(service),
        balancer_sources: spec.load_balancer_source_ranges.iter().flatten().filter_map(|net| net.trim().parse().ok()).collect(),
        affinity_secs: affinity.then(|| affinity_secs.and_then(|secs| u32::try_from(secs).ok()).unwrap_or(AFFINITY_SECS_DEFAULT)),
        external,
        health_port,
        internal: Policy::parse(spec.internal_traffic_policy.as_deref()),
        endpoints,
    })
}

fn convert(endpoint: &ApiEndpoint, addr: SocketAddr, place: &Place) -> Endpoint {
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
    let hints = endpoint.hints.as_ref();
    let nodes = hints.and_then(|hints| hints.for_nodes.as_ref()).filter(|nodes| !nodes.is_empty());
    let zones = hints.and_then(|hints| hints.for_zones.as_ref()).filter(|zones| !zones.is_empty());
    Endpoint {
        node_hint: nodes.map(|nodes| nodes.iter().any(|hint| hint.name == place.node)),
        zone_hint: zones.map(|zones| zones.iter().any(|hint| Some(&hint.name) == place.zone.as_ref())),
        addr,
        ready,
        serving: conditions.and_then(|c| c.serving).unwrap_or(ready),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        local: endpoint.node_name.as_deref() == Some(&place.node),
    }
}

/// While an endpoint moves from one slice to another both may name it; the better state counts.
fn merge_repeated(endpoints: &mut Vec<Endpoint>) {
    endpoints.dedup_by(|later, first| {
        let same = later.addr == first.addr;
        if same && later.ready && !first.ready {
            *first = later.clone();
        }
        same
    });
}

fn parse_ips(texts: &[String]) -> Vec<IpAddr> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Addresses of the load balancer, but for those that want the traffic to go through it (`ipMode: Proxy`).
fn balancer_ips(service: &Service) -> Vec<IpAddr> {
    let ingress = service.status.as_ref().and_then(|status| status.load_balancer.as_ref()?.ingress.as_ref());
    let direct = ingress.into_iter().flatten().filter(|ingress| ingress.ip_mode.as_deref() != Some("Proxy"));
    direct.filter_map(|ingress| ingress.ip.as_ref()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn slices_for_dns_alone_and_services_of_other_proxies_are_not_served() {
        let service = |labels: serde_json::Value| -> Service {
            let spec = json!({ "clusterIP": "10.43.0.9", "ports": [{ "port": 80, "name": "http" }] });
            serde_json::from_value(json!({ "metadata": { "name": "web", "namespace": "a", "labels": labels }, "spec": spec })).unwrap()
        };
        let slice = |ip: &str, labels: serde_json::Value| -> Arc<EndpointSlice> {
            let slice = json!({ "metadata": { "name": ip, "namespace": "a", "labels": labels }, "addressType": "IPv4",
                "ports": [{ "name": "http", "port": 80 }], "endpoints": [{ "addresses": [ip] }] });
            Arc::new(serde_json::from_value(slice).unwrap())
        };
        let slices = [slice("10.42.0.5", json!({})), slice("10.42.0.6", json!({ HEADLESS: "" }))];
        let served = |labels| service_ports(&service(labels), &slices, &Place::default());
        let ports = served(json!({ HEADLESS: "" }));
        let endpoints: Vec<String> = ports[0].endpoints.iter().map(|endpoint| endpoint.addr.to_string()).collect();
        assert_eq!(endpoints, ["10.42.0.5:80"], "the label of a Service is nothing to its proxy");
        assert!(served(json!({ OTHER_PROXY: "mine" })).is_empty());
    }
}
