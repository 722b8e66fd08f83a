//! Admission: changing and judging an object between authorization and the store. One file per plugin.

pub mod always;
pub mod always_pull_images;
pub mod anti_affinity;
pub mod certificates;
pub mod charges;
pub mod conditions;
pub mod configuration;
pub mod default_ingress_class;
pub mod default_storage_class;
pub mod default_toleration_seconds;
pub mod deny_external_ips;
pub mod error;
pub mod escalation;
pub mod event_rate_limit;
pub mod expressions;
pub mod extended_resource_toleration;
pub mod image_policy;
pub mod limit_ranger;
pub mod matching;
pub mod names;
pub mod namespace_lifecycle;
pub mod namespaces;
pub mod node_declared_features;
pub mod node_restriction;
pub mod owner_references;
pub mod pod_node_selector;
pub mod pod_resize;
pub mod pod_security;
pub mod pod_toleration_restriction;
pub mod pod_topology_labels;
pub mod policies;
pub mod priority;
pub mod references;
pub mod reinvocation;
pub mod resource_quota;
pub mod run;
pub mod runtime_class;
pub mod service_account;
pub mod storage_in_use;
pub mod taint_nodes;
pub mod tally;
pub mod timing;
pub mod volume_resize;
pub mod webhooks;

use std::sync::OnceLock;

use async_trait::async_trait;
use registry::attributes::Attributes;
use registry::lookup::{InVersion, Lookup};
use registry::status::Status;
use schema::catalog::Catalog;
use serde_json::Value;

/// Operation on the object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A new object (or a create of a subresource such as `pods/binding`, `pods/eviction`, `serviceaccounts/token`).
    Create,
    /// A change: update, patch or apply, of the object or of a subresource such as `status`.
    Update,
    /// A removal: `object` is `Null`, `old` is what goes.
    Delete,
    /// `exec`, `attach`, `portforward`, `proxy`: `object` is the options, `Null` if there are none.
    Connect,
}

/// One object on its way to the store.
pub struct Review<'a> {
    /// The operation.
    pub operation: Operation,
    /// Of the request. `namespace` and `name` are those of the object (a generated name is filled in already).
    pub attributes: &'a Attributes,
    /// Kind of `object`, e.g. `Pod` (for a subresource, of what was sent, e.g. `Binding`).
    pub kind: &'a str,
    /// The new object in the storage version; `Null` when deleting. Only [`Plugin::admit`] may change it.
    pub object: &'a mut Value,
    /// The stored object, for update and delete.
    pub old: Option<&'a Value>,
    /// Nothing will be stored: a plugin must have no effect of its own.
    pub dry_run: bool,
    /// Every resource that is served now.
    pub catalog: &'a Catalog,
    /// Other objects.
    pub lookup: &'a dyn Lookup,
    /// Brings objects into other versions.
    pub versions: &'a dyn InVersion,
    /// Texts for `Warning` headers.
    pub warnings: &'a mut Vec<String>,
    /// Rounds of mutation.
    pub reinvocation: reinvocation::Reinvocation,
    /// The charge of a quota: it goes into the transaction that stores the object.
    pub charge: OnceLock<charges::Charge>,
}

impl Review<'_> {
    /// 403 `pods "x" is forbidden: why`, about the object under review.
    pub fn forbidden(&self, why: &str) -> Status {
        Status::forbidden(self.attributes.group_resource(), &self.attributes.name, why)
    }
}

/// One admission plugin.
#[async_trait]
pub trait Plugin: Send + Sync + 'static {
    /// As upstream's flag names it, e.g. `NamespaceLifecycle`.
    fn name(&self) -> &'static str;
    /// Whether it looks at such requests at all.
    fn handles(&self, operation: Operation, attributes: &Attributes) -> bool;
    /// First round: may change the object.
    async fn admit(&self, _review: &mut Review<'_>) -> Result<(), Status> {
        Ok(())
    }
    /// Second round, after every change: judges.
    async fn validate(&self, _review: &Review<'_>) -> Result<(), Status> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
