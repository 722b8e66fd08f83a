//! Which node addresses each LoadBalancer Service gets. Pure.
//!
//! Two Services cannot have one port of one address: the older has it, and the younger gets the nodes that are left.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use base::ports::RESERVED;
use client::informer::Key;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt as _;
use model::node::addresses;
use model::phase::has_ended;
use model::pod::Pod;

const EXTERNAL: &str = "ExternalIP";
const INTERNAL: &str = "InternalIP";
const ENABLE: &str = "svccontroller.k3s.cattle.io/enablelb";
const POOL: &str = "svccontroller.k3s.cattle.io/lbpool";
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Facts on which the choice depends beside the Services themselves.
pub(super) struct Cluster<'a> {
    pub(super) nodes: &'a [Arc<Node>],
    pub(super) slices: &'a [Arc<EndpointSlice>],
    pub(super) pods: &'a [Arc<Pod>],
    /// TCP ports of this server.
    pub(super) reserved: &'a [u16],
    /// Where pods' and Services' addresses lie.
    pub(super) ranges: &'a [IpNet],
}

/// A protocol and a port.
type Port = (String, i32);

/// Outcome for one Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) ips: Vec<String>,
    /// Why it got nothing, for its owner.
    pub(super) trouble: Option<String>,
}

/// Whether this controller has, or had, something to do with a Service.
pub(super) fn concerns(service: &Service) -> bool {
    let had =
        service.status.as_ref().and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref()).is_some_and(|i| !i.is_empty());
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

/// Facts of a node that matter.
pub(super) fn node_facts(node: &Node) -> (bool, BTreeMap<String, String>, [Vec<IpAddr>; 2]) {
    (is_ready(node), node.labels().clone(), [EXTERNAL, INTERNAL].map(|kind| addresses(node, kind).collect()))
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    ready && node.metadata.deletion_timestamp.is_none()
}

/// Addresses that are not to be had by saying that one has them: every node's proxy turns the cluster's traffic to a
/// balancer's address.
struct Owned<'a> {
    ranges: &'a [IpNet],
    /// Of Services outside of the ranges.
    services: BTreeSet<IpAddr>,
    /// Internal addresses of nodes. Of two that say the same the older one has it.
    nodes: BTreeMap<IpAddr, String>,
}

impl Owned<'_> {
    fn of<'a>(services: &[Arc<Service>], cluster: &Cluster<'a>) -> Owned<'a> {
        let in_ranges = |ip: &IpAddr| cluster.ranges.iter().any(|range| range.contains(ip));
        let texts =
            services.iter().flat_map(|service| service.spec.iter().flat_map(|spec| spec.cluster_ips.iter().flatten()));
        let mut by_age: Vec<&Arc<Node>> = cluster.nodes.iter().collect();
        by_age.sort_by_key(|node| (node.metadata.creation_timestamp.as_ref().map(|time| time.0), node.name_any()));
        let mut nodes = BTreeMap::new();
        for node in by_age {
            for ip in addresses(node, INTERNAL) {
                nodes.entry(ip).or_insert_with(|| node.name_any());
            }
        }
        Owned {
            ranges: cluster.ranges,
            services: texts.filter_map(|ip| ip.parse().ok()).filter(|ip| !in_ranges(ip)).collect(),
            nodes,
        }
    }

    /// Machines behind one router may share an external address, so another node's word alone does not make it that
    /// node's.
    fn may_be_of(&self, node: &Node, ip: &IpAddr) -> bool {
        let of_others = self.nodes.get(ip).is_some_and(|owner| *owner != node.name_any());
        !of_others && !self.services.contains(ip) && !self.ranges.iter().any(|range| range.contains(ip))
    }
}

/// Host ports of a pod that is there: its containers' ports are the node's.
pub(super) fn host_ports(pod: &Pod) -> BTreeSet<Port> {
    let Some(spec) = pod.spec.as_ref().filter(|_| !has_ended(pod)) else { return BTreeSet::new() };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let ports = containers.flat_map(|container| container.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some((port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port.host_port.filter(|n| *n > 0)?))
        })
        .collect()
}

fn ports(service: &Service) -> Vec<Port> {
    let ports = service.spec.iter().flat_map(|spec| spec.ports.iter().flatten());
    ports.map(|port| (port.protocol.clone().unwrap_or_else(|| "TCP".to_owned()), port.port)).collect()
}

/// The Services that have each node port.
fn node_ports(services: &[Arc<Service>]) -> BTreeMap<Port, Key> {
    let of = |service: &Arc<Service>| {
        let ports: Vec<_> = service.spec.iter().flat_map(|spec| spec.ports.clone().unwrap_or_default()).collect();
        let key = Key::of(&**service);
        ports.into_iter().filter_map(move |port| {
            Some(((port.protocol.unwrap_or_else(|| "TCP".to_owned()), port.node_port?), key.clone()))
        })
    };
    services.iter().flat_map(of).collect()
}

/// Outcomes for every LoadBalancer Service.
pub(super) fn assign(services: &[Arc<Service>], cluster: &Cluster<'_>) -> BTreeMap<Key, Outcome> {
    let mut wanting: Vec<&Arc<Service>> = services.iter().filter(|service| wants(service)).collect();
    // One that is served already goes on; among the others the older comes first.
    let served = |service: &Service| {
        service.status.as_ref().and_then(|s| s.load_balancer.as_ref()?.ingress.as_ref()).is_some_and(|i| !i.is_empty())
    };
    wanting.sort_by_key(|service| {
        (!served(service), service.metadata.creation_timestamp.clone().map(|t| t.0), Key::of(&***service))
    });
    let (node_ports, owned) = (node_ports(services), Owned::of(services, cluster));
    let mut taken: BTreeMap<(String, String, i32), Key> = BTreeMap::new();
    let mut outcomes = BTreeMap::new();
    for service in wanting {
        let outcome = match no_services(service, cluster, &node_ports) {
            Some(trouble) => Outcome { ips: Vec::new(), trouble: Some(trouble) },
            None => one(service, cluster, &owned, &mut taken),
        };
        outcomes.insert(Key::of(&**service), outcome);
    }
    outcomes
}

/// Why a Service cannot have one of its ports on any node.
fn no_services(service: &Service, cluster: &Cluster<'_>, node_ports: &BTreeMap<Port, Key>) -> Option<String> {
    ports(service).into_iter().find_map(|port| {
        let (protocol, number) = (&port.0, port.1);
        let served = protocol == "TCP" && cluster.reserved.iter().any(|reserved| i32::from(*reserved) == number);
        // What else a machine listens on its own rules know.
        if served || RESERVED.iter().any(|(own, port)| protocol.eq_ignore_ascii_case(own) && i32::from(*port) == number)
        {
            return Some(format!("port {number}/{protocol} is the node's own: choose another one"));
        }
        let other = node_ports.get(&port).filter(|other| **other != Key::of(service))?;
        Some(format!("port {number}/{protocol} is the node port of Service {other}: choose another one"))
    })
}

/// A pod of this node that has had one of the Service's ports for longer than there is the Service, and is none of its
/// own.
fn squatter<'a>(service: &Service, node: &Node, pods: &'a [Arc<Pod>]) -> Option<(&'a Arc<Pod>, Port)> {
    let wanted = ports(service);
    let selector = service.spec.as_ref().and_then(|spec| spec.selector.clone()).unwrap_or_default();
    let born = |meta: &ObjectMeta| meta.creation_timestamp.as_ref().map(|time| time.0);
    let own = |pod: &Pod| {
        let matches = selector.iter().all(|(key, value)| pod.labels().get(key) == Some(value));
        pod.namespace() == service.namespace() && !selector.is_empty() && matches
    };
    pods.iter()
        .filter(|pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == node.metadata.name.as_deref())
        .filter(|pod| born(&pod.metadata) < born(&service.metadata) && !own(pod))
        .find_map(|pod| Some((pod, host_ports(pod).into_iter().find(|port| wanted.contains(port))?)))
}

fn one(
    service: &Service,
    cluster: &Cluster<'_>,
    owned: &Owned<'_>,
    taken: &mut BTreeMap<(String, String, i32), Key>,
) -> Outcome {
    let spec = service.spec.clone().unwrap_or_default();
    let ports = ports(service);
    let families = spec.ip_families.clone().unwrap_or_default();
    let (mut ips, mut rival) = (Vec::new(), None);
    for node in eligible(service, cluster.nodes, cluster.slices) {
        if let Some((pod, port)) = squatter(service, node, cluster.pods) {
            rival = Some(format!(
                "port {}/{} of node {} is the host port of pod {}",
                port.1,
                port.0,
                node.name_any(),
                Key::of(&**pod)
            ));
            continue;
        }
        for ip in balancer_ips(node, owned, &families)
            .into_iter()
            .filter(|ip| spec.load_balancer_ip.as_ref().is_none_or(|want| want.is_empty() || want == ip))
        {
            let key = |(protocol, port): &Port| (ip.clone(), protocol.clone(), *port);
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
    Outcome { trouble: rival.filter(|_| ips.is_empty()), ips }
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
    let own = slices
        .iter()
        .filter(|slice| slice.namespace() == ns && slice.labels().get("kubernetes.io/service-name") == Some(&name));
    let endpoints = own.flat_map(|slice| slice.endpoints.iter().flatten());
    endpoints
        .filter(|e| e.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true))
        .filter_map(|e| e.node_name.clone())
        .collect()
}

/// External addresses where the node has any, else internal ones, of the Service's families, as far as they may be its
/// own.
fn balancer_ips(node: &Node, owned: &Owned<'_>, families: &[String]) -> Vec<String> {
    let of = |kind: &str, v6: bool| -> Vec<String> {
        addresses(node, kind)
            .filter(|ip| ip.is_ipv6() == v6 && owned.may_be_of(node, ip))
            .map(|ip| ip.to_string())
            .collect()
    };
    let one = |v6: bool| {
        let external = of(EXTERNAL, v6);
        if external.is_empty() { of(INTERNAL, v6) } else { external }
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
            "status": { "conditions": [{ "type": "Ready", "status": "True" }], "addresses": [{ "type": "InternalIP",
                "address": ip }] } });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn service(name: &str, port: i32, age: &str, more: Value) -> Arc<Service> {
        let mut spec = json!({ "type": "LoadBalancer", "ports": [{ "port": port }] });
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let service = json!({ "metadata": { "name": name, "namespace": "a",
            "creationTimestamp": format!("2026-01-01T00:00:{age}Z") }, "spec": spec });
        Arc::new(serde_json::from_value(service).unwrap())
    }

    fn ips(services: &[Arc<Service>], nodes: &[Arc<Node>], slices: &[Arc<EndpointSlice>], name: &str) -> Vec<String> {
        outcome(services, nodes, slices, &[], name).ips
    }

    fn outcome(
        services: &[Arc<Service>],
        nodes: &[Arc<Node>],
        slices: &[Arc<EndpointSlice>],
        pods: &[Arc<Pod>],
        name: &str,
    ) -> Outcome {
        let ranges = ["10.42.0.0/16".parse().unwrap(), "10.43.0.0/16".parse().unwrap()];
        let cluster = Cluster { nodes, slices, pods, reserved: &[7443], ranges: &ranges };
        assign(services, &cluster).remove(&Key::new("a", name)).unwrap_or_default()
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
    fn a_node_serves_at_addresses_that_may_be_its_own() {
        let named = |name: &str, age: &str, addresses: &[(&str, &str)]| -> Arc<Node> {
            let all: Vec<Value> =
                addresses.iter().map(|(kind, text)| json!({ "type": kind, "address": text })).collect();
            let metadata = json!({ "name": name, "creationTimestamp": format!("2026-01-01T00:00:{age}Z") });
            let status = json!({ "conditions": [{ "type": "Ready", "status": "True" }], "addresses": all });
            Arc::new(serde_json::from_value(json!({ "metadata": metadata, "status": status })).unwrap())
        };
        let services = [
            service("web", 80, "01", json!({})),
            service("old", 80, "01", json!({ "type": "ClusterIP", "clusterIPs": ["10.99.0.7"] })),
        ];
        let bad = [
            "10.43.0.10",
            "10.42.3.4",
            "10.99.0.7",
            "10.0.0.2",
            "127.0.0.1",
            "169.254.169.254",
            "10.0.0.3 x",
            "example.com",
        ];
        for text in bad {
            let nodes = [
                named("n1", "01", &[(EXTERNAL, text), (INTERNAL, "10.0.0.1")]),
                named("n2", "02", &[(INTERNAL, "10.0.0.2")]),
            ];
            assert_eq!(ips(&services, &nodes, &[], "web"), ["10.0.0.1", "10.0.0.2"], "{text}");
        }
        // The younger node does not get the older one's place.
        let nodes = [named("n0", "02", &[(INTERNAL, "10.0.0.1")]), named("n1", "01", &[(INTERNAL, "10.0.0.1")])];
        let owned =
            Owned::of(&services, &Cluster { nodes: &nodes, slices: &[], pods: &[], reserved: &[], ranges: &[] });
        assert!(
            !owned.may_be_of(&nodes[0], &IpAddr::from([10, 0, 0, 1]))
                && owned.may_be_of(&nodes[1], &IpAddr::from([10, 0, 0, 1]))
        );
        // Behind one router.
        let behind = |name: &str, ip: &str| named(name, "01", &[(EXTERNAL, "203.0.113.9"), (INTERNAL, ip)]);
        assert_eq!(ips(&services, &[behind("n1", "10.0.0.1"), behind("n2", "10.0.0.2")], &[], "web"), ["203.0.113.9"]);
    }

    #[test]
    fn the_older_service_keeps_a_port() {
        let nodes = [node("n1", "10.0.0.1", json!({}))];
        let both = [service("young", 80, "09", json!({})), service("old", 80, "01", json!({}))];
        assert_eq!(ips(&both, &nodes, &[], "old"), ["10.0.0.1"]);
        let young = outcome(&both, &nodes, &[], &[], "young");
        assert_eq!(young.trouble.unwrap(), "port 80/TCP of 10.0.0.1 is taken by Service a/old");
    }

    #[test]
    fn a_nodes_own_ports_are_not_to_be_had() {
        let nodes = [node("n1", "10.0.0.1", json!({}))];
        for (protocol, port) in
            [("TCP", 6443), ("TCP", 7443), ("TCP", 22), ("UDP", 8472), ("TCP", 2379), ("TCP", 10250)]
        {
            let own = [service(
                "web",
                port,
                "01",
                json!({ "ports": [{ "port": 80 }, { "port": port, "protocol": protocol }] }),
            )];
            assert!(ips(&own, &nodes, &[], "web").is_empty(), "{port}/{protocol}");
        }
        // The other protocol's is another port.
        assert_eq!(
            ips(
                &[service("web", 22, "01", json!({ "ports": [{ "port": 22, "protocol": "UDP" }] }))],
                &nodes,
                &[],
                "web"
            )
            .len(),
            1
        );
    }

    #[test]
    fn another_services_node_port_is_not_to_be_had() {
        let nodes = [node("n1", "10.0.0.1", json!({}))];
        let all = [
            service("web", 30080, "01", json!({})),
            service("shop", 80, "02", json!({ "ports": [{ "port": 80, "nodePort": 30080 }] })),
        ];
        let web = outcome(&all, &nodes, &[], &[], "web");
        assert_eq!(web.trouble.unwrap(), "port 30080/TCP is the node port of Service a/shop: choose another one");
        assert_eq!(ips(&all, &nodes, &[], "shop"), ["10.0.0.1"]);
    }

    #[test]
    fn a_pods_host_port_stays_its_own_unless_the_service_is_older_or_is_its() {
        let nodes = [node("n1", "10.0.0.1", json!({})), node("n2", "10.0.0.2", json!({}))];
        let pod = |age: &str, labels: Value| -> Arc<Pod> {
            let pod = json!({ "metadata": { "name": "p", "namespace": "a", "labels": labels,
                "creationTimestamp": format!("2026-01-01T00:00:{age}Z") },
                "spec": { "nodeName": "n1", "containers": [{ "name": "c", "ports": [{ "containerPort": 8080,
                    "hostPort": 80 }] }] } });
            Arc::new(serde_json::from_value(pod).unwrap())
        };
        let web = [service("web", 80, "05", json!({ "selector": { "app": "web" } }))];
        assert_eq!(outcome(&web, &nodes, &[], &[pod("01", json!({}))], "web").ips, ["10.0.0.2"]);
        assert_eq!(
            outcome(&web, &nodes[..1], &[], &[pod("01", json!({}))], "web").trouble.unwrap(),
            "port 80/TCP of node n1 is the host port of pod a/p"
        );
        assert_eq!(outcome(&web, &nodes, &[], &[pod("09", json!({}))], "web").ips.len(), 2);
        assert_eq!(outcome(&web, &nodes, &[], &[pod("01", json!({ "app": "web" }))], "web").ips.len(), 2);
    }

    #[test]
    fn local_services_are_where_their_endpoints_are() {
        let slice = json!({ "metadata": { "name": "s", "namespace": "a",
            "labels": { "kubernetes.io/service-name": "web" } }, "addressType": "IPv4",
            "endpoints": [{ "addresses": ["10.42.1.2"], "nodeName": "n2" }] });
        let slices = [Arc::new(serde_json::from_value(slice).unwrap())];
        let nodes = [node("n1", "10.0.0.1", json!({})), node("n2", "10.0.0.2", json!({}))];
        assert_eq!(
            ips(&[service("web", 80, "01", json!({ "externalTrafficPolicy": "Local" }))], &nodes, &slices, "web"),
            ["10.0.0.2"]
        );
    }

    #[test]
    fn another_class_is_another_balancers() {
        let nodes = [node("n1", "10.0.0.1", json!({}))];
        assert!(ips(&[service("web", 80, "01", json!({ "loadBalancerClass": "x/y" }))], &nodes, &[], "web").is_empty());
    }
}
