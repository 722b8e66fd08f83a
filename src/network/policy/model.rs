//! Policies and the pods that they are about, taken out of the API objects: the pure form that rules are made from.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::Selector;
use model::phase::has_ended;
use model::pod::Pod as ApiPod;
use model::reference::NamespacedName;
use tracing::warn;

use crate::policy::claims::Claims;
use crate::policy::pod_ref::PodRef;
use crate::service::snapshot::Protocol;

/// Entries of one policy that become a rule or a set each: named ports, selectors of pods, blocks with exceptions.
/// (Other blocks and port numbers share one set, however many they are.) A policy with more lets nothing through: one
/// object must not fail the table of all others.
const RULES_OF_A_POLICY_MAX: usize = 4096;

pub(crate) type Labels = BTreeMap<String, String>;

/// Everything that rules depend on.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) pods: Vec<Pod>,
    pub(crate) namespaces: BTreeMap<String, Labels>,
    pub(crate) policies: Vec<Policy>,
    /// Two pods tell the same address.
    pub(crate) is_contested: bool,
}

/// Facts that an object tells of a pod with a network of its own. (One on the host's network is the node, which no
/// policy touches.) Made once of each version of the object, and shared.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Facts {
    pub(crate) ns: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The uid under which the runtime knows a static pod, told by its mirror.
    pub(crate) static_uid: Option<String>,
    pub(crate) labels: Labels,
    /// Container ports that have names.
    pub(crate) ports: Vec<(String, Protocol, u16)>,
    /// Addresses that status tells, one of each family.
    pub(crate) told: Vec<IpAddr>,
    pub(crate) node: Option<String>,
    /// Succeeded or Failed.
    pub(crate) over: bool,
    pub(crate) created: Option<Time>,
}

/// A pod and the addresses that are its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pod {
    pub(crate) facts: Arc<Facts>,
    pub(crate) ips: Vec<IpAddr>,
    /// On this node.
    pub(crate) local: bool,
    pub(crate) state: PodState,
}

/// State of a pod: whether its object is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PodState {
    /// There is an object.
    #[default]
    Known,
    /// Its object is gone, its sandbox is not: its policies hold, and nobody's rules let it in any more.
    Gone,
    /// A sandbox without an object that we ever saw: nothing may pass where its namespace has a policy.
    Unknown,
}

/// A NetworkPolicy. A direction that it does not isolate is `None`.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) ns: String,
    pub(crate) name: String,
    pub(crate) pods: Selector,
    pub(crate) ingress: Option<Vec<Rule>>,
    pub(crate) egress: Option<Vec<Rule>>,
}

/// A rule of traffic that is let through: any of the peers on any of the ports; an empty list means all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rule {
    pub(crate) peers: Vec<Peer>,
    pub(crate) ports: Vec<Port>,
}

#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// Pods of the policy's namespace `ns`, or of the namespaces selected.
    Pods {
        ns: String,
        namespaces: Option<Selector>,
        pods: Selector,
    },
    Block {
        cidr: IpNet,
        except: Vec<IpNet>,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Port {
    Any(Protocol),
    Range(Protocol, u16, u16),
    Named(Protocol, String),
}

/// Reads the objects. `claims` are the truth about this node's addresses.
pub(crate) fn world(
    policies: &[Arc<NetworkPolicy>],
    pods: &[Arc<Facts>],
    namespaces: &[Arc<Namespace>],
    claims: &Claims,
    node: &str,
) -> World {
    let (pods, is_contested) = members(pods, claims, node);
    World {
        pods,
        is_contested,
        namespaces: namespaces
            .iter()
            .filter_map(|ns| Some((ns.metadata.name.clone()?, ns.metadata.labels.clone().unwrap_or_default())))
            .collect(),
        policies: policies.iter().filter_map(|policy| convert_policy(policy)).collect(),
    }
}

/// Gives each address one holder. What a sandbox of this node holds is its pod's, whatever objects say, until the
/// sandbox is gone: a pod that has ended by its status may have processes yet. All else is what statuses tell; of two
/// that tell the same the newer one has it, and the second value says that there are such.
pub(super) fn members(pods: &[Arc<Facts>], claims: &Claims, node: &str) -> (Vec<Pod>, bool) {
    let by_name: HashMap<(&str, &str), usize> =
        pods.iter().enumerate().map(|(at, pod)| ((pod.ns.as_str(), pod.name.as_str()), at)).collect();
    let mut held: HashMap<usize, Vec<IpAddr>> = HashMap::new();
    let mut taken: HashSet<IpAddr> = HashSet::new();
    let mut out = Vec::new();
    for claim in claims.all() {
        let at = by_name.get(&(claim.pod.ns.as_str(), claim.pod.name.as_str())).copied();
        let at = at.or_else(|| {
            claim.pod.ns.is_empty().then(|| pods.iter().position(|pod| pod.is(&claim.pod, node))).flatten()
        });
        if let Some(at) = at.filter(|at| pods[*at].is(&claim.pod, node)) {
            held.entry(at).or_default().extend(&claim.ips);
            taken.extend(&claim.ips);
            continue;
        }
        let unknown = || Arc::new(Facts { ns: claim.pod.ns.clone(), name: claim.pod.name.clone(), ..Facts::default() });
        let state = if claim.seen.is_some() { PodState::Gone } else { PodState::Unknown };
        let facts = claim.seen.clone().unwrap_or_else(unknown);
        out.push(Pod { facts, ips: claim.ips.clone(), local: true, state });
    }
    let mut newest: HashMap<IpAddr, usize> = HashMap::new();
    let mut is_contested = false;
    let waiting = pods.iter().enumerate().filter(|(at, pod)| !pod.over && !held.contains_key(at));
    for (at, ip) in
        waiting.flat_map(|(at, pod)| pod.told.iter().map(move |ip| (at, *ip))).filter(|(_, ip)| !taken.contains(ip))
    {
        let holder = newest.entry(ip).or_insert(at);
        is_contested |= *holder != at;
        if pods[*holder].age() < pods[at].age() {
            *holder = at;
        }
    }
    for (ip, at) in newest {
        held.entry(at).or_default().push(ip);
    }
    let mut known: Vec<(usize, Vec<IpAddr>)> = held.into_iter().collect();
    known.sort_unstable();
    // The known ones first: of an address that a sandbox without an object claims, too, a pod's own policies decide.
    let known = known.into_iter().map(|(at, mut ips)| {
        ips.sort_unstable();
        let facts = Arc::clone(&pods[at]);
        Pod { local: facts.node.as_deref() == Some(node), facts, ips, state: PodState::Known }
    });
    let mut all: Vec<Pod> = known.collect();
    all.append(&mut out);
    (all, is_contested)
}

impl Facts {
    /// Facts of the object; `None` for a pod on the host's network.
    pub(crate) fn of(pod: &ApiPod) -> Option<Facts> {
        let spec = pod.spec.as_ref()?;
        if spec.host_network == Some(true) {
            return None;
        }
        let containers = spec
            .containers
            .iter()
            .chain(spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always")));
        let ports = containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
            Some((
                port.name.clone()?,
                Protocol::parse(port.protocol.as_deref())?,
                u16::try_from(port.container_port).ok()?,
            ))
        });
        Some(Facts {
            ns: pod.metadata.namespace.clone().unwrap_or_default(),
            name: pod.metadata.name.clone().unwrap_or_default(),
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            static_uid: static_uid(pod),
            labels: pod.metadata.labels.clone().unwrap_or_default(),
            ports: ports.collect(),
            told: told(pod),
            node: spec.node_name.clone(),
            over: has_ended(pod),
            created: pod.metadata.creation_timestamp.clone(),
        })
    }

    /// Whether the runtime means this pod. Name and namespace are compared as well: whoever may write a pod's
    /// annotations must not make it another's.
    pub(crate) fn is(&self, told: &PodRef, node: &str) -> bool {
        let named = told.ns.is_empty() || (told.ns == self.ns && told.name == self.name);
        let uids = [Some(&self.uid), self.static_uid.as_ref()];
        named && self.node.as_deref() == Some(node) && uids.contains(&Some(&told.uid))
    }

    fn age(&self) -> (Option<&Time>, &str, &str) {
        (self.created.as_ref(), &self.ns, &self.name)
    }
}

/// The first address of each family: an earlier kubelet left a pod's former addresses behind it.
fn told(pod: &ApiPod) -> Vec<IpAddr> {
    let ips = pod
        .status
        .iter()
        .flat_map(|status| status.pod_ips.iter().flatten())
        .filter_map(|ip| ip.ip.parse::<IpAddr>().ok());
    let mut told: Vec<IpAddr> = Vec::new();
    for ip in ips {
        if !told.iter().any(|have| have.is_ipv4() == ip.is_ipv4()) {
            told.push(ip);
        }
    }
    told
}

/// A static pod's uid is in its mirror's annotation, which is believed only of what the kubelet of the pod's node made:
/// of others it is something that a user wrote.
fn static_uid(pod: &ApiPod) -> Option<String> {
    let annotations = pod.metadata.annotations.as_ref()?;
    let node = pod.spec.as_ref()?.node_name.as_deref()?;
    let owners = pod.metadata.owner_references.as_deref().unwrap_or_default();
    let of_its_node =
        owners.iter().any(|owner| owner.api_version == "v1" && owner.kind == "Node" && owner.name == node);
    let mirror = annotations.contains_key("kubernetes.io/config.mirror") && of_its_node;
    annotations.get("kubernetes.io/config.hash").filter(|_| mirror).cloned()
}

fn convert_policy(policy: &NetworkPolicy) -> Option<Policy> {
    let (ns, name) = (policy.metadata.namespace.clone()?, policy.metadata.name.clone()?);
    let of = NamespacedName { namespace: &ns, name: &name };
    let spec = policy.spec.as_ref()?;
    // The API server fills policyTypes in; an object that came another way is read by the same rule.
    let types = spec.policy_types.clone().filter(|types| !types.is_empty()).unwrap_or_else(|| {
        let egress = spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
        ["Ingress"].into_iter().chain(egress.then_some("Egress")).map(str::to_owned).collect()
    });
    let isolates = |direction: &str| types.iter().any(|kind| kind == direction);
    let pods = selector(spec.pod_selector.as_ref().unwrap_or(&LabelSelector::default()), of)?;
    let rules = spec.ingress.iter().flatten().map(|rule| (rule.from.as_deref(), rule.ports.as_deref()));
    let rules = rules.chain(spec.egress.iter().flatten().map(|rule| (rule.to.as_deref(), rule.ports.as_deref())));
    if rules.map(|(peers, ports)| 1 + weight(peers.unwrap_or_default(), ports.unwrap_or_default())).sum::<usize>()
        > RULES_OF_A_POLICY_MAX
    {
        warn!(
            ns,
            name,
            "a NetworkPolicy has more than {RULES_OF_A_POLICY_MAX} peers and named ports: it lets nothing through"
        );
        let nothing = |direction: &str| isolates(direction).then(Vec::new);
        return Some(Policy { pods, ingress: nothing("Ingress"), egress: nothing("Egress"), ns, name });
    }
    let ingress =
        spec.ingress.iter().flatten().map(|rule| convert_rule(rule.from.as_deref(), rule.ports.as_deref(), of));
    let egress = spec.egress.iter().flatten().map(|rule| convert_rule(rule.to.as_deref(), rule.ports.as_deref(), of));
    Some(Policy {
        pods,
        ingress: isolates("Ingress").then(|| ingress.flatten().collect()),
        egress: isolates("Egress").then(|| egress.flatten().collect()),
        ns,
        name,
    })
}

/// How many rules and sets of its own a rule of a policy wants.
fn weight(peers: &[NetworkPolicyPeer], ports: &[NetworkPolicyPort]) -> usize {
    let plain = |peer: &NetworkPolicyPeer| {
        peer.ip_block.as_ref().is_some_and(|block| block.except.as_ref().is_none_or(Vec::is_empty))
    };
    let named = |port: &&NetworkPolicyPort| matches!(port.port, Some(IntOrString::String(_)));
    peers.iter().filter(|peer| !plain(peer)).count() + ports.iter().filter(named).count()
}

/// A rule none of whose peers or ports can be read lets nothing through, as an empty list would let all through.
fn convert_rule(
    peers: Option<&[NetworkPolicyPeer]>,
    ports: Option<&[NetworkPolicyPort]>,
    policy: NamespacedName<'_>,
) -> Option<Rule> {
    let (peers, ports) = (peers.unwrap_or_default(), ports.unwrap_or_default());
    let rule = Rule {
        peers: peers.iter().filter_map(|peer| convert_peer(peer, policy)).collect(),
        ports: ports.iter().filter_map(convert_port).collect(),
    };
    let empties = rule.peers.is_empty() != peers.is_empty() || rule.ports.is_empty() != ports.is_empty();
    (!empties).then_some(rule)
}

fn convert_peer(peer: &NetworkPolicyPeer, policy: NamespacedName<'_>) -> Option<Peer> {
    if let Some(IPBlock { cidr, except }) = &peer.ip_block {
        let except =
            except.iter().flatten().filter_map(|cidr| cidr.parse::<IpNet>().ok()).map(|net| net.trunc()).collect();
        return Some(Peer::Block { cidr: cidr.parse::<IpNet>().ok()?.trunc(), except });
    }
    let namespaces = match &peer.namespace_selector {
        Some(given) => Some(selector(given, policy)?),
        None => None,
    };
    let pods = selector(peer.pod_selector.as_ref().unwrap_or(&LabelSelector::default()), policy)?;
    Some(Peer::Pods { ns: policy.namespace.to_owned(), namespaces, pods })
}

fn convert_port(port: &NetworkPolicyPort) -> Option<Port> {
    let protocol = Protocol::parse(port.protocol.as_deref())?;
    Some(match &port.port {
        None => Port::Any(protocol),
        Some(IntOrString::String(name)) => Port::Named(protocol, name.clone()),
        Some(IntOrString::Int(from)) => {
            let from = u16::try_from(*from).ok()?;
            Port::Range(protocol, from, port.end_port.map_or(Some(from), |end| u16::try_from(end).ok())?)
        }
    })
}

fn selector(given: &LabelSelector, policy: NamespacedName<'_>) -> Option<Selector> {
    match Selector::try_from(given.clone()) {
        Ok(selector) => Some(selector),
        Err(err) => {
            let NamespacedName { namespace, name } = policy;
            warn!(ns = namespace, name, err = %err, "a selector of a NetworkPolicy cannot be read: it selects nothing");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::claims::Claim;
    use serde_json::json;

    fn policy(spec: serde_json::Value) -> Policy {
        convert_policy(
            &serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "a" }, "spec": spec })).unwrap(),
        )
        .unwrap()
    }

    #[test]
    fn directions_are_those_of_policy_types() {
        let default = policy(json!({ "podSelector": {} }));
        assert!(default.ingress.is_some_and(|rules| rules.is_empty()) && default.egress.is_none());
        let with_egress = policy(json!({ "podSelector": {}, "egress": [{}] }));
        assert!(with_egress.ingress.is_some() && with_egress.egress.is_some_and(|rules| rules.len() == 1));
        let only = policy(json!({ "podSelector": {}, "policyTypes": ["Egress"], "ingress": [{}] }));
        assert!(only.ingress.is_none() && only.egress.is_some());
    }

    #[test]
    fn a_policy_of_too_many_rules_isolates_and_lets_nothing_through() {
        let ports = |n: usize| (0..n).map(|n| json!({ "port": format!("p{n}") })).collect::<Vec<_>>();
        let of = |n: usize| {
            policy(json!({ "podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{ "ports": ports(n) }] }))
        };
        assert_eq!(of(4000).ingress.unwrap().len(), 1);
        let big = of(5000);
        assert!(big.ingress.is_some_and(|rules| rules.is_empty()) && big.egress.is_none());
    }

    #[test]
    fn a_rule_that_cannot_be_read_lets_nothing_through() {
        let odd =
            policy(json!({ "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": { "cidr": "nonsense" } }] }] }));
        assert!(odd.ingress.unwrap().is_empty());
    }

    const NODE: &str = "n";

    /// A pod of namespace `ns` with what `more` puts over it.
    fn facts(ns: &str, name: &str, more: serde_json::Value) -> Option<Arc<Facts>> {
        let mut pod = json!({ "metadata": { "name": name, "namespace": ns, "uid": format!("uid-{name}") },
            "spec": { "containers": [], "nodeName": NODE },
            "status": { "phase": "Running", "podIPs": [{ "ip": "10.42.0.5" }] } });
        for (part, fields) in more.as_object().unwrap() {
            pod[part].as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        }
        Facts::of(&serde_json::from_value::<ApiPod>(pod).unwrap()).map(Arc::new)
    }

    fn claims(held: &[(&str, &str, &str, &str)]) -> Claims {
        let mut claims = Claims::default();
        for (ns, name, uid, ip) in held {
            let pod = PodRef { ns: (*ns).into(), name: (*name).into(), uid: (*uid).into() };
            let claim = Claim { pod, ips: vec![ip.parse().unwrap()], ..Claim::default() };
            claims.add(&format!("{ns}-{name}-{uid}"), claim).unwrap();
        }
        claims
    }

    /// Addresses with their pods, and how these stand.
    fn held(pods: &[Option<Arc<Facts>>], claims: &Claims) -> Vec<String> {
        let pods: Vec<Arc<Facts>> = pods.iter().flatten().cloned().collect();
        let text =
            |pod: Pod| format!("{}/{} {:?} {:?} {}", pod.facts.ns, pod.facts.name, pod.ips, pod.state, pod.local);
        members(&pods, claims, NODE).0.into_iter().map(text).collect()
    }

    #[test]
    fn an_annotation_of_a_pod_takes_no_address_from_it_and_gives_it_none() {
        let hash = |uid: &str| json!({ "metadata": { "annotations": { "kubernetes.io/config.hash": uid } } });
        let truth = claims(&[("a", "p", "uid-p", "10.42.0.5"), ("b", "victim", "uid-victim", "10.42.0.6")]);
        // An uid that nobody has, and a neighbour's.
        for stolen in ["x", "uid-victim"] {
            let now = held(&[facts("a", "p", hash(stolen)), facts("b", "victim", json!({}))], &truth);
            assert_eq!(now, ["a/p [10.42.0.5] Known true", "b/victim [10.42.0.6] Known true"]);
        }
        // Dressed up as a mirror: the name is not the sandbox's.
        let mut mirror = hash("uid-victim");
        mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = json!("x");
        mirror["metadata"]["ownerReferences"] =
            json!([{ "apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "n" }]);
        mirror["status"] = json!({ "podIPs": [] });
        let now = held(&[facts("a", "q", mirror), facts("b", "victim", json!({}))], &truth);
        assert!(
            now.contains(&"b/victim [10.42.0.6] Known true".to_owned())
                && !now.iter().any(|pod| pod.starts_with("a/q")),
            "{now:?}"
        );
    }

    #[test]
    fn a_mirror_of_this_nodes_kubelet_has_its_static_pods_addresses() {
        let mirror = json!({ "metadata": { "annotations": { "kubernetes.io/config.hash": "h",
            "kubernetes.io/config.mirror": "h" },
            "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "n" }] } });
        let truth = claims(&[("a", "p", "h", "10.42.0.9")]);
        assert_eq!(held(&[facts("a", "p", mirror.clone())], &truth), ["a/p [10.42.0.9] Known true"]);
        let mut others = mirror;
        others["metadata"]["ownerReferences"] = json!([]);
        // Not the kubelet's: its own status is isolated, and so is what the sandbox holds.
        assert_eq!(
            held(&[facts("a", "p", others)], &truth),
            ["a/p [10.42.0.5] Known true", "a/p [10.42.0.9] Unknown true"]
        );
    }

    #[test]
    fn a_pod_keeps_its_policies_until_its_sandbox_is_gone() {
        let failed = json!({ "status": { "phase": "Failed" } });
        let mut truth = claims(&[("a", "p", "uid-p", "10.42.0.5")]);
        assert_eq!(held(&[facts("a", "p", failed.clone())], &truth), ["a/p [10.42.0.5] Known true"]);
        let seen = facts("a", "p", json!({})).unwrap();
        truth.note(|_| Some(Arc::clone(&seen)));
        assert_eq!(held(&[], &truth), ["a/p [10.42.0.5] Gone true"], "deleted by force");
        truth.remove("a-p-uid-p").unwrap();
        assert!(held(&[facts("a", "p", failed)], &truth).is_empty());
        assert!(facts("a", "p", json!({ "spec": { "hostNetwork": true } })).is_none());
    }

    #[test]
    fn an_address_that_two_tell_is_the_newer_ones_and_former_addresses_are_nobodys() {
        let on = |node: &str, created: &str, ips: serde_json::Value| {
            json!({ "metadata": { "creationTimestamp": created }, "spec": { "nodeName": node },
                "status": { "podIPs": ips } })
        };
        let old =
            on("m", "2026-01-01T00:00:00Z", json!([{ "ip": "10.42.1.9" }, { "ip": "10.42.1.5" }, { "ip": "fd42::9" }]));
        let new = on("m", "2026-01-02T00:00:00Z", json!([{ "ip": "10.42.1.9" }]));
        let now = held(&[facts("a", "old", old), facts("b", "new", new)], &Claims::default());
        assert_eq!(now, ["a/old [fd42::9] Known false", "b/new [10.42.1.9] Known false"]);
    }
}
