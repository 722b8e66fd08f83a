//! From service ports to the content of our nftables table, without touching the kernel.
//!
//! A packet costs the same however many Services there are: one lookup in a verdict map finds the chain of the service
//! port, and one random number in that chain finds the endpoint.
//!
//! ```text
//! prerouting, output ─ services ─ @service-nodeports, @service-ips, @external-ips
//!                                  ├─ svc-…  (all endpoints)
//!                                  ├─ svl-…  (endpoints of this node)
//!                                  └─ ext-…  (from outside: masquerade or Local)
//! input, forward, output ─ @no-endpoint-ips, @no-endpoint-nodeports ─ reject or drop
//! postrouting ─ masquerade what is marked, hairpins, and pods that leave the cluster
//! ```
//! Addresses that users choose (external ones, those of balancers) have a map of their own behind the one of cluster
//! addresses: whatever a Service names, it never takes another one's cluster address. What one Service becomes grows
//! with its size, not with its square.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use sha2::{Digest as _, Sha256};
use tracing::warn;

use crate::family::Family;
use crate::service::listeners::Listeners;
use crate::service::reserved::Reserved;
use crate::service::snapshot::{Endpoint, Policy, Protocol, ServicePort};
use crate::table::{Ruleset, SetKind, Table};

/// Name of our table in each family.
pub(crate) const TABLE: &str = base::traces::PROXY_TABLE;

/// Our table in a family.
pub(crate) fn table(family: Family) -> Table {
    Table { family: family.name(), name: TABLE }
}

/// External addresses and balancers' addresses of one Service, times its ports: each pair is an element. A Service that
/// names more has the first addresses in force only, so that half a megabyte of a user's text does not become a table
/// that fills the machine.
const EXTERNAL_ELEMENTS_MAX: usize = 16_384;

/// Bytes of a chain's name behind its prefix: nft takes 128 in all.
const CHAIN_ID_BYTES_MAX: usize = 96;

/// Entries of one affinity set; when it is full, further clients are balanced anew each time.
const AFFINITY_CLIENTS_MAX: u32 = 65_535;

/// The node's configuration on which the rules depend, for one family.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) family: Family,
    /// Pod networks of the cluster, of this family only.
    pub(crate) cluster_cidrs: Vec<IpNet>,
    /// Where node ports answer, of this family only; `None`: under every address of the machine.
    pub(crate) node_port_addresses: Option<Vec<IpNet>>,
    /// Whether pods that leave the cluster get the node's address.
    pub(crate) masquerade_pods: bool,
    /// Ports that the machine itself listens on.
    pub(crate) listeners: Listeners,
    /// Addresses and ports of the system on every node.
    pub(crate) reserved: Reserved,
}

/// Rules of several Services of one family.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ServiceRules {
    /// Content of the table.
    pub(crate) content: Ruleset,
    /// UDP destinations and who answers them, for conntrack's sake.
    pub(crate) udp: BTreeMap<UdpTarget, Arc<Answering>>,
}

/// Endpoints that answer a UDP destination.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answering {
    /// New clients are sent there.
    pub(crate) usable: BTreeSet<SocketAddr>,
    /// Clients that are there may stay.
    pub(crate) serving: BTreeSet<SocketAddr>,
}

/// Rules of one Service in one family. Lists, not maps: most Services have one or two of each, and there may be
/// ten thousand.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Part {
    pub(crate) sets: Vec<(String, SetKind)>,
    pub(crate) chains: Vec<(String, Vec<String>)>,
    pub(crate) elements: Vec<Element>,
    /// UDP destinations by who answers them. The many addresses of a Service share one answer.
    pub(crate) udp: Vec<(Arc<Answering>, Vec<UdpTarget>)>,
}

/// An element that a Service wants in a set of the [`frame`](super::frame::frame). Another Service may want the same
/// one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Element {
    pub(crate) set: &'static str,
    pub(crate) key: String,
    /// Empty in sets that are no maps.
    pub(crate) value: String,
}

impl ServiceRules {
    /// Adds a Service's part. Of what two Services claim the first that is added keeps it.
    pub(crate) fn add(&mut self, part: &Part) {
        for (name, kind) in &part.sets {
            self.content.sets.entry(name.clone()).or_insert_with(|| kind.clone());
        }
        for (name, lines) in &part.chains {
            self.content.chains.entry(name.clone()).or_insert_with(|| lines.clone());
        }
        part.elements.iter().for_each(|element| self.add_element(element));
        for (answering, targets) in &part.udp {
            for target in targets {
                self.udp.entry(*target).or_insert_with(|| Arc::clone(answering));
            }
        }
    }

    /// Adds one element, unless its place is taken.
    pub(crate) fn add_element(&mut self, element: &Element) {
        if !self.content.elements.contains_key(element.set) {
            self.content.elements.insert(element.set.to_owned(), BTreeMap::new());
        }
        if let Some(elements) = self.content.elements.get_mut(element.set)
            && !elements.contains_key(&element.key)
        {
            elements.insert(element.key.clone(), element.value.clone());
        }
    }
}

/// Where a UDP client sends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UdpTarget {
    Address(SocketAddr),
    NodePort(u16),
}

/// Endpoints that may answer now, by policy.
struct Usable<'a> {
    cluster: Vec<&'a Endpoint>,
    local: Vec<&'a Endpoint>,
}

impl<'a> Usable<'a> {
    /// Ready ones; where there is none, those that terminate but still serve, so that a last pod's drain loses nothing.
    fn of(endpoints: &'a [Endpoint], family: Family) -> Usable<'a> {
        let pick = |local_only: bool| -> Vec<&'a Endpoint> {
            let candidates: Vec<&Endpoint> =
                endpoints.iter().filter(|e| Family::of(&e.addr.ip()) == family && (e.local || !local_only)).collect();
            let ready: Vec<&Endpoint> = candidates.iter().copied().filter(|e| e.ready).collect();
            if !ready.is_empty() {
                return ready;
            }
            candidates.into_iter().filter(|e| e.serving && e.terminating).collect()
        };
        Usable { cluster: nearest(pick(false)), local: pick(true) }
    }

    fn under(&self, policy: Policy) -> &[&'a Endpoint] {
        match policy {
            Policy::Cluster => &self.cluster,
            Policy::Local => &self.local,
        }
    }
}

/// Endpoints that the slices' hints give to this node, else to its zone (`trafficDistribution`). Hints count only when
/// all endpoints have them and some are for here: a client must never be left without an answer.
fn nearest(endpoints: Vec<&Endpoint>) -> Vec<&Endpoint> {
    for hint in [|e: &Endpoint| e.node_hint, |e: &Endpoint| e.zone_hint] {
        if !endpoints.is_empty()
            && endpoints.iter().all(|e| hint(e).is_some())
            && endpoints.iter().any(|e| hint(e) == Some(true))
        {
            return endpoints.into_iter().filter(|e| hint(e) == Some(true)).collect();
        }
    }
    endpoints
}

/// The part that one Service adds to the [`frame`](super::frame::frame).
pub(crate) fn part(site: &Site, ports: &[ServicePort]) -> Part {
    let mut part = Part::default();
    let addresses_max = EXTERNAL_ELEMENTS_MAX / ports.len().max(1);
    for port in ports {
        let usable = Usable::of(&port.endpoints, site.family);
        let (id, udp) = (chain_id(&identity(port)), (Vec::new(), Vec::new()));
        let mut rules = PortRules { site, port, id, addresses_max, udp, usable, part: &mut part };
        rules.render();
        rules.answer_udp();
    }
    if let Some(first) =
        ports.first().filter(|port| port.external_ips.len().max(port.balancer_ips.len()) > addresses_max)
    {
        let (ns, name) = (&first.ns, &first.name);
        warn!(
            ns,
            name,
            "a Service names more addresses than can be served: the first {addresses_max} are in force, the others are \
             not"
        );
    }
    // Ports share their Service's addresses. The first port in order keeps an address that two claim.
    let mut seen = BTreeSet::new();
    let first: Vec<bool> =
        part.elements.iter().map(|element| seen.insert((element.set, element.key.as_str()))).collect();
    let mut first = first.into_iter();
    part.elements.retain(|_| first.next().unwrap_or(true));
    part
}

/// The chains and elements of one service port.
struct PortRules<'a> {
    site: &'a Site,
    port: &'a ServicePort,
    /// The name that the port's chains have in common.
    id: String,
    usable: Usable<'a>,
    /// How many external addresses and balancers' addresses, each, are served.
    addresses_max: usize,
    /// UDP destinations under the policy `Cluster` and under `Local`.
    udp: (Vec<UdpTarget>, Vec<UdpTarget>),
    part: &'a mut Part,
}

impl PortRules<'_> {
    fn render(&mut self) {
        let family = self.site.family;
        let of_family =
            |ips: &[IpAddr]| -> Vec<IpAddr> { ips.iter().copied().filter(|ip| Family::of(ip) == family).collect() };
        let (cluster_ips, mut external_ips) = (of_family(&self.port.cluster_ips), of_family(&self.port.external_ips));
        external_ips.truncate(self.addresses_max);
        if cluster_ips.is_empty() {
            return;
        }
        for ip in &cluster_ips {
            self.put("cluster-ips", ip.to_string(), String::new());
            self.internal(*ip);
        }
        let mut balancer_ips = of_family(&self.port.balancer_ips);
        balancer_ips.truncate(self.addresses_max);
        let from_outside = !external_ips.is_empty() || !balancer_ips.is_empty() || self.port.node_port.is_some();
        let verdict = from_outside.then(|| self.external());
        let Some(verdict) = verdict else { return self.balancers() };
        for ip in external_ips {
            self.address("external-ips", ip, &verdict, self.port.external);
        }
        let guarded = if self.port.balancer_sources.is_empty() { verdict.clone() } else { self.guarded(&verdict) };
        for ip in balancer_ips {
            self.address("external-ips", ip, &guarded, self.port.external);
        }
        if let Some(port) = self.port.node_port {
            let key = format!("{} . {port}", self.port.protocol.as_str());
            if let Verdict::Goto(chain) = &verdict {
                self.put("service-nodeports", key.clone(), format!("goto {chain}"));
            }
            self.refuse("no-endpoint-nodeports", key, self.port.external);
            self.remember_udp(UdpTarget::NodePort(port), self.port.external);
        }
        self.balancers();
    }

    /// The cluster address.
    fn internal(&mut self, ip: IpAddr) {
        let verdict = match self.port.internal {
            Policy::Cluster if !self.usable.cluster.is_empty() => Verdict::Goto(self.chain("svc")),
            Policy::Local if !self.usable.local.is_empty() => Verdict::Goto(self.chain("svl")),
            _ => Verdict::Reject,
        };
        self.address("service-ips", ip, &verdict, self.port.internal);
    }

    /// The chain for what comes from outside the cluster.
    fn external(&mut self) -> Verdict {
        if self.usable.cluster.is_empty() {
            return Verdict::Reject;
        }
        let (f, chain, svc) = (self.site.family.name(), self.chain("ext"), self.chain("svc"));
        let mut lines = Vec::new();
        match self.port.external {
            Policy::Cluster => lines.extend(["jump mark-for-masquerade".to_owned(), format!("goto {svc}")]),
            Policy::Local => {
                // From within, an external address is a short cut to the Service: any endpoint will do.
                lines.extend(braces(&self.site.cluster_cidrs).map(|cidrs| format!("{f} saddr {cidrs} goto {svc}")));
                lines.push("fib saddr type local jump mark-for-masquerade".to_owned());
                lines.push(format!("fib saddr type local goto {svc}"));
                if self.usable.local.is_empty() {
                    // The filter chains drop it: the sender tries another node.
                } else {
                    lines.push(format!("goto {}", self.chain("svl")));
                }
            }
        }
        self.part.chains.push((chain.clone(), lines));
        Verdict::Goto(chain)
    }

    /// A chain that lets only the Service's `loadBalancerSourceRanges` through. The ranges stand once a Service, in the
    /// chain of sources.
    fn guarded(&mut self, inner: &Verdict) -> Verdict {
        let Verdict::Goto(ext) = inner else { return inner.clone() };
        let (chain, sources) = (self.chain("lb"), self.sources());
        self.part.chains.push((chain.clone(), vec![format!("jump {sources}"), format!("goto {ext}")]));
        Verdict::Goto(chain)
    }

    /// The chain that drops what comes from outside of the Service's ranges.
    fn sources(&mut self) -> String {
        let service = format!("{}/{}", self.port.ns, self.port.name);
        let chain = format!("src-{}", chain_id(&service));
        if !self.part.chains.iter().rev().any(|(name, _)| *name == chain) {
            let family = self.site.family;
            let ranges: Vec<IpNet> =
                self.port.balancer_sources.iter().copied().filter(|net| Family::of(&net.addr()) == family).collect();
            let mut lines: Vec<String> =
                braces(&ranges).map(|ranges| format!("{} saddr {ranges} return", family.name())).into_iter().collect();
            lines.push("drop".to_owned());
            self.part.chains.push((chain.clone(), lines));
        }
        chain
    }

    fn address(&mut self, map: &'static str, ip: IpAddr, verdict: &Verdict, policy: Policy) {
        let key = format!("{ip} . {} . {}", self.port.protocol.as_str(), self.port.port);
        if let Verdict::Goto(chain) = verdict {
            self.put(map, key.clone(), format!("goto {chain}"));
        }
        self.refuse("no-endpoint-ips", key, policy);
        self.remember_udp(UdpTarget::Address(SocketAddr::new(ip, self.port.port)), policy);
    }

    /// Nobody anywhere: reject, the client shall know. Only nobody here under `Local`: drop, others have some.
    fn refuse(&mut self, map: &'static str, key: String, policy: Policy) {
        if !self.usable.under(policy).is_empty() {
            return;
        }
        let verdict = if self.usable.cluster.is_empty() { "goto refuse" } else { "drop" };
        self.put(map, key, verdict.to_owned());
    }

    fn remember_udp(&mut self, target: UdpTarget, policy: Policy) {
        if self.port.protocol == Protocol::Udp {
            match policy {
                Policy::Cluster => self.udp.0.push(target),
                Policy::Local => self.udp.1.push(target),
            }
        }
    }

    /// Says who answers the UDP destinations that were remembered.
    fn answer_udp(self) {
        let PortRules { site, port, usable, udp, part, .. } = self;
        for (policy, targets) in [(Policy::Cluster, udp.0), (Policy::Local, udp.1)] {
            if targets.is_empty() {
                continue;
            }
            let of_family = port.endpoints.iter().filter(|endpoint| Family::of(&endpoint.addr.ip()) == site.family);
            let serving =
                of_family.filter(|endpoint| endpoint.ready || endpoint.serving).map(|endpoint| endpoint.addr).collect();
            let usable = usable.under(policy).iter().map(|endpoint| endpoint.addr).collect();
            part.udp.push((Arc::new(Answering { usable, serving }), targets));
        }
    }

    /// The chains that choose an endpoint.
    fn balancers(&mut self) {
        for (prefix, endpoints) in [("svc", self.usable.cluster.clone()), ("svl", self.usable.local.clone())] {
            if endpoints.is_empty() {
                continue;
            }
            let lines = match self.port.affinity_secs {
                None => vec![self.balance(&endpoints)],
                Some(secs) => self.balance_with_affinity(&endpoints, secs),
            };
            self.part.chains.push((self.chain(prefix), lines));
        }
        let here = self.usable.cluster.iter().chain(&self.usable.local).filter(|endpoint| endpoint.local);
        let here: BTreeSet<IpAddr> = here.map(|endpoint| endpoint.addr.ip()).collect();
        for ip in here {
            self.put("hairpin", format!("{ip} . {ip}"), String::new());
        }
    }

    fn balance(&self, endpoints: &[&Endpoint]) -> String {
        let (f, proto) = (self.site.family.name(), self.port.protocol.as_str());
        if let [only] = endpoints {
            return format!("meta l4proto {proto} dnat {f} to {}", only.addr);
        }
        let choices: Vec<String> =
            endpoints.iter().enumerate().map(|(n, e)| format!("{n} : {} . {}", e.addr.ip(), e.addr.port())).collect();
        format!(
            "meta l4proto {proto} dnat {f} to numgen random mod {} map {{ {} }}",
            endpoints.len(),
            choices.join(", ")
        )
    }

    /// A client known to an endpoint goes there again; a new one is given to any, whose chain notes it.
    fn balance_with_affinity(&mut self, endpoints: &[&Endpoint], secs: u32) -> Vec<String> {
        let (f, proto, addr) = (self.site.family.name(), self.port.protocol.as_str(), self.site.family.addr_type());
        let (mut lines, mut choices) = (Vec::new(), Vec::new());
        for (n, endpoint) in endpoints.iter().enumerate() {
            let id = hash(&[&identity(self.port), &endpoint.addr.to_string(), &secs.to_string()]);
            let (chain, set) = (format!("ep-{id}"), format!("aff-{id}"));
            let kind = format!("type {addr}; size {AFFINITY_CLIENTS_MAX}; flags dynamic,timeout; timeout {secs}s;");
            self.part.sets.push((set.clone(), SetKind::Set(kind)));
            let note = format!("update @{set} {{ {f} saddr }}");
            self.part
                .chains
                .push((chain.clone(), vec![note, format!("meta l4proto {proto} dnat {f} to {}", endpoint.addr)]));
            lines.push(format!("{f} saddr @{set} goto {chain}"));
            choices.push(format!("{n} : goto {chain}"));
        }
        lines.push(format!("numgen random mod {} vmap {{ {} }}", endpoints.len(), choices.join(", ")));
        lines
    }

    fn put(&mut self, set: &'static str, key: String, value: String) {
        self.part.elements.push(Element { set, key, value });
    }

    fn chain(&self, prefix: &str) -> String {
        format!("{prefix}-{}", self.id)
    }
}

fn identity(port: &ServicePort) -> String {
    format!("{}/{}/{}/{}", port.ns, port.name, port.protocol.as_str(), port.port_name)
}

/// `…-default/web/tcp/http`, cut to what nft takes; the hash in front keeps cut ones apart.
fn chain_id(identity: &str) -> String {
    let mut id = format!("{}-{}", hash(&[identity]), identity.trim_end_matches('/'));
    id.truncate(CHAIN_ID_BYTES_MAX);
    id
}

#[derive(Clone, Debug)]
enum Verdict {
    Goto(String),
    Reject,
}

/// A set of networks. nft refuses a set in which one lies in another, so what overlaps is joined.
pub(crate) fn braces(nets: &[IpNet]) -> Option<String> {
    let nets: Vec<IpNet> = nets.iter().map(IpNet::trunc).collect();
    let apart = IpNet::aggregate(&nets);
    (!apart.is_empty()).then(|| set_of(&apart))
}

/// A set of networks none of which lies in another.
pub(crate) fn set_of(apart: &[IpNet]) -> String {
    format!("{{ {} }}", apart.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

/// 128 bits of SHA-256 in hex. The parts are strangers' words, and who finds two that come to one name has the other's
/// traffic.
pub(crate) fn hash(parts: &[&str]) -> String {
    let sum = parts.iter().fold(Sha256::new(), |sum, part| sum.chain_update(part).chain_update([0]));
    let sum: [u8; 32] = sum.finalize().into();
    base::hex::encode(&sum[..16])
}

#[cfg(test)]
mod tests;
