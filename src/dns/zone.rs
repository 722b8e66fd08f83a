//! The cluster as names: an index over Services, EndpointSlices and Namespaces, and the pure answer to one question.
//!
//! Spec: <https://github.com/kubernetes/dns/blob/master/docs/specification.md> (1.1.0); where it is silent, as CoreDNS
//! does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use client::informer::Key;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use model::pod::Pod;

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

/// The labels of a port's SRV name, without their underscores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PortName<'a> {
    name: &'a str,
    protocol: &'a str,
}

impl Port {
    fn labels(&self) -> PortName<'_> {
        PortName { name: &self.name, protocol: &self.protocol }
    }
}

/// `web.default.svc`: the name of a Service, relative to the zone.
struct Domain(String);

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
    /// Ready endpoints, by host and address; those of a Service with a cluster address are asked for by their own names
    /// only.
    endpoints: Vec<Endpoint>,
    /// Their addresses, each once.
    addresses: Vec<IpAddr>,
}

/// SRV records of one answer, and addresses of their hosts. In 64 KiB there is no place for more: a record has three
/// numbers and a name below the zone.
const SRV_MAX: usize = 2048;
/// Endpoints × ports that are looked at for one answer: a Service has as many of each as somebody writes.
const PAIRS_MAX: usize = 16_384;

/// The part of a name that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Anything but SRV records.
    Addresses,
    /// SRV records: one for each port of each endpoint.
    Services,
}

/// Names of endpoints that have no hostname.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EndpointNames {
    /// `10-42-0-5`.
    #[default]
    Addresses,
    /// Their pods' names, where a pod is behind them.
    Pods,
}

/// Which pods have names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PodNames {
    #[default]
    Disabled,
    Insecure,
    Verified,
}

/// Namespace and name of a Service.
type Name = Arc<(String, String)>;

/// The index. A change is worked in Service by Service: there may be ten thousand of them.
#[derive(Debug, Default)]
pub(crate) struct Index {
    services: BTreeMap<Name, Entry>,
    /// The Services that an address leads to, as their own or as an endpoint's.
    by_ip: BTreeMap<IpAddr, BTreeSet<Name>>,
    namespaces: BTreeSet<String>,
    /// Namespaces of the pods that have an address: one, or several for as long as it takes to learn of a change.
    pods: BTreeMap<IpAddr, BTreeSet<String>>,
}

/// Records of a name, before the type that was asked for picks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Found {
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) srv: Vec<Srv>,
    /// Addresses of the SRV records' targets, which are relative to the zone.
    pub(crate) hosts: Vec<(String, IpAddr)>,
    pub(crate) cname: Option<String>,
    pub(crate) txt: Option<String>,
    pub(crate) ptr: Vec<String>,
}

/// One SRV record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Srv {
    pub(crate) port: u16,
    /// Relative to the zone.
    pub(crate) target: String,
}

impl Index {
    /// Makes the index say of one Service what it and its slices say now; `None` for one that is gone.
    pub(crate) fn set(
        &mut self,
        key: &Key,
        service: Option<&Service>,
        slices: &[Arc<EndpointSlice>],
        names: EndpointNames,
    ) {
        let name: Name = Arc::new((key.namespace.clone(), key.name.clone()));
        if let Some(old) = self.services.remove(&name) {
            for ip in old.ips() {
                if let Some(names) = self.by_ip.get_mut(&ip) {
                    names.remove(&name);
                    if names.is_empty() {
                        self.by_ip.remove(&ip);
                    }
                }
            }
        }
        let Some(kind) = service.and_then(service_kind) else { return };
        let mut endpoints: Vec<Endpoint> = slices.iter().flat_map(|slice| endpoints(slice, names)).collect();
        endpoints.sort_by(|a, b| (&a.host, a.ip).cmp(&(&b.host, b.ip)));
        endpoints.dedup_by(|a, b| a.host == b.host && a.ip == b.ip && a.ports == b.ports);
        let mut seen = BTreeSet::new();
        let addresses = endpoints.iter().map(|endpoint| endpoint.ip).filter(|ip| seen.insert(*ip)).collect();
        let entry = Entry { kind, endpoints, addresses };
        for ip in entry.ips() {
            self.by_ip.entry(ip).or_default().insert(Arc::clone(&name));
        }
        self.services.insert(name, entry);
    }

    /// The namespaces whose names are told.
    pub(crate) fn set_namespaces(&mut self, names: BTreeSet<String>) {
        self.namespaces = names;
    }

    /// The pods that have verified names.
    pub(crate) fn set_pods(&mut self, pods: &[Arc<Pod>]) {
        self.pods.clear();
        for pod in pods {
            let ns = pod.metadata.namespace.clone().unwrap_or_default();
            let ips = pod
                .status
                .iter()
                .flat_map(|status| status.pod_ips.iter().flatten())
                .filter_map(|ip| ip.ip.parse().ok());
            for ip in ips {
                self.pods.entry(ip).or_default().insert(ns.clone());
            }
        }
    }

    /// The namespace of the pod with this address, if pods are known.
    pub(crate) fn namespace_of(&self, ip: IpAddr) -> Option<String> {
        self.pods.get(&ip)?.first().cloned()
    }

    /// The Services that have an entry.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        self.services.keys().map(|name| Key::new(&name.0, &name.1))
    }

    /// The names, relative to the zone, of an address: the Service's whose own it is, then those of endpoints.
    pub(crate) fn reverse(&self, ip: IpAddr) -> Vec<String> {
        let (mut own, mut of_endpoints) = (Vec::new(), Vec::new());
        for name in self.by_ip.get(&ip).into_iter().flatten() {
            let Some(entry) = self.services.get(name) else { continue };
            let base = format!("{}.{}.svc", name.1, name.0);
            if matches!(&entry.kind, Kind::Cluster { ips, .. } if ips.contains(&ip)) {
                own.push(base.clone());
            }
            let mut hosts: Vec<&str> =
                entry.endpoints.iter().filter(|endpoint| endpoint.ip == ip).map(|e| e.host.as_str()).collect();
            hosts.dedup();
            of_endpoints.extend(hosts.into_iter().map(|host| format!("{host}.{base}")));
        }
        // Two Services never have one address for long; the later one counts.
        own.drain(..own.len().saturating_sub(1));
        own.append(&mut of_endpoints);
        own
    }

    /// Records of `labels` (lower case, without the zone). `None`: there is no such name. An empty [`Found`]: the name
    /// exists, but holds nothing.
    pub(crate) fn find(&self, labels: &[&str], pods: PodNames, wanted: Wanted) -> Option<Found> {
        match labels {
            [] | ["svc"] => Some(Found::default()),
            ["dns-version"] => Some(Found { txt: Some(SCHEMA_VERSION.to_owned()), ..Found::default() }),
            ["pod"] => (pods != PodNames::Disabled).then(Found::default),
            [rest @ .., ns, "svc"] if self.namespaces.contains(*ns) => self.find_service(rest, ns, wanted),
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
        let known = pods == PodNames::Insecure || self.pods.get(&ip).is_some_and(|namespaces| namespaces.contains(ns));
        known.then(|| Found { addresses: vec![ip], ..Found::default() })
    }

    fn find_service(&self, rest: &[&str], ns: &str, wanted: Wanted) -> Option<Found> {
        let (name, before) = match rest {
            [] => return Some(Found::default()),
            [before @ .., name] => (*name, before),
        };
        let entry = self.services.get(&(ns.to_owned(), name.to_owned()))?;
        let base = Domain(format!("{name}.{ns}.svc"));
        match before {
            [] => entry.all(&base, wanted),
            [protocol] if protocol.starts_with('_') => Some(Found::default()),
            [port, protocol] if port.starts_with('_') && protocol.starts_with('_') => {
                entry.port(&base, PortName { name: &port[1..], protocol: &protocol[1..] }, wanted)
            }
            [host] => entry.endpoint(&base, host, wanted),
            _ => None,
        }
    }
}

impl Entry {
    /// All addresses that names of it have.
    fn ips(&self) -> impl Iterator<Item = IpAddr> {
        let own = if let Kind::Cluster { ips, .. } = &self.kind { ips.as_slice() } else { &[] };
        own.iter().copied().chain(self.endpoints.iter().map(|endpoint| endpoint.ip))
    }

    fn all(&self, base: &Domain, wanted: Wanted) -> Option<Found> {
        match &self.kind {
            Kind::External(target) => Some(Found { cname: Some(target.clone()), ..Found::default() }),
            Kind::Cluster { ips, ports } => Some(cluster(base, ports.iter(), ips, wanted)),
            // Without a ready endpoint a headless Service has no name.
            Kind::Headless if wanted == Wanted::Addresses => {
                (!self.addresses.is_empty()).then(|| Found { addresses: self.addresses.clone(), ..Found::default() })
            }
            Kind::Headless => some_endpoints(base, self.endpoints.iter(), |endpoint| &endpoint.ports[..], wanted),
        }
    }

    fn port(&self, base: &Domain, port: PortName<'_>, wanted: Wanted) -> Option<Found> {
        match &self.kind {
            Kind::External(_) => None,
            Kind::Cluster { ips, ports } => {
                let mut matching = ports.iter().filter(|known| known.labels() == port).peekable();
                matching.peek()?;
                Some(cluster(base, matching, ips, wanted))
            }
            Kind::Headless => {
                let having = self.endpoints.iter().filter(|endpoint| !named(&endpoint.ports, port).is_empty());
                some_endpoints(base, having, |endpoint| named(&endpoint.ports, port), wanted)
            }
        }
    }

    fn endpoint(&self, base: &Domain, host: &str, wanted: Wanted) -> Option<Found> {
        let from = self.endpoints.partition_point(|endpoint| endpoint.host.as_str() < host);
        let own = self.endpoints[from..].iter().take_while(|endpoint| endpoint.host == host);
        some_endpoints(base, own, |endpoint| &endpoint.ports[..], wanted)
    }
}

fn cluster<'a>(base: &Domain, ports: impl Iterator<Item = &'a Port>, ips: &[IpAddr], wanted: Wanted) -> Found {
    let mut found = Found { addresses: ips.to_vec(), ..Found::default() };
    if wanted == Wanted::Services {
        found.srv = ports.take(SRV_MAX).map(|port| Srv { port: port.number, target: base.0.clone() }).collect();
        found.hosts = ips.iter().filter(|_| !found.srv.is_empty()).map(|ip| (base.0.clone(), *ip)).collect();
    }
    found
}

/// The ports of this name and protocol, of sorted ones.
fn named<'a>(ports: &'a [Port], wanted: PortName<'_>) -> &'a [Port] {
    let rest = &ports[ports.partition_point(|port| port.labels() < wanted)..];
    &rest[..rest.partition_point(|port| port.labels() == wanted)]
}

fn some_endpoints<'a>(
    base: &Domain,
    endpoints: impl Iterator<Item = &'a Endpoint>,
    ports: impl Fn(&'a Endpoint) -> &'a [Port],
    wanted: Wanted,
) -> Option<Found> {
    let mut found = Found::default();
    let (mut addresses, mut srv, mut n_pairs) = (BTreeSet::new(), BTreeSet::new(), 0);
    let mut hosts: Vec<(&str, IpAddr)> = Vec::new();
    for endpoint in endpoints {
        if addresses.insert(endpoint.ip) {
            found.addresses.push(endpoint.ip);
        }
        let host = (endpoint.host.as_str(), endpoint.ip);
        let told = if wanted == Wanted::Services { ports(endpoint) } else { &[] };
        for port in told {
            n_pairs += 1;
            if n_pairs > PAIRS_MAX || srv.len() >= SRV_MAX || hosts.len() >= SRV_MAX {
                break;
            }
            srv.insert((endpoint.host.as_str(), port.number));
            // Endpoints come by host and address.
            if hosts.last() != Some(&host) {
                hosts.push(host);
            }
        }
    }
    let target = |host: &str| format!("{host}.{}", base.0);
    found.srv = srv.into_iter().map(|(host, port)| Srv { port, target: target(host) }).collect();
    found.hosts = hosts.into_iter().map(|(host, ip)| (target(host), ip)).collect();
    (!found.addresses.is_empty()).then_some(found)
}

/// The ready endpoints of a slice.
fn endpoints(slice: &EndpointSlice, names: EndpointNames) -> Vec<Endpoint> {
    let ports = slice.ports.iter().flatten().filter_map(|port| {
        Some(Port {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase(),
            number: u16::try_from(port.port?).ok()?,
        })
    });
    let mut ports: Vec<Port> = ports.collect();
    ports.sort();
    let (ports, mut all) = (Arc::<[Port]>::from(ports), Vec::new());
    for endpoint in slice.endpoints.iter().flatten() {
        if !endpoint.conditions.as_ref().and_then(|c| c.ready).unwrap_or(true) {
            continue;
        }
        for ip in endpoint.addresses.iter().filter_map(|ip| ip.parse::<IpAddr>().ok()) {
            let target = endpoint.target_ref.as_ref().filter(|_| names == EndpointNames::Pods);
            let pod = target.filter(|target| target.kind.as_deref() == Some("Pod"));
            let host = endpoint.hostname.clone().or_else(|| pod?.name.clone()).filter(|host| !host.is_empty());
            let host = host.unwrap_or_else(|| dashed(ip)).to_ascii_lowercase();
            all.push(Endpoint { host, ip, ports: Arc::clone(&ports) });
        }
    }
    all
}

fn service_kind(service: &Service) -> Option<Kind> {
    let spec = service.spec.as_ref()?;
    if spec.type_.as_deref() == Some("ExternalName") {
        return Some(Kind::External(spec.external_name.clone()?.trim_end_matches('.').to_owned()));
    }
    if spec.cluster_ip.as_deref() == Some("None") {
        return Some(Kind::Headless);
    }
    let texts = spec
        .cluster_ips
        .clone()
        .filter(|ips| !ips.is_empty())
        .unwrap_or_else(|| spec.cluster_ip.iter().cloned().collect());
    let ports = spec.ports.iter().flatten().filter_map(|port| {
        Some(Port {
            name: port.name.clone().unwrap_or_default(),
            protocol: port.protocol.as_deref().unwrap_or("TCP").to_ascii_lowercase(),
            number: u16::try_from(port.port).ok()?,
        })
    });
    Some(Kind::Cluster { ips: texts.iter().filter_map(|ip| ip.parse().ok()).collect(), ports: ports.collect() })
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
pub(crate) mod tests;
