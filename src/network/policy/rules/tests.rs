//! Claims about the rules that policies become.

use std::sync::Arc;

use super::*;
use crate::policy::model::Facts;

/// Renders the table, and holds it against the oracle.
fn render(world: &World, families: &BTreeSet<Family>) -> Ruleset {
    let rules = super::render(world, families);
    crate::table::tests::hold_against_nft(TABLE, &rules);
    rules
}

fn selector(pairs: &[(&str, &str)]) -> Selector {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

fn pod(ns: &str, app: &str, ip: &str, local: bool) -> Pod {
    let facts = Facts {
        ns: ns.into(),
        labels: [("app".to_owned(), app.to_owned())].into(),
        ports: vec![("http".into(), Protocol::Tcp, 8080)],
        ..Facts::default()
    };
    Pod { facts: Arc::new(facts), ips: vec![ip.parse().unwrap()], local, state: PodState::Known }
}

fn policy(name: &str, pods: &[(&str, &str)], ingress: Option<Vec<Rule>>, egress: Option<Vec<Rule>>) -> Policy {
    Policy { ns: "a".into(), name: name.into(), pods: selector(pods), ingress, egress }
}

fn world(policies: Vec<Policy>) -> World {
    World {
        pods: vec![
            pod("a", "web", "10.42.0.5", true),
            pod("a", "db", "10.42.0.6", true),
            pod("b", "web", "10.42.1.7", false),
        ],
        namespaces: [
            ("a".to_owned(), Labels::from([("team".to_owned(), "x".to_owned())])),
            ("b".to_owned(), Labels::new()),
        ]
        .into(),
        policies,
        is_contested: false,
    }
}

type Labels = BTreeMap<String, String>;

fn v4() -> BTreeSet<Family> {
    [Family::V4].into()
}

fn only<'a>(rules: &'a Ruleset, prefix: &str) -> &'a [String] {
    let mut found = rules.chains.iter().filter(|(name, _)| name.starts_with(prefix));
    let chain = found.next().expect("no such chain").1;
    assert!(found.next().is_none(), "several chains {prefix}");
    chain
}

#[test]
fn no_policy_touches_nobody() {
    let rules = render(&world(vec![]), &v4());
    assert!(rules.elements.values().all(BTreeMap::is_empty));
    assert_eq!(rules.chains.keys().collect::<Vec<_>>(), ["bridged", "egress", "ingress"]);
    assert!(rules.chains["bridged"].is_empty(), "pods that nobody isolates may use what the bridge gives");
}

#[test]
fn beside_an_isolated_pod_no_address_goes_around_the_policies() {
    let deny = || world(vec![policy("deny", &[("app", "web")], Some(vec![]), None)]);
    let rules = render(&deny(), &v4());
    let egress = &rules.chains["egress"];
    let at = |part: &str| egress.iter().position(|line| line.contains(part)).unwrap();
    assert!(at("jump bridged") < at("vmap @out4"), "{egress:?}");
    assert_eq!(rules.chains["bridged"], ["meta nfproto ipv6 drop", "fib daddr type { broadcast, multicast } drop"]);
    let dual = render(&deny(), &[Family::V4, Family::V6].into());
    let bridged = &dual.chains["bridged"];
    assert!(
        bridged[0].ends_with("accept")
            && bridged[1] == "ip6 saddr fe80::/10 drop"
            && bridged[2] == "ip6 daddr fe80::/10 drop",
        "{bridged:?}"
    );
}

#[test]
fn many_peers_and_many_ports_do_not_multiply() {
    let net = |n: u32| -> IpNet { IpNet::new(std::net::Ipv4Addr::from(0x0B00_0000 + 2 * n).into(), 32).unwrap() };
    let mut peers: Vec<Peer> = (0..10_000).map(|n| Peer::Block { cidr: net(n), except: vec![] }).collect();
    peers.extend((0..1000).map(|n| Peer::Pods {
        ns: "a".into(),
        namespaces: None,
        pods: selector(&[("app", &n.to_string())]),
    }));
    let ports = (0..1000).map(|n| Port::Named(Protocol::Tcp, format!("p{n}"))).collect();
    let rules = render(&world(vec![policy("p", &[("app", "db")], Some(vec![Rule { peers, ports }]), None)]), &v4());
    let lines: usize = rules.chains.values().map(Vec::len).sum();
    assert!(lines < 2100, "{lines} rules");
    let chain = only(&rules, "ports-");
    assert!(chain.len() == 1000 && chain[0].starts_with("ip daddr . tcp dport @port4-"), "{}", chain[0]);
    let peers = only(&rules, "ingress-");
    assert!(peers.iter().all(|line| line.contains(" jump ports-")), "{:?}", peers.first());
    assert!(peers.last().unwrap().starts_with("ip saddr { 11.0.0.0/32, 11.0.0.2/32, "));
}

#[test]
fn an_empty_policy_drops_all_to_its_pods_and_nothing_from_them() {
    let rules = render(&world(vec![policy("deny", &[("app", "web")], Some(vec![]), None)]), &v4());
    assert_eq!(rules.elements["in4"].keys().collect::<Vec<_>>(), ["10.42.0.5"]);
    assert!(rules.elements["out4"].is_empty());
    assert_eq!(only(&rules, "in-").last().unwrap(), "drop");
    assert!(only(&rules, "ingress-").is_empty());
}

#[test]
fn pods_under_the_same_policies_share_a_chain_and_equal_selectors_a_set() {
    let from = |pods: &[(&str, &str)]| Rule {
        peers: vec![Peer::Pods { ns: "a".into(), namespaces: None, pods: selector(pods) }],
        ports: vec![],
    };
    let policies = vec![
        policy("one", &[], Some(vec![from(&[("app", "db")])]), None),
        policy("two", &[], Some(vec![from(&[("app", "db")])]), None),
    ];
    let rules = render(&world(policies), &v4());
    assert_eq!(only(&rules, "in-").len(), 3);
    assert_eq!(rules.elements["in4"].len(), 2);
    let sets: Vec<_> = rules.elements.iter().filter(|(name, _)| name.starts_with("pods4-")).collect();
    assert_eq!(sets.len(), 1);
    assert_eq!(sets[0].1.keys().collect::<Vec<_>>(), ["10.42.0.6"]);
}

#[test]
fn an_empty_namespace_selector_means_all_namespaces() {
    let peer = Peer::Pods { ns: "a".into(), namespaces: Some(Selector::default()), pods: selector(&[("app", "web")]) };
    let rules = render(
        &world(vec![policy("p", &[("app", "db")], Some(vec![Rule { peers: vec![peer], ports: vec![] }]), None)]),
        &v4(),
    );
    let set = rules.elements.iter().find(|(name, _)| name.starts_with("pods4-")).unwrap().1;
    assert_eq!(set.keys().collect::<Vec<_>>(), ["10.42.0.5", "10.42.1.7"]);
}

#[test]
fn a_block_lets_its_range_through_but_for_the_exceptions() {
    let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpNet>>();
    let peer =
        Peer::Block { cidr: "10.0.0.0/8".parse().unwrap(), except: nets(&["10.1.0.0/16", "10.1.2.0/24", "fd00::/8"]) };
    let ports = vec![
        Port::Range(Protocol::Tcp, 80, 80),
        Port::Range(Protocol::Tcp, 8000, 8100),
        Port::Range(Protocol::Tcp, 8050, 8200),
        Port::Any(Protocol::Udp),
    ];
    let rules =
        render(&world(vec![policy("p", &[("app", "db")], None, Some(vec![Rule { peers: vec![peer], ports }]))]), &v4());
    assert_eq!(
        only(&rules, "egress-"),
        [
            "ip daddr 10.0.0.0/8 ip daddr != { 10.1.0.0/16 } tcp dport { 80, 8000-8200 } accept",
            "ip daddr 10.0.0.0/8 ip daddr != { 10.1.0.0/16 } meta l4proto udp accept",
        ]
    );
    assert!(rules.elements["in4"].is_empty());
}

#[test]
fn a_named_port_is_looked_up_at_the_pod_that_is_reached() {
    let rule = Rule { peers: vec![], ports: vec![Port::Named(Protocol::Tcp, "http".into())] };
    let rules = render(&world(vec![policy("p", &[("app", "db")], Some(vec![rule]), None)]), &v4());
    let (set, elements) = rules.elements.iter().find(|(name, _)| name.starts_with("port4-")).unwrap();
    assert_eq!(only(&rules, "ingress-"), [format!("meta nfproto ipv4 ip daddr . tcp dport @{set} accept")]);
    assert!(elements.contains_key("10.42.0.6 . 8080"));
}

#[test]
fn a_pod_that_comes_changes_elements_only() {
    let policies = || {
        vec![policy(
            "p",
            &[],
            Some(vec![Rule {
                peers: vec![Peer::Pods { ns: "a".into(), namespaces: None, pods: selector(&[]) }],
                ports: vec![],
            }]),
            None,
        )]
    };
    let before = render(&world(policies()), &v4());
    let mut more = world(policies());
    more.pods.push(pod("a", "web", "10.42.0.9", true));
    let script = crate::table::update(TABLE, &before, &render(&more, &v4()));
    assert!(script.change.lines().all(|line| line.starts_with("add element")), "{}", script.change);
    assert_eq!(script.sweep, "");
}

#[test]
fn a_sandbox_that_no_object_explains_is_shut_off_where_its_namespace_has_a_policy() {
    let mut world = world(vec![policy("deny", &[("app", "web")], Some(vec![]), None)]);
    world.pods.push(Pod { state: PodState::Unknown, ..pod("a", "", "10.42.0.8", true) });
    world.pods.push(Pod { state: PodState::Unknown, ..pod("b", "", "10.42.0.9", true) });
    let rules = render(&world, &v4());
    let chain = rules.elements["in4"]["10.42.0.8"].strip_prefix("goto ").unwrap();
    assert_eq!(rules.chains[chain], ["drop"]);
    assert!(rules.elements["out4"].is_empty() && !rules.elements["in4"].contains_key("10.42.0.9"));
}

#[test]
fn a_pod_whose_object_is_gone_stays_isolated_and_is_nobodys_peer() {
    let from =
        Rule { peers: vec![Peer::Pods { ns: "a".into(), namespaces: None, pods: selector(&[]) }], ports: vec![] };
    let mut world = world(vec![policy("p", &[], Some(vec![from]), None)]);
    world.pods[0].state = PodState::Gone;
    let rules = render(&world, &v4());
    assert!(rules.elements["in4"].contains_key("10.42.0.5"));
    let peers = rules.elements.iter().find(|(name, _)| name.starts_with("pods4-")).unwrap().1;
    assert_eq!(peers.keys().collect::<Vec<_>>(), ["10.42.0.6"]);
}
