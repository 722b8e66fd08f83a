//! The older form: one Endpoints object a Service, for clients that still read it. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Service};
use kube::ResourceExt as _;
use model::phase;
use model::pod::Pod;

use super::plan;

/// Addresses that one object may hold (upstream's `maxCapacity`).
const ADDRESSES_MAX: usize = 1000;
/// Marks an object that another controller may mirror; ours are not.
pub(super) const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";

fn address(service: &Service, pod: &Pod) -> Option<EndpointAddress> {
    let ip = pod.status.as_ref()?.pod_ip.clone()?;
    let about = plan::about(service, pod);
    Some(EndpointAddress {
        ip,
        hostname: about.hostname,
        node_name: about.node_name,
        target_ref: Some(about.target_ref),
    })
}

fn ports(service: &Service, pod: &Pod) -> Vec<EndpointPort> {
    let ports = service.spec.iter().flat_map(|s| s.ports.iter().flatten());
    ports
        .filter_map(|port| {
            Some(EndpointPort {
                name: port.name.clone().filter(|n| !n.is_empty()),
                port: plan::target_port(port, pod)?,
                protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
                app_protocol: port.app_protocol.clone(),
            })
        })
        .collect()
}

/// The Endpoints that the pods amount to, with the metadata of `existing` where there is one.
pub(super) fn endpoints(service: &Service, selected: &[Arc<Pod>], existing: Option<&Endpoints>) -> Endpoints {
    let publish_all = service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses).unwrap_or(false);
    let mut by_ports: BTreeMap<String, EndpointSubset> = BTreeMap::new();
    let listed = selected
        .iter()
        .filter(|pod| plan::is_listed(pod) && (publish_all || pod.metadata.deletion_timestamp.is_none()));
    for pod in listed.take(ADDRESSES_MAX) {
        let Some(address) = address(service, pod) else { continue };
        let ports = ports(service, pod);
        if ports.is_empty() && !plan::is_headless(service) {
            continue;
        }
        // Ports come from one Service, so their text orders and tells them apart.
        let key = serde_json::to_string(&ports).unwrap_or_default();
        let subset = by_ports.entry(key).or_default();
        subset.ports = Some(ports).filter(|ports| !ports.is_empty());
        let ready = publish_all || phase::is_ready(pod);
        let list = if ready { &mut subset.addresses } else { &mut subset.not_ready_addresses };
        list.get_or_insert_default().push(address);
    }
    let mut subsets: Vec<EndpointSubset> = by_ports.into_values().collect();
    for subset in &mut subsets {
        for list in [&mut subset.addresses, &mut subset.not_ready_addresses] {
            list.iter_mut().for_each(|list| list.sort_by(|a, b| a.ip.cmp(&b.ip)));
        }
    }
    let mut endpoints = existing.cloned().unwrap_or_default();
    endpoints.metadata.name = service.metadata.name.clone();
    endpoints.metadata.namespace = service.metadata.namespace.clone();
    let mut labels = service.labels().clone();
    labels.insert(MANAGED_BY.to_owned(), "endpoint-controller".to_owned());
    if plan::is_headless(service) {
        labels.insert("service.kubernetes.io/headless".to_owned(), String::new());
    }
    endpoints.metadata.labels = Some(labels);
    endpoints.subsets = Some(subsets).filter(|subsets| !subsets.is_empty());
    endpoints
}
