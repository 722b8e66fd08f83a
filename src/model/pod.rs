//! A pod as the cluster's loops keep it: what controllers, the scheduler and the network read of one, and nothing else.
//!
//! There are more pods than all else together, and k8s-openapi's struct of one takes more than 7 KiB: a container alone
//! has three probes and two hooks that nobody but its kubelet asks about. Names and shapes of the fields are
//! upstream's, and explained there. Who writes a pod uses the whole type: what is read from here must never be sent
//! back in its place.

use std::collections::BTreeMap;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{
    Affinity, ContainerPort, EphemeralVolumeSource, PersistentVolumeClaimVolumeSource, PodIP, PodResourceClaim,
    PodResourceClaimStatus, PodSchedulingGate, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The annotations that somebody reads off a cached pod; the others are often long and are not kept.
const ANNOTATIONS: [&str; 8] = [
    "batch.kubernetes.io/job-completion-index",
    "batch.kubernetes.io/job-index-failure-count",
    "batch.kubernetes.io/job-index-ignored-failure-count",
    "controller.kubernetes.io/pod-deletion-cost",
    "kubernetes.io/config.hash",
    "kubernetes.io/config.mirror",
    "local-path.kedge.io/name",
    "local-path.kedge.io/namespace",
];

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Whole")]
pub struct Pod {
    /// Without managedFields, and without the annotations that nobody reads.
    pub metadata: ObjectMeta,
    /// Its wanted state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spec: Option<PodSpec>,
    /// Its observed state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<PodStatus>,
}

#[derive(Deserialize)]
struct Whole {
    #[serde(default)]
    metadata: ObjectMeta,
    spec: Option<PodSpec>,
    status: Option<PodStatus>,
}

impl From<Whole> for Pod {
    fn from(whole: Whole) -> Pod {
        let Whole { mut metadata, spec, status } = whole;
        metadata.managed_fields = None;
        metadata.annotations = metadata.annotations.and_then(read_ones);
        metadata.owner_references.iter_mut().for_each(Vec::shrink_to_fit);
        metadata.finalizers.iter_mut().for_each(Vec::shrink_to_fit);
        let mut pod = Pod { metadata, spec, status };
        pod.forget_what_is_as_asked();
        pod
    }
}

impl Pod {
    /// Nearly all containers have what their spec asks for, and ten thousand pods need not say it three times.
    fn forget_what_is_as_asked(&mut self) {
        let (Some(spec), Some(status)) = (&self.spec, &mut self.status) else { return };
        let containers = || spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let statuses =
            status.container_statuses.iter_mut().flatten().chain(status.init_container_statuses.iter_mut().flatten());
        for told in statuses {
            let of_spec = containers().find(|c| c.name == told.name).and_then(|c| c.resources.as_ref());
            let asked = of_spec.and_then(|r| r.requests.as_ref());
            let (has, allocated) = (told.resources.as_deref(), told.allocated_resources.as_ref());
            let is_as_asked = has.is_none_or(|has| {
                has.requests.as_ref() == asked && has.limits.as_ref() == of_spec.and_then(|r| r.limits.as_ref())
            });
            if is_as_asked && allocated.is_none_or(|allocated| Some(allocated) == asked) {
                (told.resources, told.allocated_resources) = (None, None);
            }
        }
        // All pods tell what they have as a whole. It counts in place of the sum of their containers where the spec
        // says so.
        let told =
            (status.resources.take().map(|told| told.requests.unwrap_or_default()), status.allocated_resources.take());
        let Some(asked) = spec.resources.as_ref().and_then(|r| r.requests.as_ref()) else { return };
        let (has, allocated) = (told.0.map(|told| told.those_of(asked)), told.1.map(|told| told.those_of(asked)));
        if [&has, &allocated].into_iter().flatten().any(|told| told != asked) {
            status.resources =
                has.map(|requests| Box::new(ResourceRequirements { limits: None, requests: Some(requests) }));
            status.allocated_resources = allocated;
        }
    }
}

fn read_ones(mut annotations: BTreeMap<String, String>) -> Option<BTreeMap<String, String>> {
    annotations.retain(|name, _| ANNOTATIONS.contains(&name.as_str()));
    (!annotations.is_empty()).then_some(annotations)
}

impl k8s_openapi::Resource for Pod {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Pod";
    const VERSION: &'static str = "v1";
    const URL_PATH_SEGMENT: &'static str = "pods";
    type Scope = NamespaceResourceScope;
}

impl k8s_openapi::Metadata for Pod {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Of a pod's `spec`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_deadline_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Box<Affinity>>,
    pub containers: Box<[Container]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_network: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hostname: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_containers: Option<Box<[Container]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overhead: Option<Quantities>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preemption_policy: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claims: Option<Box<[PodResourceClaim]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Box<ResourceRequirements>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling_gates: Option<Box<[PodSchedulingGate]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subdomain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Box<[Toleration]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_spread_constraints: Option<Box<[TopologySpreadConstraint]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volumes: Option<Box<[Volume]>>,
}

/// Of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ports: Option<Box<[ContainerPort]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<String>,
}

/// Resources that a container or a pod asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResourceRequirements {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Quantities>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<Quantities>,
}

/// Amounts by the name of a resource, sorted: a map of two takes as much memory as one of eleven.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Quantities(Box<[(Box<str>, Quantity)]>);

impl Quantities {
    /// The amount of one resource.
    pub fn get(&self, resource: &str) -> Option<&Quantity> {
        self.iter().find(|(name, _)| *name == resource).map(|(_, amount)| amount)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Quantity)> {
        self.0.iter().map(|(name, amount)| (&**name, amount))
    }

    /// Those of the resources that `others` speaks of.
    fn those_of(self, others: &Quantities) -> Quantities {
        Quantities(self.0.into_iter().filter(|(name, _)| others.get(name).is_some()).collect())
    }
}

impl Serialize for Quantities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Quantities {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Quantities, D::Error> {
        let amounts: BTreeMap<Box<str>, Quantity> = Deserialize::deserialize(deserializer)?;
        Ok(Quantities(amounts.into_iter().collect()))
    }
}

/// Of a volume: whether it is a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Volume {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ephemeral: Option<Box<EphemeralVolumeSource>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_claim: Option<PersistentVolumeClaimVolumeSource>,
}

/// Of a pod's `status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStatus {
    /// Resources that its node has promised the pod as a whole, and those that it has: of the resources that the pod's
    /// spec asks for as a whole, and kept while they differ from it. Overhead may be in both.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_resources: Option<Quantities>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Box<ResourceRequirements>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Box<[PodCondition]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_statuses: Option<Box<[ContainerStatus]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub init_container_statuses: Option<Box<[ContainerStatus]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominated_node_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    #[serde(rename = "podIP", skip_serializing_if = "Option::is_none")]
    pub pod_ip: Option<String>,
    #[serde(rename = "podIPs", skip_serializing_if = "Option::is_none")]
    pub pod_ips: Option<Box<[PodIP]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource_claim_statuses: Option<Box<[PodResourceClaimStatus]>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
}

/// Of a condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodCondition {
    #[serde(rename = "type")]
    pub type_: String,
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// Of a container's status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ContainerStatus {
    pub name: String,
    /// Resources that its node has promised it, and those that it has: kept while that differs from what the spec asks
    /// for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated_resources: Option<Quantities>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Box<ResourceRequirements>>,
    pub restart_count: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<ContainerState>,
}

/// Of a container's state: how it ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerState {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub terminated: Option<Terminated>,
}

/// Of the end of a container.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Terminated {
    pub exit_code: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cached_pod_keeps_what_is_read_and_drops_what_is_only_long() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "kind": "Pod", "apiVersion": "v1",
            "metadata": {
                "name": "p", "managedFields": [{"manager": "m", "operation": "Apply"}],
                "annotations": {"kubernetes.io/config.hash": "h", "long": "x".repeat(1000)},
            },
            "spec": {"containers": [{"name": "c", "livenessProbe": {"tcpSocket": {"port": 1}},
            "resources": {"requests": {"cpu": "1"}}}]},
            "status": {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}], "containerStatuses": [{
                "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 2,
                "state": {"terminated": {"exitCode": 3}}}]},
        }))
        .unwrap();
        assert_eq!(pod.metadata.managed_fields, None);
        assert_eq!(pod.metadata.annotations.as_ref().unwrap().len(), 1);
        let (spec, status) = (pod.spec.unwrap(), pod.status.unwrap());
        assert_eq!(
            spec.containers[0].resources.as_ref().unwrap().requests.as_ref().unwrap().get("cpu").unwrap().0,
            "1"
        );
        assert_eq!(status.pod_ips.unwrap()[0].ip, "10.0.0.1");
        let statuses = status.container_statuses.unwrap();
        let ended = &statuses[0];
        assert_eq!((ended.restart_count, ended.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code), (2, 3));
    }

    #[test]
    fn what_a_container_has_is_kept_while_it_is_not_what_its_spec_asks_for() {
        let kept = |limit: &str, allocated: &str| {
            let of = |limit: &str| serde_json::json!({"requests": {"cpu": "1"}, "limits": {"cpu": limit}});
            let pod: Pod = serde_json::from_value(serde_json::json!({
                "spec": {"containers": [{"name": "c", "resources": of("2")}]},
                "status": {"containerStatuses": [{"name": "c", "resources": of(limit),
                "allocatedResources": {"cpu": allocated}}]},
            }))
            .unwrap();
            let status = pod.status.unwrap().container_statuses.unwrap()[0].clone();
            (
                status.resources.map(|has| has.limits.unwrap().get("cpu").unwrap().0.clone()),
                status.allocated_resources.is_some(),
            )
        };
        assert_eq!(kept("2", "1"), (None, false));
        assert_eq!(kept("4", "1"), (Some("4".to_owned()), true), "a limit that is being lowered");
        assert_eq!(kept("2", "3"), (Some("2".to_owned()), true));
    }

    // Every pod's status tells them.
    #[test]
    fn what_a_pod_has_as_a_whole_is_kept_where_its_spec_asks_for_it_and_it_differs() {
        let kept =
            |own: serde_json::Value, has: serde_json::Value, allocated: serde_json::Value| -> serde_json::Value {
                let pod: Pod = serde_json::from_value(serde_json::json!({
                    "spec": {"containers": [{"name": "c"}], "resources": own},
                    "status": {"resources": {"requests": has, "limits": {"cpu": "8"}}, "allocatedResources": allocated},
                }))
                .unwrap();
                serde_json::to_value(pod.status.unwrap()).unwrap()
            };
        let (one, two) =
            (serde_json::json!({"cpu": "1", "memory": "1Gi"}), serde_json::json!({"cpu": "2", "memory": "1Gi"}));
        let nothing = serde_json::json!({});
        assert_eq!(kept(serde_json::Value::Null, one.clone(), one.clone()), nothing);
        assert_eq!(kept(serde_json::json!({"limits": {"cpu": "1"}}), one.clone(), one.clone()), nothing);
        let asked = serde_json::json!({"requests": {"cpu": "1"}});
        assert_eq!(kept(asked.clone(), one.clone(), one.clone()), nothing, "of memory it says nothing as a whole");
        let (cpu_one, cpu_two) = (serde_json::json!({"cpu": "1"}), serde_json::json!({"cpu": "2"}));
        let differs =
            |has, allocated| serde_json::json!({"resources": {"requests": has}, "allocatedResources": allocated});
        assert_eq!(kept(asked.clone(), two.clone(), one.clone()), differs(&cpu_two, &cpu_one));
        assert_eq!(kept(asked, one, two), differs(&cpu_one, &cpu_two));
    }

    // There are ten thousand of them: a field that is large even when it is absent belongs into a box.
    #[test]
    fn an_empty_pod_is_small() {
        assert!(size_of::<Pod>() <= 1024, "{}", size_of::<Pod>());
        assert!(size_of::<Container>() <= 200, "{}", size_of::<Container>());
    }
}
