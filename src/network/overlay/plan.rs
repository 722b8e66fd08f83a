//! The overlay's plan for the kernel, from Node objects alone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use base::unicast;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use model::node::addresses;
use serde_json::Value;

use crate::config::{Backend, Config, PieceBits};
use crate::family::Family;

const BACKEND_TYPE: &str = "flannel.alpha.coreos.com/backend-type";
const BACKEND_DATA: &str = "flannel.alpha.coreos.com/backend-data";
const PUBLIC_IP: &str = "flannel.alpha.coreos.com/public-ip";
const PUBLIC_IP_OVERWRITE: &str = "flannel.alpha.coreos.com/public-ip-overwrite";
const SUBNET_MANAGER: &str = "flannel.alpha.coreos.com/kube-subnet-manager";
/// The tunnel's network identifier.
pub(crate) const VNI: u32 = 1;
/// Outer Ethernet, IP, UDP and VXLAN headers (14 + 20 + 8 + 8), with IPv4 and IPv6 outside.
const VXLAN_BYTES: (u32, u32) = (50, 70);
/// Least MTU of IPv6.
const MTU_MIN: u32 = 1280;

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

/// MTU of pods and of the tunnel, over an uplink of this MTU; `outer` is the family of the tunnel's own packets.
pub(crate) fn pod_mtu(backend: Backend, uplink: u32, outer: Family) -> u32 {
    match backend {
        Backend::Vxlan => {
            let head = match outer {
                Family::V4 => VXLAN_BYTES.0,
                Family::V6 => VXLAN_BYTES.1,
            };
            uplink.saturating_sub(head).max(MTU_MIN.min(uplink))
        }
        Backend::HostGw | Backend::None => uplink,
    }
}

/// This node.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Mine {
    pub(crate) name: String,
    pub(crate) cidrs: Vec<IpNet>,
    /// The address of this machine from which packets leave.
    pub(crate) local_ip: IpAddr,
    /// The address under which others reach it: another one behind NAT.
    pub(crate) public_ip: IpAddr,
    pub(crate) mac: Mac,
}

impl Mine {
    /// `None` until the node has its pod range.
    pub(crate) fn of(node: &Node, config: &Config) -> Option<Mine> {
        let cidrs = cidrs(node);
        let local_ip = address(node, "InternalIP").or(config.node_ips.borrow().first().copied())?;
        let external = config.external_ip.then(|| address(node, "ExternalIP")).flatten();
        let overwritten = annotation(node, PUBLIC_IP_OVERWRITE).and_then(|ip| ip.parse().ok());
        let public_ip = overwritten.or(external).unwrap_or(local_ip);
        (!cidrs.is_empty()).then(|| Mine {
            name: config.node_name.clone(),
            cidrs,
            local_ip,
            public_ip,
            mac: mac_of(&config.node_name),
        })
    }

    pub(crate) fn annotations(&self, backend: Backend) -> BTreeMap<String, String> {
        let data = match backend {
            Backend::Vxlan => serde_json::json!({ "VNI": VNI, "VtepMAC": text(&self.mac) }).to_string(),
            Backend::HostGw | Backend::None => "null".to_owned(),
        };
        let facts = [
            (BACKEND_TYPE, backend.name().to_owned()),
            (BACKEND_DATA, data),
            (PUBLIC_IP, self.public_ip.to_string()),
            (SUBNET_MANAGER, "true".to_owned()),
        ];
        facts.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// Links, routes and neighbours that must be in the kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Pod ranges of other nodes and the gateway to each: its tunnel's end, or the node itself.
    pub(crate) routes: BTreeMap<IpNet, IpAddr>,
    /// Tunnel ends' inner addresses and their MACs.
    pub(crate) neighbours: BTreeMap<IpAddr, Mac>,
    /// Which machine has which tunnel end.
    pub(crate) machines: BTreeMap<Mac, IpAddr>,
    /// Troubles that keep peers from being reached, in words for the administrator.
    pub(crate) troubles: Vec<String>,
}

impl Plan {
    /// `networks` are the uplink's: only machines in them can be a gateway. `cluster` are the pod networks of the
    /// cluster: no node gets a route for anything else, whatever its object says.
    pub(crate) fn of(nodes: &[Arc<Node>], mine: &Mine, backend: Backend, networks: &[IpNet], cluster: Cut<'_>) -> Plan {
        let mut plan = Plan::default();
        let mut given = BTreeSet::new();
        // Names can be found that come to one MAC: then it is the older node's.
        let mut macs = BTreeMap::new();
        for node in by_age(nodes) {
            let name = name_of(node);
            macs.entry(mac_of(name)).or_insert(name);
        }
        for node in by_age(nodes) {
            let name = name_of(node);
            // The older node keeps its range; this node's own counts like the others'.
            let ranges = plan.own_ranges(node, cluster, &mut given);
            let Some(ip) = reachable(node, mine.local_ip).filter(|_| name != mine.name) else { continue };
            if let Some(other) = annotation(node, BACKEND_TYPE).filter(|kind| *kind != backend.name()) {
                plan.troubles.push(format!(
                    "node {name} uses the overlay {other}, this one {}: their pods cannot reach each other",
                    backend.name()
                ));
                continue;
            }
            match backend {
                Backend::Vxlan if ip.is_ipv4() != mine.local_ip.is_ipv4() => plan.troubles.push(format!(
                    "node {name} ({ip}) has no address of the family of this node's {}: the tunnel cannot reach its \
                     pods; name one with its --node-ip",
                    mine.local_ip
                )),
                Backend::Vxlan => plan.tunnel(node, ip, &ranges, &macs),
                Backend::HostGw => plan.gateways(node, ip, networks, &ranges),
                Backend::None => {}
            }
        }
        plan
    }

    /// The node's ranges that are pieces of the cluster's and no other node's. `given` knows those of older nodes.
    fn own_ranges(&mut self, node: &Node, cluster: Cut<'_>, given: &mut BTreeSet<IpNet>) -> Vec<IpNet> {
        let name = name_of(node);
        let mut own = Vec::new();
        for cidr in cidrs(node) {
            if !cluster.has_piece(&cidr) {
                self.troubles.push(format!(
                    "node {name} claims the pod range {cidr}, which is no piece of the cluster's: it gets no route"
                ));
            } else if given.insert(cidr) {
                own.push(cidr);
            } else {
                self.troubles
                    .push(format!("node {name} claims the pod range {cidr} of an older node: it gets no route"));
            }
        }
        own
    }

    /// Each of the node's ranges by the node's address of that family.
    fn gateways(&mut self, node: &Node, ip: IpAddr, networks: &[IpNet], ranges: &[IpNet]) {
        for cidr in ranges.iter().copied() {
            let like = |ip: &IpAddr| ip.is_ipv4() == cidr.addr().is_ipv4();
            let gateway = Some(ip).filter(like).or_else(|| addresses(node, "InternalIP").find(like));
            match gateway.filter(|ip| networks.iter().any(|net| net.contains(ip))) {
                Some(gateway) => drop(self.routes.insert(cidr, gateway)),
                None => self.troubles.push(format!(
                    "node {} ({}) is not on this node's network segment: host-gw cannot reach its pods; use \
                     --flannel-backend=vxlan",
                    name_of(node),
                    gateway.map_or_else(|| format!("without an address for {cidr}"), |ip| ip.to_string()),
                )),
            }
        }
    }

    fn tunnel(&mut self, node: &Node, ip: IpAddr, ranges: &[IpNet], macs: &BTreeMap<Mac, &str>) {
        // A node that has not told its tunnel's MAC yet has no tunnel yet.
        let Some(mac) = annotation(node, BACKEND_DATA).and_then(vtep_mac) else { return };
        let name = name_of(node);
        // A node's MAC follows from its name: with another one's it would get that one's packets.
        if macs.get(&mac).is_some_and(|owner| *owner != name) || self.machines.contains_key(&mac) {
            self.troubles
                .push(format!("node {name} tells the tunnel address {} of another node: it gets no route", text(&mac)));
            return;
        }
        self.machines.insert(mac, ip);
        for cidr in ranges.iter().copied() {
            self.routes.insert(cidr, cidr.network());
            self.neighbours.insert(cidr.network(), mac);
        }
    }
}

/// The pod networks of the cluster, and the size of the pieces that nodes get.
#[derive(Clone, Copy)]
pub(crate) struct Cut<'a> {
    pub(crate) ranges: &'a [IpNet],
    pub(crate) bits: PieceBits,
}

impl Cut<'_> {
    fn has_piece(&self, range: &IpNet) -> bool {
        self.ranges.iter().any(|whole| self.bits.is_piece(range, whole))
    }
}

/// The oldest first.
fn by_age(nodes: &[Arc<Node>]) -> Vec<&Arc<Node>> {
    let mut nodes: Vec<&Arc<Node>> = nodes.iter().collect();
    nodes.sort_by_key(|node| (node.metadata.creation_timestamp.as_ref().map(|time| time.0), name_of(node).to_owned()));
    nodes
}

fn name_of(node: &Node) -> &str {
    node.metadata.name.as_deref().unwrap_or_default()
}

/// Everything of a Node that matters here.
pub(crate) fn facts(node: &Node) -> (Vec<IpNet>, Vec<IpAddr>, Option<IpAddr>, Vec<Option<String>>) {
    let annotations = [BACKEND_TYPE, BACKEND_DATA, PUBLIC_IP, PUBLIC_IP_OVERWRITE]
        .map(|key| annotation(node, key).map(str::to_owned));
    (cidrs(node), addresses(node, "InternalIP").collect(), address(node, "ExternalIP"), annotations.to_vec())
}

pub(crate) fn cidrs(node: &Node) -> Vec<IpNet> {
    let spec = node.spec.as_ref();
    let many = spec.and_then(|spec| spec.pod_cidrs.as_deref()).unwrap_or_default();
    let one = spec.and_then(|spec| spec.pod_cidr.as_ref()).filter(|_| many.is_empty());
    many.iter().chain(one).filter_map(|cidr| cidr.parse::<IpNet>().ok()).map(|cidr| cidr.trunc()).collect()
}

fn address(node: &Node, kind: &str) -> Option<IpAddr> {
    addresses(node, kind).next()
}

/// Where a node is reached from `here`: at its public address, or at another one of its own if only that is of the same
/// family.
fn reachable(node: &Node, here: IpAddr) -> Option<IpAddr> {
    let public = public_ip(node)?;
    let like = |ip: &IpAddr| ip.is_ipv4() == here.is_ipv4();
    Some(public).filter(like).or_else(|| addresses(node, "InternalIP").find(like)).or(Some(public))
}

fn public_ip(node: &Node) -> Option<IpAddr> {
    let told = annotation(node, PUBLIC_IP_OVERWRITE).or_else(|| annotation(node, PUBLIC_IP));
    told.and_then(|ip| ip.parse().ok()).filter(|ip| unicast::is_global(*ip)).or_else(|| address(node, "InternalIP"))
}

fn annotation<'a>(node: &'a Node, key: &str) -> Option<&'a str> {
    node.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

fn vtep_mac(data: &str) -> Option<Mac> {
    let data: Value = serde_json::from_str(data).ok()?;
    let mut mac = [0; 6];
    let mut parts = data.get("VtepMAC")?.as_str()?.split(':');
    for byte in &mut mac {
        *byte = u8::from_str_radix(parts.next()?, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

fn text(mac: &Mac) -> String {
    base::hex::join(mac, ":")
}

/// The same after every start, and another one on every node: neighbours need not learn a new one after a reboot.
fn mac_of(node: &str) -> Mac {
    let sum = base::fnv::sum(node.as_bytes());
    let bytes = sum.to_be_bytes();
    // Locally administered, and not a group address.
    [(bytes[2] & 0xfc) | 0x02, bytes[3], bytes[4], bytes[5], bytes[6], bytes[7]]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(name: &str, cidr: &str, ip: &str, annotations: Value) -> Arc<Node> {
        let node = json!({ "metadata": { "name": name, "annotations": annotations },
            "spec": { "podCIDR": cidr, "podCIDRs": [cidr] },
            "status": { "addresses": [{ "type": "InternalIP", "address": ip }] } });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn mine() -> Mine {
        Mine {
            name: "a".into(),
            cidrs: vec!["10.42.0.0/24".parse().unwrap()],
            local_ip: "192.168.1.1".parse().unwrap(),
            public_ip: "192.168.1.1".parse().unwrap(),
            mac: mac_of("a"),
        }
    }

    #[test]
    fn what_one_node_tells_another_reads() {
        let told = Mine { mac: mac_of("b"), ..mine() }.annotations(Backend::Vxlan);
        let peer = node("b", "10.42.1.0/24", "192.168.1.2", json!(told));
        let plan =
            Plan::of(&[peer], &mine(), Backend::Vxlan, &[], Cut { ranges: &cluster(), bits: PieceBits::default() });
        assert_eq!(plan.routes[&"10.42.1.0/24".parse().unwrap()], "10.42.1.0".parse::<IpAddr>().unwrap());
        assert_eq!(plan.neighbours[&"10.42.1.0".parse::<IpAddr>().unwrap()], mac_of("b"));
        assert_eq!(plan.machines[&mac_of("b")], "192.168.1.1".parse::<IpAddr>().unwrap());
    }

    fn cluster() -> Vec<IpNet> {
        vec!["10.42.0.0/16".parse().unwrap(), "fd42::/48".parse().unwrap()]
    }

    /// A node with these ranges, made on this day, whose tunnel has the MAC of a node named `mac`.
    fn with_ranges(name: &str, day: u32, mac: &str, ranges: &[&str]) -> Arc<Node> {
        let told = Mine { mac: mac_of(mac), ..mine() }.annotations(Backend::Vxlan);
        let mut node = (*node(name, ranges[0], "192.168.1.2", json!(told))).clone();
        node.spec.as_mut().unwrap().pod_cidrs = Some(ranges.iter().map(|range| (*range).to_owned()).collect());
        node.metadata.creation_timestamp =
            serde_json::from_value(json!(format!("2026-01-{day:02}T00:00:00Z"))).unwrap();
        Arc::new(node)
    }

    #[test]
    fn a_node_gets_routes_for_pieces_of_the_clusters_range_alone() {
        for range in [
            "0.0.0.0/1",
            "128.0.0.0/1",
            "192.168.1.0/24",
            "10.42.0.0/16",
            "10.42.7.0/25",
            "2000::/3",
            "fd42::/48",
            "10.0.0.0/8",
        ] {
            let plan = Plan::of(
                &[with_ranges("b", 1, "b", &[range, "10.42.1.0/24"])],
                &mine(),
                Backend::Vxlan,
                &[],
                Cut { ranges: &cluster(), bits: PieceBits::default() },
            );
            assert_eq!(plan.routes.keys().map(ToString::to_string).collect::<Vec<_>>(), ["10.42.1.0/24"], "{range}");
            assert!(plan.troubles.len() == 1 && plan.troubles[0].contains(range), "{:?}", plan.troubles);
        }
        let small: Vec<IpNet> = vec!["10.9.0.0/26".parse().unwrap()];
        assert_eq!(
            Plan::of(
                &[with_ranges("b", 1, "b", &["10.9.0.0/26"])],
                &mine(),
                Backend::Vxlan,
                &[],
                Cut { ranges: &small, bits: PieceBits::default() }
            )
            .routes
            .len(),
            1
        );
    }

    #[test]
    fn of_two_nodes_with_one_range_the_older_has_it() {
        let nodes = [
            with_ranges("a", 2, "a", &["10.42.0.0/24"]),
            with_ranges("b", 3, "b", &["10.42.0.0/24"]),
            with_ranges("c", 4, "c", &["10.42.1.0/24"]),
        ];
        let plan =
            Plan::of(&nodes, &mine(), Backend::Vxlan, &[], Cut { ranges: &cluster(), bits: PieceBits::default() });
        assert_eq!(
            plan.routes.keys().map(ToString::to_string).collect::<Vec<_>>(),
            ["10.42.1.0/24"],
            "this node's own is not to be had"
        );
        assert_eq!(plan.troubles.len(), 1);
    }

    #[test]
    fn a_node_does_not_get_anothers_packets_by_its_mac() {
        let nodes = [with_ranges("b", 1, "c", &["10.42.1.0/24"]), with_ranges("c", 2, "c", &["10.42.2.0/24"])];
        let plan =
            Plan::of(&nodes, &mine(), Backend::Vxlan, &[], Cut { ranges: &cluster(), bits: PieceBits::default() });
        assert_eq!(plan.routes.keys().map(ToString::to_string).collect::<Vec<_>>(), ["10.42.2.0/24"]);
    }

    #[test]
    fn a_node_whose_name_comes_to_the_mac_of_an_older_one_does_not_cut_it_off() {
        let (older, younger) = ("ahvevzbsarfr", "wuunkcgzajbs");
        assert_eq!(mac_of(older), mac_of(younger));
        for (older, younger) in [(older, younger), (younger, older)] {
            let nodes =
                [with_ranges(younger, 2, younger, &["10.42.2.0/24"]), with_ranges(older, 1, older, &["10.42.1.0/24"])];
            let plan =
                Plan::of(&nodes, &mine(), Backend::Vxlan, &[], Cut { ranges: &cluster(), bits: PieceBits::default() });
            assert_eq!(plan.routes.keys().map(ToString::to_string).collect::<Vec<_>>(), ["10.42.1.0/24"]);
        }
    }

    #[test]
    fn a_node_without_a_tunnel_gets_no_route() {
        let plan = Plan::of(
            &[node("b", "10.42.1.0/24", "192.168.1.2", json!({}))],
            &mine(),
            Backend::Vxlan,
            &[],
            Cut { ranges: &cluster(), bits: PieceBits::default() },
        );
        assert_eq!(plan, Plan::default());
    }

    #[test]
    fn host_gw_refuses_a_node_behind_a_router() {
        let nodes =
            [node("b", "10.42.1.0/24", "192.168.1.2", json!({})), node("c", "10.42.2.0/24", "10.9.0.1", json!({}))];
        let plan = Plan::of(
            &nodes,
            &mine(),
            Backend::HostGw,
            &["192.168.1.0/24".parse().unwrap()],
            Cut { ranges: &cluster(), bits: PieceBits::default() },
        );
        assert_eq!(
            plan.routes.into_iter().collect::<Vec<_>>(),
            [("10.42.1.0/24".parse().unwrap(), "192.168.1.2".parse().unwrap())]
        );
        assert_eq!(plan.troubles.len(), 1);
    }

    #[test]
    fn both_families_of_a_node_go_by_its_addresses_of_each() {
        let mut node = (*node("b", "10.42.1.0/24", "192.168.1.2", json!(mine().annotations(Backend::HostGw)))).clone();
        node.metadata.annotations.as_mut().unwrap().insert(PUBLIC_IP.to_owned(), "192.168.1.2".to_owned());
        node.spec.as_mut().unwrap().pod_cidrs = Some(vec!["10.42.1.0/24".to_owned(), "fd42:0:0:1::/64".to_owned()]);
        let v6 =
            json!([{ "type": "InternalIP", "address": "192.168.1.2" }, { "type": "InternalIP", "address": "fd77::2" }]);
        node.status.as_mut().unwrap().addresses = serde_json::from_value(v6).unwrap();
        let node = [Arc::new(node)];
        let networks: Vec<IpNet> = vec!["192.168.1.0/24".parse().unwrap(), "fd77::/64".parse().unwrap()];
        let plan = Plan::of(
            &node,
            &mine(),
            Backend::HostGw,
            &networks,
            Cut { ranges: &cluster(), bits: PieceBits::default() },
        );
        let routes: Vec<String> = plan.routes.iter().map(|(cidr, ip)| format!("{cidr} {ip}")).collect();
        assert_eq!(routes, ["10.42.1.0/24 192.168.1.2", "fd42:0:0:1::/64 fd77::2"]);
        assert_eq!(
            Plan::of(
                &node,
                &mine(),
                Backend::HostGw,
                &networks[..1],
                Cut { ranges: &cluster(), bits: PieceBits::default() }
            )
            .troubles
            .len(),
            1
        );
        assert_eq!(reachable(&node[0], "fd77::1".parse().unwrap()), "fd77::2".parse().ok());
    }

    #[test]
    fn an_overwritten_address_wins() {
        let told = json!({ PUBLIC_IP: "192.168.1.2", PUBLIC_IP_OVERWRITE: "203.0.113.9" });
        assert_eq!(public_ip(&node("b", "10.42.1.0/24", "192.168.1.2", told)), "203.0.113.9".parse().ok());
    }

    #[test]
    fn the_tunnel_takes_fifty_bytes_and_never_makes_ipv6_impossible() {
        assert_eq!(pod_mtu(Backend::Vxlan, 1500, Family::V4), 1450);
        assert_eq!(pod_mtu(Backend::Vxlan, 1300, Family::V4), 1280);
        assert_eq!(pod_mtu(Backend::HostGw, 9000, Family::V4), 9000);
    }
}
