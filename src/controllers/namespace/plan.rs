//! Findings of the emptying of a namespace, in upstream's conditions. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ApiResource;

/// Pods as [`resource_name`] writes them.
const PODS: &str = "pods.";

/// Findings of one pass over a namespace.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Why the kinds could not be learnt.
    pub(super) discovery: Option<String>,
    /// Kinds that could not be deleted or listed.
    pub(super) failures: Vec<String>,
    /// Objects that are still there, by resource.
    pub(super) remaining: BTreeMap<String, usize>,
    /// How many objects wait for each finalizer.
    pub(super) finalizers: BTreeMap<String, usize>,
}

impl Findings {
    /// Pods are left, or could not be looked at.
    pub(super) fn pods_remain(&self) -> bool {
        self.remaining.contains_key(PODS) || self.failures.iter().any(|failure| failure.starts_with(PODS))
    }

    /// Nothing is left and nothing failed.
    pub(super) fn is_empty(&self) -> bool {
        self.discovery.is_none() && self.failures.is_empty() && self.remaining.is_empty()
    }
}

/// `pods.` or `deployments.apps`, as upstream's messages name a resource.
pub(super) fn resource_name(resource: &ApiResource) -> String {
    format!("{}.{}", resource.plural, resource.group)
}

/// Upstream's five conditions of a namespace on its way out.
pub(super) fn conditions(found: &Findings, old: &[NamespaceCondition], now: &Time) -> Vec<NamespaceCondition> {
    let join = |counts: &BTreeMap<String, usize>, text: &dyn Fn(&String, &usize) -> String| {
        counts.iter().map(|(name, n)| text(name, n)).collect::<Vec<_>>().join(", ")
    };
    let condition = |kind: &str, bad: Option<(&str, String)>, good: (&str, &str)| {
        let status = if bad.is_some() { "True" } else { "False" };
        let (reason, message) = bad.unwrap_or_else(|| (good.0, good.1.to_owned()));
        let before = old.iter().find(|c| c.type_ == kind && c.status == status);
        NamespaceCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message),
            last_transition_time: before.and_then(|c| c.last_transition_time.clone()).or_else(|| Some(now.clone())),
        }
    };
    let failures = (!found.failures.is_empty()).then(|| {
        (
            "ContentDeletionFailed",
            format!(
                "Failed to delete all resource types, {} remaining: {}",
                found.failures.len(),
                found.failures.join(", ")
            ),
        )
    });
    let remaining = (!found.remaining.is_empty()).then(|| {
        let text = join(&found.remaining, &|name, n| format!("{name} has {n} resource instances"));
        ("SomeResourcesRemain", format!("Some resources are remaining: {text}"))
    });
    let finalizers = (!found.finalizers.is_empty()).then(|| {
        let text = join(&found.finalizers, &|name, n| format!("{name} in {n} resource instances"));
        ("SomeFinalizersRemain", format!("Some content in the namespace has finalizers remaining: {text}"))
    });
    let discovery = found
        .discovery
        .clone()
        .map(|err| ("DiscoveryFailed", format!("Discovery failed for some groups, 1 failing: {err}")));
    vec![
        condition(
            "NamespaceDeletionDiscoveryFailure",
            discovery,
            ("ResourcesDiscovered", "All resources successfully discovered"),
        ),
        condition(
            "NamespaceDeletionGroupVersionParsingFailure",
            None,
            ("ParsedGroupVersions", "All legacy kube types successfully parsed"),
        ),
        condition(
            "NamespaceDeletionContentFailure",
            failures,
            ("ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
        ),
        condition("NamespaceContentRemaining", remaining, ("ContentRemoved", "All content successfully removed")),
        condition(
            "NamespaceFinalizersRemaining",
            finalizers,
            ("ContentHasNoFinalizers", "All content-preserving finalizers finished"),
        ),
    ]
}
