//! Every built-in kind: one file and one row each. To add a kind, write its file and name it here.

use crate::behaviour::{Behaviour, kind};

pub(crate) mod admissionregistration;
pub(crate) mod apiextensions;
pub(crate) mod apiregistration;
pub(crate) mod apps;
pub(crate) mod autoscaling;
pub(crate) mod batch;
pub(crate) mod certificates;
pub(crate) mod coordination;
pub(crate) mod core;
pub(crate) mod discovery;
pub(crate) mod events;
pub(crate) mod flowcontrol;
pub(crate) mod internal;
pub(crate) mod networking;
pub(crate) mod node;
pub(crate) mod policy;
pub(crate) mod rbac;
pub(crate) mod resource;
pub(crate) mod scheduling;
pub(crate) mod storage;
pub(crate) mod storagemigration;

static KINDS: &[&Behaviour] = &[
    &core::component_status::COMPONENT_STATUS,
    &core::config_map::CONFIG_MAP,
    &core::endpoints::ENDPOINTS,
    &core::event::EVENT,
    &core::limit_range::LIMIT_RANGE,
    &core::namespace::NAMESPACE,
    &core::node::NODE,
    &core::persistent_volume::PERSISTENT_VOLUME,
    &core::persistent_volume_claim::PERSISTENT_VOLUME_CLAIM,
    &core::pod::POD,
    &core::pod_template::POD_TEMPLATE,
    &core::replication_controller::REPLICATION_CONTROLLER,
    &core::resource_quota::RESOURCE_QUOTA,
    &core::secret::SECRET,
    &core::service::SERVICE,
    &core::service_account::SERVICE_ACCOUNT,
    &admissionregistration::mutating_admission_policy::MUTATING_ADMISSION_POLICY,
    &admissionregistration::mutating_admission_policy_binding::MUTATING_ADMISSION_POLICY_BINDING,
    &admissionregistration::mutating_webhook_configuration::MUTATING_WEBHOOK_CONFIGURATION,
    &admissionregistration::validating_admission_policy::VALIDATING_ADMISSION_POLICY,
    &admissionregistration::validating_admission_policy_binding::VALIDATING_ADMISSION_POLICY_BINDING,
    &admissionregistration::validating_webhook_configuration::VALIDATING_WEBHOOK_CONFIGURATION,
    &apiextensions::custom_resource_definition::CUSTOM_RESOURCE_DEFINITION,
    &apiregistration::api_service::API_SERVICE,
    &apps::controller_revision::CONTROLLER_REVISION,
    &apps::daemon_set::DAEMON_SET,
    &apps::deployment::DEPLOYMENT,
    &apps::replica_set::REPLICA_SET,
    &apps::stateful_set::STATEFUL_SET,
    &autoscaling::horizontal_pod_autoscaler::HORIZONTAL_POD_AUTOSCALER,
    &batch::cron_job::CRON_JOB,
    &batch::job::JOB,
    &certificates::certificate_signing_request::CERTIFICATE_SIGNING_REQUEST,
    &certificates::cluster_trust_bundle::CLUSTER_TRUST_BUNDLE,
    &certificates::pod_certificate_request::POD_CERTIFICATE_REQUEST,
    &coordination::lease::LEASE,
    &coordination::lease_candidate::LEASE_CANDIDATE,
    &discovery::endpoint_slice::ENDPOINT_SLICE,
    &events::event::EVENT,
    &flowcontrol::flow_schema::FLOW_SCHEMA,
    &flowcontrol::priority_level_configuration::PRIORITY_LEVEL_CONFIGURATION,
    &internal::storage_version::STORAGE_VERSION,
    &networking::ip_address::IP_ADDRESS,
    &networking::ingress::INGRESS,
    &networking::ingress_class::INGRESS_CLASS,
    &networking::network_policy::NETWORK_POLICY,
    &networking::service_cidr::SERVICE_CIDR,
    &node::runtime_class::RUNTIME_CLASS,
    &policy::pod_disruption_budget::POD_DISRUPTION_BUDGET,
    &rbac::cluster_role::CLUSTER_ROLE,
    &rbac::cluster_role_binding::CLUSTER_ROLE_BINDING,
    &rbac::role::ROLE,
    &rbac::role_binding::ROLE_BINDING,
    &resource::device_class::DEVICE_CLASS,
    &resource::device_taint_rule::DEVICE_TAINT_RULE,
    &resource::resource_claim::RESOURCE_CLAIM,
    &resource::resource_claim_template::RESOURCE_CLAIM_TEMPLATE,
    &resource::resource_pool_status_request::RESOURCE_POOL_STATUS_REQUEST,
    &resource::resource_slice::RESOURCE_SLICE,
    &scheduling::pod_group::POD_GROUP,
    &scheduling::priority_class::PRIORITY_CLASS,
    &scheduling::workload::WORKLOAD,
    &storage::csi_driver::CSI_DRIVER,
    &storage::csi_node::CSI_NODE,
    &storage::csi_storage_capacity::CSI_STORAGE_CAPACITY,
    &storage::storage_class::STORAGE_CLASS,
    &storage::volume_attachment::VOLUME_ATTACHMENT,
    &storage::volume_attributes_class::VOLUME_ATTRIBUTES_CLASS,
    &storagemigration::storage_version_migration::STORAGE_VERSION_MIGRATION,
];

/// Kinds that are sent and answered but never stored: reviews and bindings.
static UNSTORED: Behaviour = kind("", "");

/// The row of a kind, by group and name as the row has them; it is asked once, when the table of resources is read.
pub(crate) fn of(kind: (&str, &str)) -> &'static Behaviour {
    KINDS.iter().copied().find(|row| row.kind == kind).unwrap_or(&UNSTORED)
}
