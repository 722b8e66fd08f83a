//! Pod Security admission: a namespace's labels say which level its pods must keep, and for which it warns.

mod checks;
pub mod configuration;

use async_trait::async_trait;
use schema::meta;
use serde_json::Value;

use self::checks::{Level, violations};
use self::configuration::PodSecurityConfiguration;
use super::{Operation, Plugin, Review};
use crate::attributes::Attributes;
use crate::status::{Cause, Status};

const LABELS: &str = "pod-security.kubernetes.io";

/// Upstream's `PodSecurity`. Only the newest version of the standards is known: an older one asked for is judged by it.
#[derive(Default)]
pub struct PodSecurity(pub PodSecurityConfiguration);

#[async_trait]
impl Plugin for PodSecurity {
    fn name(&self) -> &'static str {
        "PodSecurity"
    }

    fn handles(&self, operation: Operation, a: &Attributes) -> bool {
        let pods = a.group.is_empty() && a.resource == "pods" && matches!(a.subresource.as_str(), "" | "ephemeralcontainers");
        let template = a.subresource.is_empty() && template_of(&a.group, &a.resource).is_some();
        matches!(operation, Operation::Create | Operation::Update) && (pods || template || a.is("", "namespaces"))
    }

    async fn admit(&self, review: &mut Review<'_>) -> Result<(), Status> {
        let a = review.attributes;
        if a.resource == "namespaces" {
            return Ok(());
        }
        let Some(namespace) = review.lookup.sure("", "namespaces", "", &a.namespace).await else { return Ok(()) };
        let Some((metadata, spec)) = judged(review) else { return Ok(()) };
        if self.0.exemption(&a.user.name, &a.namespace, spec).is_some() {
            return Ok(());
        }
        let would = |mode: &str| {
            let (level, version) = self.asked(&namespace, mode);
            let why = violations(level, metadata, spec)?;
            Some(format!("would violate PodSecurity \"{}:{version}\": {why}", level.as_str()))
        };
        if let Some(text) = would("audit") {
            a.trail.note(&format!("{LABELS}/audit-violations"), &text);
        }
        if let Some(text) = would("warn") {
            review.warnings.push(text);
        }
        Ok(())
    }

    async fn validate(&self, review: &Review<'_>) -> Result<(), Status> {
        let a = review.attributes;
        if a.resource == "namespaces" {
            return labels(review);
        }
        if a.resource != "pods" {
            return Ok(());
        }
        let found = review.lookup.sure("", "namespaces", "", &a.namespace).await;
        let namespace = found.ok_or_else(|| Status::not_found("", "namespaces", &a.namespace))?;
        let Some((metadata, spec)) = judged(review) else { return Ok(()) };
        if let Some(why) = self.0.exemption(&a.user.name, &a.namespace, spec) {
            a.trail.note(&format!("{LABELS}/exempt"), why);
            return Ok(());
        }
        let (level, version) = self.asked(&namespace, "enforce");
        a.trail.note(&format!("{LABELS}/enforce-policy"), &format!("{}:{version}", level.as_str()));
        match violations(level, metadata, spec) {
            Some(why) => Err(review.forbidden(&format!("violates PodSecurity \"{}:{version}\": {why}", level.as_str()))),
            None => Ok(()),
        }
    }
}

/// Where a workload keeps its pod template; workloads are warned about, their pods are refused.
fn template_of(group: &str, resource: &str) -> Option<&'static str> {
    match (group, resource) {
        ("apps", "deployments" | "replicasets" | "statefulsets" | "daemonsets") | ("batch", "jobs") | ("", "replicationcontrollers") => {
            Some("/spec/template")
        }
        ("batch", "cronjobs") => Some("/spec/jobTemplate/spec/template"),
        ("", "podtemplates") => Some("/template"),
        _ => None,
    }
}

/// Metadata and spec to judge; nothing for an update that changes neither.
fn judged<'a>(review: &'a Review<'_>) -> Option<(&'a Value, &'a Value)> {
    let a = review.attributes;
    let pointer = if a.resource == "pods" { "" } else { template_of(&a.group, &a.resource)? };
    let pod = review.object.pointer(pointer)?;
    if let Some(old) = review.old.and_then(|old| old.pointer(pointer))
        && old["spec"] == pod["spec"]
        && old["metadata"]["annotations"] == pod["metadata"]["annotations"]
    {
        return None;
    }
    Some((&pod["metadata"], &pod["spec"]))
}

impl PodSecurity {
    /// Level and version of one mode; a label that cannot be read is as strict as can be, as upstream.
    fn asked(&self, namespace: &Value, mode: &str) -> (Level, String) {
        let (level, version) = self.0.default_of(mode);
        let said = meta::label(namespace, &format!("{LABELS}/{mode}-version"));
        match meta::label(namespace, &format!("{LABELS}/{mode}")) {
            None => (level, said.map_or(version, str::to_owned)),
            Some(text) => (Level::parse(text).unwrap_or(Level::Restricted), said.unwrap_or("latest").to_owned()),
        }
    }
}

/// Labels of a namespace must be readable: a typing error must not leave it open.
fn labels(review: &Review<'_>) -> Result<(), Status> {
    let mut causes = Vec::new();
    for mode in ["enforce", "audit", "warn"] {
        let key = format!("{LABELS}/{mode}");
        let version_key = format!("{key}-version");
        let same = |key: &str| review.old.is_some_and(|old| meta::label(old, key) == meta::label(review.object, key));
        let mut refuse = |key: &str, text: &str, why: &str| {
            let message = format!("Invalid value: {text:?}: {why}");
            causes.push(Cause { reason: "FieldValueInvalid".to_owned(), message, field: format!("metadata.labels[{key}]") });
        };
        if let Some(text) = meta::label(review.object, &key).filter(|text| Level::parse(text).is_none() && !same(&key)) {
            refuse(&key, text, "must be one of privileged, baseline, restricted");
        }
        if let Some(text) = meta::label(review.object, &version_key).filter(|text| !is_version(text) && !same(&version_key)) {
            refuse(&version_key, text, "must be \"latest\" or \"v1.x\"");
        }
    }
    if causes.is_empty() { Ok(()) } else { Err(Status::invalid("", "Namespace", &review.attributes.name, causes)) }
}

fn is_version(text: &str) -> bool {
    let minor = text.strip_prefix("v1.").unwrap_or_default();
    let number = !minor.is_empty() && minor.bytes().all(|b| b.is_ascii_digit()) && (minor == "0" || !minor.starts_with('0'));
    text == "latest" || number
}

#[cfg(test)]
#[path = "pod_security_tests.rs"]
mod tests;
