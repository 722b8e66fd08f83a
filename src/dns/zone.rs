//! The cluster as names: an index over Services, EndpointSlices and Namespaces, and the pure answer to one question.
//!
//! Spec: <https://github.com/kubernetes/dns/blob/master/docs/specification.md> (1.1.0); where it is silent, as CoreDNS does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use client::pod::Pod;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

/// Version of the specification that `dns-version.ZONE` names.
const SCHEMA_VERSION: &str = "1.1.0";

/// One port with the labels of its SRV name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Port {
    pub(crate) name: String,
    /// `tcp`, `udp` or `sctp`.
    pub(crate) protocol: String,
    pub(crate) number: u16,
}

#[derive(Clone, Debug, PartialEq)]
struct Endpoint {
    host: String,
    ip: IpAddr,
    ports: Arc<[Port]>,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    Cluster { ips: Vec<IpAddr>, ports: Vec<Port> },
    Headless,
    External(String),
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    kind: Kind,
    /// Ready endpoints; those of a Service with a cluster address are asked for by their own names only.
    endpoints: Vec<Endpoint>,
}

/// Which pods have names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PodNames {
    #[default]
    Disabled,
    Insecure,
    Verified,
}

/// The index. Built anew after a change, read without locks.
#[derive(Debug, Default)]
pub(crate) struct Index {
    services: BTreeMap<(String, String), Entry>,
    by_ip: BTreeMap<IpAddr, Vec<String>>,
    namespaces: BTreeSet<String>,
    pods: BTreeSet<(String, IpAddr)>,
}

/// What the index is built from.
pub(crate) struct Objects<'a> {
    pub(crate) services: &'a [Arc<Service>],
    pub(crate) slices: &'a [Arc<EndpointSlice>],
    pub(crate) namespaces: &'a [Arc<Namespace>],
    /// Only for verified pod names.
    pub(crate) pods: &'a [Arc<Pod>],
    /// Whether endpoints without a hostname are named after their pods.
    pub(crate) pod_names_for_endpoints: bool,
}

/// What a name has, before the type that was asked for picks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) srv: Vec<Srv>,
    pub(crate) cname: Option<String>,
    pub(crate) txt: Option<String>,
    pub(crate) ptr: Vec<String>,
}

/// One SRV record: a target below the zone and its addresses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Srv {
    pub(crate) port: u16,
    /// Relative to the zone.
    pub(crate) target: String,
    pub(crate) ips: Vec<IpAddr>,
}

impl Index {
    pub(crate) fn build(objects: &Objects<'_>) -> Index {
        let mut index = Index::default();
        index.namespaces.extend(objects.namespaces.iter().filter_map(|ns| ns.metadata.name.clone()));
        for service in objects.services {
            if let Some((key, kind)) = service_kind(service) {
                index.services.insert(key, Entry { kind, endpoints: Vec::new() });
            }
        }
        for slice in objects.slices {
            index.add_slice(slice, objects.pod_names_for_endpoints);
        }
        for entry in index.services.values_mut() {
            entry.endpoints.sort_by(|a, b| (&a.host, a.ip).cmp(&(&b.host, b.ip)));
            entry.endpoints.dedup_by(|a, b| a.host == b.host && a.ip == b.ip && a.ports == b.ports);
        }
        index.add_reverse();
        for pod in objects.pods {
            let ns = pod.metadata.namespace.clone().unwrap_or_default();
            let ips = pod.status.iter().flat_map(|status| status.pod_ips.iter().flatten()).filter_map(|ip| ip.ip.parse().ok());
            index.pods.extend(ips.map(|ip| (ns.clone(), ip)));
        }
        index
    }

    fn add_slice(&mut self, slice: &EndpointSlice, pod_names: bool) {
        let labels = slice.metadata.labels.as_ref();
        let Some(service) = labels.and_then(|labels| labels.get("kubernetes.io/service-name")) else { return };
        let key = (slice.metadata.namespace.clone().unwrap_or_default(), service.clone());
        let Some(entry) = self.services.get_mut(&key) else { return };
        let ports: Arc<[Port]> = slice
            .ports
            .iter()
            .flatten()
            .filter_map(|port| {
                Some(Port {
                    name: port.name.clone().unwrap_or_default(),
                    protocol: port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase(),
                    number: u16::try_from(port.port?).ok()?,
                })
            })
            .collect();
        for endpoint in slice.endpoints.iter().flatten() {
            if !endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true) {
                continue;
            }
            for ip in endpoint.addresses.iter().filter_map(|ip| ip.parse::<IpAddr>().ok()) {
                let pod = endpoint.target_ref.as_ref().filter(|target| pod_names && target.kind.as_deref() == Some("Pod"));
                let host = endpoint.hostname.clone().or_else(|| pod?.name.clone()).filter(|host| !host.is_empty());
                let host = host.unwrap_or_else(|| dashed(ip)).to_ascii_lowercase();
                entry.endpoints.push(Endpoint { host, ip, ports: Arc::clone(&ports) });
            }
        }
    }

    fn add_reverse(&mut self) {
        let mut by_ip: BTreeMap<IpAddr, Vec<String>> = BTreeMap::new();
        for ((ns, name), entry) in &self.services {
            if let Kind::Cluster { ips, .. } = &entry.kind {
                for ip in ips {
                    by_ip.insert(*ip, vec![format!("{name}.{ns}.svc")]);
                }
            }
        }
        for ((ns, name), entry) in &self.services {
            for endpoint in &entry.endpoints {
                let names = by_ip.entry(endpoint.ip).or_default();
                let full = format!("{}.{name}.{ns}.svc", endpoint.host);
                // Endpoints are sorted, so one that is there again for its other ports stands behind the first: thousands of
                // services may share an address.
                if names.last() != Some(&full) {
                    names.push(full);
                }
            }
        }
        self.by_ip = by_ip;
    }

    /// The names, relative to the zone, of an address.
    pub(crate) fn reverse(&self, ip: IpAddr) -> &[String] {
        self.by_ip.get(&ip).map(Vec::as_slice).unwrap_or_default()
    }

    /// What `labels` (lower case, without the zone) has. `None`: there is no such name. An empty [`Found`]: the name exists, but
    /// holds nothing.
    pub(crate) fn find(&self, labels: &[&str], pods: PodNames) -> Option<Found> {
        match labels {
            [] | ["svc"] => Some(Found::default()),
            ["dns-version"] => Some(Found { txt: Some(SCHEMA_VERSION.to_owned()), ..Found::default() }),
            ["pod"] => (pods != PodNames::Disabled).then(Found::default),
            [rest @ .., ns, "svc"] if self.namespaces.contains(*ns) => self.find_service(rest, ns),
            [rest @ .., ns, "pod"] if self.namespaces.contains(*ns) => self.find_pod(rest, ns, pods),
            _ => None,
        }
    }

    fn find_pod(&self, rest: &[&str], ns: &str, pods: PodNames) -> Option<Found> {
        let ip = match (rest, pods) {
            (_, PodNames::Disabled) => return None,
            ([], _) => return Some(Found::default()),
            ([label], _) => undashed(label)?,
            _ => return None,
        };
        let known = pods == PodNames::Insecure || self.pods.contains(&(ns.to_owned(), ip));
        known.then(|| Found { addresses: vec![ip], ..Found::default() })
    }

    fn find_service(&self, rest: &[&str], ns: &str) -> Option<Found> {
        let (name, before) = match rest {
            [] => return Some(Found::default()),
            [before @ .., name] => (*name, before),
        };
        let entry = self.services.get(&(ns.to_owned(), name.to_owned()))?;
        let base = format!("{name}.{ns}.svc");
        match before {
            [] => entry.all(&base),
            [protocol] if protocol.starts_with('_') => Some(Found::default()),
            [port, protocol] if port.starts_with('_') && protocol.starts_with('_') => entry.port(&base, &port[1..], &protocol[1..]),
            [host] => entry.endpoint(&base, host),
            _ => None,
        }
    }
}

impl Entry {
    fn all(&self, base: &str) -> Option<Found> {
        match &self.kind {
            Kind::External(target) => Some(Found { cname: Some(target.clone()), ..Found::default() }),
            Kind::Cluster { ips, ports } => {
                Some(Found { addresses: ips.clone(), srv: cluster_srv(base, ports.iter(), ips), ..Found::default() })
            }
            // Without a ready endpoint a headless Service has no name.
            Kind::Headless => some_endpoints(base, self.endpoints.iter(), |_| true),
        }
    }

    fn port(&self, base: &str, name: &str, protocol: &str) -> Option<Found> {
        let matches = |port: &Port| port.name == name && port.protocol == protocol;
        match &self.kind {
            Kind::External(_) => None,
            Kind::Cluster { ips, ports } => {
                let srv = cluster_srv(base, ports.iter().filter(|port| matches(port)), ips);
                (!srv.is_empty()).then(|| Found { addresses: ips.clone(), srv, ..Found::default() })
            }
            Kind::Headless => some_endpoints(base, self.endpoints.iter().filter(|e| e.ports.iter().any(matches)), matches),
        }
    }

    fn endpoint(&self, base: &str, host: &str) -> Option<Found> {
        some_endpoints(base, self.endpoints.iter().filter(|endpoint| endpoint.host == host), |_| true)
    }
}

fn cluster_srv<'a>(base: &str, ports: impl Iterator<Item = &'a Port>, ips: &[IpAddr]) -> Vec<Srv> {
    ports.map(|port| Srv { port: port.number, target: base.to_owned(), ips: ips.to_vec() }).collect()
}

fn some_endpoints<'a>(base: &str, endpoints: impl Iterator<Item = &'a Endpoint>, wants: impl Fn(&Port) -> bool) -> Option<Found> {
    let mut found = Found::default();
    let mut by_target: BTreeMap<(String, u16), Vec<IpAddr>> = BTreeMap::new();
    for endpoint in endpoints {
        if !found.addresses.contains(&endpoint.ip) {
            found.addresses.push(endpoint.ip);
        }
        for port in endpoint.ports.iter().filter(|port| wants(port)) {
            let ips = by_target.entry((format!("{}.{base}", endpoint.host), port.number)).or_default();
            if !ips.contains(&endpoint.ip) {
                ips.push(endpoint.ip);
            }
        }
    }
    found.srv = by_target.into_iter().map(|((target, port), ips)| Srv { port, target, ips }).collect();
    (!found.addresses.is_empty()).then_some(found)
}

fn service_kind(service: &Service) -> Option<((String, String), Kind)> {
    let key = (service.metadata.namespace.clone()?, service.metadata.name.clone()?);
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return Some((key, Kind::External(spec.external_name.clone()?.trim_end_matches('.').to_owned())));
    }
    if spec.cluster_ip.as_deref() == Some("None") {
        return Some((key, Kind::Headless));
    }
    let texts = spec.cluster_ips.clone().filter(|ips| !ips.is_empty()).unwrap_or_else(|| spec.cluster_ip.iter().cloned().collect());
    let ports = spec.ports.iter().flatten().filter_map(|port| {
        Some(Port {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase(),
            number: u16::try_from(port.port).ok()?,
        })
    });
    Some((key, Kind::Cluster { ips: texts.iter().filter_map(|ip| ip.parse().ok()).collect(), ports: ports.collect() }))
}

/// `10-42-0-5`, `fd00--5`.
fn dashed(ip: IpAddr) -> String {
    ip.to_string().replace(['.', ':'], "-")
}

fn undashed(label: &str) -> Option<IpAddr> {
    let v4 = label.bytes().filter(|b| *b == b'-').count() == 3 && !label.contains("--");
    if v4 && let Ok(ip) = label.replace('-', ".").parse() {
        return Some(ip);
    }
    label.replace('-', ":").parse().ok().filter(IpAddr::is_ipv6)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_like::*;

    /// Objects from a few words, since JSON would need a crate here.
    mod serde_like {
        use super::*;
        use k8s_openapi::api::core::v1::{ServicePort, ServiceSpec};
        use k8s_openapi::api::discovery::v1::{Endpoint as ApiEndpoint, EndpointConditions, EndpointPort};

        pub(super) fn service(name: &str, ip: &str) -> Arc<Service> {
            let mut service = Service::default();
            service.metadata.name = Some(name.to_owned());
            service.metadata.namespace = Some("default".to_owned());
            let port = ServicePort { name: Some("http".to_owned()), port: 80, ..ServicePort::default() };
            service.spec = Some(ServiceSpec { cluster_ip: Some(ip.to_owned()), ports: Some(vec![port]), ..ServiceSpec::default() });
            Arc::new(service)
        }

        pub(super) fn slice(service: &str, endpoints: &[(&str, Option<&str>, bool)]) -> Arc<EndpointSlice> {
            let mut slice = EndpointSlice::default();
            slice.metadata.namespace = Some("default".to_owned());
            slice.metadata.labels = Some([("kubernetes.io/service-name".to_owned(), service.to_owned())].into());
            slice.ports = Some(vec![EndpointPort { name: Some("http".to_owned()), port: Some(8080), ..EndpointPort::default() }]);
            let convert = |(ip, host, ready): &(&str, Option<&str>, bool)| ApiEndpoint {
                addresses: vec![(*ip).to_owned()],
                hostname: host.map(str::to_owned),
                conditions: Some(EndpointConditions { ready: Some(*ready), ..EndpointConditions::default() }),
                ..ApiEndpoint::default()
            };
            slice.endpoints = Some(endpoints.iter().map(convert).collect());
            Arc::new(slice)
        }

        pub(super) fn namespace(name: &str) -> Arc<Namespace> {
            let mut ns = Namespace::default();
            ns.metadata.name = Some(name.to_owned());
            Arc::new(ns)
        }
    }

    fn index() -> Index {
        Index::build(&Objects {
            services: &[service("web", "10.43.0.80"), service("db", "None"), service("empty", "None")],
            slices: &[
                slice("web", &[("10.42.0.5", None, true)]),
                slice("db", &[("10.42.0.6", Some("db-0"), true), ("10.42.0.7", Some("db-1"), false), ("10.42.0.8", None, true)]),
            ],
            namespaces: &[namespace("default")],
            pods: &[],
            pod_names_for_endpoints: false,
        })
    }

    fn ips(name: &str) -> Option<Vec<String>> {
        let labels: Vec<&str> = name.split('.').collect();
        index().find(&labels, PodNames::Insecure).map(|found| found.addresses.iter().map(IpAddr::to_string).collect())
    }

    fn list(ips: &[&str]) -> Option<Vec<String>> {
        Some(ips.iter().map(|ip| (*ip).to_owned()).collect())
    }

    #[test]
    fn names_of_services_and_endpoints() {
        assert_eq!(ips("web.default.svc"), list(&["10.43.0.80"]));
        assert_eq!(ips("db.default.svc"), list(&["10.42.0.8", "10.42.0.6"]));
        assert_eq!(ips("db-0.db.default.svc"), list(&["10.42.0.6"]));
        assert_eq!(ips("10-42-0-8.db.default.svc"), list(&["10.42.0.8"]));
        assert_eq!(ips("db-1.db.default.svc"), None);
        assert_eq!(ips("_http._tcp.web.default.svc"), list(&["10.43.0.80"]));
        assert_eq!(ips("1-2-3-4.default.pod"), list(&["1.2.3.4"]));
    }

    #[test]
    fn what_is_not_there_differs_from_what_is_empty() {
        assert_eq!(ips("default.svc"), list(&[]));
        assert_eq!(ips("svc"), list(&[]));
        assert_eq!(ips("nowhere.svc"), None);
        assert_eq!(ips("empty.default.svc"), None);
        assert_eq!(ips("1-2-3-4.nowhere.pod"), None);
        assert_eq!(ips("_https._tcp.web.default.svc"), None);
    }

    #[test]
    fn addresses_have_names() {
        assert_eq!(index().reverse("10.43.0.80".parse().unwrap()), ["web.default.svc"]);
        assert_eq!(index().reverse("10.42.0.6".parse().unwrap()), ["db-0.db.default.svc"]);
    }

    #[test]
    fn an_address_of_several_services_has_each_ones_name_once() {
        let endpoints: &[(&str, Option<&str>, bool)] = &[("10.42.0.9", None, true)];
        let other_ports = {
            let mut slice = EndpointSlice::clone(&slice("b", endpoints));
            slice.ports.as_mut().unwrap()[0].port = Some(9090);
            Arc::new(slice)
        };
        let index = Index::build(&Objects {
            services: &[service("a", "10.43.0.1"), service("b", "10.43.0.2")],
            slices: &[slice("a", endpoints), slice("b", endpoints), other_ports],
            namespaces: &[namespace("default")],
            pods: &[],
            pod_names_for_endpoints: false,
        });
        assert_eq!(index.reverse("10.42.0.9".parse().unwrap()), ["10-42-0-9.a.default.svc", "10-42-0-9.b.default.svc"]);
    }
}
