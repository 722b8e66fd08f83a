//! What policies say and what they are about, taken out of the API objects: the pure form that rules are made from.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use client::pod::Pod as ApiPod;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::networking::v1::{IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::Selector;
use tracing::warn;

use crate::policy::claims::Claims;
use crate::service::snapshot::Protocol;

pub(crate) type Labels = BTreeMap<String, String>;

/// Everything that rules depend on.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) pods: Vec<Pod>,
    pub(crate) namespaces: BTreeMap<String, Labels>,
    pub(crate) policies: Vec<Policy>,
}

/// A pod with a network of its own. (One on the host's network is the node, which no policy touches.)
#[derive(Clone, Debug, Default)]
pub(crate) struct Pod {
    pub(crate) ns: String,
    pub(crate) labels: Labels,
    pub(crate) ips: Vec<IpAddr>,
    /// Container ports that have names.
    pub(crate) ports: Vec<(String, Protocol, u16)>,
    /// On this node.
    pub(crate) local: bool,
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

/// What is let through: any of the peers on any of the ports; an empty list means all.
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

/// Reads the objects. `claims` knows addresses that status does not tell yet.
pub(crate) fn world(
    policies: &[Arc<NetworkPolicy>],
    pods: &[Arc<ApiPod>],
    namespaces: &[Arc<Namespace>],
    claims: &Claims,
    node: &str,
) -> World {
    World {
        pods: pods.iter().filter_map(|pod| convert_pod(pod, claims, node)).collect(),
        namespaces: namespaces
            .iter()
            .filter_map(|ns| Some((ns.metadata.name.clone()?, ns.metadata.labels.clone().unwrap_or_default())))
            .collect(),
        policies: policies.iter().filter_map(|policy| convert_policy(policy)).collect(),
    }
}

fn convert_pod(pod: &ApiPod, claims: &Claims, node: &str) -> Option<Pod> {
    let (spec, status) = (pod.spec.as_ref()?, pod.status.as_ref());
    let over = matches!(status.and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"));
    if spec.host_network == Some(true) {
        return None;
    }
    let local = spec.node_name.as_deref() == Some(node);
    let uid = uid_on_node(pod);
    let mut ips = if local { claims.of_pod(uid) } else { Vec::new() };
    // A phase is a word of the API. An address that this node still keeps for the pod may have processes behind it.
    if over && ips.is_empty() {
        return None;
    }
    if ips.is_empty() {
        let told = status.and_then(|s| s.pod_ips.as_ref()).into_iter().flatten().filter_map(|ip| ip.ip.parse().ok());
        // An address that was given to another pod since is that one's.
        ips = told.filter(|ip| !local || !claims.is_anothers(ip, uid)).collect();
    }
    let containers =
        spec.containers.iter().chain(spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always")));
    let ports = containers.flat_map(|container| container.ports.iter().flatten()).filter_map(|port| {
        Some((port.name.clone()?, Protocol::parse(port.protocol.as_deref())?, u16::try_from(port.container_port).ok()?))
    });
    Some(Pod {
        ns: pod.metadata.namespace.clone().unwrap_or_default(),
        labels: pod.metadata.labels.clone().unwrap_or_default(),
        ports: ports.collect(),
        ips,
        local,
    })
}

/// The uid under which the runtime knows the pod: a static pod's is in its mirror's annotation.
pub(crate) fn uid_on_node(pod: &ApiPod) -> &str {
    let mirror = pod.metadata.annotations.as_ref().and_then(|a| a.get("kubernetes.io/config.hash"));
    mirror.or(pod.metadata.uid.as_ref()).map(String::as_str).unwrap_or_default()
}

/// Whether a change of a pod can change rules; most changes of status cannot.
pub(crate) fn matters(old: &ApiPod, new: &ApiPod) -> bool {
    let facts = |pod: &ApiPod| {
        let status = pod.status.clone().unwrap_or_default();
        let ended = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        (pod.metadata.labels.clone(), pod.metadata.uid.clone(), status.pod_ips, ended, pod.spec.as_ref().and_then(|s| s.node_name.clone()))
    };
    facts(old) != facts(new)
}

fn convert_policy(policy: &NetworkPolicy) -> Option<Policy> {
    let (ns, name) = (policy.metadata.namespace.clone()?, policy.metadata.name.clone()?);
    let spec = policy.spec.as_ref()?;
    // The API server fills policyTypes in; an object that came another way is read by the same rule.
    let types = spec.policy_types.clone().filter(|types| !types.is_empty()).unwrap_or_else(|| {
        let egress = spec.egress.as_ref().is_some_and(|rules| !rules.is_empty());
        ["Ingress"].into_iter().chain(egress.then_some("Egress")).map(str::to_owned).collect()
    });
    let isolates = |direction: &str| types.iter().any(|kind| kind == direction);
    let pods = selector(spec.pod_selector.as_ref().unwrap_or(&LabelSelector::default()), &ns, &name)?;
    let ingress = spec.ingress.iter().flatten().map(|rule| convert_rule(rule.from.as_deref(), rule.ports.as_deref(), &ns, &name));
    let egress = spec.egress.iter().flatten().map(|rule| convert_rule(rule.to.as_deref(), rule.ports.as_deref(), &ns, &name));
    Some(Policy {
        pods,
        ingress: isolates("Ingress").then(|| ingress.flatten().collect()),
        egress: isolates("Egress").then(|| egress.flatten().collect()),
        ns,
        name,
    })
}

/// A rule none of whose peers or ports can be read lets nothing through, as an empty list would let all through.
fn convert_rule(peers: Option<&[NetworkPolicyPeer]>, ports: Option<&[NetworkPolicyPort]>, ns: &str, name: &str) -> Option<Rule> {
    let (peers, ports) = (peers.unwrap_or_default(), ports.unwrap_or_default());
    let rule = Rule {
        peers: peers.iter().filter_map(|peer| convert_peer(peer, ns, name)).collect(),
        ports: ports.iter().filter_map(convert_port).collect(),
    };
    let empties = rule.peers.is_empty() != peers.is_empty() || rule.ports.is_empty() != ports.is_empty();
    (!empties).then_some(rule)
}

fn convert_peer(peer: &NetworkPolicyPeer, ns: &str, name: &str) -> Option<Peer> {
    if let Some(IPBlock { cidr, except }) = &peer.ip_block {
        let except = except.iter().flatten().filter_map(|cidr| cidr.parse::<IpNet>().ok()).map(|net| net.trunc()).collect();
        return Some(Peer::Block { cidr: cidr.parse::<IpNet>().ok()?.trunc(), except });
    }
    let namespaces = match &peer.namespace_selector {
        Some(given) => Some(selector(given, ns, name)?),
        None => None,
    };
    let pods = selector(peer.pod_selector.as_ref().unwrap_or(&LabelSelector::default()), ns, name)?;
    Some(Peer::Pods { ns: ns.to_owned(), namespaces, pods })
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

fn selector(given: &LabelSelector, ns: &str, name: &str) -> Option<Selector> {
    match Selector::try_from(given.clone()) {
        Ok(selector) => Some(selector),
        Err(err) => {
            warn!(ns, name, err = %err, "a selector of a NetworkPolicy cannot be read: it selects nothing");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn policy(spec: serde_json::Value) -> Policy {
        convert_policy(&serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "a" }, "spec": spec })).unwrap()).unwrap()
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
    fn a_rule_that_cannot_be_read_lets_nothing_through() {
        let odd = policy(json!({ "podSelector": {}, "ingress": [{ "from": [{ "ipBlock": { "cidr": "nonsense" } }] }] }));
        assert!(odd.ingress.unwrap().is_empty());
    }

    #[test]
    fn a_pod_on_the_host_network_or_at_its_end_is_no_pod_here() {
        let pod = |spec: serde_json::Value, phase: &str| -> ApiPod {
            serde_json::from_value(json!({ "metadata": { "name": "p", "namespace": "a", "uid": "u" }, "spec": spec,
                "status": { "phase": phase, "podIPs": [{ "ip": "10.42.0.5" }] } }))
            .unwrap()
        };
        let plain = json!({ "containers": [], "nodeName": "n" });
        let claims = Claims::default();
        assert!(convert_pod(&pod(plain.clone(), "Running"), &claims, "n").unwrap().local);
        assert!(convert_pod(&pod(plain, "Succeeded"), &claims, "n").is_none());
        assert!(convert_pod(&pod(json!({ "containers": [], "hostNetwork": true }), "Running"), &claims, "n").is_none());
    }
}
