//! The plugins that run, in upstream's order.

use std::sync::Arc;

use super::Plugin;
use super::certificates::{Approval, Signing, SubjectRestriction};
use super::default_ingress_class::DefaultIngressClass;
use super::default_storage_class::DefaultStorageClass;
use super::default_toleration_seconds::DefaultTolerationSeconds;
use super::escalation::RbacEscalation;
use super::limit_ranger::LimitRanger;
use super::namespace_lifecycle::NamespaceLifecycle;
use super::node_restriction::NodeRestriction;
use super::pod_security::PodSecurity;
use super::policies::mutating::MutatingAdmissionPolicies;
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

/// The plugins that upstream's flags may name.
pub const NAMES: &[&str] = &[
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
    "CertificateSubjectRestriction",
    "DefaultIngressClass",
    "MutatingAdmissionPolicy",
    "MutatingAdmissionWebhook",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionWebhook",
    "ResourceQuota",
];

/// Every plugin that is on by default upstream, in upstream's order; quota is the last to say yes.
pub fn plugins(escalation: Escalation, outside: Outside, arguments: &Arguments) -> Vec<Arc<dyn Plugin>> {
    let authorizer = escalation.authorizer.clone();
    let all: Vec<Arc<dyn Plugin>> = vec![
        Arc::new(NamespaceLifecycle),
        Arc::new(LimitRanger),
        Arc::new(ServiceAccount { rng: outside.rng.clone() }),
        Arc::new(NodeRestriction),
        Arc::new(TaintNodesByCondition),
        Arc::new(PodSecurity(arguments.admission.pod_security.clone())),
        Arc::new(Priority),
        Arc::new(DefaultTolerationSeconds { secs: arguments.tolerations_secs }),
        Arc::new(DefaultStorageClass),
        Arc::new(StorageObjectInUseProtection),
        Arc::new(PersistentVolumeClaimResize),
        Arc::new(RuntimeClass),
        Arc::new(Approval(authorizer.clone())),
        Arc::new(Signing(authorizer.clone())),
        Arc::new(SubjectRestriction),
        Arc::new(DefaultIngressClass),
        Arc::new(RbacEscalation(escalation)),
        Arc::new(MutatingAdmissionPolicies::new(authorizer.clone())),
        Arc::new(Mutating::new(outside.clone())),
        Arc::new(ValidatingAdmissionPolicies::new(authorizer)),
        Arc::new(Validating::new(outside)),
        Arc::new(ResourceQuota::default()),
    ];
    let (enabled, disabled) = &arguments.plugins;
    let stays = |name: &str| enabled.iter().any(|n| n == name) || !disabled.iter().any(|n| n == name);
    all.into_iter().filter(|plugin| stays(plugin.name())).collect()
}
