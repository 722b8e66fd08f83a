//! Which rules belong to which row of the table.

use serde_json::Value;

use crate::table::Resource;
use crate::validate::checks::Errors;
use crate::validate::{
    autoscaler, certificates, cluster, config, coordination, definition, devices, drivers, endpoints, events, flow,
    ingress, network, pod, pod_update, policy, quota, rbac, service_addresses, storage, webhook, workload,
};
use model::names::{self, NameCheck};

/// The rules of one kind.
pub(super) struct Rules {
    group: &'static str,
    kind: &'static str,
    /// What its name may look like.
    pub(super) name: NameCheck,
    /// Holds on create and on update.
    pub(super) create: fn(&Value, &mut Errors),
    /// What may not change, given new and old.
    pub(super) update: fn(&Value, &Value, &mut Errors),
}

fn anything(_: &Value, _: &mut Errors) {}

fn any_change(_: &Value, _: &Value, _: &mut Errors) {}

const fn rule(
    group: &'static str,
    kind: &'static str,
    name: NameCheck,
    create: fn(&Value, &mut Errors),
    update: fn(&Value, &Value, &mut Errors),
) -> Rules {
    Rules { group, kind, name, create, update }
}

const ADMISSION: &str = "admissionregistration.k8s.io";
const APPS: &str = "apps";
const CERTIFICATES: &str = "certificates.k8s.io";
const DEVICES: &str = "resource.k8s.io";
const FLOW: &str = "flowcontrol.apiserver.k8s.io";
const NET: &str = "networking.k8s.io";
const RBAC: &str = "rbac.authorization.k8s.io";
const STORAGE: &str = "storage.k8s.io";
const DEFAULT: Rules = rule("", "", names::subdomain, anything, any_change);

static RULES: &[Rules] = &[
    rule("", "Pod", names::subdomain, pod::create, pod_update::update),
    rule("", "PodTemplate", names::subdomain, pod::template, any_change),
    rule(APPS, "Deployment", names::subdomain, workload::deployment, workload::deployment_update),
    rule(APPS, "ReplicaSet", names::subdomain, workload::replica_set, workload::selector_update),
    rule("", "ReplicationController", names::subdomain, workload::replication_controller, any_change),
    rule(APPS, "DaemonSet", names::subdomain, workload::daemon_set, workload::selector_update),
    rule(APPS, "StatefulSet", names::label, workload::stateful_set, workload::stateful_set_update),
    rule(
        APPS,
        "ControllerRevision",
        names::subdomain,
        workload::controller_revision,
        workload::controller_revision_update,
    ),
    rule("batch", "Job", names::subdomain, workload::job, workload::job_update),
    rule("batch", "CronJob", names::subdomain, workload::cron_job, any_change),
    rule("autoscaling", "HorizontalPodAutoscaler", names::subdomain, autoscaler::autoscaler, any_change),
    rule("policy", "PodDisruptionBudget", names::subdomain, workload::disruption_budget, any_change),
    rule("", "Service", names::label, network::service, service_addresses::update),
    rule("", "Endpoints", names::subdomain, endpoints::endpoints, any_change),
    rule("discovery.k8s.io", "EndpointSlice", names::subdomain, endpoints::slice, endpoints::slice_update),
    rule(NET, "Ingress", names::subdomain, ingress::ingress, any_change),
    rule(NET, "IngressClass", names::subdomain, ingress::ingress_class, ingress::ingress_class_update),
    rule(NET, "NetworkPolicy", names::subdomain, network::network_policy, any_change),
    rule("", "ConfigMap", names::subdomain, config::config_map, config::config_map_update),
    rule("", "Secret", names::subdomain, config::secret, config::secret_update),
    rule("", "Namespace", names::label, cluster::namespace, any_change),
    rule("", "Node", names::subdomain, cluster::node, cluster::node_update),
    rule("", "ServiceAccount", names::subdomain, anything, any_change),
    rule("", "Event", names::subdomain, events::event, any_change),
    rule("", "ResourceQuota", names::subdomain, quota::quota, quota::quota_update),
    rule("", "LimitRange", names::subdomain, cluster::limit_range, any_change),
    rule("coordination.k8s.io", "Lease", names::subdomain, coordination::lease, any_change),
    rule(
        "coordination.k8s.io",
        "LeaseCandidate",
        coordination::candidate_name,
        coordination::candidate,
        coordination::candidate_update,
    ),
    rule(
        "storagemigration.k8s.io",
        "StorageVersionMigration",
        names::subdomain,
        coordination::migration,
        coordination::migration_update,
    ),
    rule(
        "scheduling.k8s.io",
        "PriorityClass",
        names::subdomain,
        cluster::priority_class,
        cluster::priority_class_update,
    ),
    rule("node.k8s.io", "RuntimeClass", names::subdomain, cluster::runtime_class, cluster::runtime_class_update),
    rule("apiregistration.k8s.io", "APIService", names::path_segment, anything, any_change),
    rule(
        CERTIFICATES,
        "ClusterTrustBundle",
        names::path_segment,
        certificates::trust_bundle,
        certificates::trust_bundle_update,
    ),
    rule(
        CERTIFICATES,
        "CertificateSigningRequest",
        certificates::any_name,
        certificates::request,
        certificates::request_main_update,
    ),
    rule(NET, "IPAddress", names::path_segment, cluster::ip_address, cluster::ip_address_update),
    rule(NET, "ServiceCIDR", names::subdomain, network::service_cidr, network::service_cidr_update),
    rule(FLOW, "FlowSchema", names::subdomain, flow::schema, any_change),
    rule(FLOW, "PriorityLevelConfiguration", names::subdomain, flow::level, any_change),
    rule(STORAGE, "CSIDriver", names::subdomain, drivers::driver, drivers::driver_update),
    rule(STORAGE, "CSINode", names::subdomain, drivers::node, drivers::node_update),
    rule(STORAGE, "CSIStorageCapacity", names::subdomain, drivers::capacity, drivers::capacity_update),
    rule(STORAGE, "VolumeAttachment", names::subdomain, drivers::attachment, drivers::attachment_update),
    rule(
        STORAGE,
        "VolumeAttributesClass",
        names::subdomain,
        drivers::attributes_class,
        drivers::attributes_class_update,
    ),
    rule(DEVICES, "DeviceClass", names::subdomain, devices::class, any_change),
    rule(DEVICES, "DeviceTaintRule", names::subdomain, devices::taint_rule, any_change),
    rule(DEVICES, "ResourceClaim", names::subdomain, devices::claim, devices::spec_update),
    rule(DEVICES, "ResourceClaimTemplate", names::subdomain, devices::template, devices::spec_update),
    rule(DEVICES, "ResourceSlice", names::subdomain, devices::slice, devices::slice_update),
    rule("apiextensions.k8s.io", "CustomResourceDefinition", names::subdomain, definition::create, definition::update),
    rule(ADMISSION, "ValidatingAdmissionPolicy", names::subdomain, policy::validating, any_change),
    rule(ADMISSION, "MutatingAdmissionPolicy", names::subdomain, policy::mutating, any_change),
    rule(ADMISSION, "ValidatingAdmissionPolicyBinding", names::subdomain, policy::validating_binding, any_change),
    rule(ADMISSION, "MutatingAdmissionPolicyBinding", names::subdomain, policy::mutating_binding, any_change),
    rule(ADMISSION, "MutatingWebhookConfiguration", names::subdomain, webhook::configuration, any_change),
    rule(ADMISSION, "ValidatingWebhookConfiguration", names::subdomain, webhook::configuration, any_change),
    rule(RBAC, "Role", names::path_segment, rbac::role, any_change),
    rule(RBAC, "ClusterRole", names::path_segment, rbac::cluster_role, any_change),
    rule(RBAC, "RoleBinding", names::path_segment, rbac::role_binding, rbac::binding_update),
    rule(RBAC, "ClusterRoleBinding", names::path_segment, rbac::cluster_role_binding, rbac::binding_update),
    rule("", "PersistentVolume", names::subdomain, storage::volume, storage::volume_update),
    rule("", "PersistentVolumeClaim", names::subdomain, storage::claim, storage::claim_update),
    rule(STORAGE, "StorageClass", names::subdomain, storage::class, storage::class_update),
];

/// What is asked of new objects only.
pub(super) fn of_new(r: &Resource) -> fn(&Value, &mut Errors) {
    match (r.group.as_ref(), r.kind.as_ref()) {
        (NET, "Ingress") => ingress::one_class,
        ("apiextensions.k8s.io", "CustomResourceDefinition") => definition::costs,
        (APPS, "StatefulSet") => workload::new_stateful_set,
        ("batch", "Job") => workload::new_job,
        ("autoscaling", "HorizontalPodAutoscaler") => autoscaler::new_autoscaler,
        _ => anything,
    }
}

/// The rules of a resource; custom and unlisted ones only have those of metadata and of the table.
pub(super) fn rules_of(r: &Resource) -> &'static Rules {
    if r.custom {
        return &DEFAULT;
    }
    RULES.iter().find(|rules| rules.kind == r.kind && rules.group == r.group).unwrap_or(&DEFAULT)
}
