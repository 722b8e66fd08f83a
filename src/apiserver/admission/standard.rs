//! The plugins that run, in upstream's order.

use std::sync::Arc;

use super::Plugin;
use super::always::{AlwaysAdmit, AlwaysDeny};
use super::always_pull_images::AlwaysPullImages;
use super::anti_affinity::LimitPodHardAntiAffinityTopology;
use super::certificates::{Approval, Attest, Signing, SubjectRestriction};
use super::default_ingress_class::DefaultIngressClass;
use super::default_storage_class::DefaultStorageClass;
use super::default_toleration_seconds::DefaultTolerationSeconds;
use super::deny_external_ips::DenyServiceExternalIPs;
use super::escalation::RbacEscalation;
use super::event_rate_limit::EventRateLimit;
use super::extended_resource_toleration::ExtendedResourceToleration;
use super::image_policy::{ImagePolicy, ImagePolicyWebhook};
use super::limit_ranger::LimitRanger;
use super::namespace_lifecycle::NamespaceLifecycle;
use super::namespaces::{NamespaceAutoProvision, NamespaceExists};
use super::node_declared_features::NodeDeclaredFeatureValidator;
use super::node_restriction::NodeRestriction;
use super::owner_references::OwnerReferencesPermissionEnforcement;
use super::pod_node_selector::PodNodeSelector;
use super::pod_resize::PodResizeValidator;
use super::pod_security::PodSecurity;
use super::pod_toleration_restriction::PodTolerationRestriction;
use super::pod_topology_labels::PodTopologyLabels;
use super::policies::mutating::MutatingAdmissionPolicies;
use super::policies::parameters::PolicyParameters;
use super::policies::validating::ValidatingAdmissionPolicies;
use super::priority::Priority;
use super::resource_quota::ResourceQuota;
use super::runtime_class::RuntimeClass;
use super::service_account::ServiceAccount;
use super::storage_in_use::StorageObjectInUseProtection;
use super::taint_nodes::TaintNodesByCondition;
use super::volume_resize::PersistentVolumeClaimResize;
use super::webhooks::{Mutating, Outside, Validating};
use crate::arguments::Arguments;
use crate::authz::escalation::Escalation;
use crate::webhook::kubeconfig::Remote;

/// The plugins that upstream's flags may name and that run unless they are switched off.
const USUAL: &[&str] = &[
    "NamespaceLifecycle",
    "LimitRanger",
    "ServiceAccount",
    "NodeRestriction",
    "TaintNodesByCondition",
    "PodSecurity",
    "Priority",
    "DefaultTolerationSeconds",
    "DefaultStorageClass",
    "StorageObjectInUseProtection",
    "PersistentVolumeClaimResize",
    "RuntimeClass",
    "CertificateApproval",
    "CertificateSigning",
    "ClusterTrustBundleAttest",
    "CertificateSubjectRestriction",
    "DefaultIngressClass",
    "PodTopologyLabels",
    "NodeDeclaredFeatureValidator",
    "PodResizeValidator",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
    "ResourceQuota",
];

/// Those that run only where `enable-admission-plugins` names them.
const OPTIONAL: &[&str] = &[
    "AlwaysAdmit",
    "AlwaysDeny",
    "AlwaysPullImages",
    "DenyServiceExternalIPs",
    "EventRateLimit",
    "ExtendedResourceToleration",
    "ImagePolicyWebhook",
    "LimitPodHardAntiAffinityTopology",
    "NamespaceAutoProvision",
    "NamespaceExists",
    "OwnerReferencesPermissionEnforcement",
    "PodNodeSelector",
    "PodTolerationRestriction",
];

/// Upstream's that judge what only exists behind feature gates that are off in v1.36 (GenericWorkload,
/// WorkloadWithJob): they may be named, and have nothing to do there either.
const IDLE: &[&str] = &["JobValidation", "PodGroupProtection", "PodGroupWorkloadExists"];

/// Whether a flag may name this plugin.
///
/// Errors: a text that says what there is.
pub fn named(name: &str) -> Result<(), String> {
    let all = [USUAL, OPTIONAL, IDLE].concat();
    match all.contains(&name) {
        true => Ok(()),
        false => Err(format!("admission plugin {name:?} is unknown: kedge has {}", all.join(", "))),
    }
}

/// Whether a plugin runs, by the names that flags enable and disable. What is no plugin of upstream's always does.
pub fn runs(name: &str, (enabled, disabled): &(Vec<String>, Vec<String>)) -> bool {
    let in_list = |list: &[String]| list.iter().any(|n| n == name);
    in_list(enabled) || (!in_list(disabled) && !OPTIONAL.contains(&name))
}

/// What [`plugins`] are made from.
pub struct Parts<'a> {
    /// For roles and bindings.
    pub escalation: Escalation,
    /// The way to webhooks.
    pub outside: Outside,
    /// What flags say.
    pub arguments: &'a Arguments,
    /// The backend of `ImagePolicyWebhook`, where one is configured.
    pub image_policy: Option<(ImagePolicy, Remote)>,
}

/// The plugins that run, in upstream's order; quota is the last to say yes.
pub fn plugins(parts: Parts<'_>) -> Vec<Arc<dyn Plugin>> {
    let Parts { escalation, outside, arguments, image_policy } = parts;
    let authorizer = escalation.authorizer.clone();
    let image_policy =
        image_policy.map(|(policy, remote)| ImagePolicyWebhook::new(policy, remote, Arc::clone(&outside.webhooks)));
    let mut all: Vec<Arc<dyn Plugin>> = vec![
        Arc::new(AlwaysAdmit),
        Arc::new(NamespaceAutoProvision::default()),
        Arc::new(NamespaceLifecycle),
        Arc::new(NamespaceExists),
        Arc::new(LimitPodHardAntiAffinityTopology),
        Arc::new(LimitRanger),
        Arc::new(ServiceAccount { rng: outside.rng.clone() }),
        Arc::new(NodeRestriction(authorizer.clone())),
        Arc::new(TaintNodesByCondition),
        Arc::new(AlwaysPullImages),
    ];
    all.extend(image_policy.map(|plugin| Arc::new(plugin) as Arc<dyn Plugin>));
    let rest: Vec<Arc<dyn Plugin>> = vec![
        Arc::new(PodSecurity(arguments.admission.pod_security.clone())),
        Arc::new(PodNodeSelector(arguments.admission.node_selectors.clone())),
        Arc::new(Priority),
        Arc::new(DefaultTolerationSeconds { secs: arguments.tolerations_secs }),
        Arc::new(PodTolerationRestriction(arguments.admission.tolerations.clone())),
        Arc::new(EventRateLimit::new(&arguments.admission.event_limits)),
        Arc::new(ExtendedResourceToleration),
        Arc::new(DefaultStorageClass),
        Arc::new(StorageObjectInUseProtection),
        Arc::new(OwnerReferencesPermissionEnforcement(authorizer.clone())),
        Arc::new(PersistentVolumeClaimResize),
        Arc::new(RuntimeClass),
        Arc::new(Approval(authorizer.clone())),
        Arc::new(Signing(authorizer.clone())),
        Arc::new(Attest(authorizer.clone())),
        Arc::new(SubjectRestriction),
        Arc::new(DefaultIngressClass),
        Arc::new(DenyServiceExternalIPs),
        Arc::new(PodTopologyLabels),
        Arc::new(NodeDeclaredFeatureValidator),
        Arc::new(PodResizeValidator),
        Arc::new(RbacEscalation(escalation)),
        Arc::new(PolicyParameters(authorizer.clone())),
        Arc::new(MutatingAdmissionPolicies::new(authorizer.clone())),
        Arc::new(Mutating::new(outside.clone())),
        Arc::new(ValidatingAdmissionPolicies::new(authorizer)),
        Arc::new(Validating::new(outside)),
        Arc::new(ResourceQuota::default()),
        Arc::new(AlwaysDeny),
    ];
    all.extend(rest);
    all.into_iter().filter(|plugin| runs(plugin.name(), &arguments.plugins)).collect()
}
