//! The capabilities of the server, part by part: a handler takes the parts that it uses.

use std::sync::Arc;

use admission::run::Admission;
use authn::TokenIssuer;
use base::task::Group;
use registry::connect::Connector;
use registry::metrics::Metrics;
use registry::objects::Objects;
use registry::services::allocator::Allocator;
use registry::virtuals::Virtual;

use crate::access::Access;
use crate::aggregate::aggregation::Aggregation;
use crate::audit::auditor::Auditor;
use crate::config::Config;
use crate::crypt::rotate::Encryption;
use crate::flow::controller::Flow;
use crate::health::Health;
use crate::pages::Pages;
use crate::usage::meter::Meter;

/// A resource that computes its answers: group, plural, and who answers.
pub type VirtualRow = (&'static str, &'static str, Arc<dyn Virtual>);

/// The parts that answer requests.
pub struct Capabilities {
    pub(crate) config: Config,
    /// Stored objects.
    pub(crate) objects: Arc<Objects>,
    /// Authentication and authorization.
    pub(crate) access: Access,
    /// The plugins that change and judge.
    pub(crate) admission: Admission,
    /// Addresses and ports of services.
    pub(crate) allocator: Arc<Allocator>,
    pub(crate) metrics: Arc<Metrics>,
    /// APIs that others answer.
    pub(crate) aggregation: Arc<Aggregation>,
    /// Priority and fairness.
    pub(crate) flow: Flow,
    /// Answers that nobody has taken yet.
    pub(crate) held: Arc<wire::held::Accounts>,
    /// Discovery and OpenAPI.
    pub(crate) pages: Arc<Pages>,
    /// Measures of what nodes and pods use.
    pub(crate) usage: Meter,
    pub(crate) health: Arc<Health>,
    /// Service-account tokens.
    pub(crate) issuer: Arc<dyn TokenIssuer>,
    pub(crate) virtuals: Vec<VirtualRow>,
    /// Streams to nodes, pods and services.
    pub(crate) connector: Arc<dyn Connector>,
    /// Writes the audit log, if one is wanted.
    pub(crate) auditor: Option<Arc<Auditor>>,
    /// Encryption at rest, where it is configured.
    pub(crate) encryption: Option<Encryption>,
    /// The server's tasks; told to stop when the server is.
    pub(crate) group: Group,
}
