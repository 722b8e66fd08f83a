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
use super::names::runs;
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
use crate::objects::Objects;
use crate::webhook::kubeconfig::Remote;

/// Dependencies of [`plugins`].
pub struct Parts<'a> {
    /// Where plugins write.
    pub objects: Arc<Objects>,
    /// For roles and bindings.
    pub escalation: Escalation,
    /// The way to webhooks.
    pub outside: Outside,
    /// The flags.
    pub arguments: &'a Arguments,
    /// The backend of `ImagePolicyWebhook`, where one is configured.
    pub image_policy: Option<(ImagePolicy, Remote)>,
}

/// The plugins that run, in upstream's order; quota is the last to say yes.
pub fn plugins(parts: Parts<'_>) -> Vec<Arc<dyn Plugin>> {
    let Parts { objects, escalation, outside, arguments, image_policy } = parts;
    let authorizer = escalation.authorizer.clone();
    let image_policy =
        image_policy.map(|(policy, remote)| ImagePolicyWebhook::new(policy, remote, Arc::clone(&outside.webhooks)));
    let mut all: Vec<Arc<dyn Plugin>> = vec![
        Arc::new(AlwaysAdmit),
        Arc::new(NamespaceAutoProvision(Arc::clone(&objects))),
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
        Arc::new(ResourceQuota::new(Some(Arc::clone(&objects)), objects.clock.clone())),
        Arc::new(AlwaysDeny),
    ];
    all.extend(rest);
    all.into_iter().filter(|plugin| runs(plugin.name(), &arguments.plugins)).collect()
}
