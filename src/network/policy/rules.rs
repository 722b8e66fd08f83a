//! From policies and pods to the content of the table `inet kedge-policy`, without touching the kernel.
//!
//! Only pods of this node that a policy isolates are in it: what is not in a map is let through. Pods under the same
//! policies share a chain, and equal selectors share a set of addresses, so a pod that comes or goes changes elements
//! and no rule.
//!
//! ```text
//! forward ─ egress  ─ saddr in @out4/6 ─ out-… (the policies of such pods) ─ jump egress-… (a policy: accept) … drop
//!         └ ingress ─ daddr in @in4/6  ─ in-…                             ─ jump ingress-…              … drop
//! ```
//! The node's own packets pass output and input, never forward: probes always reach their pods.
//!
//! Two pods of one node meet on the bridge, where they have more addresses than the cluster gave them: link-local ones,
//! broadcast and multicast. While a pod of the node is isolated, nothing that is sent to or from such an address passes
//! between pods (chain `bridged`). What a policy becomes grows with its size: peers share the chain of their ports, and
//! blocks one set.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use base::traces::BRIDGE;
use ipnet::IpNet;
use kube::core::{Selector, SelectorExt as _};

use crate::family::Family;
use crate::policy::model::{Peer, Pod, PodState, Policy, Port, Rule, World};
use crate::service::rules::{hash, set_of};
use crate::service::snapshot::Protocol;
use crate::table::{Ruleset, SetKind, Table};

/// Our table.
pub(crate) const TABLE: Table = Table { family: "inet", name: base::traces::POLICY_TABLE };

/// Traffic that IPv6 needs to find its neighbours.
const NEIGHBOURS: &str = "icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, nd-router-advert }";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    fn of(self, policy: &Policy) -> Option<&[Rule]> {
        match self {
            Direction::Ingress => policy.ingress.as_deref(),
            Direction::Egress => policy.egress.as_deref(),
        }
    }

    /// The map of isolated pods and the beginning of their chains' names.
    fn short(self) -> &'static str {
        match self {
            Direction::Ingress => "in",
            Direction::Egress => "out",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Direction::Ingress => "ingress",
            Direction::Egress => "egress",
        }
    }

    /// Where the peer's address stands in the packet.
    fn peer(self) -> &'static str {
        match self {
            Direction::Ingress => "saddr",
            Direction::Egress => "daddr",
        }
    }

    fn own(self) -> &'static str {
        match self {
            Direction::Ingress => "daddr",
            Direction::Egress => "saddr",
        }
    }
}

/// The whole table.
pub(crate) fn render(world: &World, families: &BTreeSet<Family>) -> Ruleset {
    let mut table = Render { world, families, rules: frame(families), keys: BTreeMap::new() };
    for pod in world.pods.iter().filter(|pod| pod.local && !pod.ips.is_empty()) {
        let facts = &pod.facts;
        let of_ns = || world.policies.iter().filter(|policy| policy.ns == facts.ns);
        for direction in [Direction::Egress, Direction::Ingress] {
            if pod.state == PodState::Unknown {
                // Nobody can say which policies are its own: none of them lets anything through.
                if of_ns().any(|policy| direction.of(policy).is_some()) {
                    table.isolate(pod, direction, &[]);
                }
                continue;
            }
            let isolates = |policy: &&Policy| direction.of(policy).is_some() && policy.pods.matches(&facts.labels);
            let isolating: Vec<&Policy> = of_ns().filter(isolates).collect();
            if !isolating.is_empty() {
                table.isolate(pod, direction, &isolating);
            }
        }
    }
    table.guard_bridge();
    table.rules
}

fn frame(families: &BTreeSet<Family>) -> Ruleset {
    let mut rules = Ruleset::default();
    for (direction, priority) in [(Direction::Egress, -2), (Direction::Ingress, -1)] {
        // What was let through once stays, and answers belong to what was let through.
        let mut lines = vec![
            format!("type filter hook forward priority {priority};"),
            "ct state established,related accept".to_owned(),
        ];
        if direction == Direction::Egress {
            lines.push(format!("iifname \"{BRIDGE}\" oifname \"{BRIDGE}\" jump bridged"));
        }
        for family in families {
            let (f, n, addr) = (family.name(), family.digit(), family.addr_type());
            if *family == Family::V6 {
                lines.push(format!("{NEIGHBOURS} accept"));
            }
            // A pod may always talk to itself, also through a Service.
            lines.push(format!("{f} saddr . {f} daddr @self{n} accept"));
            lines.push(format!("{f} {} vmap @{}{n}", direction.own(), direction.short()));
            rules.sets.insert(format!("self{n}"), SetKind::Set(format!("type {addr} . {addr};")));
            rules.sets.insert(format!("{}{n}", direction.short()), SetKind::Map(format!("type {addr} : verdict;")));
            rules.elements.insert(format!("self{n}"), BTreeMap::new());
            rules.elements.insert(format!("{}{n}", direction.short()), BTreeMap::new());
        }
        rules.chains.insert(direction.name().to_owned(), lines);
    }
    rules.chains.insert("bridged".to_owned(), Vec::new());
    rules
}

struct Render<'a> {
    world: &'a World,
    families: &'a BTreeSet<Family>,
    rules: Ruleset,
    /// Meaning of each name.
    keys: BTreeMap<String, String>,
}

impl Render<'_> {
    fn isolate(&mut self, pod: &Pod, direction: Direction, policies: &[&Policy]) {
        let identity: Vec<String> = policies.iter().map(|policy| format!("{}/{}", policy.ns, policy.name)).collect();
        let (chain, fresh) = self.name(direction.short(), &identity.join(" "));
        if fresh {
            let mut lines: Vec<String> =
                policies.iter().map(|policy| format!("jump {}", self.policy(direction, policy))).collect();
            lines.push("drop".to_owned());
            self.rules.chains.insert(chain.clone(), lines);
        }
        for ip in &pod.ips {
            let n = Family::of(ip).digit();
            self.element(&format!("{}{n}", direction.short()), ip.to_string(), format!("goto {chain}"));
            self.element(&format!("self{n}"), format!("{ip} . {ip}"), String::new());
        }
    }

    /// Closes the ways between two pods of this node that no address of the cluster names, if there is somebody to
    /// guard.
    fn guard_bridge(&mut self) {
        let maps = self.families.iter().flat_map(|family| {
            [Direction::Ingress, Direction::Egress].map(|d| format!("{}{}", d.short(), family.digit()))
        });
        if maps.into_iter().all(|map| self.rules.elements.get(&map).is_none_or(BTreeMap::is_empty)) {
            return;
        }
        let mut lines = Vec::new();
        for family in [Family::V4, Family::V6] {
            if !self.families.contains(&family) {
                lines.push(format!("meta nfproto {} drop", family.proto()));
            } else if family == Family::V6 {
                lines.extend([
                    format!("{NEIGHBOURS} accept"),
                    "ip6 saddr fe80::/10 drop".to_owned(),
                    "ip6 daddr fe80::/10 drop".to_owned(),
                ]);
            }
        }
        lines.push("fib daddr type { broadcast, multicast } drop".to_owned());
        self.rules.chains.insert("bridged".to_owned(), lines);
    }

    /// The chain of one policy, made when first asked for.
    fn policy(&mut self, direction: Direction, policy: &Policy) -> String {
        let identity = format!("{}/{}", policy.ns, policy.name);
        let (mut chain, fresh) = self.name(direction.name(), &identity);
        let _infallible = write!(chain, "-{identity}");
        chain.truncate(100);
        if fresh {
            let mut lines = Vec::new();
            for rule in direction.of(policy).unwrap_or_default() {
                self.rule(direction, rule, &mut lines);
            }
            self.rules.chains.insert(chain.clone(), lines);
        }
        chain
    }

    fn rule(&mut self, direction: Direction, rule: &Rule, lines: &mut Vec<String>) {
        for family in self.families.clone() {
            let peers = if rule.peers.is_empty() {
                vec![format!("meta nfproto {}", family.proto())]
            } else {
                self.peers(direction, family, &rule.peers)
            };
            let ports = if rule.ports.is_empty() { vec![String::new()] } else { self.ports(family, &rule.ports) };
            if peers.len() > 1 && ports.len() > 1 {
                let chain = self.ports_chain(&ports);
                lines.extend(peers.iter().map(|peer| format!("{peer} jump {chain}")));
                continue;
            }
            for (peer, port) in peers.iter().flat_map(|peer| ports.iter().map(move |port| (peer, port))) {
                lines.push(format!("{peer}{port} accept"));
            }
        }
    }

    /// The chain that lets these ports through, shared by all rules that name the same ones.
    fn ports_chain(&mut self, ports: &[String]) -> String {
        let (chain, fresh) = self.name("ports", &ports.join("\n"));
        if fresh {
            let lines = ports.iter().map(|port| format!("{} accept", port.trim_start())).collect();
            self.rules.chains.insert(chain.clone(), lines);
        }
        chain
    }

    fn peers(&mut self, direction: Direction, family: Family, peers: &[Peer]) -> Vec<String> {
        let (f, addr) = (family.name(), direction.peer());
        let whole = || format!("meta nfproto {}", family.proto());
        let (mut texts, mut plain) = (Vec::new(), Vec::new());
        for peer in peers {
            match peer {
                Peer::Block { cidr, except } if Family::of(&cidr.addr()) == family => {
                    let except: Vec<String> = outermost(except, family).iter().map(ToString::to_string).collect();
                    if except.is_empty() {
                        plain.push(*cidr);
                        continue;
                    }
                    let mut text = if cidr.prefix_len() == 0 { whole() } else { format!("{f} {addr} {cidr}") };
                    let _infallible = write!(text, " {f} {addr} != {{ {} }}", except.join(", "));
                    texts.push(text);
                }
                Peer::Block { .. } => {}
                Peer::Pods { ns, namespaces, pods } => {
                    let set = self.pod_set(family, ns, namespaces.as_ref(), pods);
                    texts.push(format!("{f} {addr} @{set}"));
                }
            }
        }
        match IpNet::aggregate(&plain).as_slice() {
            [] => {}
            [all] if all.prefix_len() == 0 => texts.push(whole()),
            [one] => texts.push(format!("{f} {addr} {one}")),
            blocks => texts.push(format!("{f} {addr} {}", set_of(blocks))),
        }
        texts
    }

    /// The set of the addresses of all pods that a peer selects.
    fn pod_set(&mut self, family: Family, ns: &str, namespaces: Option<&Selector>, pods: &Selector) -> String {
        let place = namespaces.map_or_else(|| format!("in {ns}"), |selector| format!("where {selector}"));
        let (set, fresh) = self.name(&format!("pods{}", family.digit()), &format!("{place}: {pods}"));
        if fresh {
            let world = self.world;
            let chosen = |name: &str| match namespaces {
                None => name == ns,
                Some(selector) => world.namespaces.get(name).is_some_and(|labels| selector.matches(labels)),
            };
            let known = world.pods.iter().filter(|pod| pod.state == PodState::Known);
            let selected = known.filter(|pod| chosen(&pod.facts.ns) && pods.matches(&pod.facts.labels));
            let ips = selected.flat_map(|pod| pod.ips.iter()).filter(|ip| Family::of(ip) == family);
            let elements = ips.map(|ip| (ip.to_string(), String::new())).collect();
            self.rules.sets.insert(set.clone(), SetKind::Set(format!("type {};", family.addr_type())));
            self.rules.elements.insert(set.clone(), elements);
        }
        set
    }

    /// Matches for the ports, one a protocol, and one a name.
    fn ports(&mut self, family: Family, ports: &[Port]) -> Vec<String> {
        let (mut texts, mut ranges) = (Vec::new(), BTreeMap::<Protocol, Vec<(u16, u16)>>::new());
        for port in ports {
            match port {
                Port::Any(protocol) => ranges.entry(*protocol).or_default().push((0, u16::MAX)),
                Port::Range(protocol, from, to) => ranges.entry(*protocol).or_default().push((*from, *to)),
                Port::Named(protocol, name) => {
                    let set = self.port_set(family, *protocol, name);
                    texts.push(format!(" {} daddr . {} dport @{set}", family.name(), protocol.as_str()));
                }
            }
        }
        for (protocol, ranges) in ranges {
            let joined = joined(ranges);
            texts.push(match joined.as_slice() {
                [(0, u16::MAX)] => format!(" meta l4proto {}", protocol.as_str()),
                some => format!(
                    " {} dport {{ {} }}",
                    protocol.as_str(),
                    some.iter().map(|(from, to)| span(*from, *to)).collect::<Vec<_>>().join(", ")
                ),
            });
        }
        texts
    }

    /// Where pods listen under a port's name: the number may differ from pod to pod.
    fn port_set(&mut self, family: Family, protocol: Protocol, name: &str) -> String {
        let (set, fresh) = self.name(&format!("port{}", family.digit()), &format!("{} {name}", protocol.as_str()));
        if fresh {
            let mut elements = BTreeMap::new();
            for pod in &self.world.pods {
                for (_, _, number) in
                    pod.facts.ports.iter().filter(|(have, proto, _)| have == name && *proto == protocol)
                {
                    let ips = pod.ips.iter().filter(|ip| Family::of(ip) == family);
                    elements.extend(ips.map(|ip: &IpAddr| (format!("{ip} . {number}"), String::new())));
                }
            }
            self.rules.sets.insert(set.clone(), SetKind::Set(format!("type {} . inet_service;", family.addr_type())));
            self.rules.elements.insert(set.clone(), elements);
        }
        set
    }

    /// A short name for `key`, and whether it is asked for the first time.
    fn name(&mut self, prefix: &str, key: &str) -> (String, bool) {
        let mut name = format!("{prefix}-{}", hash(&[key]));
        loop {
            match self.keys.get(&name) {
                Some(same) if same == key => return (name, false),
                Some(_) => name.push('x'),
                None => {
                    self.keys.insert(name.clone(), key.to_owned());
                    return (name, true);
                }
            }
        }
    }

    fn element(&mut self, set: &str, key: String, value: String) {
        // A family that the cluster does not have has no map.
        if let Some(elements) = self.rules.elements.get_mut(set) {
            elements.entry(key).or_insert(value);
        }
    }
}

fn span(from: u16, to: u16) -> String {
    if from == to { from.to_string() } else { format!("{from}-{to}") }
}

/// Ranges without overlap, which nft refuses in one set.
fn joined(mut ranges: Vec<(u16, u16)>) -> Vec<(u16, u16)> {
    ranges.sort_unstable();
    let mut out: Vec<(u16, u16)> = Vec::new();
    for (from, to) in ranges {
        match out.last_mut() {
            Some((_, end)) if from <= end.saturating_add(1) => *end = (*end).max(to),
            _ => out.push((from, to)),
        }
    }
    out
}

/// The networks of a family that lie in no other of them.
fn outermost(nets: &[IpNet], family: Family) -> Vec<IpNet> {
    let mut nets: Vec<IpNet> = nets.iter().map(IpNet::trunc).filter(|net| Family::of(&net.addr()) == family).collect();
    nets.sort_unstable();
    // In this order a network is followed by all that lie in it.
    let mut outermost: Vec<IpNet> = Vec::new();
    for net in nets {
        if !outermost.last().is_some_and(|last| last.contains(&net)) {
            outermost.push(net);
        }
    }
    outermost
}

#[cfg(test)]
mod tests;
