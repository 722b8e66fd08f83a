//! Pod Security admission: a namespace's labels say which level its pods must keep, and for which it warns.

mod checks;
pub mod configuration;
mod namespace;
mod policy;

use async_trait::async_trait;
use model::reference::{GroupResource, NamespacedName};
use registry::attributes::Attributes;
use registry::status::Status;
use serde_json::Value;

use self::checks::{details, violations};
use self::configuration::PodSecurityConfiguration;
use self::policy::{Asked, LABELS, Policy};
use super::{Operation, Plugin, Review};

/// Upstream's `PodSecurity`, with every version of the standards that it knows.
#[derive(Default)]
pub struct PodSecurity(pub PodSecurityConfiguration);

#[async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        let pods =
            a.group.is_empty() && a.resource == "pods" && matches!(a.subresource.as_str(), "" | "ephemeralcontainers");
        let template = a.subresource.is_empty() && template_of(a.group_resource()).is_some();
        matches!(operation, Operation::Create | Operation::Update)
            && (pods || template || a.is(GroupResource::core("namespaces")))
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let a = review.attributes;
        if a.resource == "namespaces" {
            return namespace::judge(self, review).await;
        }
        let Some((metadata, spec)) = judged(review) else { return Ok(()) };
        if let Some(why) = self.0.exemption(&a.user, &a.namespace, spec) {
            a.trail.note(&format!("{LABELS}/exempt"), why);
            return Ok(());
        }
        let is_pod =
            a.is(GroupResource::core("pods")) || a.is_subresource(GroupResource::core("pods"), "ephemeralcontainers");
        let Some(namespace) =
            review.lookup.sure(GroupResource::core("namespaces"), NamespacedName::cluster(&a.namespace)).await
        else {
            return if is_pod {
                Err(Status::not_found(GroupResource::core("namespaces"), &a.namespace))
            } else {
                Ok(())
            };
        };
        let (policy, unreadable) = Policy::of(&namespace, &self.0.defaults);
        for cause in &unreadable {
            a.trail.note("error", format!("Failed to parse policy: {}: {}", cause.field, cause.message));
        }
        let why = |asked: Asked| {
            let found = violations(asked, metadata, spec);
            (!found.is_empty()).then(|| format!("PodSecurity \"{asked}\": {}", details(&found)))
        };
        if let Some(why) = why(policy.audit) {
            a.trail.note(&format!("{LABELS}/audit-violations"), format!("would violate {why}"));
        }
        // Workloads are warned about; it is their pods that are refused.
        if is_pod {
            a.trail.note(&format!("{LABELS}/enforce-policy"), policy.enforce.to_string());
            if let Some(why) = why(policy.enforce) {
                return Err(review.forbidden(&format!("violates {why}")));
            }
        }
        a.trail.warn(why(policy.warn).map(|why| format!("would violate {why}")));
        Ok(())
    }
}

/// Where a workload keeps its pod template; workloads are warned about, their pods are refused.
fn template_of(of: GroupResource<'_>) -> Option<&'static str> {
    match (of.group, of.resource) {
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets")
        | ("batch", "jobs")
        | ("", "replicationcontrollers") => Some("/spec/template"),
        ("batch", "cronjobs") => Some("/spec/jobTemplate/spec/template"),
        ("", "podtemplates") => Some("/template"),
        _ => None,
    }
}

/// Metadata and spec to judge; nothing for an update of a pod that brings no new image, as the rest of what is judged
/// never changes.
fn judged<'a>(review: &'a Review<'_>) -> Option<(&'a Value, &'a Value)> {
    let a = review.attributes;
    let is_pod = a.group.is_empty() && a.resource == "pods";
    let pointer = if is_pod { "" } else { template_of(GroupResource { group: &a.group, resource: &a.resource })? };
    let pod = review.object.pointer(pointer)?;
    if is_pod && review.old.is_some_and(|old| images(&old["spec"]) == images(&pod["spec"])) {
        return None;
    }
    Some((&pod["metadata"], &pod["spec"]))
}

/// The names and images of all containers.
fn images(spec: &Value) -> Vec<(&Value, &Value)> {
    let lists = ["initContainers", "containers", "ephemeralContainers"].into_iter();
    lists
        .flat_map(|list| spec[list].as_array().into_iter().flatten())
        .map(|container| (&container["name"], &container["image"]))
        .collect()
}

#[cfg(test)]
#[path = "pod_security_tests.rs"]
mod tests;
