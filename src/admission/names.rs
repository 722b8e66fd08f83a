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

/// A name that is no plugin's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("admission plugin {0:?} is unknown: kedge has {all}", all = [USUAL, OPTIONAL, IDLE].concat().join(", "))]
pub struct UnknownPlugin(pub String);

/// Whether a flag may name this plugin.
pub fn known(name: &str) -> Result<(), UnknownPlugin> {
    match [USUAL, OPTIONAL, IDLE].iter().any(|list| list.contains(&name)) {
        true => Ok(()),
        false => Err(UnknownPlugin(name.to_owned())),
    }
}

/// Whether a plugin runs, by the names that flags enable and disable. What is no plugin of upstream's always does.
pub fn runs(name: &str, (enabled, disabled): &(Vec<String>, Vec<String>)) -> bool {
    let in_list = |list: &[String]| list.iter().any(|n| n == name);
    in_list(enabled) || (!in_list(disabled) && !OPTIONAL.contains(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_runs_as_the_flags_say() {
        let flags = |enabled: &[&str], disabled: &[&str]| {
            let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
            (owned(enabled), owned(disabled))
        };
        for (name, enabled, disabled, wanted) in [
            ("LimitRanger", &[][..], &[][..], true),
            ("LimitRanger", &[], &["LimitRanger"], false),
            // Upstream: a plugin that is named in both lists is enabled.
            ("LimitRanger", &["LimitRanger"], &["LimitRanger"], true),
            ("AlwaysDeny", &[], &[], false),
            ("AlwaysDeny", &["AlwaysDeny"], &[], true),
            ("kedge's own", &[], &[], true),
        ] {
            assert_eq!(runs(name, &flags(enabled, disabled)), wanted, "{name} {enabled:?} {disabled:?}");
        }
    }

    #[test]
    fn a_name_is_known_or_refused_with_those_that_there_are() {
        for name in ["NamespaceLifecycle", "AlwaysAdmit", "JobValidation"] {
            assert_eq!(known(name), Ok(()));
        }
        let refused = known("namespacelifecycle").unwrap_err().to_string();
        let head = "admission plugin \"namespacelifecycle\" is unknown: kedge has NamespaceLifecycle, LimitRanger, ";
        assert!(refused.starts_with(head) && refused.ends_with(", PodGroupWorkloadExists"), "{refused}");
    }
}
