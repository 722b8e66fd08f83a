//! The slices that show an Endpoints object. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use client::services::SERVICE_NAME;
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::ResourceExt as _;

use model::owners;

const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
/// Endpoints once served as locks of leader elections; those are no addresses.
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotations that tell of the Endpoints object itself.
const OWN_ANNOTATIONS: [&str; 2] =
    ["endpoints.kubernetes.io/last-change-trigger-time", "kubectl.kubernetes.io/last-applied-configuration"];
/// Addresses of one subset that are mirrored (upstream's `--mirroring-max-endpoints-per-subset`).
const SUBSET_ADDRESSES_MAX: usize = 1000;
/// Endpoints in one slice.
const SLICE_ENDPOINTS_MAX: usize = 100;

/// Work to do on the mirrors of one Endpoints object.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) create: Vec<EndpointSlice>,
    pub(super) update: Vec<EndpointSlice>,
    pub(super) delete: Vec<String>,
}

/// Whether a slice is a mirror.
pub(super) fn is_ours(slice: &EndpointSlice) -> bool {
    slice.labels().get(MANAGED_BY).map(String::as_str) == Some(MANAGER)
}

/// Whether the author of the Endpoints wants mirrors.
pub(super) fn is_mirrored(endpoints: &Endpoints) -> bool {
    endpoints.labels().get(SKIP).map(String::as_str) != Some("true") && !endpoints.annotations().contains_key(LEADER)
}

/// The slices that show the Endpoints: per family and ports, at most 100 endpoints each.
pub(super) fn slices(endpoints: &Endpoints) -> Vec<EndpointSlice> {
    let mut groups: BTreeMap<(String, String), (Vec<EndpointPort>, Vec<Endpoint>)> = BTreeMap::new();
    for subset in endpoints.subsets.iter().flatten() {
        let ports = ports(subset);
        let ready = subset.addresses.iter().flatten().map(|a| (a, true));
        let unready = subset.not_ready_addresses.iter().flatten().map(|a| (a, false));
        for (address, ready) in ready.chain(unready).take(SUBSET_ADDRESSES_MAX) {
            let family = if address.ip.contains(':') { "IPv6" } else { "IPv4" };
            let group =
                groups.entry((family.to_owned(), format!("{ports:?}"))).or_insert_with(|| (ports.clone(), Vec::new()));
            let conditions = EndpointConditions { ready: Some(ready), ..EndpointConditions::default() };
            group.1.push(Endpoint { conditions: Some(conditions), ..endpoint(address) });
        }
    }
    let mut slices = Vec::new();
    for ((family, _), (ports, all)) in groups {
        slices.extend(all.chunks(SLICE_ENDPOINTS_MAX).map(|some| slice(endpoints, &family, &ports, some)));
    }
    slices
}

fn ports(subset: &EndpointSubset) -> Vec<EndpointPort> {
    let one = |port: &k8s_openapi::api::core::v1::EndpointPort| EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
        port: Some(port.port),
        app_protocol: port.app_protocol.clone(),
    };
    subset.ports.iter().flatten().map(one).collect()
}

fn endpoint(address: &EndpointAddress) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        hostname: address.hostname.clone().filter(|h| !h.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

fn slice(endpoints: &Endpoints, family: &str, ports: &[EndpointPort], some: &[Endpoint]) -> EndpointSlice {
    let mut labels = endpoints.labels().clone();
    labels.insert(SERVICE_NAME.to_owned(), endpoints.name_any());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    let mut annotations = endpoints.annotations().clone();
    annotations.retain(|key, _| !OWN_ANNOTATIONS.contains(&key.as_str()));
    let mut slice = EndpointSlice { address_type: family.to_owned(), ..EndpointSlice::default() };
    slice.metadata.generate_name = Some(format!("{}-", endpoints.name_any()));
    slice.metadata.namespace = endpoints.namespace();
    slice.metadata.labels = Some(labels);
    slice.metadata.annotations = Some(annotations).filter(|a| !a.is_empty());
    slice.metadata.owner_references = Some(vec![owners::reference_to(endpoints)]);
    slice.ports = Some(ports.to_vec()).filter(|p| !p.is_empty());
    slice.endpoints = Some(some.to_vec());
    slice
}

/// Lays the wanted slices over those that exist with the same family and ports.
pub(super) fn plan(wanted: Vec<EndpointSlice>, existing: &[Arc<EndpointSlice>]) -> Plan {
    let mut plan = Plan::default();
    let mut free: Vec<&Arc<EndpointSlice>> = existing.iter().collect();
    for slice in wanted {
        let fits = free.iter().position(|old| old.address_type == slice.address_type && old.ports == slice.ports);
        let Some(at) = fits else {
            plan.create.push(slice);
            continue;
        };
        let old = free.remove(at);
        let mut new = (**old).clone();
        new.metadata.labels = slice.metadata.labels;
        new.metadata.annotations = slice.metadata.annotations;
        new.metadata.owner_references = slice.metadata.owner_references;
        new.endpoints = slice.endpoints;
        if new != **old {
            plan.update.push(new);
        }
    }
    plan.delete = free.iter().map(|slice| slice.name_any()).collect();
    plan
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn endpoints(subsets: serde_json::Value) -> Endpoints {
        serde_json::from_value(json!({
            "metadata": {"name": "db", "namespace": "default", "uid": "e", "labels": {"a": "b"},
                "annotations": {"keep": "1", "endpoints.kubernetes.io/last-change-trigger-time": "now"}},
            "subsets": subsets,
        }))
        .unwrap()
    }

    fn stored(slice: &EndpointSlice, name: &str) -> Arc<EndpointSlice> {
        let mut slice = slice.clone();
        slice.metadata.name = Some(name.to_owned());
        Arc::new(slice)
    }

    #[test]
    fn families_and_readiness_are_told_apart() {
        let shown = slices(&endpoints(json!([{"addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
            "notReadyAddresses": [{"ip": "10.0.0.2"}], "ports": [{"port": 5432}]}])));
        let family: Vec<_> = shown.iter().map(|s| s.address_type.as_str()).collect();
        assert_eq!(family, ["IPv4", "IPv6"]);
        let ready: Vec<_> = shown[0].endpoints.iter().flatten().map(|e| e.conditions.as_ref().unwrap().ready).collect();
        assert_eq!(ready, [Some(true), Some(false)]);
        assert_eq!(shown[0].ports.as_ref().unwrap()[0].name.as_deref(), Some(""));
        assert_eq!(shown[0].annotations().keys().collect::<Vec<_>>(), ["keep"]);
    }

    #[test]
    fn a_new_address_changes_the_slice_and_another_port_replaces_it() {
        let one = slices(&endpoints(json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}])));
        let old = [stored(&one[0], "db-x")];
        let same = plan(one, &old);
        assert!(same.create.is_empty() && same.update.is_empty() && same.delete.is_empty(), "{same:?}");
        let two = plan(
            slices(&endpoints(
                json!([{"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "ports": [{"port": 80}]}]),
            )),
            &old,
        );
        assert_eq!((two.create.len(), two.update.len(), two.delete.len()), (0, 1, 0));
        let moved =
            plan(slices(&endpoints(json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 81}]}]))), &old);
        assert_eq!((moved.create.len(), moved.update.len(), moved.delete), (1, 0, vec!["db-x".to_owned()]));
    }

    #[test]
    fn locks_and_unwanted_endpoints_are_not_mirrored() {
        let mut plain = endpoints(json!([]));
        assert!(is_mirrored(&plain));
        plain.labels_mut().insert(SKIP.to_owned(), "true".to_owned());
        assert!(!is_mirrored(&plain));
        let mut lock = endpoints(json!([]));
        lock.annotations_mut().insert(LEADER.to_owned(), "{}".to_owned());
        assert!(!is_mirrored(&lock));
    }
}
