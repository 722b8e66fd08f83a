//! Names of the plugins that flags may enable and disable.

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
pub fn known(name: &str) -> Result<(), String> {
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
