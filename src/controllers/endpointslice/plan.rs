//! Which addresses a Service has, and in which slices they stand. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use client::services::SERVICE_NAME;
use k8s_openapi::api::core::v1::{Node, ObjectReference, Service};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForNode, ForZone,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::ResourceExt as _;
use model::owners;
use model::phase;
use model::pod::Pod;

use super::topology;

/// Endpoints in one slice (upstream's default for `--max-endpoints-per-slice`).
const SLICE_ENDPOINTS_MAX: usize = 100;
/// The label that says who looks after a slice, and our name there, which is upstream's.
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpointslice-controller.k8s.io";
const HEADLESS: &str = "service.kubernetes.io/headless";

/// Work to do on the slices of one Service.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Slices to make.
    pub(super) create: Vec<EndpointSlice>,
    /// Slices to replace.
    pub(super) update: Vec<EndpointSlice>,
    /// Slices to delete.
    pub(super) delete: Vec<String>,
}

/// Ports of a slice; slices are grouped by them, as pods may resolve a named port differently.
type Ports = Vec<(Option<String>, String, i32, Option<String>)>;

/// Whether the Service has no cluster address.
pub(super) fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|s| s.cluster_ip.as_deref()) == Some("None")
}

/// The number of a target port in one pod; `None` if the pod has no port of that name.
pub(super) fn target_port(port: &k8s_openapi::api::core::v1::ServicePort, pod: &Pod) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(number)) => Some(if *number == 0 { port.port } else { *number }),
        Some(IntOrString::String(name)) => {
            let spec = pod.spec.as_ref()?;
            let sidecars =
                spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
            let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            ports
                .filter(|p| p.name.as_deref() == Some(name) && p.protocol.as_deref().unwrap_or("TCP") == protocol)
                .map(|p| p.container_port)
                .next()
        }
    }
}

fn ports_of(service: &Service, pod: &Pod) -> Ports {
    let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
    ports
        .filter_map(|port| {
            let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
            Some((
                Some(port.name.clone().unwrap_or_default()),
                protocol,
                target_port(port, pod)?,
                port.app_protocol.clone(),
            ))
        })
        .collect()
}

/// The pod's addresses of one family.
fn addresses(pod: &Pod, family: &str) -> Vec<String> {
    let status = pod.status.as_ref();
    let mut ips: Vec<String> = status.iter().flat_map(|s| s.pod_ips.iter().flatten()).map(|ip| ip.ip.clone()).collect();
    if ips.is_empty() {
        ips.extend(status.and_then(|s| s.pod_ip.clone()));
    }
    ips.into_iter().filter(|ip| ip.contains(':') == (family == "IPv6")).take(1).collect()
}

/// Whether a pod belongs into the slices of a Service that selects it.
pub(super) fn is_listed(pod: &Pod) -> bool {
    !phase::has_ended(pod)
}

/// Facts of an address about its pod, in either form.
pub(super) struct About {
    pub(super) hostname: Option<String>,
    pub(super) node_name: Option<String>,
    pub(super) target_ref: ObjectReference,
}

/// Any Service that the pod names as its subdomain publishes its host name, headless or not, as upstream does.
pub(super) fn about(service: &Service, pod: &Pod) -> About {
    let spec = pod.spec.as_ref();
    let in_subdomain = spec.and_then(|s| s.subdomain.as_deref()) == service.metadata.name.as_deref();
    About {
        hostname: spec.and_then(|s| s.hostname.clone()).filter(|h| in_subdomain && !h.is_empty()),
        node_name: spec.and_then(|s| s.node_name.clone()).filter(|n| !n.is_empty()),
        target_ref: ObjectReference {
            kind: Some("Pod".to_owned()),
            namespace: pod.namespace(),
            name: Some(pod.name_any()),
            uid: pod.uid(),
            ..ObjectReference::default()
        },
    }
}

fn endpoint(service: &Service, pod: &Pod, family: &str, nodes: &BTreeMap<String, Arc<Node>>) -> Option<Endpoint> {
    let addresses = addresses(pod, family);
    if addresses.is_empty() || !is_listed(pod) {
        return None;
    }
    let about = about(service, pod);
    let publish_all = service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses).unwrap_or(false);
    let serving = publish_all || phase::is_ready(pod);
    let terminating = pod.metadata.deletion_timestamp.is_some();
    let zone = about
        .node_name
        .as_ref()
        .and_then(|n| nodes.get(n))
        .and_then(|n| n.labels().get("topology.kubernetes.io/zone").cloned());
    let ready = publish_all || serving && !terminating;
    Some(Endpoint {
        addresses,
        hints: if ready { hints(service, about.node_name.as_deref(), zone.as_deref()) } else { None },
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: about.hostname,
        node_name: about.node_name,
        target_ref: Some(about.target_ref),
        zone,
        ..Endpoint::default()
    })
}

/// Clients that should prefer an endpoint, by the Service's `trafficDistribution`: those of its own node, or zone.
fn hints(service: &Service, node: Option<&str>, zone: Option<&str>) -> Option<EndpointHints> {
    let wish = service.spec.as_ref()?.traffic_distribution.as_deref()?;
    let for_zones = zone.map(|zone| vec![ForZone { name: zone.to_owned() }]);
    let hints = match wish {
        "PreferClose" | "PreferSameZone" => EndpointHints { for_zones, for_nodes: None },
        "PreferSameNode" => {
            EndpointHints { for_zones, for_nodes: node.map(|node| vec![ForNode { name: node.to_owned() }]) }
        }
        _ => return None,
    };
    (hints.for_zones.is_some() || hints.for_nodes.is_some()).then_some(hints)
}

fn families(service: &Service) -> Vec<String> {
    let families = service.spec.as_ref().and_then(|s| s.ip_families.clone()).unwrap_or_default();
    if families.is_empty() { vec!["IPv4".to_owned()] } else { families }
}

/// The labels of every slice of the Service.
fn labels(service: &Service) -> BTreeMap<String, String> {
    let mut labels = service.labels().clone();
    labels.insert(SERVICE_NAME.to_owned(), service.name_any());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    if is_headless(service) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels
}

/// Compares the slices that exist with the pods that the Service selects.
pub(super) fn plan(
    service: &Service,
    pods: &[Arc<Pod>],
    nodes: &BTreeMap<String, Arc<Node>>,
    existing: &[Arc<EndpointSlice>],
) -> Plan {
    let mut plan = Plan::default();
    let mut kept = BTreeSet::new();
    for family in families(service) {
        let mut groups: BTreeMap<Ports, Vec<Endpoint>> = BTreeMap::new();
        for pod in pods {
            if let Some(endpoint) = endpoint(service, pod, &family, nodes) {
                groups.entry(ports_of(service, pod)).or_default().push(endpoint);
            }
        }
        if topology::is_auto(service) {
            topology::hint(&mut groups.values_mut().flatten().collect::<Vec<_>>(), nodes);
        }
        if groups.is_empty() {
            // A placeholder shows watchers that the Service was looked at and has nobody.
            groups.insert(Ports::new(), Vec::new());
        }
        for (ports, endpoints) in groups {
            plan_group(service, &family, &ports, endpoints, existing, &mut kept, &mut plan);
        }
    }
    let surplus = existing.iter().map(|slice| slice.name_any()).filter(|name| !kept.contains(name));
    plan.delete.extend(surplus);
    plan
}

/// Fills the slices that have these ports already, in name order, and makes more as needed. An endpoint stays in its
/// slice.
fn plan_group(
    service: &Service,
    family: &str,
    ports: &Ports,
    endpoints: Vec<Endpoint>,
    existing: &[Arc<EndpointSlice>],
    kept: &mut BTreeSet<String>,
    plan: &mut Plan,
) {
    let usable = existing
        .iter()
        .filter(|slice| slice.address_type == family && same_ports(slice, ports) && !kept.contains(&slice.name_any()));
    let mut slices: Vec<&Arc<EndpointSlice>> = usable.collect();
    slices.sort_by_key(|slice| slice.name_any());
    let mut left: BTreeMap<Identity, Endpoint> = endpoints.into_iter().map(|e| (identity(&e), e)).collect();
    let mut filled: Vec<(Option<&Arc<EndpointSlice>>, Vec<Endpoint>)> = slices
        .into_iter()
        .map(|slice| {
            (Some(slice), slice.endpoints.iter().flatten().filter_map(|e| left.remove(&identity(e))).collect())
        })
        .collect();
    let mut rest = left.into_values();
    for (_, stay) in &mut filled {
        let room = SLICE_ENDPOINTS_MAX.saturating_sub(stay.len());
        stay.extend(rest.by_ref().take(room));
    }
    let rest: Vec<Endpoint> = rest.collect();
    filled.extend(rest.chunks(SLICE_ENDPOINTS_MAX).map(|chunk| (None, chunk.to_vec())));
    // Empty slices go, but one placeholder stays.
    let all_empty = filled.iter().all(|(_, endpoints)| endpoints.is_empty());
    if filled.is_empty() {
        filled.push((None, Vec::new()));
    }
    for (idx, (slice, endpoints)) in filled.into_iter().enumerate() {
        if endpoints.is_empty() && !(all_empty && idx == 0) {
            continue;
        }
        let fresh = new_slice(service, family, ports, endpoints);
        match slice {
            None => plan.create.push(fresh),
            Some(old) => {
                kept.insert(old.name_any());
                let mut updated = (**old).clone();
                updated.metadata.labels = fresh.metadata.labels;
                updated.endpoints = fresh.endpoints;
                if updated != **old {
                    plan.update.push(updated);
                }
            }
        }
    }
}

/// Key that tells endpoints apart: pods on their node's network share its address.
type Identity = (Vec<String>, Option<String>);

fn identity(endpoint: &Endpoint) -> Identity {
    (endpoint.addresses.clone(), endpoint.target_ref.as_ref().and_then(|of| of.uid.clone()))
}

fn slice_ports(ports: &Ports) -> Vec<EndpointPort> {
    let one = |(name, protocol, port, app_protocol): &(Option<String>, String, i32, Option<String>)| EndpointPort {
        name: name.clone(),
        protocol: Some(protocol.clone()),
        port: Some(*port),
        app_protocol: app_protocol.clone(),
    };
    ports.iter().map(one).collect()
}

fn same_ports(slice: &EndpointSlice, ports: &Ports) -> bool {
    slice.ports.clone().unwrap_or_default() == slice_ports(ports)
}

fn new_slice(service: &Service, family: &str, ports: &Ports, endpoints: Vec<Endpoint>) -> EndpointSlice {
    let mut slice = EndpointSlice { address_type: family.to_owned(), ..EndpointSlice::default() };
    slice.metadata.generate_name = Some(format!("{}-", service.name_any()));
    slice.metadata.namespace = service.namespace();
    slice.metadata.labels = Some(labels(service));
    slice.metadata.owner_references = Some(vec![owners::reference_to(service)]);
    slice.ports = Some(slice_ports(ports)).filter(|ports| !ports.is_empty());
    slice.endpoints = Some(endpoints).filter(|endpoints| !endpoints.is_empty());
    slice
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn service() -> Service {
        serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "default", "uid": "s"},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}],
                "ipFamilies": ["IPv4"]},
        }))
        .unwrap()
    }

    fn pod(name: &str, ip: &str, ready: &str, port: i32) -> Arc<Pod> {
        Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": name, "namespace": "default", "uid": name},
                "spec": {"nodeName": "n", "containers": [{"name": "c", "ports": [{"name": "web",
                    "containerPort": port}]}]},
                "status": {"phase": "Running", "podIPs": [{"ip": ip}], "conditions": [{"type": "Ready",
                    "status": ready}]},
            }))
            .unwrap(),
        )
    }

    fn existing(mut slice: EndpointSlice, name: &str) -> Arc<EndpointSlice> {
        slice.metadata.name = Some(name.to_owned());
        Arc::new(slice)
    }

    #[test]
    fn pods_that_resolve_a_named_port_differently_get_slices_of_their_own() {
        let pods = [pod("a", "10.0.0.1", "True", 8080), pod("b", "10.0.0.2", "False", 9090)];
        let plan = plan(&service(), &pods, &BTreeMap::new(), &[]);
        let ports: Vec<_> = plan.create.iter().map(|s| s.ports.as_ref().unwrap()[0].port.unwrap()).collect();
        assert_eq!(ports, [8080, 9090]);
        let ready: Vec<_> =
            plan.create.iter().map(|s| s.endpoints.as_ref().unwrap()[0].conditions.as_ref().unwrap().ready).collect();
        assert_eq!(ready, [Some(true), Some(false)]);
    }

    #[test]
    fn what_is_right_already_is_left_alone() {
        let pods = [pod("a", "10.0.0.1", "True", 8080)];
        let slice = existing(plan(&service(), &pods, &BTreeMap::new(), &[]).create.remove(0), "web-1");
        let again = plan(&service(), &pods, &BTreeMap::new(), &[Arc::clone(&slice)]);
        assert!(again.create.is_empty() && again.update.is_empty() && again.delete.is_empty(), "{again:?}");
        let more = [pods[0].clone(), pod("b", "10.0.0.2", "True", 8080)];
        assert_eq!(plan(&service(), &more, &BTreeMap::new(), &[slice]).update[0].endpoints.as_ref().unwrap().len(), 2);
    }

    #[test]
    fn nobody_left_leaves_one_placeholder() {
        let slice = existing(
            plan(&service(), &[pod("a", "10.0.0.1", "True", 8080)], &BTreeMap::new(), &[]).create.remove(0),
            "web-1",
        );
        let plan = plan(&service(), &[], &BTreeMap::new(), &[slice]);
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (1, 0, 1));
        assert!(plan.create[0].endpoints.is_none());
    }

    #[test]
    fn more_pods_than_a_slice_holds_get_another_slice() {
        let pods: Vec<_> = (0..150)
            .map(|i| pod(&format!("p{i}"), &format!("10.0.{}.{}", i / 250, i % 250 + 1), "True", 8080))
            .collect();
        let sizes: Vec<_> = plan(&service(), &pods, &BTreeMap::new(), &[])
            .create
            .iter()
            .map(|s| s.endpoints.as_ref().unwrap().len())
            .collect();
        assert_eq!(sizes, [100, 50]);
    }

    // The one that was not ready hid the other. Upstream tells endpoints apart by their pods, too (`endpointset`,
    // 1.36.2).
    #[test]
    fn pods_that_share_the_address_of_their_node_are_all_listed() {
        let pods = [pod("a", "10.0.0.1", "True", 8080), pod("b", "10.0.0.1", "False", 8080)];
        let slice = existing(plan(&service(), &pods, &BTreeMap::new(), &[]).create.remove(0), "web-1");
        let mut ready: Vec<_> =
            slice.endpoints.iter().flatten().map(|endpoint| endpoint.conditions.as_ref().unwrap().ready).collect();
        ready.sort_unstable();
        assert_eq!(ready, [Some(false), Some(true)]);
        let again = plan(&service(), &pods, &BTreeMap::new(), &[slice]);
        assert!(again.create.is_empty() && again.update.is_empty() && again.delete.is_empty(), "{again:?}");
    }

    // Upstream's table: `TestReconcile_TrafficDistribution` (endpointslice/reconciler_test.go, 1.36.2).
    #[test]
    fn the_traffic_distribution_of_a_service_gives_hints_to_what_is_ready() {
        let zones =
            |hints: &EndpointHints| hints.for_zones.iter().flatten().map(|z| z.name.clone()).collect::<Vec<_>>();
        let names =
            |hints: &EndpointHints| hints.for_nodes.iter().flatten().map(|n| n.name.clone()).collect::<Vec<_>>();
        let with = |wish: &str| {
            let mut service = service();
            service.spec.as_mut().unwrap().traffic_distribution = Some(wish.to_owned());
            service
        };
        for (wish, zone, for_zones, for_nodes) in [
            ("PreferClose", Some("z"), &["z"][..], &[][..]),
            ("PreferSameZone", Some("z"), &["z"], &[]),
            ("PreferSameNode", Some("z"), &["z"], &["n"]),
            ("PreferSameNode", None, &[], &["n"]),
        ] {
            let hints = hints(&with(wish), Some("n"), zone).unwrap();
            assert_eq!(
                (zones(&hints), names(&hints)),
                (
                    for_zones.iter().map(|s| (*s).to_owned()).collect(),
                    for_nodes.iter().map(|s| (*s).to_owned()).collect()
                ),
                "{wish}"
            );
        }
        assert_eq!(hints(&with("PreferClose"), Some("n"), None), None, "a node of no zone");
        assert_eq!(hints(&with("Odd"), Some("n"), Some("z")), None);
        assert_eq!(hints(&service(), Some("n"), Some("z")), None);
        let (node, unready) =
            (json!({"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "z"}}}), "False");
        let nodes = BTreeMap::from([("n".to_owned(), Arc::new(serde_json::from_value(node).unwrap()))]);
        let listed = endpoint(&with("PreferClose"), &pod("a", "10.0.0.1", unready, 8080), "IPv4", &nodes).unwrap();
        assert_eq!((listed.zone.as_deref(), listed.hints), (Some("z"), None));
    }

    #[test]
    fn a_target_port_is_a_number_or_the_name_of_a_port_of_the_protocol() {
        let of = |port: serde_json::Value| {
            let dns = json!({"name": "dns", "containerPort": 53, "protocol": "UDP"});
            let ports = json!([{"name": "web", "containerPort": 8080}, dns]);
            let sidecar =
                json!({"name": "s", "restartPolicy": "Always", "ports": [{"name": "proxy", "containerPort": 15001}]});
            let once = json!({"name": "i", "ports": [{"name": "init", "containerPort": 1}]});
            let spec = json!({"containers": [{"name": "c", "ports": ports}], "initContainers": [sidecar, once]});
            let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
            target_port(&serde_json::from_value(port).unwrap(), &pod)
        };
        assert_eq!(of(json!({"port": 80})), Some(80));
        assert_eq!(of(json!({"port": 80, "targetPort": 0})), Some(80));
        assert_eq!(of(json!({"port": 80, "targetPort": 9090})), Some(9090));
        assert_eq!(of(json!({"port": 80, "targetPort": "web"})), Some(8080));
        assert_eq!(of(json!({"port": 53, "targetPort": "dns"})), None, "that is a port of UDP");
        assert_eq!(of(json!({"port": 53, "targetPort": "dns", "protocol": "UDP"})), Some(53));
        assert_eq!(of(json!({"port": 80, "targetPort": "proxy"})), Some(15001), "of a sidecar");
        assert_eq!(of(json!({"port": 80, "targetPort": "init"})), None, "it ends before the pod serves");
    }
}
