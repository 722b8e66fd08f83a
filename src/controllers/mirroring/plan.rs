//! The slices that mirror one Endpoints object of a person. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use kube::ResourceExt as _;

use crate::owners;

pub(super) const SERVICE_NAME: &str = "kubernetes.io/service-name";
pub(super) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(super) const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Annotations that tell of the Endpoints object itself.
const OWN_NOTES: [&str; 2] = ["kubectl.kubernetes.io/last-applied-configuration", "endpoints.kubernetes.io/last-change-trigger-time"];
/// Addresses of one subset that are mirrored (upstream's `--mirroring-max-endpoints-per-subset`).
const ADDRESSES_MAX: usize = 1000;

/// What to do about the slices of one Endpoints object.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) create: Vec<EndpointSlice>,
    pub(super) update: Vec<EndpointSlice>,
    pub(super) delete: Vec<String>,
}

/// Whether the object is to be mirrored, as far as it says itself.
pub(super) fn is_mirrored(endpoints: &Endpoints) -> bool {
    endpoints.metadata.deletion_timestamp.is_none()
        && endpoints.labels().get(SKIP).is_none_or(|skip| skip != "true")
        && !endpoints.labels().contains_key("endpoints.kubernetes.io/managed-by")
        && !endpoints.annotations().contains_key(LEADER)
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), serving: Some(ready), terminating: None }),
        hostname: address.hostname.clone().filter(|name| !name.is_empty()),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

fn slice(endpoints: &Endpoints, subset: &EndpointSubset, family: &str) -> Option<EndpointSlice> {
    let of = |list: &Option<Vec<EndpointAddress>>, ready: bool| -> Vec<Endpoint> {
        let fits = |address: &&EndpointAddress| address.ip.contains(':') == (family == "IPv6");
        list.iter().flatten().filter(fits).map(|address| endpoint(address, ready)).collect()
    };
    let mut all = of(&subset.addresses, true);
    all.extend(of(&subset.not_ready_addresses, false));
    all.truncate(ADDRESSES_MAX);
    if all.is_empty() {
        return None;
    }
    let ports = subset.ports.iter().flatten().map(|port| EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".to_owned())),
        app_protocol: port.app_protocol.clone(),
    });
    let mut slice =
        EndpointSlice { address_type: family.to_owned(), endpoints: Some(all), ports: Some(ports.collect()), ..EndpointSlice::default() };
    let mut labels = endpoints.labels().clone();
    labels.insert(SERVICE_NAME.to_owned(), endpoints.name_any());
    labels.insert(MANAGED_BY.to_owned(), MANAGER.to_owned());
    slice.metadata.labels = Some(labels);
    let notes = endpoints.annotations().iter().filter(|(key, _)| !OWN_NOTES.contains(&key.as_str()));
    slice.metadata.annotations =
        Some(notes.map(|(k, v)| (k.clone(), v.clone())).collect::<std::collections::BTreeMap<_, _>>()).filter(|notes| !notes.is_empty());
    slice.metadata.generate_name = Some(format!("{}-", endpoints.name_any()));
    slice.metadata.namespace = endpoints.namespace();
    slice.metadata.owner_references = Some(vec![owners::reference_to(endpoints)]);
    Some(slice)
}

/// Compares the slices that exist with the object; without it all go.
pub(super) fn plan(endpoints: Option<&Endpoints>, existing: &[Arc<EndpointSlice>]) -> Plan {
    let mut plan = Plan::default();
    let mut left: Vec<&Arc<EndpointSlice>> = existing.iter().collect();
    if let Some(endpoints) = endpoints {
        for subset in endpoints.subsets.iter().flatten() {
            for wanted in ["IPv4", "IPv6"].into_iter().filter_map(|family| slice(endpoints, subset, family)) {
                let same = left.iter().position(|old| old.address_type == wanted.address_type && old.ports == wanted.ports);
                let Some(old) = same.map(|at| left.remove(at)) else {
                    plan.create.push(wanted);
                    continue;
                };
                let mut updated = (**old).clone();
                (updated.metadata.labels, updated.metadata.annotations) = (wanted.metadata.labels, wanted.metadata.annotations);
                updated.endpoints = wanted.endpoints;
                if updated != **old {
                    plan.update.push(updated);
                }
            }
        }
    }
    plan.delete = left.into_iter().map(|old| old.name_any()).collect();
    plan
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn endpoints(addresses: serde_json::Value) -> Endpoints {
        serde_json::from_value(
            json!({"metadata": {"name": "ext", "namespace": "d", "uid": "u", "labels": {"a": "b"}, "annotations": {"x": "y"}},
            "subsets": [{"addresses": addresses, "notReadyAddresses": [{"ip": "10.0.0.9"}], "ports": [{"port": 80}]}]}),
        )
        .unwrap()
    }

    #[test]
    fn a_subset_becomes_a_slice_of_each_family_and_follows_changes() {
        let made = plan(Some(&endpoints(json!([{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]))), &[]).create;
        assert_eq!(made.iter().map(|s| s.address_type.as_str()).collect::<Vec<_>>(), ["IPv4", "IPv6"]);
        assert_eq!(made[0].endpoints.as_ref().unwrap().len(), 2);
        assert_eq!(made[0].labels()[SERVICE_NAME], "ext");
        let mut first = made[0].clone();
        first.metadata.name = Some("ext-1".to_owned());
        let existing = [Arc::new(first)];
        assert!(plan(Some(&endpoints(json!([{"ip": "10.0.0.1"}]))), &existing).update.is_empty());
        assert_eq!(plan(Some(&endpoints(json!([{"ip": "10.0.0.2"}]))), &existing).update.len(), 1);
        assert_eq!(plan(None, &existing).delete, ["ext-1"]);
    }

    #[test]
    fn our_own_and_unwanted_objects_are_left_alone() {
        let mut mine = endpoints(json!([]));
        assert!(is_mirrored(&mine));
        mine.labels_mut().insert(SKIP.to_owned(), "true".to_owned());
        assert!(!is_mirrored(&mine));
    }
}
