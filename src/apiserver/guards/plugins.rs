//! The plugins that run, in upstream's order.

use std::sync::Arc;

use admission::Plugin;
use admission::always::{AlwaysAdmit, AlwaysDeny};
use admission::always_pull_images::AlwaysPullImages;
use admission::anti_affinity::LimitPodHardAntiAffinityTopology;
use admission::certificates::{Approval, Attest, Signing, SubjectRestriction};
use admission::default_ingress_class::DefaultIngressClass;
use admission::default_storage_class::DefaultStorageClass;
use admission::default_toleration_seconds::DefaultTolerationSeconds;
use admission::deny_external_ips::DenyServiceExternalIPs;
use admission::escalation::RbacEscalation;
use admission::event_rate_limit::EventRateLimit;
use admission::extended_resource_toleration::ExtendedResourceToleration;
use admission::image_policy::{ImagePolicy, ImagePolicyWebhook};
use admission::limit_ranger::LimitRanger;
use admission::names::runs;
use admission::namespace_lifecycle::NamespaceLifecycle;
use admission::namespaces::{NamespaceAutoProvision, NamespaceExists};
use admission::node_declared_features::NodeDeclaredFeatureValidator;
use admission::node_restriction::NodeRestriction;
use admission::owner_references::OwnerReferencesPermissionEnforcement;
use admission::pod_node_selector::PodNodeSelector;
use admission::pod_resize::PodResizeValidator;
use admission::pod_security::PodSecurity;
use admission::pod_toleration_restriction::PodTolerationRestriction;
use admission::pod_topology_labels::PodTopologyLabels;
use admission::policies::mutating::MutatingAdmissionPolicies;
use admission::policies::parameters::PolicyParameters;
use admission::policies::validating::ValidatingAdmissionPolicies;
use admission::priority::Priority;
use admission::resource_quota::ResourceQuota;
use admission::runtime_class::RuntimeClass;
use admission::service_account::ServiceAccount;
use admission::storage_in_use::StorageObjectInUseProtection;
use admission::taint_nodes::TaintNodesByCondition;
use admission::volume_resize::PersistentVolumeClaimResize;
use admission::webhooks::{Mutating, Outside, Validating};
use authz::escalation::Escalation;
use registry::objects::Objects;
use registry::webhook::kubeconfig::Remote;

use crate::arguments::Arguments;

/// Dependencies of [`plugins`].
pub(super) struct Parts<'a> {
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
pub(super) fn plugins(parts: Parts<'_>) -> Vec<Arc<dyn Plugin>> {
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
