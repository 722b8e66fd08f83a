//! A version of a CRD and what it says of its objects: data, which the row of the resource carries.

use serde_json::Value;

use super::node::Node;

/// The finalizer of a definition whose objects are still to be removed.
pub const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Facts about the objects of one version of a CRD beyond the row of the table.
#[derive(Debug)]
pub struct Definition {
    /// Name of the CRD.
    pub crd: String,
    /// Its uid.
    pub uid: String,
    /// The schema.
    pub schema: Node,
    /// The same as it was written, for OpenAPI.
    pub openapi: Value,
    /// `additionalPrinterColumns`, or the default ones.
    pub columns: Vec<Value>,
    /// `subresources.scale`: JSON paths of spec replicas, status replicas and the label selector.
    pub scale: Option<Scale>,
    /// The warning that everybody gets who uses a deprecated version.
    pub warning: Option<String>,
    /// `spec.conversion` if its strategy is Webhook.
    pub webhook: Option<Value>,
    /// The CRD is being deleted: nothing new may be made.
    pub terminating: bool,
    /// A text that changes when the definition changes.
    pub stamp: String,
}

/// Where a custom object keeps its replica counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Such as `spec.replicas`.
    pub spec: Vec<String>,
    /// Such as `status.replicas`.
    pub status: Vec<String>,
    /// Such as `status.selector`.
    pub selector: Option<Vec<String>>,
}
