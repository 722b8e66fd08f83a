//! Snapshot of Services and EndpointSlices for the proxy, taken out of the API objects and checked.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServicePort as ApiPort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{Endpoint as ApiEndpoint, EndpointSlice};
use tracing::warn;

/// Seconds a client stays with its endpoint when the Service does not say.
const AFFINITY_SECS_DEFAULT: u32 = 10_800;

/// Service proxies leave Services with this label to another one, and slices with the other to DNS: whoever sets them
/// by hand means that. Spec: the selectors of kube-proxy's informers (cmd/kube-proxy/app/server.go v1.36.2).
const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Ports of a Service times its endpoints of one family: each pair is a choice in the table. Of a Service with more,
/// each port has some of the endpoints only, so that a megabyte of a user's text does not become a table that fills the
/// machine.
const PAIRS_MAX: usize = 65_536;
/// The same where clients stay with their endpoints. Then each pair is a set and a chain, for which the kernel takes
/// milliseconds.
const AFFINITY_PAIRS_MAX: usize = 1024;

/// Transport protocols that a Service can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
pub(crate) struct Locality {
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
pub(crate) fn service_ports(service: &Service, slices: &[Arc<EndpointSlice>], locality: &Locality) -> Vec<ServicePort> {
    let Some(spec) = service.spec.as_ref().filter(|spec| is_ours(service, spec)) else { return Vec::new() };
    let wanted = spec.ports.as_deref().unwrap_or_default();
    let offers = Offers::of(slices, locality);
    let pairs_max = if spec.session_affinity.as_deref() == Some("ClientIP") { AFFINITY_PAIRS_MAX } else { PAIRS_MAX };
    let endpoints_max = (pairs_max / wanted.len().max(1)).max(1);
    let mut ports: Vec<ServicePort> =
        wanted.iter().filter_map(|port| service_port(service, spec, port, &offers, endpoints_max)).collect();
    ports.sort_by(|a, b| (&a.port_name, a.protocol).cmp(&(&b.port_name, b.protocol)));
    if let Some(first) =
        ports.first().filter(|_| offers.slices.iter().flatten().map(Vec::len).sum::<usize>() > endpoints_max)
    {
        let (ns, name) = (&first.ns, &first.name);
        warn!(
            ns,
            name,
            "a Service has many ports and many endpoints: each port is served by {endpoints_max} of its endpoints at \
             most"
        );
    }
    ports
}

/// Endpoints by how much they are wanted, ready ones and those of this node first, and by family.
const RANKS: usize = 10;

/// Endpoints that the slices of one Service list, to be looked up by port: a Service may have ten thousand, and as many
/// slices.
struct Offers<'a> {
    /// The endpoints of each slice, in the order of their ranks. Their ports are not known yet.
    slices: Vec<[Vec<Endpoint>; RANKS]>,
    /// Which slices have endpoints at a port, and the port's number there.
    ports: HashMap<(&'a str, Protocol), Vec<(usize, u16)>>,
}

impl<'a> Offers<'a> {
    fn of(slices: &'a [Arc<EndpointSlice>], locality: &Locality) -> Offers<'a> {
        let mut offers = Offers { slices: Vec::new(), ports: HashMap::new() };
        let for_dns = |slice: &&Arc<EndpointSlice>| {
            slice.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(HEADLESS))
        };
        for slice in slices.iter().filter(|slice| !for_dns(slice)) {
            let mut ranked: [Vec<Endpoint>; RANKS] = Default::default();
            for endpoint in slice.endpoints.iter().flatten() {
                // Only the first address counts: https://issue.k8s.io/106267
                let addr = endpoint.addresses.first().and_then(|addr| addr.parse::<IpAddr>().ok());
                let Some(endpoint) = addr.map(|addr| convert(endpoint, SocketAddr::new(addr, 0), locality)) else {
                    continue;
                };
                ranked[rank(&endpoint)].push(endpoint);
            }
            if ranked.iter().all(Vec::is_empty) {
                continue;
            }
            for port in slice.ports.iter().flatten() {
                // A slice port without a number means every port, which no Service can use.
                let number = port.port.and_then(|number| u16::try_from(number).ok());
                let (Some(number), Some(protocol)) = (number, Protocol::parse(port.protocol.as_deref())) else {
                    continue;
                };
                let slices = offers.ports.entry((port.name.as_deref().unwrap_or_default(), protocol)).or_default();
                if slices.last().is_none_or(|(last, _)| *last != offers.slices.len()) {
                    slices.push((offers.slices.len(), number));
                }
            }
            offers.slices.push(ranked);
        }
        offers
    }

    /// The endpoints of a port by address, not more than `max` of each family: then those that are wanted most.
    fn endpoints(&self, name: &str, protocol: Protocol, max: usize) -> Vec<Endpoint> {
        let slices = self.ports.get(&(name, protocol)).map_or(&[][..], Vec::as_slice);
        let (mut endpoints, mut left) = (Vec::new(), [max, max]);
        for rank in 0..RANKS {
            for (slice, number) in slices {
                let left = &mut left[rank % 2];
                let some = self.slices[*slice][rank].iter().take(*left);
                *left -= some.len();
                endpoints.extend(some.map(|endpoint| Endpoint {
                    addr: SocketAddr::new(endpoint.addr.ip(), *number),
                    ..endpoint.clone()
                }));
            }
        }
        endpoints.sort_by_key(|endpoint| endpoint.addr);
        merge_repeated(&mut endpoints);
        endpoints
    }
}

/// The place among the [`RANKS`]; odd ones are IPv6's.
fn rank(endpoint: &Endpoint) -> usize {
    let state = match endpoint {
        Endpoint { ready: true, .. } => 0,
        Endpoint { serving: true, .. } => 4,
        _ => return 8 + usize::from(endpoint.addr.is_ipv6()),
    };
    state + if endpoint.local { 0 } else { 2 } + usize::from(endpoint.addr.is_ipv6())
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
    offers: &Offers<'_>,
    endpoints_max: usize,
) -> Option<ServicePort> {
    let protocol = Protocol::parse(port.protocol.as_deref())?;
    let port_name = port.name.clone().unwrap_or_default();
    let endpoints = offers.endpoints(&port_name, protocol, endpoints_max);
    let cluster_ips = match &spec.cluster_ips {
        Some(ips) if !ips.is_empty() => parse_ips(ips),
        _ => parse_ips(spec.cluster_ip.as_slice()),
    };
    let external = Policy::parse(spec.external_traffic_policy.as_deref());
    let checked = spec.type_.as_deref() == Some("LoadBalancer") && external == Policy::Local;
    let health_port =
        spec.health_check_node_port.and_then(|port| u16::try_from(port).ok()).filter(|port| checked && *port != 0);
    let affinity = spec.session_affinity.as_deref() == Some("ClientIP");
    let affinity_secs =
        spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
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
        balancer_sources: spec
            .load_balancer_source_ranges
            .iter()
            .flatten()
            .filter_map(|net| net.trim().parse().ok())
            .collect(),
        affinity_secs: affinity
            .then(|| affinity_secs.and_then(|secs| u32::try_from(secs).ok()).unwrap_or(AFFINITY_SECS_DEFAULT)),
        external,
        health_port,
        internal: Policy::parse(spec.internal_traffic_policy.as_deref()),
        endpoints,
    })
}

fn convert(endpoint: &ApiEndpoint, addr: SocketAddr, locality: &Locality) -> Endpoint {
    let conditions = endpoint.conditions.as_ref();
    let ready = conditions.and_then(|c| c.ready).unwrap_or(true);
    let hints = endpoint.hints.as_ref();
    let nodes = hints.and_then(|hints| hints.for_nodes.as_ref()).filter(|nodes| !nodes.is_empty());
    let zones = hints.and_then(|hints| hints.for_zones.as_ref()).filter(|zones| !zones.is_empty());
    Endpoint {
        node_hint: nodes.map(|nodes| nodes.iter().any(|hint| hint.name == locality.node)),
        zone_hint: zones.map(|zones| zones.iter().any(|hint| Some(&hint.name) == locality.zone.as_ref())),
        addr,
        ready,
        serving: conditions.and_then(|c| c.serving).unwrap_or(ready),
        terminating: conditions.and_then(|c| c.terminating).unwrap_or(false),
        local: endpoint.node_name.as_deref() == Some(&locality.node),
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

    use serde_json::json;

    use super::*;

    fn service(ports: usize, affinity: &str) -> Service {
        let ports: Vec<_> = (1..=ports).map(|n| json!({ "name": format!("p{n}"), "port": n })).collect();
        let spec = json!({ "clusterIP": "10.43.0.80", "clusterIPs": ["10.43.0.80"], "sessionAffinity": affinity,
            "ports": ports });
        serde_json::from_value(json!({ "metadata": { "name": "web", "namespace": "a" }, "spec": spec })).unwrap()
    }

    fn slice(ports: usize, endpoints: impl Iterator<Item = serde_json::Value>) -> Arc<EndpointSlice> {
        let ports: Vec<_> = (1..=ports).map(|n| json!({ "name": format!("p{n}"), "port": n })).collect();
        let endpoints: Vec<_> = endpoints.collect();
        let slice =
            json!({ "metadata": { "name": "web-1" }, "addressType": "IPv4", "ports": ports, "endpoints": endpoints });
        Arc::new(serde_json::from_value(slice).unwrap())
    }

    fn address(n: usize) -> String {
        format!("10.42.{}.{}", n / 250, n % 250 + 1)
    }

    // Ten thousand ports of one Service and a few hundred endpoints held the proxy of every node for minutes, and nft
    // for good.
    #[test]
    fn ports_and_endpoints_of_one_service_do_not_multiply() {
        let began = base::time::Stopwatch::start();
        let ready = |n: usize| {
            let node = if n == 900 { "a" } else { "b" };
            json!({ "addresses": [address(n)], "conditions": { "ready": n != 7 }, "nodeName": node })
        };
        let slices = [slice(10_000, (0..500).map(ready)), slice(10_000, (500..1000).map(ready))];
        let locality = Locality { node: "a".to_owned(), zone: None };
        for (affinity, max) in [("None", PAIRS_MAX), ("ClientIP", AFFINITY_PAIRS_MAX.max(10_000))] {
            let ports = service_ports(&service(10_000, affinity), &slices, &locality);
            let pairs: usize = ports.iter().map(|port| port.endpoints.len()).sum();
            assert_eq!(ports.len(), 10_000);
            assert!(pairs >= 10_000 && pairs <= max, "{pairs} pairs");
            assert!(
                ports.iter().all(|port| port.endpoints.iter().any(|endpoint| endpoint.local)),
                "the node's own is among them"
            );
            assert!(
                ports.iter().flat_map(|port| &port.endpoints).all(|endpoint| endpoint.ready),
                "one that is not ready is not preferred"
            );
        }
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
        let ports = service_ports(&service(4, "None"), &slices, &locality);
        assert!(ports.iter().all(|port| port.endpoints.len() == 1000), "what a Service may have is served");
    }

    #[test]
    fn an_endpoint_in_two_slices_is_one() {
        let state = |ready: bool| {
            std::iter::once(json!({ "addresses": ["10.42.0.5"], "conditions": { "ready": ready, "serving": true } }))
        };
        let ports =
            service_ports(&service(1, "None"), &[slice(1, state(false)), slice(1, state(true))], &Locality::default());
        assert_eq!(
            ports[0].endpoints.iter().map(|endpoint| (endpoint.addr, endpoint.ready)).collect::<Vec<_>>(),
            [("10.42.0.5:1".parse().unwrap(), true)]
        );
    }

    #[test]
    fn slices_for_dns_alone_and_services_of_other_proxies_are_not_served() {
        let service = |labels: serde_json::Value| -> Service {
            let spec = json!({ "clusterIP": "10.43.0.9", "ports": [{ "port": 80, "name": "http" }] });
            serde_json::from_value(
                json!({ "metadata": { "name": "web", "namespace": "a", "labels": labels }, "spec": spec }),
            )
            .unwrap()
        };
        let slice = |ip: &str, labels: serde_json::Value| -> Arc<EndpointSlice> {
            let slice = json!({ "metadata": { "name": ip, "namespace": "a", "labels": labels }, "addressType": "IPv4",
                "ports": [{ "name": "http", "port": 80 }], "endpoints": [{ "addresses": [ip] }] });
            Arc::new(serde_json::from_value(slice).unwrap())
        };
        let slices = [slice("10.42.0.5", json!({})), slice("10.42.0.6", json!({ HEADLESS: "" }))];
        let served = |labels| service_ports(&service(labels), &slices, &Locality::default());
        let ports = served(json!({ HEADLESS: "" }));
        let endpoints: Vec<String> = ports[0].endpoints.iter().map(|endpoint| endpoint.addr.to_string()).collect();
        assert_eq!(endpoints, ["10.42.0.5:80"], "the label of a Service is nothing to its proxy");
        assert!(served(json!({ OTHER_PROXY: "mine" })).is_empty());
    }
}
