//! Attributes of a request: the facts of a request on which authorization and admission decide.

use std::sync::Arc;

use model::reference::{GroupResource, NamespacedName};
use serde_json::Value;

use crate::trail::Trail;
use crate::user::UserInfo;

/// One request, as upstream's `authorizer.Attributes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The user, after impersonation.
    pub user: Arc<UserInfo>,
    /// `get list watch create update patch delete deletecollection proxy connect…`, or the lower-case HTTP method
    /// for a path that is no resource.
    pub verb: String,
    /// API group, empty for core.
    pub group: String,
    /// API version, e.g. `v1`.
    pub version: String,
    /// Plural resource, e.g. `pods`; empty for a path that is no resource.
    pub resource: String,
    /// `status`, `log`, … or empty.
    pub subresource: String,
    /// Namespace, or empty (cluster scope, or all namespaces).
    pub namespace: String,
    /// Name, or empty.
    pub name: String,
    /// Path of the URL.
    pub path: String,
    /// False for `/healthz` and the like.
    pub is_resource: bool,
    /// `labelSelector` of the query, as sent.
    pub label_selector: String,
    /// `fieldSelector` of the query, as sent.
    pub field_selector: String,
    /// CreateOptions, UpdateOptions, PatchOptions or DeleteOptions, as admission is shown them; `Null` for what only
    /// reads.
    pub options: Arc<Value>,
    /// Notes of this request, shared by all copies.
    pub trail: Trail,
}

impl Attributes {
    /// Whether the verb leaves everything as it is.
    pub fn is_read_only(&self) -> bool {
        matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// `pods` or `pods/status`, as rules of RBAC name it.
    pub fn resource_path(&self) -> String {
        if self.subresource.is_empty() {
            self.resource.clone()
        } else {
            format!("{}/{}", self.resource, self.subresource)
        }
    }

    /// The resource that it is about.
    pub fn group_resource(&self) -> GroupResource<'_> {
        GroupResource { group: &self.group, resource: &self.resource }
    }

    /// The object that it is about.
    pub fn namespaced_name(&self) -> NamespacedName<'_> {
        NamespacedName { namespace: &self.namespace, name: &self.name }
    }

    /// Whether the request is about this subresource, e.g. `resize` of pods.
    pub fn is_subresource(&self, of: GroupResource<'_>, subresource: &str) -> bool {
        self.group_resource() == of && self.subresource == subresource
    }

    /// Whether the request is about the resource itself, and not a subresource.
    pub fn is(&self, of: GroupResource<'_>) -> bool {
        self.is_subresource(of, "")
    }
}
