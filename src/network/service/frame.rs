//! The table of Services without any Service: its sets, its hooks, and the order in which a packet asks.

use std::collections::BTreeMap;

use crate::family::Family;

use crate::service::rules::{Site, braces};
use crate::table::{Ruleset, SetKind};

/// The bit of the packet mark that asks for masquerade, as kube-proxy's default.
const MASQUERADE_BIT: u32 = 0x4000;
pub(crate) const LOOPBACK_DEST: &str = "iif != \"lo\" ip daddr 127.0.0.0/8 drop";
const LOOPBACK_SOURCE: &str = "iif != \"lo\" ip saddr 127.0.0.0/8 drop";

/// The rules without any Service.
pub(crate) fn frame(site: &Site) -> Ruleset {
    let f = site.family.name();
    let mut rules = sets(site);
    let guards = Guards::of(site.family);
    let cidrs = braces(&site.cluster_cidrs);
    let check = format!("ct state new {f} daddr . meta l4proto . th dport vmap @no-endpoint-ips");
    let local = node_port_addresses(site);
    let nodeport_check = format!("ct state new {local} meta l4proto . th dport vmap @no-endpoint-nodeports");
    // A port that the Service does not have.
    let unknown_port = format!("ct state new {f} daddr @cluster-ips reject");
    let hook = |kind: &str, hook: &str, priority: i32| format!("type {kind} hook {hook} priority {priority};");
    let mut put = |name: &str, lines: Vec<String>| rules.chains.insert(name.to_owned(), lines);
    put("refuse", vec!["reject".to_owned()]);
    put("mark-for-masquerade", vec![format!("meta mark set meta mark or {MASQUERADE_BIT:#x}")]);
    put("services", services(site, &guards, cidrs.as_deref()));
    put("nat-prerouting", vec![hook("nat", "prerouting", -100), "jump services".to_owned()]);
    put("nat-output", vec![hook("nat", "output", -100), "jump services".to_owned()]);
    put("nat-postrouting", postrouting(site, cidrs.as_deref()));
    let new = |line: &String| format!("ct state new {line}");
    let to_machine = |hook: String, rest: &[String]| -> Vec<String> {
        let first = [hook, new(&guards.servers), new(&guards.system), nodeport_check.clone()];
        first.into_iter().chain(guards.listeners.clone()).chain(rest.iter().cloned()).collect()
    };
    put("filter-input", to_machine(hook("filter", "input", 0), std::slice::from_ref(&check)));
    if site.family == Family::V4 {
        // Loopback addresses are routed where host ports are reached on localhost: nobody outside of the machine may
        // use one.
        put("loopback", vec![hook("filter", "prerouting", -300), LOOPBACK_DEST.to_owned(), LOOPBACK_SOURCE.to_owned()]);
    }
    let refused = [new(&guards.nodes), check, unknown_port];
    // A late packet of a connection that conntrack forgot would reach the pod with the wrong addresses and be answered
    // with a reset (https://issue.k8s.io/74839).
    let first = [hook("filter", "forward", 0), "ct state invalid drop".to_owned(), new(&guards.servers)];
    put("filter-forward", first.into_iter().chain(refused.clone()).collect());
    put("filter-output", to_machine(hook("filter", "output", 0), &refused));
    rules
}

/// The sets and maps, with what is in them without any Service.
fn sets(site: &Site) -> Ruleset {
    let addr = site.family.addr_type();
    let mut rules = Ruleset::default();
    let by_address = format!("type {addr} . inet_proto . inet_service : verdict;");
    let by_port = "type inet_proto . inet_service : verdict;";
    for name in ["service-ips", "external-ips", "no-endpoint-ips"] {
        rules.sets.insert(name.to_owned(), SetKind::Map(by_address.clone()));
    }
    for name in ["service-nodeports", "no-endpoint-nodeports"] {
        rules.sets.insert(name.to_owned(), SetKind::Map(by_port.to_owned()));
    }
    for name in ["cluster-ips", "node-ips"] {
        rules.sets.insert(name.to_owned(), SetKind::Set(format!("type {addr};")));
    }
    rules.sets.insert("hairpin".to_owned(), SetKind::Set(format!("type {addr} . {addr};")));
    for name in [
        "service-ips",
        "external-ips",
        "service-nodeports",
        "no-endpoint-ips",
        "no-endpoint-nodeports",
        "cluster-ips",
        "hairpin",
    ] {
        rules.elements.insert(name.to_owned(), BTreeMap::new());
    }
    for name in ["host-ports", "system-ports"] {
        rules.sets.insert(name.to_owned(), SetKind::Set("type inet_proto . inet_service;".to_owned()));
    }
    for name in ["host-listeners", "server-ips"] {
        rules.sets.insert(name.to_owned(), SetKind::Set(format!("type {addr} . inet_proto . inet_service;")));
    }
    rules.elements.extend(site.listeners.elements(site.family));
    rules.elements.extend(site.reserved.elements(site.family));
    rules
}

/// Rules that keep Services off what is others'.
struct Guards {
    /// API servers.
    servers: String,
    /// The system's ports of this machine.
    system: String,
    /// Those of other nodes.
    nodes: String,
    /// Ports that this machine listens on.
    listeners: [String; 2],
}

impl Guards {
    fn of(family: Family) -> Guards {
        let f = family.name();
        Guards {
            servers: format!("{f} daddr . meta l4proto . th dport @server-ips return"),
            system: "fib daddr type local meta l4proto . th dport @system-ports return".to_owned(),
            nodes: format!("{f} daddr @node-ips meta l4proto . th dport @system-ports return"),
            listeners: [
                "fib daddr type local meta l4proto . th dport @host-ports return".to_owned(),
                format!("{f} daddr . meta l4proto . th dport @host-listeners return"),
            ],
        }
    }
}

/// The match of addresses under which node ports answer.
fn node_port_addresses(site: &Site) -> String {
    let local = "fib daddr type local";
    match site.node_port_addresses.as_deref().map(braces) {
        None => local.to_owned(),
        Some(Some(ranges)) => format!("{local} {} daddr {ranges}", site.family.name()),
        // Ranges of the other family alone: no packet goes to the address that is none.
        Some(None) => format!("{local} {} daddr {}", site.family.name(), site.family.unspecified()),
    }
}

/// The chain that finds the chain of a service port. What several could claim is the first one's here.
fn services(site: &Site, guards: &Guards, cidrs: Option<&str>) -> Vec<String> {
    let f = site.family.name();
    let masquerade = cidrs.map(|cidrs| format!("{f} daddr @cluster-ips {f} saddr != {cidrs} jump mark-for-masquerade"));
    let nodeports = format!(
        "{} {f} daddr != {} meta l4proto . th dport vmap @service-nodeports",
        node_port_addresses(site),
        site.family.loopback()
    );
    let lines = [
        // What keeps the cluster together comes before all that users choose, a node port included: their range is
        // chosen, too.
        guards.servers.clone(),
        guards.system.clone(),
        // A node port before an address: no Service takes another one's by an address of the node.
        nodeports,
        // What the machine itself listens on is the machine's, whatever addresses and ports Services name.
        guards.listeners[0].clone(),
        guards.listeners[1].clone(),
        format!("{f} daddr . meta l4proto . th dport vmap @service-ips"),
        // A cluster address without an endpoint is nobody else's either.
        format!("{f} daddr @cluster-ips return"),
        // Behind the cluster's addresses: a node that says it has one of them closes none of its ports.
        guards.nodes.clone(),
        format!("{f} daddr . meta l4proto . th dport vmap @external-ips"),
    ];
    masquerade.into_iter().chain(lines).collect()
}

fn postrouting(site: &Site, cidrs: Option<&str>) -> Vec<String> {
    let f = site.family.name();
    let mut lines = vec![
        "type nat hook postrouting priority 100;".to_owned(),
        format!(
            "meta mark and {MASQUERADE_BIT:#x} == {MASQUERADE_BIT:#x} meta mark set meta mark xor {MASQUERADE_BIT:#x} \
             masquerade fully-random"
        ),
        // A pod that reaches itself through a Service must see the answer come from elsewhere.
        format!("ct status dnat {f} saddr . {f} daddr @hairpin masquerade fully-random"),
    ];
    if let Some(cidrs) = cidrs.filter(|_| site.masquerade_pods) {
        let outside =
            format!("{f} daddr != {{ {}, {} }}", cidrs.trim_matches(['{', '}', ' ']), site.family.multicast());
        lines.push(format!("{f} saddr {cidrs} {outside} masquerade fully-random"));
    }
    lines
}
