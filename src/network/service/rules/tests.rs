//! Claims about the rules that one service port becomes.

use super::*;
use crate::service::flows;
use crate::service::frame::{LOOPBACK_DEST, frame};
use crate::table as diff;

fn site() -> Site {
    Site {
        family: Family::V4,
        cluster_cidrs: vec!["10.42.0.0/16".parse().unwrap()],
        node_port_addresses: None,
        masquerade_pods: true,
        listeners: Listeners::default(),
        reserved: Reserved::default(),
    }
}

fn endpoint(addr: &str, local: bool) -> Endpoint {
    Endpoint {
        addr: addr.parse().unwrap(),
        ready: true,
        serving: true,
        terminating: false,
        local,
        node_hint: None,
        zone_hint: None,
    }
}

fn draining(addr: &str, local: bool) -> Endpoint {
    Endpoint { ready: false, serving: true, terminating: true, ..endpoint(addr, local) }
}

fn port(endpoints: Vec<Endpoint>) -> ServicePort {
    ServicePort {
        ns: "default".into(),
        name: "web".into(),
        port_name: "http".into(),
        protocol: Protocol::Tcp,
        port: 80,
        node_port: None,
        cluster_ips: vec!["10.43.0.80".parse().unwrap(), "fd00:43::80".parse().unwrap()],
        external_ips: vec![],
        balancer_ips: vec![],
        balancer_sources: vec![],
        affinity_secs: None,
        external: Policy::Cluster,
        internal: Policy::Cluster,
        health_port: None,
        endpoints,
    }
}

fn render(site: &Site, ports: &[ServicePort]) -> ServiceRules {
    let mut rules = ServiceRules { content: frame(site), udp: BTreeMap::new() };
    rules.add(&part(site, ports));
    crate::table::tests::hold_against_nft(table(site.family), &rules.content);
    rules
}

fn chain<'a>(rules: &'a ServiceRules, prefix: &str) -> &'a [String] {
    rules.content.chains.iter().find(|(name, _)| name.starts_with(prefix)).map_or(&[], |(_, lines)| lines)
}

#[test]
fn a_ready_endpoint_hides_terminating_ones() {
    let rules = render(&site(), &[port(vec![endpoint("10.42.0.5:8080", true), draining("10.42.0.6:8080", true)])]);
    assert_eq!(chain(&rules, "svc-"), ["meta l4proto tcp dnat ip to 10.42.0.5:8080"]);
}

#[test]
fn the_last_terminating_endpoint_still_serves() {
    let rules = render(&site(), &[port(vec![draining("10.42.0.6:8080", true)])]);
    assert_eq!(chain(&rules, "svc-"), ["meta l4proto tcp dnat ip to 10.42.0.6:8080"]);
    assert!(rules.content.elements["no-endpoint-ips"].is_empty());
}

#[test]
fn a_service_without_endpoints_is_rejected_not_translated() {
    let rules = render(&site(), &[port(vec![])]);
    assert!(rules.content.elements["service-ips"].is_empty());
    assert_eq!(rules.content.elements["no-endpoint-ips"]["10.43.0.80 . tcp . 80"], "goto refuse");
    assert_eq!(rules.content.chains["refuse"], ["reject"]);
}

#[test]
fn external_traffic_to_a_node_without_local_endpoints_is_dropped_under_local() {
    let service = ServicePort {
        node_port: Some(30080),
        external: Policy::Local,
        ..port(vec![endpoint("10.42.1.5:8080", false)])
    };
    let rules = render(&site(), &[service]);
    assert_eq!(rules.content.elements["no-endpoint-nodeports"]["tcp . 30080"], "drop");
    let ext = chain(&rules, "ext-");
    assert!(ext[0].starts_with("ip saddr { 10.42.0.0/16 } goto svc-"), "{ext:?}");
    assert!(!ext.iter().any(|line| line.starts_with("goto")), "{ext:?}");
}

#[test]
fn internal_traffic_under_local_goes_to_local_endpoints_only() {
    let service = ServicePort {
        internal: Policy::Local,
        ..port(vec![endpoint("10.42.0.5:80", true), endpoint("10.42.1.5:80", false)])
    };
    let rules = render(&site(), &[service]);
    assert!(rules.content.elements["service-ips"]["10.43.0.80 . tcp . 80"].starts_with("goto svl-"));
    assert_eq!(chain(&rules, "svl-"), ["meta l4proto tcp dnat ip to 10.42.0.5:80"]);
}

#[test]
fn an_endpoint_change_touches_one_chain() {
    let before = render(&site(), &[port(vec![endpoint("10.42.0.5:8080", true)])]);
    let after = render(&site(), &[port(vec![endpoint("10.42.0.5:8080", true), endpoint("10.42.1.5:8080", false)])]);
    let script = diff::update(table(Family::V4), &before.content, &after.content);
    let name = after.content.chains.keys().find(|name| name.starts_with("svc-")).unwrap();
    assert_eq!(
        script.change,
        format!(
            "flush chain ip kedge-proxy {name}\n\
             add rule ip kedge-proxy {name} meta l4proto tcp dnat ip to numgen random mod 2 \
             map {{ 0 : 10.42.0.5 . 8080, 1 : 10.42.1.5 . 8080 }}\n"
        )
    );
    assert_eq!(script.sweep, "");
    assert_eq!(diff::update(table(Family::V4), &after.content, &after.content), diff::Script::default());
}

#[test]
fn a_new_affinity_timeout_makes_new_sets() {
    let with = |secs| {
        render(&site(), &[ServicePort { affinity_secs: Some(secs), ..port(vec![endpoint("10.42.0.5:80", true)]) }])
    };
    let (before, after) = (with(10), with(20));
    assert!(before.content.sets.keys().any(|name| name.starts_with("aff-") && !after.content.sets.contains_key(name)));
}

#[test]
fn a_udp_endpoint_that_serves_no_more_leaves_a_stale_flow_and_one_that_drains_does_not() {
    let udp = |endpoints| render(&site(), &[ServicePort { protocol: Protocol::Udp, ..port(endpoints) }]);
    let target = UdpTarget::Address("10.43.0.80:80".parse().unwrap());
    let (old, new) = (udp(vec![endpoint("10.42.0.5:53", true)]), udp(vec![endpoint("10.42.0.6:53", true)]));
    assert_eq!(*flows::after_change(&old, &new).endpoints[&target], ["10.42.0.5:53".parse().unwrap()].into());
    let drains = udp(vec![draining("10.42.0.5:53", true), endpoint("10.42.0.6:53", true)]);
    assert!(flows::after_change(&old, &drains).is_empty());
    assert_eq!(flows::at_start(&drains).strangers[&target].serving.len(), 2);
}

#[test]
fn source_ranges_that_overlap_are_one() {
    let sources =
        ["10.0.0.0/8", "10.1.0.0/16", "10.0.0.0/8", "192.168.1.7/24", "192.168.0.0/24"].map(|net| net.parse().unwrap());
    let balanced = ServicePort {
        balancer_ips: vec!["192.168.1.2".parse().unwrap()],
        balancer_sources: sources.to_vec(),
        ..port(vec![endpoint("10.42.0.5:80", true)])
    };
    let rules = render(&site(), &[balanced]);
    assert_eq!(chain(&rules, "src-"), ["ip saddr { 10.0.0.0/8, 192.168.0.0/23 } return", "drop"]);
    let lb = chain(&rules, "lb-");
    assert!(lb[0].starts_with("jump src-") && lb[1].starts_with("goto ext-"), "{lb:?}");
}

#[test]
fn what_the_machine_listens_on_is_looked_up_before_any_service_address() {
    let rules = render(&site(), &[]);
    for chain in ["services", "filter-input", "filter-output"] {
        let lines = &rules.content.chains[chain];
        let at = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap();
        let service = if chain == "services" { "@service-ips" } else { "@no-endpoint-ips" };
        assert!(at("@host-ports return") < at(service) && at("@host-listeners return") < at(service), "{lines:?}");
    }
}

// an external address that named another node and 6443 cut agents off from their server
#[test]
fn the_systems_ports_of_nodes_and_the_api_servers_are_looked_up_before_what_users_choose() {
    let rules = render(&site(), &[]);
    let order = |chain: &str, parts: &[&str]| {
        let lines = &rules.content.chains[chain];
        let at: Vec<usize> =
            parts.iter().map(|part| lines.iter().position(|line| line.contains(part)).unwrap()).collect();
        assert!(at.is_sorted(), "{chain}: {lines:?}");
    };
    let own = ["@server-ips return", "type local meta l4proto . th dport @system-ports return"];
    let remote = "daddr @node-ips meta l4proto . th dport @system-ports return";
    order("services", &[own[0], own[1], "vmap @service-nodeports"]);
    // A node that says it has a cluster's address closes none of that one's ports.
    order("services", &["vmap @service-ips", "daddr @cluster-ips return", remote, "vmap @external-ips"]);
    order("filter-input", &[own[0], own[1], "vmap @no-endpoint-nodeports", "vmap @no-endpoint-ips"]);
    order(
        "filter-output",
        &[own[0], own[1], "vmap @no-endpoint-nodeports", remote, "vmap @no-endpoint-ips", "@cluster-ips reject"],
    );
    order("filter-forward", &[own[0], remote, "vmap @no-endpoint-ips", "@cluster-ips reject"]);
}

#[test]
fn nobody_outside_reaches_a_loopback_address() {
    let lines = &render(&site(), &[]).content.chains["loopback"];
    assert!(lines[0].contains("hook prerouting priority -300") && lines[1] == LOOPBACK_DEST, "{lines:?}");
}

#[test]
fn hints_keep_traffic_near_unless_one_is_missing() {
    let near = Endpoint { zone_hint: Some(true), ..endpoint("10.42.0.5:80", false) };
    let far = Endpoint { zone_hint: Some(false), ..endpoint("10.42.1.5:80", false) };
    let rules = render(&site(), &[port(vec![near.clone(), far.clone()])]);
    assert_eq!(chain(&rules, "svc-"), ["meta l4proto tcp dnat ip to 10.42.0.5:80"]);
    let rules = render(&site(), &[port(vec![near, Endpoint { zone_hint: None, ..far }])]);
    assert!(chain(&rules, "svc-")[0].contains("mod 2"));
}

#[test]
fn an_external_address_never_takes_a_cluster_address() {
    let dns: IpAddr = "10.43.0.80".parse().unwrap();
    let thief = ServicePort {
        ns: "a".into(),
        cluster_ips: vec!["10.43.0.99".parse().unwrap()],
        external_ips: vec![dns],
        balancer_ips: vec![dns],
        ..port(vec![endpoint("10.42.0.66:53", true)])
    };
    let rules = render(&site(), &[thief]);
    assert!(!rules.content.elements["service-ips"].contains_key("10.43.0.80 . tcp . 80"));
    assert!(rules.content.elements["external-ips"].contains_key("10.43.0.80 . tcp . 80"));
    let lines = &rules.content.chains["services"];
    let at = |part: &str| lines.iter().position(|line| line.contains(part)).unwrap();
    assert!(
        at("vmap @service-ips") < at("daddr @cluster-ips return")
            && at("daddr @cluster-ips return") < at("vmap @external-ips")
    );
}

#[test]
fn many_ports_and_addresses_of_one_service_do_not_multiply() {
    let ips: Vec<IpAddr> = (0..30_000_u32).map(|n| std::net::Ipv4Addr::from(0x0B00_0000 + n).into()).collect();
    let sources: Vec<IpNet> = (0..10_000_u32)
        .map(|n| IpNet::new(std::net::Ipv4Addr::from(0x0C00_0000 + 2 * n).into(), 32).unwrap())
        .collect();
    let one = |n: u16| ServicePort {
        port: n,
        port_name: format!("p{n}"),
        protocol: Protocol::Udp,
        external_ips: ips.clone(),
        balancer_ips: ips.clone(),
        balancer_sources: sources.clone(),
        ..port(vec![endpoint("10.42.0.5:80", true)])
    };
    let ports: Vec<ServicePort> = (1..=300).map(one).collect();
    let part = part(&site(), &ports);
    let external = part.elements.iter().filter(|element| element.set == "external-ips").count();
    assert!((EXTERNAL_ELEMENTS_MAX / 2..=EXTERNAL_ELEMENTS_MAX).contains(&external), "{external}");
    let text: usize = part.chains.iter().flat_map(|(_, lines)| lines).map(String::len).sum();
    assert!(text < 1_000_000, "{text} bytes of rules");
}

// The first versions named these after 48 bits of FNV-1a, and these two Services were found to have one name.
#[test]
fn no_service_takes_a_chain_or_a_set_of_another_one_by_its_name() {
    let named = |ns: &str, name: &str| {
        let port = ServicePort {
            ns: ns.into(),
            name: name.into(),
            affinity_secs: Some(10_800),
            ..port(vec![endpoint("10.42.0.5:80", true)])
        };
        part(&site(), &[port])
    };
    let (victim, thief) = (named("a", "bflcifwkoagp"), named("b", "uukphstibomt"));
    let names = |part: &Part| -> BTreeSet<String> {
        part.chains.iter().map(|(name, _)| name.clone()).chain(part.sets.iter().map(|(name, _)| name.clone())).collect()
    };
    let (ours, theirs) = (names(&victim), names(&thief));
    assert!(ours.len() == 4 && ours.is_disjoint(&theirs), "{ours:?} {theirs:?}");
    assert!(ours.iter().all(|name| name.len() < 128 && name.split('-').nth(1).unwrap().len() == 32), "{ours:?}");
}

#[test]
fn the_first_holder_keeps_a_chain_and_a_set() {
    let part = |to: &str| Part {
        chains: vec![("ep-1".to_owned(), vec![to.to_owned()])],
        sets: vec![("aff-1".to_owned(), SetKind::Set(to.to_owned()))],
        ..Part::default()
    };
    let mut rules = ServiceRules::default();
    rules.add(&part("a"));
    rules.add(&part("b"));
    assert_eq!(
        (&rules.content.chains["ep-1"][0][..], &rules.content.sets["aff-1"]),
        ("a", &SetKind::Set("a".to_owned()))
    );
}

#[test]
fn many_addresses_and_endpoints_of_one_udp_service_do_not_multiply() {
    let ips: Vec<IpAddr> = (0..10_000_u32).map(|n| std::net::Ipv4Addr::from(0x0B00_0000 + n).into()).collect();
    let endpoints = |port: u16| {
        (0..10_000_u32).map(move |n| endpoint(&format!("{}:{port}", std::net::Ipv4Addr::from(0x0A2A_0000 + n)), false))
    };
    let udp = |number: u16| {
        let port =
            ServicePort { protocol: Protocol::Udp, external_ips: ips.clone(), ..port(endpoints(number).collect()) };
        part(&site(), &[port])
    };
    let began = base::time::Stopwatch::start();
    let rules = |part: &Part| {
        let mut rules = ServiceRules::default();
        rules.add(part);
        rules
    };
    let (before, same, after) = (udp(53), udp(53), udp(54));
    assert!(before == same && before != after);
    assert!(flows::after_change(&rules(&before), &rules(&same)).is_empty());
    let stale = flows::after_change(&rules(&before), &rules(&after));
    assert!(stale.endpoints.len() > 10_000 && stale.endpoints.values().all(|gone| gone.len() == 10_000));
    assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
}
